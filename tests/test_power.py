"""Power: the real NVML binding on a stand-in library, RAPL on a made-up tree, and energy by hand."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hetgpu.measure.power import COLUMNS, Sampler, energy_of

STUB = Path(__file__).parent / "nvml_stub" / "stub.c"

SCRIPT = """
import json, time
from hetgpu.measure.power import Sampler, energy_of, nvml_devices
from dataclasses import asdict
began = time.monotonic()
with Sampler(hz=20.0) as sampler:
    time.sleep(1.5)
frame = sampler.frame()
parts = {d: asdict(energy_of(f, began + 0.1, began + 1.4)) for d, f in frame.groupby("device")}
print(json.dumps({
    "devices": [asdict(d) for d in nvml_devices()],
    "rows": frame.groupby("device").size().to_dict(),
    "power": frame.groupby("device").power_w.mean().to_dict(),
    "parts": parts,
    "both": asdict(energy_of(frame, began + 0.1, began + 1.4)),
    "events": [(device, what) for _, device, what in sampler.events],
}))
"""


@pytest.fixture(scope="session")
def stub(tmp_path_factory):
    """The stand-in library's folder."""
    compiler = shutil.which("gcc") or shutil.which("cc")
    if compiler is None:
        pytest.skip("no C compiler: the stand-in NVML cannot be built")
    folder = tmp_path_factory.mktemp("nvml")
    subprocess.run([compiler, "-shared", "-fPIC", "-o", folder / "libnvidia-ml.so.1", STUB], check=True)
    return folder


def sample(stub, mode):
    environment = os.environ | {"LD_LIBRARY_PATH": str(stub), "NVML_STUB": mode}
    done = subprocess.run([sys.executable, "-c", SCRIPT], env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_cards_are_matched_by_uuid_whatever_their_order(stub):
    found = sample(stub, "counter")
    assert [device["uuid"] for device in found["devices"]] == ["GPU-bbbb", "GPU-aaaa"]
    assert found["devices"][0]["power_cap_w"] == 450
    assert found["power"] == {"GPU-aaaa": 100.0, "GPU-bbbb": 300.0}
    assert min(found["rows"].values()) >= 0.9 * 20 * 1.5


def test_a_counter_is_used_where_there_is_one(stub):
    found = sample(stub, "counter")
    assert found["both"]["method"] == "counter"
    assert found["parts"]["GPU-bbbb"]["energy_j"] / found["parts"]["GPU-aaaa"]["energy_j"] == pytest.approx(
        3.0, rel=0.05
    )


def test_without_a_counter_power_is_integrated(stub):
    both = sample(stub, "no_counter")["both"]
    assert (both["method"], both["reason"]) == ("power_integral", "no energy counter")
    assert both["energy_j"] == pytest.approx(400 * 1.3, rel=1e-6)


def test_a_counter_that_restarts_is_not_believed(stub):
    both = sample(stub, "restart")["both"]
    assert (both["method"], both["reason"]) == ("power_integral", "the energy counter restarted")
    assert both["energy_j"] == pytest.approx(400 * 1.3, rel=1e-6)


def test_a_card_that_falls_off_is_named_and_the_other_goes_on(stub):
    found = sample(stub, "lost")
    assert [device for device, _ in found["events"]] == ["GPU-bbbb"]
    assert "lost" in found["events"][0][1].lower()
    assert found["rows"]["GPU-aaaa"] > 20
    assert found["parts"]["GPU-bbbb"]["energy_j"] is None
    assert found["both"]["energy_j"] is None
    assert "of the window" in found["both"]["reason"]


def frame(rows):
    return pd.DataFrame(rows, columns=list(COLUMNS[:3])).reindex(columns=list(COLUMNS))


def test_the_cases(cases):
    found = {}
    for line in (cases / "counters.jsonl").read_text().splitlines():
        case = json.loads(line)
        samples = frame([(t, "d", w) for t, w in case["power_w"]])
        if case["energy_counter_mj"][0] is not None:
            samples = frame([(0.0, "d", None), (2.0, "d", None)])
            samples["energy_counter_j"] = [mj * 1e-3 for mj in case["energy_counter_mj"]]
        found[case["run_id"]] = energy_of(samples, 0.0, 2.0)
    assert (found["integral"].energy_j, found["integral"].method) == (616.0, "power_integral")
    assert (found["nothing"].energy_j, found["nothing"].reason) == (None, "unavailable")
    assert (found["restarted"].energy_j, found["restarted"].reason) == (None, "the energy counter restarted")


@given(st.floats(1.0, 700.0), st.floats(1.0, 50.0), st.floats(-1e4, 1e4))
def test_constant_power_over_a_time_is_their_product_on_any_clock(power, seconds, shift):
    times = np.linspace(0.0, seconds, 23) + shift
    energy = energy_of(frame([(t, "d", power) for t in times]), shift, shift + seconds)
    assert energy.energy_j == pytest.approx(power * seconds, rel=1e-6)


@given(st.lists(st.floats(1.0, 700.0), min_size=5, max_size=30), st.floats(0.2, 0.8))
def test_the_parts_of_a_window_add_up(powers, cut):
    samples = frame(list(zip(np.arange(len(powers), dtype=float), ["d"] * len(powers), powers, strict=True)))
    end = len(powers) - 1.0
    whole, left, right = (energy_of(samples, a, b).energy_j for a, b in ((0, end), (0, cut * end), (cut * end, end)))
    assert whole == pytest.approx(left + right, rel=1e-6)


def test_samples_that_end_early_leave_the_energy_unknown():
    energy = energy_of(frame([(t, "d", 100.0) for t in range(5)]), 0.0, 10.0)
    assert energy.energy_j is None
    assert energy.reason == "samples cover 0.40 of the window"


def test_rapl_counts_through_its_wrap_around_and_skips_what_cannot_be_read(tmp_path):
    package = tmp_path / "intel-rapl:0"
    package.mkdir()
    (package / "max_energy_range_uj").write_text("1000000\n")
    (package / "energy_uj").write_text("900000\n")
    (tmp_path / "intel-rapl:1").mkdir()
    with Sampler(uuids=[], hz=50.0, rapl=tmp_path) as sampler:
        while len(sampler.rows) < 3:
            pass
        (package / "energy_uj").write_text("100000\n")
        seen = len(sampler.rows)
        while len(sampler.rows) < seen + 3:
            pass
    counter = sampler.frame().energy_counter_j
    assert set(sampler.frame().device) == {"rapl:intel-rapl:0"}
    assert counter.iloc[0] == pytest.approx(0.9)
    assert counter.iloc[-1] == pytest.approx(1.1)


def test_nothing_to_read_is_an_empty_frame_and_no_energy(tmp_path):
    with Sampler(uuids=[], rapl=tmp_path) as sampler:
        pass
    assert sampler.frame().empty
    assert list(sampler.frame().columns) == list(COLUMNS)
    assert energy_of(sampler.frame(), 0.0, 1.0).energy_j is None
