"""Every metric against numbers worked out by hand, units included."""

import csv
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hetgpu.errors import DataError
from hetgpu.evidence import metrics

positive = st.floats(min_value=1e-3, max_value=1e9)


def test_throughputs():
    assert metrics.req_per_s(200, 50.0) == 4.0
    assert metrics.tok_out_per_s(1000, 50.0) == 20.0
    assert metrics.tok_total_per_s(500, 1000, 50.0) == 30.0
    assert metrics.goodput_req_per_s(100, 50.0) == 2.0


def test_tpot_is_per_token_after_the_first():
    assert metrics.tpot_ms(1100.0, 100.0, 11) == 100.0
    assert math.isnan(metrics.tpot_ms(100.0, 100.0, 1))


def test_little_s_law_and_e2e_from_means():
    assert metrics.e2e_mean_ms(100.0, 10.0, 11) == 200.0
    assert metrics.mean_concurrency(64, 14.8, 120.0) == pytest.approx(7.893, abs=1e-3)


def test_the_three_denominators_of_a_cost():
    usd = metrics.usd_per_run(2.00, 1, 3600.0)
    assert usd == 2.0
    assert metrics.usd_per_mtok(usd, 9_000_000 + 1_000_000) == pytest.approx(0.20)
    assert metrics.usd_per_mtok(usd, 1_000_000) == pytest.approx(2.00)
    assert metrics.usd_per_mtok(usd, 9_000_000) == pytest.approx(0.2222, abs=1e-4)


def test_no_tokens_out_is_missing_and_neither_zero_nor_infinite():
    assert math.isnan(metrics.usd_per_mtok(2.0, 0))
    assert np.isnan(metrics.ratio([1.0, 2.0], [0.0, 4.0])).tolist() == [True, False]


def test_energy_and_carbon_at_tdp():
    joules = metrics.energy_at_tdp_j(450.0, 2, 3600.0)
    assert joules == 0.9 * metrics.J_PER_KWH
    assert metrics.tok_total_per_kwh(4_500_000, joules) == pytest.approx(5_000_000)
    assert metrics.gco2_per_mtok(joules, 4_500_000, 242.0) == pytest.approx(48.4)
    assert metrics.j_per_tok(720.0, 360) == 2.0


def test_energies_in_any_unit_are_the_same_joules(cases):
    with (cases / "energy_units.csv").open(newline="") as stream:
        rows = {row["run_id"]: row for row in csv.DictReader(stream)}
    for name in "abcd":
        assert metrics.energy_j(float(rows[name]["energy"]), rows[name]["unit"]) == pytest.approx(720_000.0)
    with pytest.raises(DataError, match="unit missing"):
        metrics.energy_j(float(rows["e"]["energy"]), rows["e"]["unit"])
    with pytest.raises(DataError, match="unknown unit 'BTU'"):
        metrics.energy_j(1.0, "BTU")


def test_the_authors_arrivals_are_seeded_and_end_when_they_should():
    for qps in (1.0, 4.0, 8.0, 16.0, 32.0):
        arrivals = metrics.arrivals_s(qps, 200)
        assert arrivals[0] == 0.0
        assert (np.diff(arrivals) > 0).all()
        # The 200th gap is slept after the last request, so nothing can end before 189.1 / qps.
        assert round(arrivals[-1] * qps, 2) == 187.58
    assert (np.random.RandomState(42).gamma(1.0, 1.0, 200).sum() * 10).round() == 1891
    assert metrics.arrivals_s(1.0, 200, seed=43)[-1] != metrics.arrivals_s(1.0, 200)[-1]


def test_audit_measures():
    assert metrics.drain_share(40.0, 10.0) == 0.75
    assert metrics.stall_ratio(30.0, 20.0) == 1.5
    assert metrics.prefill_interruption_ratio(60.0, 20.0) == 3.0
    assert metrics.signed_error(1.1, 1.0) == pytest.approx(0.1)


@given(positive, positive, st.integers(1, 8), positive)
def test_tokens_per_dollar_is_the_inverse_of_dollars_per_token(price, duration, gpus, tokens):
    usd_per_mtok = metrics.usd_per_mtok(metrics.usd_per_run(price, gpus, duration), tokens)
    per_usd = metrics.tok_total_per_usd(metrics.ratio(tokens, duration), price, gpus)
    assert per_usd * usd_per_mtok == pytest.approx(1e6, rel=1e-9)


@given(positive, st.sampled_from(sorted(metrics.J_PER_UNIT)))
def test_an_energy_survives_its_unit(joules, unit):
    assert metrics.energy_j(joules / metrics.J_PER_UNIT[unit], unit) == pytest.approx(joules)
