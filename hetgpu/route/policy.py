"""Who gets a request: the routing policies, the very same objects in simulation and in the live gateway.

A policy sees a request as it comes and every replica as the router knows it, and names a replica or asks
the request to wait. It never sees what the future holds: not the answer's true length, not who leaves next.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np


@dataclass(frozen=True)
class Ask:
    """What a router knows of a request when it comes.

    Parameters
    ----------
    request_class : its traffic class's key.
    ttft_slo_ms : the limit on its first token; infinite where it has none.
    deadline_s : from now until its answer must be whole; infinite where it has none.
    input_tokens : its prompt. expected_output_tokens : its class's mean answer, for its own is not known.
    """

    request_class: str
    ttft_slo_ms: float
    deadline_s: float
    input_tokens: int
    expected_output_tokens: float

    @property
    def urgent(self) -> bool:
        """Whether someone waits for the first token."""
        return bool(np.isfinite(self.ttft_slo_ms))


@dataclass(frozen=True)
class Profile:
    """What is known of a tier with a model before a request is sent: from the simulator, or from a measured run.

    Parameters
    ----------
    tier : its key. enterprise : whether its GPU is an enterprise one.
    network_ms : there and back. idle_ttft_ms : mean TTFT with no one else in flight.
    ttft_ms_per_running : what each request in flight adds to it.
    room : requests that run at once before the next one queues.
    capacity_req_per_s : what it sustains. usd_per_mtok, gco2_per_mtok : at that load, per million tokens in and out.
    """

    tier: str
    enterprise: bool
    network_ms: float
    idle_ttft_ms: float
    ttft_ms_per_running: float
    room: int
    capacity_req_per_s: float
    usd_per_mtok: float
    gco2_per_mtok: float


@dataclass
class Seat:
    """A replica as the router sees it: its profile, whether it is up, how many requests it was sent and still has."""

    name: str
    profile: Profile
    up: bool = True
    in_flight: int = 0

    @property
    def load(self) -> float:
        """Requests in flight over what it runs at once: 1 is full."""
        return self.in_flight / self.profile.room

    def expected_ttft_ms(self) -> float:
        """The next request's TTFT: the network, the batch it joins, and the queue served at the sustained rate."""
        p = self.profile
        queued = max(0, self.in_flight - p.room + 1)
        batch_ms = p.ttft_ms_per_running * min(self.in_flight, p.room)
        return p.network_ms + p.idle_ttft_ms + batch_ms + 1e3 * queued / p.capacity_req_per_s


class Policy(Protocol):
    """A routing policy: one class with a name and a choice."""

    @property
    def name(self) -> str:
        """What tables call it."""
        ...

    def choose(self, ask: Ask, seats: Sequence[Seat]) -> Seat | None:
        """One of the seats, which are all up and at least one, or None: hold the request until a replica has room."""
        ...


def shortest(seats: Sequence[Seat]) -> Seat:
    """The seat with the least load; the first of equals."""
    return min(seats, key=lambda seat: seat.load)


def within(ask: Ask, seats: Sequence[Seat]) -> list[Seat]:
    """The seats whose expected TTFT is within the request's limit."""
    return [seat for seat in seats if seat.expected_ttft_ms() <= ask.ttft_slo_ms]


def of_kind(seats: Sequence[Seat], enterprise: bool) -> list[Seat]:
    """The enterprise seats, or the others."""
    return [seat for seat in seats if seat.profile.enterprise == enterprise]


@dataclass
class Only:
    """All to one kind, the shortest queue in it; to the other kind only where none of the first is up."""

    enterprise: bool

    @property
    def name(self) -> str:
        """``enterprise-only`` or ``consumer-only``."""
        return "enterprise-only" if self.enterprise else "consumer-only"

    def choose(self, ask: Ask, seats: Sequence[Seat]) -> Seat | None:
        """The shortest queue of the kind."""
        return shortest(of_kind(seats, self.enterprise) or seats)


@dataclass
class RoundRobin:
    """Each in turn, whatever it is."""

    name: str = "round-robin"
    turn: int = 0

    def choose(self, ask: Ask, seats: Sequence[Seat]) -> Seat | None:
        """The next one."""
        self.turn += 1
        return seats[(self.turn - 1) % len(seats)]


@dataclass
class ShortestQueue:
    """The fewest requests in flight (join the shortest queue), blind to what a replica can do."""

    name: str = "shortest-queue"

    def choose(self, ask: Ask, seats: Sequence[Seat]) -> Seat | None:
        """The fewest in flight; the first of equals."""
        return min(seats, key=lambda seat: seat.in_flight)


@dataclass
class TwoChoices:
    """The shorter of two drawn at random (Mitzenmacher, 2001)."""

    seed: int = 0
    name: str = "two-choices"
    draw: np.random.Generator = field(init=False, repr=False)

    def __post_init__(self) -> None:
        """Seed the draws."""
        self.draw = np.random.default_rng(self.seed)

    def choose(self, ask: Ask, seats: Sequence[Seat]) -> Seat | None:
        """The shorter of two."""
        drawn = self.draw.choice(len(seats), size=min(2, len(seats)), replace=False)
        return min((seats[number] for number in sorted(drawn)), key=lambda seat: seat.in_flight)


@dataclass
class ByClass:
    """The paper's advice: whoever waits for a first token to the enterprise tier, all else to the consumer tier."""

    name: str = "by-class"

    def choose(self, ask: Ask, seats: Sequence[Seat]) -> Seat | None:
        """The shortest queue of the class's kind."""
        return shortest(of_kind(seats, ask.urgent) or seats)


@dataclass
class Overflow:
    """By class, and over to the other kind where one's own would miss the limit (urgent) or is full (the rest).

    What is not urgent takes an enterprise replica's room only up to ``spare``, and waits where neither kind has room.
    """

    spare: float = 0.5
    name: str = "overflow"

    def choose(self, ask: Ask, seats: Sequence[Seat]) -> Seat | None:
        """One's own kind, the other, or a wait."""
        if ask.urgent:
            own = within(ask, of_kind(seats, True))
            return shortest(own or within(ask, seats) or of_kind(seats, True) or seats)
        own = [seat for seat in of_kind(seats, False) if seat.load < 1]
        other = [seat for seat in of_kind(seats, True) if seat.load < self.spare]
        return shortest(own or other) if own or other else None


@dataclass
class Weighted:
    """The least of dollars, priced carbon and a penalty for a missed SLO.

    Parameters
    ----------
    usd_per_tco2 : what a tonne of CO2 is taken to cost.
    usd_per_miss : what a request beyond its TTFT limit is taken to cost.
    dollars : whether the replica's own cost counts.
    """

    usd_per_tco2: float = 0.0
    usd_per_miss: float = 1.0
    dollars: bool = True
    name: str = "weighted"

    def cost_usd(self, ask: Ask, seat: Seat) -> float:
        """What the request is taken to cost there."""
        p, mtok = seat.profile, (ask.input_tokens + ask.expected_output_tokens) / 1e6
        money = p.usd_per_mtok * self.dollars + p.gco2_per_mtok / 1e6 * self.usd_per_tco2
        return money * mtok + self.usd_per_miss * (seat.expected_ttft_ms() > ask.ttft_slo_ms)

    def choose(self, ask: Ask, seats: Sequence[Seat]) -> Seat | None:
        """The least cost; of equals the least load. What is not urgent waits where no replica has room."""
        free = seats if ask.urgent else [seat for seat in seats if seat.load < 1]
        if not free:
            return None
        if ask.urgent and not within(ask, free):
            # All would miss: the penalty is due anyway, and what is left to save is the user's time.
            return min(free, key=Seat.expected_ttft_ms)
        return min(free, key=lambda seat: (self.cost_usd(ask, seat), seat.load))


def cheapest() -> Weighted:
    """The cheapest replica that is expected to meet the SLO."""
    return Weighted(name="cheapest")


def greenest() -> Weighted:
    """The replica of least carbon that is expected to meet the SLO."""
    return Weighted(usd_per_tco2=1e3, dollars=False, usd_per_miss=1e6, name="greenest")


def all_policies() -> dict[str, Policy]:
    """A fresh object of every policy, by name."""
    made: list[Policy] = [
        Only(True), Only(False), RoundRobin(), ShortestQueue(), TwoChoices(), ByClass(), Overflow(),
        cheapest(), greenest(), Weighted(usd_per_tco2=100.0, usd_per_miss=0.01),
    ]  # fmt: skip
    return {policy.name: policy for policy in made}
