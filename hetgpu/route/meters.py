"""What the gateway counts, as Prometheus text. A registry a gateway, so that two in one process do not add up."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

from hetgpu.route.upstream import Desk, Upstream

#: Seconds; from a local engine's first token to a queue that no one waits for.
TTFT_BUCKETS_S = (0.025, 0.05, 0.1, 0.2, 0.3, 0.5, 0.75, 1.0, 1.5, 2.0, 3.0, 5.0, 10.0, 30.0, 60.0)
#: A status of no answer: the client left. As common proxies count it.
CLIENT_LEFT = 499
#: A status of no answer: the upstream broke off after the first chunk, when 200 was sent already.
BROKEN_OFF = 502


class Meters:
    """The gateway's counters.

    ``requests`` counts each request once, by the upstream that answered (``none``), its class and the status that was
    sent, :data:`CLIENT_LEFT` or :data:`BROKEN_OFF`. ``ttft`` is for streams: from a request's coming, waits and
    retries included, to the first bytes of its answer.
    """

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        labels, prefix, registry = ["upstream", "class"], "hetgpu_gateway_", self.registry
        self.requests = Counter(f"{prefix}requests", "Requests that ended", [*labels, "status"], registry=registry)
        self.retries = Counter(
            f"{prefix}retries", "Attempts that failed before a first byte", labels, registry=registry
        )
        self.held = Counter(f"{prefix}held", "Requests that had to wait for a seat", ["class"], registry=registry)
        self.ttft = Histogram(
            f"{prefix}ttft_seconds", "TTFT of streams", labels, buckets=TTFT_BUCKETS_S, registry=registry
        )
        self._in_flight = Gauge(f"{prefix}in_flight", "Requests sent and not ended", ["upstream"], registry=registry)
        self._up = Gauge(f"{prefix}up", "Whether an upstream answers", ["upstream"], registry=registry)
        self._waiting = Gauge(f"{prefix}waiting", "Requests that wait for a seat now", registry=registry)

    def watch(self, desk: Desk) -> None:
        """Read the gauges from the desk whenever they are asked for."""
        self._waiting.set_function(lambda: len(desk.waiting))
        for upstream in desk.upstreams:
            self._watch(upstream)

    def _watch(self, upstream: Upstream) -> None:
        self._in_flight.labels(upstream.name).set_function(lambda: upstream.own)
        self._up.labels(upstream.name).set_function(lambda: upstream.seat.up)

    def text(self) -> bytes:
        """All of it in Prometheus's text format."""
        return generate_latest(self.registry)
