"""A request's way through the gateway: to an upstream, to another where that one fails, and its answer back.

An answer is asked for elsewhere as long as none of it has reached the client, and never after. Bytes pass as they
are; of a request only its prompt's length is read. No body and no ``Authorization`` header is logged or kept.
"""

from __future__ import annotations

import json
import time
from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import dataclass, field

import httpx
from starlette.requests import ClientDisconnect, Request
from starlette.types import Receive, Scope, Send

from hetgpu.route.config import Config
from hetgpu.route.meters import BROKEN_OFF, CLIENT_LEFT, Meters
from hetgpu.route.upstream import LOG, Desk, Ticket, Upstream
from hetgpu.route.wire import (
    CLASS_HEADER,
    NOT_PASSED,
    NOT_SENT,
    error_body,
    finished,
    is_stream,
    pieces,
    problem,
    prompt_tokens,
)


class UnansweredError(Exception):
    """An upstream failed before anything of its answer reached the client; the message says how."""


class RefusedError(Exception):
    """A request that goes to no upstream; the message says why."""


@dataclass
class Call:
    """A request on its way, and how it ended.

    Parameters
    ----------
    whole : whether the client was sent all of the answer: it may leave then, before the connection's end is seen.
    """

    path: str
    body: bytes = field(repr=False)
    headers: list[tuple[bytes, bytes]] = field(repr=False)
    ticket: Ticket
    upstream: str = "none"
    status: int = CLIENT_LEFT
    whole: bool = False
    failures: list[str] = field(default_factory=list)


def broken(upstream: Upstream, error: httpx.TransportError) -> str:
    """Mark an upstream down for an error of its connection; the error's name."""
    # Silence may be a long queue, and a local error is the request's own fault: neither says that it is down.
    if not isinstance(error, (httpx.ReadTimeout, httpx.LocalProtocolError)):
        upstream.mark(False, type(error).__name__)
    return type(error).__name__


class Completions:
    """The two routes that generate, as an ASGI application: Starlette's own responses do not end as soon."""

    def __init__(self, config: Config, desk: Desk, meters: Meters, http: httpx.AsyncClient) -> None:
        self.config, self.desk, self.meters, self.http = config, desk, meters, http

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        request = Request(scope, receive)
        try:
            call = self.call(request, await request.body())
        except ClientDisconnect:
            return
        except RefusedError as refusal:
            self.meters.requests.labels("none", "unknown", 400).inc()
            await problem(400, str(refusal), "invalid_request_error")(scope, receive, send)
            return
        try:
            if not await finished(self.answer(call, send), receive) and not call.whole:
                call.status = CLIENT_LEFT
        finally:
            self.meters.requests.labels(call.upstream, call.ticket.ask.request_class, call.status).inc()

    def call(self, request: Request, body: bytes) -> Call:
        """What a request asks.

        Raises
        ------
        RefusedError : for an unknown class, or a body that is no JSON object.
        """
        name, classes = request.headers.get(CLASS_HEADER, self.config.default_class), self.config.classes
        if name not in classes:
            raise RefusedError(f"{CLASS_HEADER} {name[:80]!r} is not known here: use one of {', '.join(classes)}")
        try:
            content = json.loads(body)
            tokens = prompt_tokens(content) if isinstance(content, dict) else None
        except (ValueError, RecursionError):
            tokens = None
        if tokens is None:
            raise RefusedError("the body is no JSON object")
        headers = [(key, value) for key, value in request.headers.raw if key not in NOT_SENT]
        # The route's own path: Starlette's URL is made from the client's Host header, which may say anything.
        return Call(request.scope["path"], body, headers, self.desk.ticket(classes[name].ask(name, tokens)))

    async def answer(self, call: Call, send: Send) -> None:
        """Try one upstream after the other until one answers, or none is left."""
        end: bytes | None = None
        while end is None:
            async with self.desk.lease(call.ticket) as upstream:
                if upstream is None:
                    end = await self.refuse(call, send)
                    continue
                call.upstream = upstream.name
                try:
                    end = await self.attempt(upstream, call, send)
                except UnansweredError as failure:
                    self.failed(upstream, call, str(failure))
        # After the lease: whoever sees the answer's end finds the seat free.
        await send({"type": "http.response.body", "body": end})

    async def refuse(self, call: Call, send: Send) -> bytes:
        """Begin the answer that says that no upstream is left; its body."""
        call.upstream, call.status, call.whole = "none", 503, True
        said = f" ({'; '.join(call.failures)})" if call.failures else ""
        response = problem(503, f"no upstream is left for this request{said}", "service_unavailable")
        response.headers["x-hetgpu-retries"] = str(len(call.failures))
        await send({"type": "http.response.start", "status": 503, "headers": response.raw_headers})
        return bytes(response.body)

    def failed(self, upstream: Upstream, call: Call, reason: str) -> None:
        """Note an attempt that came to nothing."""
        call.upstream = "none"
        call.failures.append(f"{upstream.name}: {reason}")
        call.ticket.tried.add(upstream.name)
        self.meters.retries.labels(upstream.name, call.ticket.ask.request_class).inc()
        LOG.warning(
            "%s gave no answer to a request of class %s: %s", upstream.name, call.ticket.ask.request_class, reason
        )

    async def attempt(self, upstream: Upstream, call: Call, send: Send) -> bytes:
        """Send a request to an upstream and pass its answer on; what is left to send.

        Raises
        ------
        UnansweredError : when it fails before its answer's first bytes; after them the client gets an error event.
        """
        try:
            response = await self.http.send(self.request(upstream, call), stream=True)
            try:
                async with aclosing(pieces(response)) as answer:
                    if response.status_code == 429 or response.status_code >= 500:
                        raise UnansweredError(f"status {response.status_code}")
                    return await self.forward(upstream, call, response, answer, send)
            finally:
                await response.aclose()
        except httpx.TransportError as error:
            raise UnansweredError(broken(upstream, error)) from None

    def request(self, upstream: Upstream, call: Call) -> httpx.Request:
        """The request for an upstream, with its own key if it has one."""
        own = [(key.encode(), value.encode()) for key, value in upstream.headers.items()]
        passed = [(key, value) for key, value in call.headers if not own or key != b"authorization"]
        headers = [*passed, *own, (b"accept-encoding", b"identity")]
        return self.http.build_request("POST", upstream.url + call.path, content=call.body, headers=headers)

    async def forward(
        self, upstream: Upstream, call: Call, response: httpx.Response, answer: AsyncGenerator[bytes], send: Send
    ) -> bytes:
        """Pass an answer on, nothing before its first bytes are there; what is left to send."""
        stream = is_stream(response)
        piece = await anext(answer, b"")
        if stream and not piece:
            raise UnansweredError("an empty stream")
        call.status = response.status_code
        dropped = NOT_PASSED | {b"content-length"} if stream else NOT_PASSED
        headers = [(key, value) for key, value in response.headers.raw if key.lower() not in dropped]
        await send({"type": "http.response.start", "status": call.status, "headers": headers + ours(upstream, call)})
        if not stream:
            call.whole = True
            return piece
        waited_s = time.monotonic() - call.ticket.came_s
        self.meters.ttft.labels(upstream.name, call.ticket.ask.request_class).observe(waited_s)
        reason = "no [DONE]"
        try:
            while piece:
                await send({"type": "http.response.body", "body": piece, "more_body": True})
                call.whole = call.whole or piece.rstrip().endswith(b"data: [DONE]")
                piece = await anext(answer, b"")
        except httpx.TransportError as error:
            reason = broken(upstream, error)
        return b"" if call.whole else self.broke_off(upstream, call, reason)

    def broke_off(self, upstream: Upstream, call: Call, reason: str) -> bytes:
        """Note a stream that ended before its end; the event that tells the client."""
        call.status, call.whole = BROKEN_OFF, True
        LOG.warning("%s broke off a stream of class %s: %s", upstream.name, call.ticket.ask.request_class, reason)
        event = json.dumps(error_body(502, f"{upstream.name} broke off ({reason})", "upstream_error"))
        return f"\n\ndata: {event}\n\n".encode()


def ours(upstream: Upstream, call: Call) -> list[tuple[bytes, bytes]]:
    """The headers that say who answered."""
    said = {"upstream": upstream.name, "tier": upstream.endpoint.tier, "retries": str(len(call.failures))}
    return [(f"x-hetgpu-{key}".encode(), value.encode()) for key, value in said.items()]
