"""The gateway over real sockets: stub servers behind it, OpenAI's own client and httpx before it."""

import json
import logging
import socket
import socketserver
import subprocess
import sys
import threading
import time
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families

from hetgpu.cli import main
from hetgpu.errors import DataError
from hetgpu.measure.engine import free_port
from hetgpu.paths import inside
from hetgpu.route import upstream as upstream_module
from hetgpu.route.config import load_config

pytest.importorskip("starlette", reason="the engine's environment is not installed here")
pytest.importorskip("uvicorn", reason="the engine's environment is not installed here")
openai = pytest.importorskip("openai", reason="the engine's environment is not installed here")

from stub_openai import Served, Stub  # noqa: E402

from hetgpu.route import gateway as gateway_module  # noqa: E402
from hetgpu.route.gateway import Gateway  # noqa: E402
from hetgpu.route.wire import prompt_tokens  # noqa: E402

pytestmark = pytest.mark.engine

PROFILE = {
    "network_ms": 1, "idle_ttft_ms": 50, "ttft_ms_per_running": 5, "room": 2, "capacity_req_per_s": 10,
    "usd_per_mtok": 0.5, "gco2_per_mtok": 100,
}  # fmt: skip
CLASSES = {"chat": {"ttft_slo_ms": 500, "expected_output_tokens": 50}, "batch": {"expected_output_tokens": 50}}
BODY = {"model": "m", "prompt": "a secret prompt", "max_tokens": 3}
BATCH = {"x-request-class": "batch"}


def until(holds, within_s=5.0):
    """Wait until it holds; that it does."""
    deadline = time.monotonic() + within_s
    while not holds():
        assert time.monotonic() < deadline, "it did not come to hold"
        time.sleep(0.005)
    return True


class Fleet:
    """A gateway and the stubs behind it."""

    def __init__(self, folder, policy, stubs, top=None, **more):
        self.stubs, self.served = stubs, {stub.name: Served(stub, free_port()) for stub in stubs}
        entries = [
            {"name": stub.name, "url": self.served[stub.name].url, "tier": f"{stub.name}-tier", **PROFILE}
            | {"enterprise": stub.name.startswith("big")}
            | more.get(stub.name, {})
            for stub in stubs
        ]
        self.gateway = start(folder, policy, entries, **(top or {}))
        self.front = Served(self.gateway.app, free_port())
        self.url = self.front.url
        self.http = httpx.Client(base_url=self.url, timeout=20.0)

    def openai(self):
        return openai.OpenAI(base_url=f"{self.url}/v1", api_key="sk-client-key", max_retries=0)

    def post(self, body=BODY, headers=None, path="/v1/completions"):
        return self.http.post(path, json=body, headers=headers)

    def in_flight(self):
        return {upstream.name: upstream.own for upstream in self.gateway.upstreams}

    def idle(self):
        return not any(self.in_flight().values()) and not self.gateway.desk.waiting

    def samples(self):
        families = text_string_to_metric_families(self.http.get("/metrics").text)
        found = {}
        for sample in (sample for family in families for sample in family.samples):
            labels = tuple(sample.labels[key] for key in ("upstream", "class", "status") if key in sample.labels)
            found[(sample.name.removeprefix("hetgpu_gateway_"), *labels)] = sample.value
        return found

    def counted(self):
        """The requests that ended, by upstream, class and status; one is counted just after its last byte is sent."""
        return {key[1:]: int(value) for key, value in self.samples().items() if key[0] == "requests_total"}

    def stop(self):
        self.http.close()
        for served in self.served.values():
            served.ending(force=True)
        self.front.stop(force=False)
        for served in self.served.values():
            served.stop()


def start(folder, policy, entries, **top):
    path = folder / "gateway.yaml"
    # JSON is YAML.
    path.write_text(json.dumps({"policy": policy, "upstreams": entries, "classes": CLASSES} | top))
    return Gateway(load_config(path))


@pytest.fixture
def fleet(tmp_path, monkeypatch):
    """Makes a fleet with a fast poll; at the end no request may be left in flight or waiting."""
    monkeypatch.setattr(gateway_module, "POLL_S", 0.1)
    made = []

    def make(policy, *stubs, **more):
        made.append(Fleet(tmp_path, policy, stubs, **more))
        return made[-1]

    yield make
    try:
        for one in made:
            assert until(one.idle)
    finally:
        for one in made:
            one.stop()


@contextmanager
def in_background(*works):
    """Run functions in threads; all have ended at the block's end."""
    threads = [threading.Thread(target=work) for work in works]
    for thread in threads:
        thread.start()
    yield
    for thread in threads:
        thread.join(20)
        assert not thread.is_alive()


# What a client sees


def test_openai_s_client_works_unchanged(fleet):
    client = fleet("by-class", Stub("big")).openai()
    assert client.completions.create(**BODY).choices[0].text == "xxx"
    messages = [{"role": "user", "content": "hello"}]
    assert client.chat.completions.create(model="m", messages=messages).choices[0].message.content == "xxx"
    texts = [chunk.choices[0].text for chunk in client.completions.create(**BODY, stream=True)]
    assert texts == ["é "] * 3
    chat = client.chat.completions.create(model="m", messages=messages, stream=True)
    assert "".join(chunk.choices[0].delta.content for chunk in chat) == "é é é "
    assert [model.id for model in client.models.list()] == ["m"]


def test_models_are_the_union_of_the_upstreams(fleet):
    one = fleet("by-class", Stub("big", models=["m", "n"]), Stub("small", models=["m", "o"]))
    served = one.http.get("/v1/models").json()["data"]
    assert {model["id"]: model["owned_by"] for model in served} == {"m": "big", "n": "big", "o": "small"}


def test_a_class_chooses_its_tier_and_the_answer_says_which(fleet):
    one = fleet("by-class", Stub("big"), Stub("small"))
    for headers, name in (({"x-request-class": "chat"}, "big"), (BATCH, "small"), ({}, "big")):
        answer = one.post(headers=headers)
        said = [answer.headers[f"x-hetgpu-{key}"] for key in ("upstream", "tier", "retries")]
        assert said == [name, f"{name}-tier", "0"]
        assert answer.headers["x-from"] == "stub"


def test_an_unknown_class_is_named_with_the_known_ones(fleet):
    one = fleet("by-class", Stub("big"))
    answer = one.post(headers={"x-request-class": "vip"})
    assert answer.status_code == 400
    assert answer.json()["error"]["type"] == "invalid_request_error"
    assert "'vip' is not known here: use one of chat, batch" in answer.json()["error"]["message"]
    with pytest.raises(openai.BadRequestError, match="chat, batch"):
        one.openai().completions.create(**BODY, extra_headers={"x-request-class": "vip"})
    assert one.stubs[0].seen == []


def test_a_body_that_cannot_be_read_is_refused(fleet):
    one = fleet("by-class", Stub("big"))
    for body in (b"{", b"[]", b"", b'{"prompt": ' + b"[" * 900 + b"]" * 900 + b"}", b"[" * 100_000, b"\xff"):
        answer = one.http.post("/v1/completions", content=body)
        assert (answer.status_code, answer.json()["error"]["message"]) == (400, "the body is no JSON object")


def test_a_stream_s_bytes_are_the_upstream_s_and_come_as_they_are_sent(fleet):
    one = fleet("by-class", Stub("big", torn=True, gap_s=0.05, chunks=5))
    with one.http.stream("POST", "/v1/chat/completions", json=BODY | {"stream": True}) as answer:
        assert answer.headers["content-type"] == "text/event-stream; charset=utf-8"
        began, came = time.monotonic(), []
        content = b""
        for chunk in answer.iter_raw():
            came.append(time.monotonic() - began)
            content += chunk
    assert content == one.stubs[0].sent
    assert content.endswith(b"data: [DONE]\n\n")
    assert came[0] < 0.3 * came[-1]


def test_a_json_answer_s_bytes_are_the_upstream_s(fleet):
    one = fleet("by-class", Stub("big"))
    direct = httpx.post(f"{one.served['big'].url}/v1/completions", json=BODY)
    assert one.post().content == direct.content
    assert one.stubs[0].seen[0][1] == one.stubs[0].seen[1][1] == BODY


def test_a_4xx_passes_unchanged_and_is_not_retried(fleet):
    one = fleet("by-class", Stub("big", status=404), Stub("small"))
    direct = httpx.post(f"{one.served['big'].url}/v1/completions", json=BODY)
    answer = one.post()
    assert (answer.status_code, answer.content) == (404, direct.content)
    assert one.stubs[1].seen == []


def test_a_host_header_cannot_name_another_route(fleet):
    one = fleet("by-class", Stub("big"))
    assert one.post(headers={"host": "x/metrics?"}).json()["choices"]
    assert len(one.stubs[0].seen) == 1


def test_a_route_that_there_is_not_is_refused_in_openai_s_form(fleet):
    one = fleet("by-class", Stub("big"))
    for answer in (one.http.post("/v1/embeddings", json={}), one.http.get("/v1/completions")):
        assert answer.status_code in (404, 405)
        assert answer.json()["error"]["type"] == "invalid_request_error"


# Failures


@pytest.mark.parametrize(
    ("told", "stream"),
    [
        *[({"status": 500}, stream) for stream in (False, True)],
        *[({"status": 429}, stream) for stream in (False, True)],
        *[({"dies_after": 0}, stream) for stream in (False, True)],
        ({"chunks": 0, "done": False}, True),
    ],
)
def test_what_fails_before_the_first_chunk_is_tried_elsewhere(fleet, told, stream):
    one = fleet("by-class", Stub("big", **told), Stub("small"))
    answer = one.post(BODY | {"stream": stream})
    assert answer.status_code == 200
    assert answer.content == one.stubs[1].sent or not stream
    assert [answer.headers[f"x-hetgpu-{key}"] for key in ("upstream", "retries")] == ["small", "1"]
    assert [len(stub.seen) for stub in one.stubs] == [1, 1]
    assert one.samples()["retries_total", "big", "chat"] == 1


def test_a_connection_refused_marks_down_at_once_and_a_poll_brings_it_back(fleet, monkeypatch):
    one = fleet("by-class", Stub("big"), Stub("small"))
    big = one.gateway.upstreams[0]
    monkeypatch.setattr(gateway_module, "POLL_S", 60.0)
    time.sleep(0.25)  # the poll that was on its way
    one.served["big"].stop()
    assert one.post().headers["x-hetgpu-retries"] == "1"
    assert not big.seat.up
    assert one.post().headers["x-hetgpu-retries"] == "0"


def test_silence_is_tried_elsewhere_and_does_not_mean_down(fleet):
    one = fleet("by-class", Stub("big", delay_s=30.0), Stub("small"), top={"silence_limit_s": 0.3})
    assert one.post().headers["x-hetgpu-upstream"] == "small"
    assert one.gateway.upstreams[0].seat.up
    assert until(lambda: one.stubs[0].cancelled == 1)


class Hangup(socketserver.BaseRequestHandler):
    """Is healthy, and ends the connection instead of answering."""

    def handle(self):
        if self.request.recv(65536).startswith(b"GET"):
            self.request.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\nConnection: close\r\n\r\n")


def test_a_connection_that_ends_before_any_answer_is_tried_elsewhere(fleet):
    with socketserver.ThreadingTCPServer(("127.0.0.1", 0), Hangup) as server, in_background(server.serve_forever):
        url = f"http://127.0.0.1:{server.server_address[1]}"
        answer = fleet("by-class", Stub("big"), Stub("small"), big={"url": url}).post()
        server.shutdown()
    assert answer.status_code == 200
    assert [answer.headers[f"x-hetgpu-{key}"] for key in ("upstream", "retries")] == ["small", "1"]


def test_a_dead_upstream_comes_back(fleet):
    one = fleet("by-class", Stub("big"))
    one.served["big"].stop()
    assert one.post().status_code == 503
    until(lambda: one.http.get("/health").status_code == 503)
    one.served["big"].start()
    until(lambda: one.http.get("/health").status_code == 200)
    assert one.post().status_code == 200


def test_an_upstream_whose_health_is_bad_gets_nothing(fleet):
    one = fleet("by-class", Stub("big", healthy=False), Stub("small"))
    assert one.post().headers["x-hetgpu-upstream"] == "small"
    assert one.stubs[0].seen == []


def test_503_when_none_is_left_says_what_each_one_did(fleet):
    one = fleet("by-class", Stub("big", status=500), Stub("small", status=429))
    answer = one.post()
    assert (answer.status_code, answer.headers["x-hetgpu-retries"]) == (503, "2")
    assert "(big: status 500; small: status 429)" in answer.json()["error"]["message"]
    with pytest.raises(openai.InternalServerError) as caught:
        one.openai().completions.create(**BODY)
    assert caught.value.status_code == 503


@pytest.mark.parametrize("torn", [False, True])
def test_no_retry_after_the_first_chunk_but_an_error_event(fleet, torn):
    one = fleet("by-class", Stub("big", dies_after=2, torn=torn), Stub("small"))
    answer = one.post(BODY | {"stream": True})
    assert answer.status_code == 200
    assert answer.content.startswith(one.stubs[0].sent)
    assert b"[DONE]" not in answer.content
    events = [json.loads(line[6:]) for line in answer.content.decode().splitlines() if line]
    assert len(events) == 3
    assert events[-1]["error"]["type"] == "upstream_error"
    until(lambda: one.gateway.upstreams[0].seat.up)
    with pytest.raises(openai.APIError, match="big broke off"):
        list(one.openai().completions.create(**BODY, stream=True))
    assert one.stubs[1].seen == []
    assert until(lambda: one.counted() == {("big", "chat", "502"): 2})


def test_a_stream_that_ends_without_its_end_has_broken_off(fleet):
    one = fleet("by-class", Stub("big", done=False))
    content = one.post(BODY | {"stream": True}).content
    assert content.startswith(one.stubs[0].sent)
    assert b"big broke off (no [DONE])" in content
    assert until(lambda: one.counted() == {("big", "chat", "502"): 1})


def test_an_upstream_killed_in_a_stream(tmp_path, monkeypatch):
    port = free_port()
    process = subprocess.Popen([sys.executable, str(Path(__file__).with_name("stub_openai.py")), str(port)])
    try:
        until(lambda: socket.socket().connect_ex(("127.0.0.1", port)) == 0, 10.0)
        entry = {"name": "big", "url": f"http://127.0.0.1:{port}", "tier": "t", "enterprise": True, **PROFILE}
        gateway = start(tmp_path, "by-class", [entry])
        front = Served(gateway.app, free_port())
        with httpx.stream("POST", f"{front.url}/v1/completions", json=BODY | {"stream": True}) as answer:
            lines = answer.iter_lines()
            next(lines)
            process.kill()
            assert json.loads(list(filter(None, lines))[-1][6:])["error"]["code"] == 502
        assert until(lambda: gateway.upstreams[0].own == 0)
        assert httpx.post(f"{front.url}/v1/completions", json=BODY).status_code == 503
        front.stop()
    finally:
        process.kill()
        process.wait()


# A client that leaves


def test_a_client_that_leaves_at_the_last_event_had_its_answer(fleet):
    one = fleet("by-class", Stub("big", gap_s=0.2, chunks=1))
    with one.http.stream("POST", "/v1/completions", json=BODY | {"stream": True}) as answer:
        assert any("[DONE]" in line for line in answer.iter_lines())
    assert until(lambda: one.counted() == {("big", "chat", "200"): 1})


def test_a_client_that_leaves_before_the_answer_ends_the_upstream_s_request(fleet):
    one = fleet("by-class", Stub("big", delay_s=30.0))
    with pytest.raises(httpx.ReadTimeout):
        httpx.post(f"{one.url}/v1/completions", json=BODY, timeout=0.3)
    assert until(lambda: one.stubs[0].cancelled == 1, 1.0)
    assert until(one.idle, 1.0)
    assert until(lambda: one.counted() == {("big", "chat", "499"): 1})


def test_a_client_that_leaves_a_stream_ends_the_upstream_s_request(fleet):
    one = fleet("by-class", Stub("big", gap_s=0.1, chunks=300))
    with one.http.stream("POST", "/v1/completions", json=BODY | {"stream": True}):
        assert until(lambda: one.stubs[0].sent)
        assert one.in_flight() == {"big": 1}
    assert until(lambda: one.stubs[0].cancelled == 1, 1.0)
    assert until(one.idle, 1.0)
    assert until(lambda: one.counted() == {("big", "chat", "499"): 1})


def test_a_client_that_leaves_while_held_gives_up_its_place(fleet):
    one = fleet("overflow", Stub("small", shut=True), small={"room": 1})
    with in_background(lambda: one.post(headers=BATCH)):
        until(lambda: one.in_flight() == {"small": 1})
        with pytest.raises(httpx.ReadTimeout):
            httpx.post(f"{one.url}/v1/completions", json=BODY, headers=BATCH, timeout=0.3)
        assert until(lambda: not one.gateway.desk.waiting, 1.0)
        one.stubs[0].shut = False
    assert len(one.stubs[0].seen) == 1


# Holding


def test_what_finds_no_room_waits_and_goes_in_order(fleet):
    one = fleet("overflow", Stub("small", shut=True), small={"room": 1})
    small = one.stubs[0]

    def send(number):
        assert one.post(BODY | {"user": str(number)}, BATCH).status_code == 200

    threads = []
    for number in range(6):
        threads.append(threading.Thread(target=send, args=(number,)))
        threads[-1].start()
        until(lambda number=number: one.in_flight()["small"] + len(one.gateway.desk.waiting) == number + 1)
    assert one.in_flight() == {"small": 1}
    assert len(one.gateway.desk.waiting) == 5
    assert one.samples()["waiting",] == 5
    # Someone who waits for a first token does not queue behind those who do not.
    with in_background(lambda: one.post(BODY | {"user": "urgent"})):
        until(lambda: one.in_flight() == {"small": 2})
        small.shut = False
    for thread in threads:
        thread.join(20)
    users = [body["user"] for _, body in small.seen]
    assert [user for user in users if user != "urgent"] == list("012345")
    assert users[1] == "urgent"
    assert one.samples()["held_total", "batch"] == 5


def test_held_requests_go_when_an_upstream_comes_back(fleet):
    one = fleet("overflow", Stub("small", shut=True), Stub("small-2", healthy=False), small={"room": 1})
    with in_background(lambda: one.post(headers=BATCH), lambda: one.post(headers=BATCH)):
        until(lambda: len(one.gateway.desk.waiting) == 1)
        one.stubs[1].healthy = True
        until(lambda: len(one.stubs[1].seen) == 1, 1.0)
        one.stubs[0].shut = False


def test_held_requests_end_when_no_upstream_is_left(fleet):
    one = fleet("overflow", Stub("small", shut=True), small={"room": 1})
    statuses = []
    with in_background(*[lambda: statuses.append(one.post(headers=BATCH).status_code)] * 2):
        until(lambda: len(one.gateway.desk.waiting) == 1)
        one.stubs[0].healthy = False
        until(lambda: statuses == [503])
        one.stubs[0].shut = False
    assert sorted(statuses) == [200, 503]


def test_what_others_send_to_an_engine_counts(fleet):
    one = fleet("overflow", Stub("small", load=(2, 1)))
    seat = one.gateway.upstreams[0].seat
    assert seat.in_flight == 3
    with in_background(lambda: one.post(headers=BATCH)):
        until(lambda: one.gateway.desk.waiting)
        one.stubs[0].load = (1, 0)
    # The engine's own count holds ours too: it is not added to it.
    one.stubs[0].shut = True
    with in_background(lambda: one.post(headers=BATCH)):
        until(lambda: one.in_flight() == {"small": 1})
        one.stubs[0].load = (2, 0)
        until(lambda: seat.in_flight == 2)
        one.stubs[0].shut = False
    assert until(lambda: seat.in_flight == 1)


def test_an_engine_s_load_is_summed_over_its_labels():
    names = upstream_module.LOAD_GAUGES
    lines = [f'{name}{{engine="{engine}"}} 2.0' for name in names for engine in range(2)]
    assert upstream_module.engine_load("\n".join([*lines, f"{names[0]}_other 9", "other 5"])) == 8
    assert upstream_module.engine_load("") == 0


# Keys and logs


def test_keys_are_passed_and_never_logged(fleet, caplog, capfd, monkeypatch):
    caplog.set_level(logging.DEBUG)
    monkeypatch.setenv("SMALL_KEY", "sk-of-small")
    one = fleet("by-class", Stub("big", dies_after=1), Stub("small"), small={"key_env": "SMALL_KEY"})
    with pytest.raises(openai.APIError):
        list(one.openai().completions.create(**BODY, stream=True))
    one.openai().completions.create(**BODY, extra_headers=BATCH)
    assert one.stubs[0].seen[0][0]["authorization"] == "Bearer sk-client-key"
    assert one.stubs[1].seen[0][0]["authorization"] == "Bearer sk-of-small"
    assert one.post(headers={"x-request-class": "nope", "authorization": "Bearer sk-client-key"}).status_code == 400
    ours = [record.getMessage() for record in caplog.records if record.name.startswith(("hetgpu", "uvicorn", "httpx"))]
    # The tests' own OpenAI client logs what it sends; the gateway's side must not.
    logged = "\n".join(ours) + "".join(capfd.readouterr())
    assert "big broke off" in logged
    for secret in ("sk-client-key", "sk-of-small", "a secret prompt"):
        assert secret not in logged
    assert "sk-of-small" not in repr(one.gateway.upstreams) + one.http.get("/metrics").text


def test_an_upstream_s_cookie_is_not_sent_with_another_s_request(fleet):
    one = fleet("by-class", Stub("big"))
    one.gateway.http.cookies.extract_cookies(
        httpx.Response(200, headers={"set-cookie": "a=b"}, request=httpx.Request("GET", one.url))
    )
    assert list(one.gateway.http.cookies.jar) == []


# Counting


def test_the_metrics_agree_with_what_was_sent(fleet):
    one = fleet("by-class", Stub("big"), Stub("small"))
    for _ in range(3):
        one.post(BODY | {"stream": True})
    one.post(headers=BATCH)
    one.stubs[1].status = 422
    one.post(headers=BATCH)
    sent = {("big", "chat", "200"): 3, ("small", "batch", "200"): 1, ("small", "batch", "422"): 1}
    assert until(lambda: one.counted() == sent)
    found = one.samples()
    assert found["ttft_seconds_count", "big", "chat"] == 3
    assert 0 < found["ttft_seconds_sum", "big", "chat"] < 3
    assert found["in_flight", "big"] == found["in_flight", "small"] == 0
    assert found["up", "big"] == found["up", "small"] == 1


def test_many_at_once_leave_nothing_behind(fleet):
    one = fleet("overflow", Stub("big", gap_s=0.01), Stub("small", gap_s=0.01))

    def send(number):
        headers = BATCH if number % 2 else {}
        if number % 5 == 0:
            with one.http.stream("POST", "/v1/completions", json=BODY | {"stream": True}, headers=headers):
                return
        assert one.post(BODY | {"stream": number % 3 == 0}, headers).status_code == 200

    with in_background(*[lambda number=number: send(number) for number in range(60)]):
        pass
    assert until(one.idle)
    assert until(lambda: sum(one.counted().values()) == 60)


def test_a_prompt_s_tokens():
    assert prompt_tokens({"prompt": "x" * 40}) == 10
    assert prompt_tokens({"prompt": [1, 2, 3]}) == 3
    assert prompt_tokens({"prompt": [[1, 2], [3]]}) == 3
    assert prompt_tokens({"prompt": ["x" * 8, "x" * 4]}) == 3
    parts = [{"type": "text", "text": "x" * 20}, {"type": "image_url", "image_url": {"url": "data:..."}}]
    assert (
        prompt_tokens({"messages": [{"role": "user", "content": "x" * 20}, {"role": "user", "content": parts}]}) == 10
    )
    assert prompt_tokens({}) == 0


# Configuration

GOOD = """
policy: overflow
upstreams:
  - {name: a, url: "http://127.0.0.1:1", tier: t, enterprise: true, network_ms: 1, idle_ttft_ms: 1,
     ttft_ms_per_running: 1, room: 1, capacity_req_per_s: 1, usd_per_mtok: 1, gco2_per_mtok: 1}
  - {name: b, url: "http://127.0.0.1:2", tier: t, enterprise: false, network_ms: 1, idle_ttft_ms: 1,
     ttft_ms_per_running: 1, room: 1, capacity_req_per_s: 1, usd_per_mtok: 1, gco2_per_mtok: 1}
classes:
  chat: {ttft_slo_ms: 500, expected_output_tokens: 50}
"""


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("overflow", "best", r"policy: 'best' is not known. Mend: use one of enterprise-only,.*overflow"),
        ("policy: overflow", "", "policy: Field required"),
        ("name: b", "name: a", "upstreams: row 2: a stands in rows 1 and 2"),
        ("name: b", "name: b, api_key: sk-1", r"entry 2 \(b\): unknown key: api_key. Mend: known keys: name, url"),
        ("name: b", "name: b c", r"entry 2 .*name: String should match"),
        ("http://127.0.0.1:2", "127.0.0.1:2", r"entry 2 \(b\): .*url is no http"),
        ("http://127.0.0.1:2", "http://127.0.0.1:99999", "url is no http"),
        ("http://127.0.0.1:2", "http://[::1", "url is no http"),
        ("chat:", "a chat:", "classes.a chat"),
        ("http://127.0.0.1:2", "http://127.0.0.1:2/v1", "url goes beyond the host: leave out '/v1'"),
        ("http://127.0.0.1:2", "http://u:sk-1@127.0.0.1:2", "url holds a user or a password"),
        ("room: 1", "room: 0", "room: Input should be greater than or equal to 1"),
        ("network_ms: 1", "network_ms: .inf", "network_ms: Input should be a finite number"),
        ("name: b", "name: b, key_env: sk-1", "b, key_env: names an environment variable that is not set"),
        ("classes:", "class:", "unknown key: class"),
        ("classes:", "default_class: vip\nclasses:", "default_class: 'vip' is no class. Mend: use one of chat"),
        ("expected_output_tokens: 50", "", "classes, chat: expected_output_tokens: Field required"),
        ("policy: overflow", "policy: [", "line "),
    ],
)
def test_a_configuration_that_cannot_be_is_named(tmp_path, capsys, old, new, message):
    path = tmp_path / "g.yaml"
    path.write_text(GOOD.replace(old, new))
    with pytest.raises(DataError, match=message) as caught:
        load_config(path)
    assert str(path) in str(caught.value)
    assert "Mend: " in str(caught.value)
    assert "sk-1" not in str(caught.value)
    assert main(["gateway", str(path)]) == 2
    assert str(path) in capsys.readouterr().err


def test_the_example_is_a_configuration_and_the_command_serves_it_on_loopback():
    path = inside("data/catalog/gateway.example.yaml")
    config = load_config(path)
    assert (config.policy.name, config.default_class) == ("overflow", "chat")
    port = free_port()
    command = [sys.executable, "-m", "hetgpu", "gateway", str(path), "--port", str(port)]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        try:
            until(lambda: socket.socket().connect_ex(("127.0.0.1", port)) == 0, 15.0)
            assert httpx.get(f"http://127.0.0.1:{port}/health").status_code == 503
            assert httpx.post(f"http://127.0.0.1:{port}/v1/completions", json=BODY).status_code == 503
        finally:
            process.terminate()
        assert f"running on http://127.0.0.1:{port}" in process.stderr.read()


def test_without_a_server_the_command_says_what_to_install(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr("hetgpu.route.serve.find_spec", lambda name: None)
    path = tmp_path / "g.yaml"
    path.write_text(GOOD)
    assert main(["gateway", str(path)]) == 2
    assert "starlette and uvicorn cannot be imported. Mend: install the engine's environment" in capsys.readouterr().err
