"""What to rent: the cheapest whole numbers of replicas of several tiers that serve given traffic.

The model and what it takes for granted are :mod:`hetgpu.route.fleet`'s. Demand is a steady rate: for bursts leave room
by ``utilisation``.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pandas as pd

from hetgpu.errors import DataError
from hetgpu.evidence import metrics
from hetgpu.route.fleet import SLACK, Fleet, Market, Offer, best_fleet, least_fleet, market_of

__all__ = ["Fleet", "Offer", "cheapest", "from_buckets", "pareto", "sweep"]

G_PER_T = 1e6


def _aims(market: Market, usd_per_tco2: float) -> list[np.ndarray]:
    """Dollars with priced carbon; of equals the least carbon where it is known, then the fewest replicas."""
    unknown = np.isnan(market.gco2_per_hour)
    if usd_per_tco2 and unknown.any():
        where = market.tiers[int(unknown.argmax())]
        raise DataError("offers", where, "carbon is to be priced and its gco2_per_hour is not known", "give it")
    usd = market.usd_per_hour + (market.gco2_per_hour * usd_per_tco2 / G_PER_T if usd_per_tco2 else 0.0)
    return [usd, *([] if unknown.any() else [market.gco2_per_hour]), np.ones(len(market.tiers))]


def _runner_up(market: Market, best: Fleet, aims: Sequence[np.ndarray]) -> Fleet | None:
    others = []
    for number, tier in enumerate(market.tiers):
        one = np.arange(len(market.tiers)) == number
        rented = best.replicas[tier] > 0
        if rented:
            other = least_fleet(replace(market, at_most=np.where(one, 0.0, market.at_most)), aims)
            most_usd = math.inf
        else:
            forced = np.where(one, 1.0, market.at_least)
            other = least_fleet(replace(market, at_least=forced), aims) if market.at_most[number] > 0 else None
            # At the best fleet's cost and this replica's, it may be a mere spare beside the best fleet.
            most_usd = aims[0] @ best.counts() + aims[0][number] - SLACK
        if other and aims[0] @ other.counts() < most_usd:
            others.append(other)
    return min(others, key=lambda fleet: float(aims[0] @ fleet.counts()), default=None)


def cheapest(
    offers: Iterable[Offer],
    demand: Mapping[str, float],
    utilisation: float = 1.0,
    usd_per_tco2: float = 0.0,
    slice_factor: int = 0,
) -> Fleet:
    """The cheapest fleet for the demand, and the cheapest of another set of tiers.

    Parameters
    ----------
    demand : requests/s by kind. utilisation : how full a replica may be.
    usd_per_tco2 : what a tonne of CO2 is taken to cost beside the rent.
    slice_factor : 0 for continuous shares; else the equal slices of a kind, each sent whole to one tier (Mélange).

    Returns
    -------
    Of equally cheap fleets (to 1e-6 USD/h) the one of least carbon, if all tiers' is known, then of fewest replicas,
    then HiGHS's, whatever the order of the offers. ``shares`` are those that fill the fullest tier least.
    ``runner_up`` does without one of the fleet's tiers, or adds one and costs less than the fleet with that
    replica as a spare; None where there is no such fleet.

    Raises
    ------
    DataError : for a number out of range, a kind that no tier serves, or offers that do not suffice together.
    """
    market = market_of(offers, demand, utilisation, slice_factor)
    aims = _aims(market, usd_per_tco2)
    best = best_fleet(market, aims)
    return replace(best, runner_up=_runner_up(market, best, aims))


def pareto(
    offers: Iterable[Offer], demand: Mapping[str, float], utilisation: float = 1.0, step_gco2_per_hour: float = 1e-3
) -> list[Fleet]:
    """The fleets that none beats in both USD/h and gCO2/h, from the cheapest to the greenest.

    The epsilon-constraint method (Haimes, Lasdon and Wismer 1971): the cheapest fleet, then the cheapest that emits
    at least a step less, and so on. Whole if no two of its fleets lie within a step; a larger step thins it.

    Raises
    ------
    DataError : as :func:`cheapest`, for a step that is not above 1e-5, and where a tier's carbon is not known.
    """
    market = market_of(offers, demand, utilisation)
    if np.isnan(market.gco2_per_hour).any() or not step_gco2_per_hour > 10 * SLACK:
        problem = "a tier's gco2_per_hour is not known, or the step is not above 1e-5"
        raise DataError("offers", "gco2_per_hour", problem, "give every tier's, and a larger step")
    usd, gco2, replicas = market.usd_per_hour, market.gco2_per_hour, np.ones(len(market.tiers))
    greenest = best_fleet(market, [gco2, usd, replicas])
    front = [best_fleet(market, [usd, gco2, replicas])]
    while front[-1].gco2_per_hour > greenest.gco2_per_hour + 10 * SLACK:
        most = max(front[-1].gco2_per_hour - step_gco2_per_hour, greenest.gco2_per_hour)
        front.append(least_fleet(market, [usd, gco2, replicas], [(gco2, most)]) or greenest)
    return front


def from_buckets(
    gpu_info: Mapping[str, Mapping[str, Any]], workload: Sequence[Sequence[float]], total_req_per_s: float
) -> tuple[list[Offer], dict[str, float]]:
    """Offers and demand from Mélange's input.

    Parameters
    ----------
    gpu_info : by GPU, ``cost`` (USD/h) and ``tputs`` (requests/s of a replica, [input bucket, output bucket]).
    workload : the share of requests in each bucket, of the same shape. total_req_per_s : of all buckets.

    Returns
    -------
    A kind for each bucket, ``in0_out0`` and so on.

    Raises
    ------
    DataError : naming the GPU whose throughputs have another shape than the workload.
    """
    shares = np.asarray(workload, dtype=float)
    kinds = [f"in{row}_out{column}" for row, column in np.ndindex(*shares.shape)]
    offers = []
    for gpu, facts in gpu_info.items():
        req_per_s = np.asarray(facts["tputs"], dtype=float)
        if req_per_s.shape != shares.shape:
            problem = f"throughputs of shape {req_per_s.shape}, a workload of {shares.shape}"
            raise DataError("gpu_info", gpu, problem, "give both the same buckets")
        offers.append(Offer(gpu, float(facts["cost"]), dict(zip(kinds, req_per_s.ravel().tolist(), strict=True))))
    return offers, dict(zip(kinds, (shares.ravel() * total_req_per_s).tolist(), strict=True))


def sweep(
    offers: Iterable[Offer],
    demand_mix: Mapping[str, float],
    rates_req_per_s: Iterable[float],
    tokens_per_req: Mapping[str, float] | None = None,
    utilisation: float = 1.0,
) -> pd.DataFrame:
    """The cheapest fleet at each total rate, for a figure of how it moves with load.

    Parameters
    ----------
    demand_mix : by kind, its weight in the total. tokens_per_req : by kind, tokens in and out of a request.

    Returns
    -------
    A row per rate and tier, those not rented too: ``total_req_per_s``, ``tier``, ``replicas``, ``tier_req_per_s``
    (what is sent there), ``load``, ``tier_usd_per_hour``; the same in each row of a rate: ``usd_per_hour``,
    ``gco2_per_hour`` and ``usd_per_mtok_total`` of the tokens asked for (NaN without ``tokens_per_req``).

    Raises
    ------
    DataError : as :func:`cheapest`, at the first rate that the offers do not serve.
    """
    offers, weight, rows = list(offers), sum(demand_mix.values()), []
    if not weight > 0 or (tokens_per_req is not None and not set(demand_mix) <= set(tokens_per_req)):
        problem = "has no weight, or a kind that tokens_per_req leaves out"
        raise DataError("demand_mix", "", problem, "give weights above 0, and every kind its tokens")
    usd = {offer.tier: offer.usd_per_hour for offer in offers}
    for rate in rates_req_per_s:
        demand = {kind: rate * part / weight for kind, part in demand_mix.items()}
        market = market_of(offers, demand, utilisation)
        fleet = best_fleet(market, _aims(market, 0.0))
        tokens_per_s = sum(demand[kind] * tokens_per_req[kind] for kind in demand) if tokens_per_req else math.nan
        usd_per_mtok = metrics.usd_per_mtok(fleet.usd_per_hour, tokens_per_s * metrics.SECONDS_PER_HOUR)
        for tier, replicas in fleet.replicas.items():
            sent = sum(demand[kind] * shares.get(tier, 0.0) for kind, shares in fleet.shares.items())
            its = (sent, fleet.load.get(tier, 0.0), replicas * usd[tier])
            rows.append((rate, tier, replicas, *its, fleet.usd_per_hour, fleet.gco2_per_hour, usd_per_mtok))
    columns = ["total_req_per_s", "tier", "replicas", "tier_req_per_s", "load", "tier_usd_per_hour"]
    return pd.DataFrame(rows, columns=[*columns, "usd_per_hour", "gco2_per_hour", "usd_per_mtok_total"])
