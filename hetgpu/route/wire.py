"""What the gateway does with bytes, headers and errors, whatever upstream they come from."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Coroutine
from typing import Any

import httpx
from starlette.responses import JSONResponse
from starlette.types import Receive

CLASS_HEADER = "x-request-class"
CHARACTERS_PER_TOKEN = 4
#: Of one connection and not of the message (RFC 9110, 7.6.1), or made anew by the server or the client library.
NOT_PASSED = frozenset(
    b"connection keep-alive proxy-authenticate proxy-authorization proxy-connection te trailer transfer-encoding "
    b"upgrade host expect date server".split()
)
#: Of a request. Answers come as they are, uncompressed, so that an error event can stand in a stream.
NOT_SENT = NOT_PASSED | {b"content-length", b"accept-encoding", CLASS_HEADER.encode()}


def problem(status: int, message: str, kind: str) -> JSONResponse:
    """An error as OpenAI's clients read it."""
    return JSONResponse(error_body(status, message, kind), status)


def error_body(status: int, message: str, kind: str) -> dict[str, Any]:
    """OpenAI's error object."""
    return {"error": {"message": message, "type": kind, "param": None, "code": status}}


def prompt_tokens(body: dict[str, Any]) -> int:
    """The tokens of a request's prompt: exact for token ids, else a quarter of its characters."""

    def tokens(part: Any) -> float:
        if isinstance(part, str):
            return len(part) / CHARACTERS_PER_TOKEN
        if isinstance(part, list):
            return sum(1 if isinstance(item, int) else tokens(item) for item in part)
        return tokens(part.get("content") or part.get("text")) if isinstance(part, dict) else 0

    return round(tokens(body.get("prompt")) + tokens(body.get("messages")))


async def pieces(response: httpx.Response) -> AsyncGenerator[bytes]:
    """An answer's bytes: a stream's as they come, cut at line ends, anything else whole.

    A line is held until it is whole, so that an error event after it can be read; an answer that
    is no stream, so that it can be retried up to its last byte.
    """
    kept, stream = b"", is_stream(response)
    async for chunk in response.aiter_raw():
        kept += chunk
        if stream and (cut := kept.rfind(b"\n") + 1):
            yield kept[:cut]
            kept = kept[cut:]
    if kept:
        yield kept


def is_stream(response: httpx.Response) -> bool:
    """Whether an answer is server-sent events."""
    return response.headers.get("content-type", "").startswith("text/event-stream")


async def finished(work: Coroutine[Any, Any, None], receive: Receive) -> bool:
    """Do the work, and drop it at once when the client leaves; whether it was done."""

    async def gone() -> None:
        while (await receive())["type"] != "http.disconnect":
            pass

    tasks = [asyncio.create_task(work), asyncio.create_task(gone())]
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)
    if tasks[0].cancelled():
        return False
    tasks[0].result()
    return True
