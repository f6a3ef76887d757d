"""Stands in for vLLM's server in tests of what surrounds it: answers, streams, and fails on demand.

Started as ``stub_engine.py -m vllm... --port N ...`` by a wrapper that plays the interpreter.
``STUB_FAIL`` says how it fails: ``never_ready``, ``dies_loading``, ``dies_serving``, ``hangs``.
"""

import json
import os
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

FAIL = os.environ.get("STUB_FAIL", "")
COUNTS = {"prompt": 0, "generation": 0}
LOCK = threading.Lock()


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, *arguments):
        pass

    def answer(self, body, kind="application/json"):
        self.send_response(200)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def do_GET(self):
        if self.path == "/version":
            return self.answer(b'{"version": "0.0.stub"}')
        if self.path == "/metrics":
            lines = [f"# TYPE vllm:{name}_tokens counter\nvllm:{name}_tokens_total {n}\n" for name, n in COUNTS.items()]
            return self.answer("".join(lines).encode(), "text/plain")
        return self.answer(b"{}")

    def do_POST(self):
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"] or 0)) or b"{}")
        if self.path == "/reset_prefix_cache":
            return self.answer(b"{}")
        if FAIL == "dies_serving" and body.get("stream"):
            os._exit(7)
        if FAIL == "hangs" and body.get("stream"):
            time.sleep(3600)
        tokens = int(body.get("max_tokens", 1))
        print("prompt", body["prompt"][:8], flush=True)
        with LOCK:
            COUNTS["prompt"] += len(body["prompt"])
            COUNTS["generation"] += tokens
        if not body.get("stream"):
            return self.answer(b'{"choices": [{"text": "x"}]}')
        return self.stream(len(body["prompt"]), tokens)

    def stream(self, prompt, tokens):
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.send_header("Connection", "close")
        self.end_headers()
        for _ in range(tokens):
            self.event({"choices": [{"text": "x "}]})
            time.sleep(0.001)
        usage = {"prompt_tokens": prompt, "completion_tokens": tokens, "total_tokens": prompt + tokens}
        self.event({"choices": [], "usage": usage})
        self.wfile.write(b"data: [DONE]\n\n")
        self.close_connection = True

    def event(self, content):
        self.wfile.write(b"data: " + json.dumps(content).encode() + b"\n\n")
        self.wfile.flush()


def main():
    print("loading the stub", flush=True)
    if FAIL == "dies_loading":
        print("ValueError: no such model", flush=True)
        sys.exit(1)
    if FAIL == "never_ready":
        time.sleep(3600)
    port = int(sys.argv[sys.argv.index("--port") + 1])
    ThreadingHTTPServer(("127.0.0.1", port), Handler).serve_forever()


if __name__ == "__main__":
    main()
