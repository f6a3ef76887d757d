"""The gateway's upstreams as they are now, and the desk that gives a request a seat or lets it wait.

Everything here runs in one event loop, and a seat is given and counted without a pause in between: a request
that comes while others wait cannot slip past those of its own class.
"""

from __future__ import annotations

import asyncio
import bisect
import logging
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace

import httpx

from hetgpu.route.config import Endpoint
from hetgpu.route.policy import Ask, Policy, Seat

LOG = logging.getLogger("hetgpu.gateway")

#: Between two polls of an upstream, and between two rounds through those who wait.
POLL_S = 1.0
#: What a poll may take before the upstream counts as down.
POLL_LIMIT_S = 2.0
#: vLLM's gauges of the requests it has.
LOAD_GAUGES = ("vllm:num_requests_running", "vllm:num_requests_waiting")


def engine_load(exposition: str) -> int:
    """The requests that run or wait by an engine's ``/metrics``, summed over its labels; 0 where it tells none.

    Raises
    ------
    ValueError : for a line that is no Prometheus text.
    """
    from prometheus_client.parser import text_string_to_metric_families

    # An engine has hundreds of lines, and this runs every second.
    lines = [line for line in exposition.splitlines() if line.startswith(LOAD_GAUGES)]
    families = text_string_to_metric_families("\n".join(lines) + "\n")
    return int(sum(sample.value for family in families for sample in family.samples if sample.name in LOAD_GAUGES))


@dataclass(eq=False)
class Upstream:
    """An endpoint and its state.

    Parameters
    ----------
    own : requests that this gateway sent and still has.
    foreign : what the engine had beyond these at the last poll: others send to it too.
    """

    endpoint: Endpoint
    key: str = field(default="", repr=False)
    own: int = 0
    foreign: int = 0
    seat: Seat = field(init=False)

    def __post_init__(self) -> None:
        """Down until a poll succeeds."""
        self.seat = Seat(self.name, self.endpoint.profile, up=False)

    @property
    def name(self) -> str:
        """Its name."""
        return self.endpoint.name

    @property
    def url(self) -> str:
        """Its root, without a slash at the end."""
        return self.endpoint.url.rstrip("/")

    @property
    def headers(self) -> dict[str, str]:
        """Its own key, where it has one."""
        return {"authorization": f"Bearer {self.key}"} if self.key else {}

    def count(self, change: int) -> None:
        """Add to the requests in flight."""
        self.own += change
        self.seat.in_flight = self.own + self.foreign

    def mark(self, up: bool, reason: str) -> None:
        """Set whether it is up."""
        if up != self.seat.up:
            LOG.log(logging.INFO if up else logging.WARNING, "%s is %s: %s", self.name, "up" if up else "down", reason)
        self.seat.up = up

    async def poll(self, http: httpx.AsyncClient) -> None:
        """Ask it how it is; any failure means down."""
        try:
            answer = await http.get(f"{self.url}/health", headers=self.headers, timeout=POLL_LIMIT_S)
        except httpx.HTTPError as error:
            self.mark(False, type(error).__name__)
            return
        if answer.status_code == 200:
            await self._poll_load(http)
        self.mark(answer.status_code == 200, f"/health says {answer.status_code}")

    async def _poll_load(self, http: httpx.AsyncClient) -> None:
        before = self.own
        try:
            answer = await http.get(f"{self.url}/metrics", headers=self.headers, timeout=POLL_LIMIT_S)
            load = engine_load(answer.text) if answer.status_code == 200 else 0
        except (httpx.HTTPError, ValueError, OverflowError):
            load = 0
        # In flight is the larger of ours and the engine's. Kept as a difference, so that it falls
        # with our own requests' ends and not only at the next poll.
        self.foreign = max(0, load - max(before, self.own))
        self.count(0)


@dataclass(eq=False)
class Ticket:
    """A request's place among those who come: a retry keeps it.

    Parameters
    ----------
    came_s : on the monotonic clock.
    tried : upstreams that failed it; none of them is asked again.
    """

    number: int
    came_s: float
    ask: Ask
    tried: set[str] = field(default_factory=set)
    was_held: bool = False
    upstream: Upstream | None = None
    seated: asyncio.Future[None] | None = None

    def ask_now(self) -> Ask:
        """The ask with what is left of its limits."""
        waited_s = time.monotonic() - self.came_s
        slo_ms, deadline_s = self.ask.ttft_slo_ms - 1e3 * waited_s, self.ask.deadline_s - waited_s
        return replace(self.ask, ttft_slo_ms=slo_ms, deadline_s=deadline_s)


class Desk:
    """Gives seats by a policy; those who get none wait in the order they came.

    Parameters
    ----------
    on_held : called once for a request that has to wait, with its class.
    """

    def __init__(self, upstreams: Sequence[Upstream], policy: Policy, on_held: Callable[[str], None]) -> None:
        self.upstreams, self.policy, self.on_held = upstreams, policy, on_held
        self.waiting: list[Ticket] = []
        self._numbers = 0

    def ticket(self, ask: Ask) -> Ticket:
        """A place for a request that comes now."""
        self._numbers += 1
        return Ticket(self._numbers, time.monotonic(), ask)

    def serve(self) -> None:
        """Go through those who wait: a seat, more waiting, or, where no upstream is left for one, its end."""
        still, told_to_wait = [], set()
        for ticket in self.waiting:
            if ticket.seated is None or ticket.seated.done():
                continue  # its client has left, and it is about to give its place back
            # One of a class that waits makes all after it wait: the policy is not asked to prefer a later one.
            kind = (ticket.ask.request_class, frozenset(ticket.tried))
            if kind in told_to_wait:
                still.append(ticket)
                continue
            left = {u.name: u for u in self.upstreams if u.seat.up and u.name not in ticket.tried}
            seat = self.policy.choose(ticket.ask_now(), [u.seat for u in left.values()]) if left else None
            if left and seat is None:
                told_to_wait.add(kind)
                still.append(ticket)
                continue
            if seat is not None:
                ticket.upstream = left[seat.name]
                ticket.upstream.count(1)
            ticket.seated.set_result(None)
        self.waiting = still

    @asynccontextmanager
    async def lease(self, ticket: Ticket) -> AsyncIterator[Upstream | None]:
        """A seat for as long as the block runs, waited for if need be; None where no upstream is left."""
        ticket.seated = asyncio.get_running_loop().create_future()
        bisect.insort(self.waiting, ticket, key=lambda one: one.number)
        try:
            self.serve()
            if not ticket.seated.done() and not ticket.was_held:
                ticket.was_held = True
                self.on_held(ticket.ask.request_class)
            await ticket.seated
            yield ticket.upstream
        finally:
            self._give_back(ticket)

    def _give_back(self, ticket: Ticket) -> None:
        # A client may leave in the very moment it is given a seat: what counts is the ticket, not what was awaited.
        if ticket in self.waiting:
            self.waiting.remove(ticket)
        if ticket.upstream is not None:
            ticket.upstream.count(-1)
            ticket.upstream = None
        self.serve()
