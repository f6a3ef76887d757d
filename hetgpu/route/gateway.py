"""An OpenAI-compatible gateway over vLLM endpoints: a routing policy says which of them gets a request.

This module needs Starlette, which vLLM brings; :mod:`hetgpu.route.serve` says so where it is missing.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from http.cookiejar import CookieJar, DefaultCookiePolicy
from typing import Any

import httpx
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from hetgpu.route.config import Config
from hetgpu.route.meters import Meters
from hetgpu.route.relay import Completions
from hetgpu.route.upstream import LOG, POLL_S, Desk, Upstream
from hetgpu.route.wire import problem

CONNECT_LIMIT_S = 5.0
#: Shorter than the 5 s after which uvicorn, and so vLLM, closes an idle connection: else a request meets its end.
IDLE_CONNECTION_S = 2.0


async def unknown(request: Request, error: Exception) -> Response:
    """A route or a method that there is not, in OpenAI's form."""
    assert isinstance(error, HTTPException)  # what it is registered for
    return problem(error.status_code, error.detail, "invalid_request_error")


def listed(answer: httpx.Response) -> list[dict[str, Any]]:
    """The models of an upstream's answer; none where it is no list of models."""
    try:
        return [model for model in answer.json()["data"] if "id" in model]
    except (ValueError, KeyError, TypeError):
        return []


class Gateway:
    """Everything one gateway has; :attr:`app` is its ASGI application."""

    def __init__(self, config: Config) -> None:
        self.upstreams = [Upstream(endpoint, config.keys.get(endpoint.name, "")) for endpoint in config.endpoints]
        self.meters = Meters()
        self.desk = Desk(self.upstreams, config.policy, lambda name: self.meters.held.labels(name).inc())
        self.meters.watch(self.desk)
        self.http = httpx.AsyncClient(
            timeout=httpx.Timeout(config.silence_limit_s, connect=CONNECT_LIMIT_S),
            limits=httpx.Limits(
                max_connections=None, max_keepalive_connections=None, keepalive_expiry=IDLE_CONNECTION_S
            ),
            # One user's cookie must not go out with another's request.
            cookies=CookieJar(DefaultCookiePolicy(allowed_domains=[])),
            trust_env=False,
        )
        generate = Completions(config, self.desk, self.meters, self.http)
        routes = [
            Route("/v1/completions", generate, methods=["POST"]),
            Route("/v1/chat/completions", generate, methods=["POST"]),
            Route("/v1/models", self.models),
            Route("/health", self.health),
            Route("/metrics", self.metrics),
        ]
        self.app = Starlette(routes=routes, lifespan=self.lifespan, exception_handlers={HTTPException: unknown})

    @asynccontextmanager
    async def lifespan(self, app: Starlette) -> AsyncIterator[None]:
        """Know every upstream's state before the first request, and keep knowing it."""
        await asyncio.gather(*(upstream.poll(self.http) for upstream in self.upstreams))
        tasks = [asyncio.create_task(self.watch(upstream)) for upstream in self.upstreams]
        tasks.append(asyncio.create_task(self.tick()))
        try:
            yield
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            await self.http.aclose()

    async def watch(self, upstream: Upstream) -> None:
        """Poll an upstream for ever."""
        while True:
            await asyncio.sleep(POLL_S)
            try:
                await upstream.poll(self.http)
            except Exception:
                # Whatever it is, an upstream whose state is no longer followed would keep its last one for ever.
                LOG.exception("the poll of %s failed", upstream.name)
                upstream.mark(False, "its poll failed")
            self.desk.serve()

    async def tick(self) -> None:
        """Ask again for those who wait, however long a poll hangs: a policy may mind the time."""
        while True:
            await asyncio.sleep(POLL_S)
            self.desk.serve()

    async def models(self, request: Request) -> Response:
        """The union of what the upstreams serve; where all refuse, the first one's refusal."""
        given = {"authorization": value} if (value := request.headers.get("authorization")) else {}

        async def one(upstream: Upstream) -> httpx.Response | None:
            try:
                return await self.http.get(f"{upstream.url}/v1/models", headers=given | upstream.headers)
            except httpx.HTTPError:
                return None

        asked = await asyncio.gather(*(one(upstream) for upstream in self.upstreams if upstream.seat.up))
        answers = [answer for answer in asked if answer is not None]
        if not answers:
            return problem(503, "no upstream is up", "service_unavailable")
        if not (good := [answer for answer in answers if answer.status_code == 200]):
            first = answers[0]
            return Response(first.content, first.status_code, media_type=first.headers.get("content-type"))
        served = {model["id"]: model for answer in reversed(good) for model in listed(answer)}
        return JSONResponse({"object": "list", "data": list(served.values())})

    async def health(self, request: Request) -> Response:
        """200 while at least one upstream is up."""
        up = [upstream.name for upstream in self.upstreams if upstream.seat.up]
        return JSONResponse({"up": up}, 200 if up else 503)

    async def metrics(self, request: Request) -> Response:
        """The counters, for Prometheus."""
        return Response(self.meters.text(), media_type="text/plain; version=0.0.4")
