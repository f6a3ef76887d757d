"""The judge by made-up claims, and the paper's claims against values worked out another way."""

import pandas as pd
import pytest

from hetgpu.decide import claim_values
from hetgpu.decide.audit import audit_cells, record_of_printed_rows, repeat_noise
from hetgpu.decide.claims import Claim, Finding, Value, judge, load_claims
from hetgpu.decide.cost import price_all
from hetgpu.decide.energy import energy_both
from hetgpu.decide.recordset import TABLE2_MODEL, join_records, pareto_front
from hetgpu.errors import DataError
from hetgpu.evidence.catalog import find_grid, load_grids
from hetgpu.evidence.published import load_printed
from hetgpu.paths import inside

RULES = {"stall_above": 1.015, "judge_at_qps": 4.0, "warm_below": 1.5, "cold_above": 2.0, "first_qps": 32.0}


def claim(kind, claimed, tolerance=0.0, **more):
    return Claim(
        id="x", where="P", claim="c", kind=kind, claimed={"q": claimed}, tolerance=tolerance, tolerance_from="t", **more
    )


def finding(*values):
    return Finding([Value("q", str(number), value) for number, value in enumerate(values)])


@pytest.mark.parametrize(
    ("made", "values", "verdict"),
    [
        (claim("equals", [10.0], 0.1), (9.0, 11.0), "reproduced"),
        (claim("equals", [10.0], 0.1), (8.9, 10.0), "holds under a condition"),
        (claim("equals", [10.0], 0.1), (8.9, 11.1), "not reproduced"),
        (claim("within", [4.0, 7.0], 0.02), (3.93, 7.1), "reproduced"),
        (claim("within", [4.0, 7.0], 0.02), (3.9, 7.2), "not reproduced"),
        (claim("below", [55.0], 0.1), (60.4, 10.0), "reproduced"),
        (claim("below", [55.0], 0.1), (60.6, 10.0), "holds under a condition"),
        (claim("up_to", [1.5], 0.02), (1.0, 1.49), "reproduced"),
        (claim("up_to", [1.5], 0.02), (1.0, 1.2), "not reproduced"),
        (claim("up_to", [1.5], 0.02), (1.0, 1.6), "holds under a condition"),
        (claim("below", [1.0], limits="only here"), (0.5,), "holds under a condition"),
    ],
)
def test_the_rules(made, values, verdict):
    assert judge(made, finding(*values)) == verdict


def test_an_untestable_claim_is_never_judged_on_values():
    made = Claim(id="x", where="P", claim="c", kind="untestable", needs="a run")
    assert judge(made, finding(1.0)) == "not testable with the data"


def test_nothing_to_judge_is_an_error():
    with pytest.raises(DataError, match="x: no value was computed"):
        judge(claim("below", [1.0]), Finding())


@pytest.mark.parametrize(
    "broken", [{"kind": "untestable"}, {"kind": "within", "claimed": {"q": [1.0]}}, {"kind": "equals"}]
)
def test_a_rule_that_is_not_whole_is_refused(broken):
    with pytest.raises(ValueError, match="untestable claim|takes 2 claimed|takes 1 claimed"):
        Claim(id="x", where="P", claim="c", tolerance_from="t", **broken)


@pytest.fixture(scope="module")
def records(runs):
    costs = price_all(runs, ["paper-2025-05"])
    energy = energy_both(runs, {"H100-PCIe": 700.0, "RTX-4090": 450.0}, find_grid("EU27", load_grids()))
    rows = record_of_printed_rows(load_printed("table2"), runs[runs.model == TABLE2_MODEL])
    return join_records(runs, costs, energy, dict(zip(rows.n, rows.run_id, strict=True)))


@pytest.fixture(scope="module")
def verdicts(records):
    return {row["id"]: row for row in claim_values.evaluate(records)}


@pytest.fixture(scope="module")
def raw():
    """The records by plain pandas, with none of our code: price and cost worked out here."""
    frame = pd.read_csv(inside("data", "published", "runs.csv"))
    frame["usd"] = frame.gpu.map({"H100-PCIe": 2.0, "RTX-4090": 0.25}) * frame.gpu_count * frame.duration_s / 3600
    frame["usd_per_mtok"] = frame.usd / (frame.input_tokens + frame.output_tokens) * 1e6
    frame["tier"] = frame.gpu_count.astype(str) + frame.gpu
    return frame[frame.record == 1]


def at(raw, tier, column, model="Qwen-14B"):
    return raw[(raw.tier == tier) & raw.model.str.endswith(model)].set_index("target_qps")[column]


def test_every_claim_has_a_function_and_every_function_a_claim():
    assert {claim.id for claim in load_claims()} == set(claim_values.FINDINGS)


def test_claims_are_what_plain_arithmetic_gives(verdicts, raw):
    speed = "total_token_throughput_per_s"
    h100, pair, quad = (at(raw, tier, speed) for tier in ("1H100-PCIe", "2RTX-4090", "4RTX-4090"))
    cost = {tier: at(raw, tier, "usd_per_mtok") for tier in ("1H100-PCIe", "2RTX-4090", "4RTX-4090")}

    def value(claim_id, cell):
        return next(v["value"] for v in verdicts[claim_id]["values"] if v["cell"].startswith(cell))

    assert value("throughput-share", "Qwen-14B, 16 QPS") == pytest.approx(quad[16] / h100[16])
    assert value("half-cost", "Qwen-14B, 16 QPS") == pytest.approx(cost["4RTX-4090"][16] / cost["1H100-PCIe"][16])
    assert value("cost-cut", "Qwen-14B, 1 QPS") == pytest.approx(1 - cost["2RTX-4090"][1] / cost["1H100-PCIe"][1])
    assert value("dollar-throughput", "Qwen-14B, 8 QPS") == pytest.approx(cost["1H100-PCIe"][8] / cost["2RTX-4090"][8])
    assert value("four-cards", "Qwen-14B, 8 QPS") == pytest.approx(quad[8] / pair[8] - 1)
    assert value("h100-throughput", "Qwen-14B, 32 QPS") == pytest.approx(h100[32] / pair[32])
    assert verdicts["h100-throughput"]["value_max"] == pytest.approx(h100[32] / at(raw, "8RTX-4090", speed)[32])
    assert verdicts["lowest-cost"]["value_min"] == pytest.approx(cost["2RTX-4090"].min())
    assert value("h100-knee", "1x H100 PCIe, 16 QPS") == pytest.approx(
        at(raw, "1H100-PCIe", "request_throughput_per_s")[16]
    )
    assert value("consumer-knee", "2x RTX 4090, 4 QPS") == pytest.approx(
        at(raw, "2RTX-4090", "request_throughput_per_s")[4]
    )
    assert value("energy-ratio", "rows 13 and 6, paper") == pytest.approx(h100[16] / 700 / (pair[4] / 900))
    assert value("energy-ratio", "rows 13 and 6, data") == pytest.approx(h100[16] / 350 / (pair[4] / 900))
    assert verdicts["consumer-latency"]["cells_that_hold"] == int(
        (pd.read_csv(inside("data", "published", "runs.csv")).query("gpu == 'RTX-4090'").ttft_p99_ms < 550).sum()
    )


def test_verdicts_that_the_report_speaks_of(verdicts):
    assert verdicts["cost-cut"]["verdict"] == "reproduced"
    assert verdicts["h100-knee"]["verdict"] == "not reproduced"
    for name in ("hybrid-saving", "four-nodes", "split-h100", "uses"):
        assert verdicts[name]["verdict"] == "not testable with the data"
        assert verdicts[name]["needs"]
    assert all(row["condition"] for row in verdicts.values() if row["verdict"] == "holds under a condition")


def test_every_value_names_the_runs_it_rests_on(verdicts, runs):
    for name, row in verdicts.items():
        for value in row["values"]:
            assert set(value["runs"]) <= set(runs.run_id), name
            assert value["runs"] or name == "neocloud-price"


def test_a_changed_record_changes_the_verdict(records):
    slower = records.runs.copy()
    slower.loc[slower.tier == "2x-rtx-4090", "usd_per_mtok_total"] *= 3
    changed = type(records)(slower, records.table2)
    rows = {row["id"]: row["verdict"] for row in claim_values.evaluate(changed)}
    assert rows["cost-cut"] == "not reproduced"


def test_tolerances_are_not_below_the_noise_of_repeated_cells(runs):
    noise = repeat_noise(runs)
    assert len(noise) == 10
    by_id = {claim.id: claim for claim in load_claims()}
    assert noise.ttft_p99_ms_apart.max() <= by_id["h100-ttft"].tolerance == by_id["consumer-latency"].tolerance
    assert 2 * noise.duration_s_apart.max() <= by_id["h100-throughput"].tolerance + 0.001


def test_no_identifiable_pair_lies_between_the_cache_thresholds(runs):
    cells = audit_cells(runs, RULES)
    judged = cells[(cells.target_qps == 4) & (cells.record == 1) & ~((cells.gpu == "RTX-4090") & (cells.gpu_count > 1))]
    assert len(judged) == 17
    sign = judged.prefill_interruption_ratio
    assert sign[sign < 1.5].max() <= 1.12
    assert sign[sign >= 1.5].min() >= 3.0
    assert set(judged.cache) == {"warm", "cold"}


def test_the_cell_audit(runs):
    cells = audit_cells(runs, RULES).set_index("run_id")
    h100 = "published/1x-h100-pcie/DeepSeek-R1-Distill-Qwen-14B/qps16/record1"
    assert cells.drain_share[h100] == pytest.approx(1 - 187.58 / 16 / 27.682, abs=1e-3)
    assert cells.cache[h100] == "warm"
    assert cells.cache[h100.replace("qps16", "qps32")] == "cold"
    several = cells[(cells.gpu == "RTX-4090") & (cells.gpu_count > 1)]
    assert set(several[several.target_qps < 32].cache) == {"unidentified"}
    assert not cells[cells.gpu == "H100-PCIe"].stalled.any()
    assert several.stalled.sum() == (several.stall_ratio > 1.015).sum() == 21


def test_the_pareto_front():
    frame = pd.DataFrame({"x": [1.0, 2.0, 3.0], "y": [3.0, 1.0, 2.0]})
    assert pareto_front(frame, "x", "y").tolist() == [True, True, False]


def test_claims_yaml_says_no_verdict():
    text = inside("data", "catalog", "claims.yaml").read_text()
    assert "verdict:" not in text
