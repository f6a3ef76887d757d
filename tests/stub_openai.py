"""Stands in for a vLLM server behind the gateway: an ASGI application that answers as it is told to.

In a thread its attributes are changed while it runs; ``stub_openai.py PORT`` is one in a process, to be killed.
"""

import asyncio
import json
import sys
import threading
import time

import uvicorn


class ClientGoneError(Exception):
    pass


class Stub:
    """One server; what a test sets, and what it looks at afterwards."""

    def __init__(self, name="stub", **told):
        self.name, self.models = name, ["m"]
        self.status, self.healthy, self.load = 200, True, (0, 0)
        #: Before the first chunk, between two, and how many there are.
        self.delay_s, self.gap_s, self.chunks = 0.0, 0.0, 3
        #: Breaks the connection after so many chunks; 0: after the headers.
        self.dies_after = None
        #: While True no answer begins.
        self.shut = False
        #: Sends every event in two parts; ends a stream with [DONE].
        self.torn, self.done = False, True
        self.seen, self.sent, self.active, self.cancelled = [], b"", 0, 0
        self.__dict__.update(told)

    async def __call__(self, scope, receive, send):
        if scope["type"] != "http":
            return
        path = scope["path"]
        if path == "/health":
            await answer(send, 200 if self.healthy else 503, b"")
        elif path == "/metrics":
            names = zip(("running", "waiting"), self.load, strict=True)
            lines = [
                f'# TYPE vllm:num_requests_{name} gauge\nvllm:num_requests_{name}{{engine="0"}} {n}\n'
                for name, n in names
            ]
            await answer(send, 200, "".join(lines).encode(), "text/plain")
        elif path == "/v1/models":
            models = [{"id": name, "object": "model", "created": 1, "owned_by": self.name} for name in self.models]
            await answer(send, 200, json.dumps({"object": "list", "data": models}).encode())
        else:
            await self.generate(scope, receive, send)

    async def generate(self, scope, receive, send):
        body = b""
        while True:
            message = await receive()
            body += message.get("body", b"")
            if not message.get("more_body"):
                break
        headers = {key.decode(): value.decode() for key, value in scope["headers"]}
        self.seen.append((headers, json.loads(body)))
        self.active += 1
        gone = asyncio.create_task(receive())
        try:
            await self.say(scope["path"], json.loads(body), send, gone)
        except ClientGoneError:
            self.cancelled += 1
        finally:
            self.active -= 1
            gone.cancel()

    async def say(self, path, body, send, gone):
        while self.shut:
            await pause(gone, 0.01)
        await pause(gone, self.delay_s)
        chat = "chat" in path
        if self.status != 200:
            error = {
                "error": {"message": f"told to: {self.status}", "type": "Told", "param": None, "code": self.status}
            }
            await answer(send, self.status, json.dumps(error).encode())
        elif body.get("stream"):
            await self.stream(chat, send, gone)
        else:
            text = "x" * self.chunks
            choice = {"message": {"role": "assistant", "content": text}} if chat else {"text": text}
            content = json.dumps(said(chat, False, choice | {"finish_reason": "length"}), indent=1).encode()
            if self.dies_after is not None:
                await begin(send, 200, "application/json", len(content))
                await send({"type": "http.response.body", "body": content[:-5], "more_body": True})
                raise RuntimeError("told to die")
            await answer(send, 200, content)

    async def stream(self, chat, send, gone):
        await begin(send, 200, "text/event-stream; charset=utf-8")
        for number in range(self.chunks):
            if number == self.dies_after:
                raise RuntimeError("told to die")
            choice = {"delta": {"content": "é "}} if chat else {"text": "é "}
            event = json.dumps(said(chat, True, choice | {"finish_reason": None}), ensure_ascii=False)
            await self.event(f"data: {event}\n\n".encode(), send, gone)
        if self.done:
            await self.event(b"data: [DONE]\n\n", send, gone)
        await send({"type": "http.response.body", "body": b""})

    async def event(self, content, send, gone):
        cut = len(content) // 2 if self.torn else 0
        for part in filter(None, (content[:cut], content[cut:])):
            await send({"type": "http.response.body", "body": part, "more_body": True})
            self.sent += part
            await pause(gone, self.gap_s)


async def pause(gone, seconds):
    done, _ = await asyncio.wait({gone}, timeout=seconds)
    if done:
        raise ClientGoneError


def said(chat, streamed, choice):
    kind = ("chat.completion.chunk" if streamed else "chat.completion") if chat else "text_completion"
    choices = [{"index": 0, "logprobs": None} | choice]
    return {"id": "c-1", "object": kind, "created": 1, "model": "m", "choices": choices}


async def begin(send, status, kind, length=None):
    headers = [(b"content-type", kind.encode()), (b"x-from", b"stub")]
    headers += [] if length is None else [(b"content-length", str(length).encode())]
    await send({"type": "http.response.start", "status": status, "headers": headers})


async def answer(send, status, content, kind="application/json"):
    await begin(send, status, kind, len(content))
    await send({"type": "http.response.body", "body": content})


class Served:
    """An ASGI application served on loopback by a thread."""

    def __init__(self, app, port):
        self.app, self.port, self.url = app, port, f"http://127.0.0.1:{port}"
        self.start()

    def start(self):
        config = uvicorn.Config(self.app, host="127.0.0.1", port=self.port, log_config=None, access_log=False)
        # For a gateway that is stopped while a test has failed.
        config.timeout_graceful_shutdown = 2
        self.server = uvicorn.Server(config)
        self.thread = threading.Thread(target=self.server.run, daemon=True)
        self.thread.start()
        deadline = time.monotonic() + 10
        while not self.server.started:
            assert time.monotonic() < deadline, "the server did not start"
            time.sleep(0.005)

    def ending(self, force):
        self.server.should_exit, self.server.force_exit = True, force

    def stop(self, force=True):
        """By force it ends as if killed: open answers break off."""
        self.ending(force)
        self.thread.join(10)


if __name__ == "__main__":
    uvicorn.run(Stub("process", gap_s=0.05, chunks=1000), port=int(sys.argv[1]), log_config=None)
