"""Fleets: offers and demand as a mixed-integer program, and the fleet of the least aims (SciPy's MILP, HiGHS).

A profile says how many requests/s of each kind one replica serves while the kind's SLO holds. Load is taken as
additive, as Mélange takes it (Griggs et al. 2024, "Mélange: Cost Efficient Large Language Model Serving by
Exploiting GPU Heterogeneity"): a request/s of a kind that a replica serves at r requests/s fills 1/r of it.
Mélange cuts a kind into equal slices and sends each whole to one tier; here a kind's shares are continuous unless
slices are asked for, so that the optimum costs no more than Mélange's, however fine its slices.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from scipy.linalg import block_diag
from scipy.optimize import LinearConstraint, linprog, milp

from hetgpu.errors import DataError

#: HiGHS's tolerance: USD/h or g/h that fleets may differ by and count as equal, and replicas that a load may be over.
SLACK = 1e-6
#: Seconds HiGHS may take for one problem; a fleet found by then and not proven says so.
TIME_LIMIT_S = 60.0
#: A share as small as this is the solver's rounding.
DUST = 1e-9
#: SciPy's status of a problem with no solution.
INFEASIBLE = 2


@dataclass(frozen=True)
class Offer:
    """A replica that can be had.

    Parameters
    ----------
    tier : its key. usd_per_hour : a replica's rent.
    req_per_s : by kind, what one replica serves while the SLO holds; 0, NaN or no entry where it cannot hold it.
    gco2_per_hour : what a replica emits, taken as the same at any load; NaN where it is not known.
    at_most : how many can be had.
    """

    tier: str
    usd_per_hour: float
    req_per_s: Mapping[str, float]
    gco2_per_hour: float = math.nan
    at_most: float = math.inf


@dataclass(frozen=True)
class Fleet:
    """What to rent, and who serves what.

    Parameters
    ----------
    replicas : by tier, those not rented with 0.
    shares : by kind and tier, the share of the kind's demand sent there; what is left out is 0.
    load : by rented tier, how full its replicas are; 1 is what the profile says one serves.
    usd_per_hour : the rent, without priced carbon. gco2_per_hour : NaN where a rented tier's is not known.
    gap : HiGHS's relative gap between this cost and its lower bound. proven : whether it stopped at the optimum.
    runner_up : the cheapest fleet of another set of tiers, see :func:`~hetgpu.route.rent.cheapest`.
    """

    replicas: dict[str, int]
    shares: dict[str, dict[str, float]]
    load: dict[str, float]
    usd_per_hour: float
    gco2_per_hour: float
    gap: float
    proven: bool
    runner_up: Fleet | None = None

    def counts(self) -> np.ndarray:
        """The replicas in the order of tiers' names."""
        return np.array(list(self.replicas.values()))


@dataclass(frozen=True)
class Market:
    """Offers and demand as arrays; T tiers and K kinds, by name, so that the order given changes nothing.

    Parameters
    ----------
    usd_per_hour, gco2_per_hour, at_least, at_most : [T], of or in replicas.
    work : [T, K], replicas that all of a kind fills on a tier at ``utilisation``; infinite where it cannot go there.
    slices : the pieces a kind is cut into; 0 where its shares are continuous.
    """

    tiers: list[str]
    kinds: list[str]
    usd_per_hour: np.ndarray
    gco2_per_hour: np.ndarray
    at_least: np.ndarray
    at_most: np.ndarray
    work: np.ndarray
    utilisation: float
    slices: int

    def room(self) -> np.ndarray:
        """The most replicas of each tier that could be of use: all it can serve, whole."""
        use = np.ceil(np.where(np.isfinite(self.work), self.work, 0.0).sum(axis=1))
        return np.minimum(self.at_most, np.maximum(use, self.at_least))


#: What is to be least, or no more than a limit: a weight for a replica of each tier.
Limit = tuple[np.ndarray, float]


def _check(offers: Sequence[Offer], demand: Mapping[str, float], utilisation: float, slices: int) -> None:
    if len({offer.tier for offer in offers}) != len(offers) or not offers:
        raise DataError("offers", "tier", "no offers, or one tier twice", "give each tier one offer")
    if not 0 < utilisation <= 1 or slices < 0:
        problem = f"utilisation is {utilisation}, slice_factor {slices}"
        raise DataError("options", "", problem, "give a utilisation above 0 and up to 1, and 0 slices or more")
    for offer in offers:
        if not (0 <= offer.usd_per_hour < math.inf and offer.at_most >= 0):
            problem = f"usd_per_hour is {offer.usd_per_hour}, at_most {offer.at_most}"
            raise DataError("offers", offer.tier, problem, "give a price of 0 or more and a number of 0 or more")
        if offer.gco2_per_hour < 0 or math.isinf(offer.gco2_per_hour):
            raise DataError("offers", offer.tier, f"gco2_per_hour is {offer.gco2_per_hour}", "give 0 or more, or NaN")
        for kind, req_per_s in offer.req_per_s.items():
            if req_per_s < 0 or math.isinf(req_per_s):
                problem = f"serves {req_per_s} requests/s of {kind!r}"
                raise DataError("offers", offer.tier, problem, "give 0 or more, or NaN")
    for kind, req_per_s in demand.items():
        if not 0 <= req_per_s < math.inf:
            raise DataError("demand", kind, f"is {req_per_s} requests/s", "give 0 or more")
    if not sum(demand.values()) > 0:
        raise DataError("demand", "", "asks for nothing", "give a kind more than 0 requests/s")


def market_of(offers: Iterable[Offer], demand: Mapping[str, float], utilisation: float, slices: int = 0) -> Market:
    """Offers and demand (requests/s by kind) as arrays; kinds of no demand are left out.

    Raises
    ------
    DataError : for a number out of range, and for a kind that no tier serves.
    """
    ordered = sorted(offers, key=lambda offer: offer.tier)
    _check(ordered, demand, utilisation, slices)
    kinds = sorted(kind for kind, req_per_s in demand.items() if req_per_s > 0)
    served = np.array([[offer.req_per_s.get(kind, 0.0) for kind in kinds] for offer in ordered])
    served = np.nan_to_num(served, nan=0.0)
    at_most = np.floor([offer.at_most for offer in ordered])
    for kind, can in zip(kinds, served.T, strict=True):
        if not np.any((can > 0) & (at_most > 0)):
            best = ordered[int(can.argmax())]
            problem = f"no tier serves it within its SLO; the best, {best.tier}, does {can.max():g} requests/s"
            problem += f", and {best.at_most:g} can be had" if can.max() > 0 else ""
            raise DataError("demand", kind, problem, "offer a tier that can, or loosen the SLO")
    asked = np.array([demand[kind] for kind in kinds])
    with np.errstate(divide="ignore"):
        work = asked / served / utilisation
    usd, gco2 = (np.array([getattr(offer, name) for offer in ordered]) for name in ("usd_per_hour", "gco2_per_hour"))
    tiers = [offer.tier for offer in ordered]
    return Market(tiers, kinds, usd, gco2, np.zeros(len(tiers)), at_most, work, utilisation, slices)


class _Found(NamedTuple):
    """``counts`` [T] and ``pieces`` [T, K] of the last aim; the first aim's gap; whether all aims were proven."""

    counts: np.ndarray
    pieces: np.ndarray
    gap: float
    proven: bool


def _constraints(market: Market, limits: Sequence[Limit]) -> list[LinearConstraint]:
    """Over T replicas, then T x K pieces of kinds: tiers are not overfull, kinds served whole, limits kept."""
    (tiers, kinds), pieces = market.work.shape, max(market.slices, 1)
    work = np.where(np.isfinite(market.work), market.work, 0.0)
    fits = np.hstack([-np.eye(tiers), block_diag(*work) / pieces])
    # A kind of next to no demand needs a replica all the same, and its load alone would be lost in the tolerance.
    there = np.hstack([-np.repeat(np.eye(tiers), kinds, axis=0), np.eye(tiers * kinds) / pieces])
    whole = np.hstack([np.zeros((kinds, tiers)), np.tile(np.eye(kinds), tiers)])
    none = np.zeros(tiers * kinds)
    return [
        LinearConstraint(np.vstack([fits, there]), -np.inf, 0.0),
        LinearConstraint(whole, pieces, pieces),
        *(LinearConstraint(np.r_[weight, none], -np.inf, most + SLACK) for weight, most in limits),
    ]


def _least(market: Market, aims: Sequence[np.ndarray], limits: Sequence[Limit]) -> _Found | None:
    """The aims made least one after the other, each at the least of those before; None where nothing is feasible."""
    (tiers, kinds), can = market.work.shape, np.isfinite(market.work)
    none, found, limits = np.zeros(tiers * kinds), None, list(limits)
    for aim in aims:
        result = milp(
            np.r_[aim, none],
            integrality=np.r_[np.ones(tiers), none + bool(market.slices)],
            bounds=(np.r_[market.at_least, none], np.r_[market.room(), (can * max(market.slices, 1)).ravel()]),
            constraints=_constraints(market, limits),
            options={"mip_rel_gap": 0.0, "time_limit": TIME_LIMIT_S},
        )
        if result.x is None:
            if found is None and result.status != INFEASIBLE:
                raise DataError("demand", "", f"no fleet found: {result.message}", "ask for fewer kinds or slices")
            break  # At the first aim nothing is feasible; at a later one, by rounding or time, what was found stands.
        counts, pieces = np.round(result.x[:tiers]).astype(int), result.x[tiers:].reshape(tiers, kinds)
        gap, proven = (found.gap, found.proven) if found else (float(result.mip_gap), True)
        found = _Found(counts, pieces, gap, proven and result.status == 0)
        limits.append((aim, float(aim @ counts)))
    return found


def _spread(market: Market, counts: np.ndarray) -> tuple[np.ndarray, float]:
    """The shares [T, K] of given replicas that fill the fullest tier least, and how full that is: an LP.

    Above 1 the replicas do not serve the demand.
    """
    (tiers, kinds), can = market.work.shape, np.isfinite(market.work) & (counts[:, None] > 0)
    filled = block_diag(*(np.where(can, market.work, 0.0) / np.maximum(counts, 1)[:, None]))
    result = linprog(
        np.r_[np.zeros(tiers * kinds), 1.0],
        A_ub=np.hstack([filled, -np.ones((tiers, 1))]),
        b_ub=np.zeros(tiers),
        A_eq=np.hstack([np.tile(np.eye(kinds), tiers), np.zeros((kinds, 1))]),
        b_eq=np.ones(kinds),
        bounds=[(0.0, float(yes)) for yes in can.ravel()] + [(0.0, None)],
    )
    shares = result.x[:-1].reshape(tiers, kinds)
    return np.where(shares > DUST, shares, 0.0), float(result.fun)


def least_fleet(market: Market, aims: Sequence[np.ndarray], limits: Sequence[Limit] = ()) -> Fleet | None:
    """The fleet of the least aims within the limits, or None where there is none."""
    found = _least(market, aims, limits)
    if found is None:
        return None
    counts, rented = found.counts, found.counts > 0
    shares = np.round(found.pieces) / market.slices if market.slices else _spread(market, counts)[0]
    busy = (shares * np.where(np.isfinite(market.work), market.work, 0.0)).sum(axis=1) * market.utilisation
    return Fleet(
        dict(zip(market.tiers, counts.tolist(), strict=True)),
        {
            kind: {tier: share for tier, share in zip(market.tiers, column.tolist(), strict=True) if share > 0}
            for kind, column in zip(market.kinds, shares.T, strict=True)
        },
        {market.tiers[number]: float(busy[number] / counts[number]) for number in np.flatnonzero(rented)},
        float(market.usd_per_hour @ counts),
        float(market.gco2_per_hour[rented] @ counts[rented]),
        found.gap,
        found.proven,
    )


def best_fleet(market: Market, aims: Sequence[np.ndarray]) -> Fleet:
    """The fleet of the least aims.

    Raises
    ------
    DataError : where all that can be had does not serve the demand; it says what part of it they do.
    """
    fleet = least_fleet(market, aims)
    if fleet is None:
        served = 1 / _spread(market, market.room())[1]
        problem = f"all that can be had serves {served:.1%} of it"
        raise DataError("demand", "", problem, "raise at_most, offer a further tier, or slice finer")
    return fleet
