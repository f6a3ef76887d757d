"""The fleet is the cheapest there is: by hand, by trying every small fleet, and against Mélange's own formulation."""

import itertools
import json
import math
from dataclasses import replace

import numpy as np
import pytest
from scipy.optimize import LinearConstraint, linprog, milp

from hetgpu.errors import DataError
from hetgpu.paths import inside
from hetgpu.route.rent import Offer, cheapest, from_buckets, pareto, sweep

BIG = Offer("big", 10.0, {"chat": 100.0}, gco2_per_hour=400.0)
SMALL = Offer("small", 2.0, {"chat": 12.0}, gco2_per_hour=150.0)


def drawn(seed, tiers=3, kinds=2):
    """A small random instance; now and then a tier cannot hold a kind's SLO, but the first tier can."""
    draw = np.random.default_rng(seed)
    names = [f"k{number}" for number in range(kinds)]
    offers = []
    for number in range(tiers):
        speed = draw.uniform(2, 12)
        served = {k: 0.0 if number and draw.random() < 0.2 else speed * draw.uniform(0.5, 1.5) for k in names}
        price, carbon = round(speed * draw.uniform(0.2, 0.4), 2), round(speed * draw.uniform(20, 60), 1)
        offers.append(Offer(f"t{number}", price, served, carbon))
    return offers, {k: float(draw.uniform(1, 12)) for k in names}


def feasible(offers, counts, demand):
    """Whether given replicas serve the demand: an LP of requests/s sent, in other variables than the code's."""
    pairs = [(t, k) for t, offer in enumerate(offers) for k in demand if offer.req_per_s[k] > 0]
    whole = [[float(kind == k) for _, k in pairs] for kind in demand]
    fill = [[float(tier == t) / offers[t].req_per_s[k] for t, k in pairs] for tier in range(len(offers))]
    return linprog(np.zeros(len(pairs)), A_ub=fill, b_ub=counts, A_eq=whole, b_eq=list(demand.values())).status == 0


def every_fleet(offers, demand):
    """(USD/h, gCO2/h, counts) of every fleet that serves the demand and is no larger than one tier alone needs."""
    most = [
        math.ceil(sum(rate / offer.req_per_s[kind] for kind, rate in demand.items() if offer.req_per_s[kind] > 0))
        for offer in offers
    ]
    for counts in itertools.product(*(range(number + 1) for number in most)):
        if feasible(offers, counts, demand):
            usd = sum(offer.usd_per_hour * count for offer, count in zip(offers, counts, strict=True))
            gco2 = sum(offer.gco2_per_hour * count for offer, count in zip(offers, counts, strict=True))
            yield round(usd, 6), round(gco2, 6), counts


def is_served(offers, fleet, demand, utilisation=1.0):
    for kind in demand:
        assert sum(fleet.shares[kind].values()) == pytest.approx(1)
    for offer in offers:
        sent = [(demand[kind] * fleet.shares[kind].get(offer.tier, 0.0), kind) for kind in demand]
        busy = sum(rate / offer.req_per_s[kind] for rate, kind in sent if rate > 0)
        count = fleet.replicas[offer.tier]
        assert busy <= utilisation * count + 1e-6
        assert fleet.load.get(offer.tier, 0.0) == pytest.approx(busy / max(count, 1), abs=1e-9)


def test_one_tier_is_rounded_up_to_whole_replicas():
    fleet = cheapest([SMALL], {"chat": 25.0})
    assert (fleet.replicas, fleet.usd_per_hour, fleet.gco2_per_hour) == ({"small": 3}, 6.0, 450.0)
    assert fleet.load == pytest.approx({"small": 25 / 36})
    assert (fleet.shares, fleet.gap, fleet.proven, fleet.runner_up) == ({"chat": {"small": 1.0}}, 0.0, True, None)
    assert cheapest([SMALL], {"chat": 24.0}).replicas == {"small": 2}
    assert cheapest([SMALL], {"chat": 25.0}, utilisation=0.5).replicas == {"small": 5}
    assert cheapest([SMALL], {"chat": 1e-7}).replicas == {"small": 1}
    # 0.30000000000000004 requests/s at 0.1 each: a rounding is no fourth replica.
    assert cheapest([Offer("a", 1.0, {"x": 0.1})], {"x": 0.1 * 3}).replicas == {"a": 3}


def test_a_mix_is_cheaper_than_either_tier():
    fleet = cheapest([BIG, SMALL], {"chat": 112.0})
    assert (fleet.replicas, fleet.usd_per_hour, fleet.gco2_per_hour) == ({"big": 1, "small": 1}, 12.0, 550.0)
    assert fleet.load == pytest.approx({"big": 1.0, "small": 1.0})
    assert fleet.shares["chat"] == pytest.approx({"big": 100 / 112, "small": 12 / 112})
    # Ten small ones or two big ones, 20 USD/h each.
    assert (fleet.runner_up.replicas, fleet.runner_up.usd_per_hour) == ({"big": 0, "small": 10}, 20.0)


def test_a_kind_goes_only_where_its_slo_holds():
    fast = Offer("fast", 5.0, {"chat": 10.0, "batch": 10.0})
    slow = Offer("slow", 1.0, {"chat": math.nan, "batch": 5.0})
    fleet = cheapest([fast, slow], {"chat": 10.0, "batch": 15.0})
    assert (fleet.replicas, fleet.usd_per_hour) == ({"fast": 1, "slow": 3}, 8.0)
    assert (fleet.shares["chat"], fleet.shares["batch"]) == ({"fast": 1.0}, pytest.approx({"slow": 1.0}))
    assert math.isnan(fleet.gco2_per_hour)
    assert fleet.runner_up.replicas == {"fast": 3, "slow": 0}


def test_what_can_be_had_limits_the_fleet():
    fleet = cheapest([BIG, replace(SMALL, at_most=2)], {"chat": 40.0})
    assert (fleet.replicas, fleet.usd_per_hour) == ({"big": 1, "small": 0}, 10.0)
    assert cheapest([BIG, SMALL], {"chat": 40.0}).replicas == {"big": 0, "small": 4}
    assert cheapest([replace(SMALL, at_most=4.9)], {"chat": 40.0}).replicas == {"small": 4}


def test_a_runner_up_is_no_spare_beside_the_best_fleet():
    middle = Offer("middle", 3.0, {"chat": 14.0})
    dear = Offer("dear", 1e3, {"chat": 14.0})
    fleet = cheapest([SMALL, middle, dear], {"chat": 25.0})
    assert (fleet.replicas, fleet.usd_per_hour) == ({"dear": 0, "middle": 1, "small": 1}, 5.0)
    assert (fleet.runner_up.replicas["middle"], fleet.runner_up.usd_per_hour) in {(0, 6.0), (2, 6.0)}
    # The set with a tier more: two small ones and a middle one in the place of the third and the fourth small one.
    fleet = cheapest([SMALL, replace(middle, usd_per_hour=4.5, req_per_s={"chat": 24.0})], {"chat": 48.0})
    assert (fleet.usd_per_hour, fleet.replicas) == (8.0, {"middle": 0, "small": 4})
    assert (fleet.runner_up.usd_per_hour, fleet.runner_up.replicas) == (8.5, {"middle": 1, "small": 2})


def test_priced_carbon_moves_the_choice():
    demand = {"chat": 12.0}
    green = Offer("green", 2.05, {"chat": 12.0}, gco2_per_hour=50.0)
    assert cheapest([SMALL, green], demand).replicas == {"green": 0, "small": 1}
    # 100 g are 0.05 USD at 500 USD/t: there the two are even.
    assert cheapest([SMALL, green], demand, usd_per_tco2=499.0).replicas == {"green": 0, "small": 1}
    fleet = cheapest([SMALL, green], demand, usd_per_tco2=501.0)
    assert (fleet.replicas, fleet.usd_per_hour) == ({"green": 1, "small": 0}, 2.05)
    with pytest.raises(DataError, match="'?green'?: carbon is to be priced"):
        cheapest([SMALL, replace(green, gco2_per_hour=math.nan)], demand, usd_per_tco2=1.0)


def test_ties_and_the_order_of_offers():
    offers = [Offer("b", 1.0, {"x": 5.0}, 90.0), Offer("a", 1.0, {"x": 5.0}, 95.0), Offer("c", 2.0, {"x": 10.0}, 180.0)]
    fleets = [cheapest(order, {"x": 20.0}) for order in itertools.permutations(offers)]
    # All cost 4: b and c emit 360 g, and two of c are the fewest.
    assert fleets[0].replicas == {"a": 0, "b": 0, "c": 2}
    assert all(fleet == fleets[0] for fleet in fleets)
    offers, demand = drawn(3)
    assert cheapest(offers, demand) == cheapest(offers[::-1], dict(reversed(demand.items())))


@pytest.mark.parametrize("seed", range(20))
def test_no_fleet_of_all_is_cheaper(seed):
    offers, demand = drawn(seed)
    fleets = sorted(every_fleet(offers, demand))
    best_usd, best_gco2, _ = fleets[0]
    fleet = cheapest(offers, demand)
    is_served(offers, fleet, demand)
    assert (round(fleet.usd_per_hour, 6), round(fleet.gco2_per_hour, 6)) == (best_usd, best_gco2)
    assert fleet.proven
    rented = np.array(list(fleet.replicas.values())) > 0
    prices = np.array([offer.usd_per_hour for offer in offers])
    others = [
        usd
        for usd, _, counts in fleets
        if np.any(rented & (np.array(counts) == 0))
        or np.any(~rented & (np.array(counts) > 0) & (usd < best_usd + prices - 1e-6))
    ]
    assert [round(f.usd_per_hour, 6) for f in [fleet.runner_up] if f] == others[:1]


@pytest.mark.parametrize("seed", range(8))
def test_the_front_is_every_fleet_that_none_beats(seed):
    offers, demand = drawn(seed + 100)
    expected, least_gco2 = [], math.inf
    for usd, gco2, _ in sorted(every_fleet(offers, demand)):
        if gco2 < least_gco2:
            expected, least_gco2 = [*expected, (usd, gco2)], gco2
    front = pareto(offers, demand)
    assert [(round(f.usd_per_hour, 6), round(f.gco2_per_hour, 6)) for f in front] == expected
    for fleet in front:
        is_served(offers, fleet, demand)
    assert replace(cheapest(offers, demand), runner_up=None) == front[0]


def test_a_thinned_front_keeps_its_ends():
    offers, demand = drawn(5)
    demand = {kind: 10 * rate for kind, rate in demand.items()}
    whole, thin = pareto(offers, demand), pareto(offers, demand, step_gco2_per_hour=200.0)
    points = [(fleet.usd_per_hour, fleet.gco2_per_hour) for fleet in whole]
    assert len(thin) < len(whole)
    assert {(fleet.usd_per_hour, fleet.gco2_per_hour) for fleet in thin} <= set(points)
    assert (thin[0], thin[-1]) == (whole[0], whole[-1])
    assert points == sorted(points)
    assert [gco2 for _, gco2 in points] == sorted((gco2 for _, gco2 in points), reverse=True)
    with pytest.raises(DataError, match="not known"):
        pareto([Offer("a", 1.0, {"x": 1.0})], {"x": 1.0})


@pytest.mark.parametrize("seed", range(6))
def test_cost_moves_the_right_way(seed):
    offers, demand = drawn(seed + 200, tiers=4, kinds=3)
    usd = cheapest(offers, demand).usd_per_hour
    assert cheapest(offers, {kind: 1.3 * rate for kind, rate in demand.items()}).usd_per_hour >= usd - 1e-6
    assert cheapest(offers, demand | {"k1": demand["k1"] + 1}).usd_per_hour >= usd - 1e-6
    assert cheapest(offers, demand, utilisation=0.8).usd_per_hour >= usd - 1e-6
    lower = [replace(offers[0], usd_per_hour=0.8 * offers[0].usd_per_hour), *offers[1:]]
    assert cheapest(lower, demand).usd_per_hour <= usd + 1e-6
    # The first tier serves every kind, so that the others may be left out.
    assert cheapest(offers[:-1], demand).usd_per_hour >= usd - 1e-6
    assert cheapest([replace(offers[0], at_most=1e6), *offers[1:]], demand).usd_per_hour == usd
    for slices in (1, 3):
        assert cheapest(offers, demand, slice_factor=slices).usd_per_hour >= usd - 1e-6


def test_a_large_fleet_is_still_served_and_proven():
    offers, demand = drawn(7, tiers=6, kinds=4)
    demand = {kind: 100 * rate for kind, rate in demand.items()}
    fleet = cheapest(offers, demand)
    is_served(offers, fleet, demand)
    assert fleet.proven
    assert fleet.gap < 1e-6
    assert (
        fleet.usd_per_hour <= 100 * cheapest(offers, {kind: rate / 100 for kind, rate in demand.items()}).usd_per_hour
    )


def test_a_free_tier_is_taken_as_far_as_it_goes():
    own = Offer("own", 0.0, {"chat": 12.0}, 10.0, at_most=2)
    fleet = cheapest([own, SMALL], {"chat": 30.0})
    assert (fleet.replicas, fleet.usd_per_hour) == ({"own": 2, "small": 1}, 2.0)
    assert cheapest([own], {"chat": 12.0}).replicas == {"own": 1}


@pytest.mark.parametrize(
    ("offers", "demand", "says"),
    [
        ([BIG, SMALL], {"chat": 1.0, "code": 1.0}, "demand: code: no tier serves it .* the best, big, does 0 requests"),
        ([replace(BIG, at_most=0)], {"chat": 1.0}, "demand: chat: .* big, does 100 requests/s, and 0 can be had"),
        ([replace(SMALL, at_most=2)], {"chat": 96.0}, "all that can be had serves 25.0% of it"),
        ([], {"chat": 1.0}, "no offers"),
        ([BIG, BIG], {"chat": 1.0}, "one tier twice"),
        ([BIG], {"chat": 0.0}, "asks for nothing"),
        ([BIG], {"chat": -1.0}, "demand: chat: is -1.0"),
        ([BIG], {"chat": math.nan}, "demand: chat: is nan"),
        ([replace(BIG, usd_per_hour=math.nan)], {"chat": 1.0}, "offers: big: usd_per_hour is nan"),
        ([replace(BIG, gco2_per_hour=-1.0)], {"chat": 1.0}, "offers: big: gco2_per_hour is -1"),
        ([replace(BIG, req_per_s={"chat": math.inf})], {"chat": 1.0}, "offers: big: serves inf requests/s of 'chat'"),
    ],
)
def test_what_cannot_be_served_says_why(offers, demand, says):
    with pytest.raises(DataError, match=says):
        cheapest(offers, demand)


def test_a_solver_out_of_time_is_no_answer(monkeypatch):
    monkeypatch.setattr("hetgpu.route.fleet.TIME_LIMIT_S", 0.0)
    offers, demand = drawn(7, tiers=6, kinds=4)
    with pytest.raises(DataError, match="no fleet found: Time limit"):
        cheapest(offers, {kind: 100 * rate for kind, rate in demand.items()})


@pytest.mark.parametrize("options", [{"utilisation": 0.0}, {"utilisation": 1.1}, {"slice_factor": -1}])
def test_options_out_of_range_are_named(options):
    with pytest.raises(DataError, match="options"):
        cheapest([BIG], {"chat": 1.0}, **options)


def example():
    given = json.loads(inside("data", "catalog", "mix_example.json").read_text(encoding="utf-8"))
    return given["gpu_info"], given["workload_distribution"], given["total_request_rate"]


def melange_usd_per_hour(gpu_info, workload, rate, slices):
    """Mélange's ILP as its solver states it: a binary for each slice and GPU, a whole number for each GPU."""
    gpus, parts = list(gpu_info), np.repeat(np.ravel(workload) * rate / slices, slices)
    count, none = len(parts), np.zeros(len(gpus))
    each = np.hstack([np.tile(np.eye(count), len(gpus)), np.zeros((count, len(gpus)))])
    fit = np.zeros((len(gpus), count * len(gpus) + len(gpus)))
    for row, gpu in enumerate(gpus):
        fit[row, row * count : (row + 1) * count] = parts / np.repeat(np.ravel(gpu_info[gpu]["tputs"]), slices)
        fit[row, count * len(gpus) + row] = -1
    cost = np.r_[np.zeros(count * len(gpus)), [gpu_info[gpu]["cost"] for gpu in gpus]]
    bounds = np.zeros_like(cost), np.r_[np.ones(count * len(gpus)), none + np.inf]
    rows = [LinearConstraint(each, 1, 1), LinearConstraint(fit, -np.inf, 0)]
    return milp(cost, integrality=np.ones_like(cost), bounds=bounds, constraints=rows).fun


@pytest.mark.parametrize(("slices", "usd_per_hour"), [(1, 7.96), (4, 7.33)])
def test_melange_answers_as_stated_and_slices_are_its_formulation(slices, usd_per_hour):
    assert round(melange_usd_per_hour(*example(), slices), 6) == usd_per_hour
    assert round(cheapest(*from_buckets(*example()), slice_factor=slices).usd_per_hour, 6) == usd_per_hour


def test_continuous_shares_cost_no_more_than_melange_at_any_slicing():
    offers, demand = from_buckets(*example())
    fleet = cheapest(offers, demand)
    is_served(offers, fleet, demand)
    assert fleet.replicas == {"2x-RTX-4090": 2, "H100-PCIe": 3, "L40S": 0}
    assert round(fleet.usd_per_hour, 6) == 7.33
    for slices in (1, 2, 3, 4, 8, 16):
        assert cheapest(offers, demand, slice_factor=slices).usd_per_hour >= fleet.usd_per_hour - 1e-6
    gpu_info, workload, rate = example()
    with pytest.raises(DataError, match=r"gpu_info: L40S: throughputs of shape \(1, 1\)"):
        from_buckets(gpu_info | {"L40S": {"cost": 1.0, "tputs": [[1.0]]}}, workload, rate)


@pytest.mark.parametrize("seed", range(6))
def test_slices_are_melange_on_random_buckets(seed):
    draw = np.random.default_rng(seed)
    gpu_info = {
        gpu: {"cost": round(draw.uniform(0.5, 3), 2), "tputs": draw.uniform(2, 30, (2, 2)).tolist()} for gpu in "abc"
    }
    case = gpu_info, draw.dirichlet(np.ones(4)).reshape(2, 2), draw.uniform(20, 90)
    for slices in (1, 2):
        usd = cheapest(*from_buckets(*case), slice_factor=slices).usd_per_hour
        assert round(usd, 6) == round(melange_usd_per_hour(*case, slices), 6)


def test_a_sweep_has_a_row_for_every_rate_and_tier():
    table = sweep([BIG, SMALL], {"chat": 2.0}, [12, 112, 1000], {"chat": 500.0})
    assert table.tier.tolist() == ["big", "small"] * 3
    assert table.replicas.tolist() == [0, 1, 1, 1, 10, 0]
    assert table.tier_req_per_s.tolist() == pytest.approx([0, 12, 100, 12, 1000, 0])
    assert table.usd_per_hour.tolist() == [2.0, 2.0, 12.0, 12.0, 100.0, 100.0]
    assert table.tier_usd_per_hour.tolist() == [0.0, 2.0, 10.0, 2.0, 100.0, 0.0]
    # 12 requests/s of 500 tokens are 21.6 million tokens an hour.
    assert table.usd_per_mtok_total[0] == pytest.approx(2.0 / 21.6)
    bare = sweep([BIG, SMALL], {"chat": 1.0}, [12])
    assert bare.usd_per_mtok_total.isna().all()
    with pytest.raises(DataError, match="tokens_per_req"):
        sweep([BIG], {"chat": 1.0}, [1], {"code": 1.0})


def test_a_sweep_never_costs_less_at_more_load():
    table = sweep(*from_buckets(*example()), np.geomspace(1, 1000, 25))
    usd = table.groupby("total_req_per_s").usd_per_hour.first()
    assert usd.is_monotonic_increasing
    assert len(table) == 25 * 3
