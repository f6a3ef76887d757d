"""Measuring a tier: the machine is held against it, and vLLM's own client runs against a stub engine."""

import sys
from pathlib import Path

import numpy as np
import pytest

from hetgpu.errors import DataError
from hetgpu.evidence.catalog import load_gpus, load_tiers
from hetgpu.evidence.traces import read_trace, summarise
from hetgpu.measure import machine, tier
from hetgpu.measure.client import ClientError, requests_frame, run_client
from hetgpu.measure.engine import Engine, EngineSpec
from hetgpu.measure.model import build_tiny_model, fingerprint
from hetgpu.measure.run import Planned, Setting, sweep, sweep_missing
from hetgpu.measure.schedule import paper_schedule

STUB = Path(__file__).parent / "stub_engine.py"


def facts(*names):
    return {"gpus": [{"name": name, "uuid": f"GPU-{number}"} for number, name in enumerate(names)]}


def test_a_machine_is_its_tier_or_is_refused():
    tiers, name = load_tiers(), load_gpus()["RTX-4090"].nvml_names[0]
    machine.check_tier(tiers["2x-rtx-4090"], facts(name, name))
    machine.check_tier(tiers["cpu-local"], facts())
    for key, seen, message in (
        ("2x-rtx-4090", facts(name), "1 GPUs are seen, the tier has 2"),
        ("1x-rtx-4090", facts("NVIDIA L4"), "device 'NVIDIA L4' is no RTX-4090"),
        ("1x-h100-pcie", facts(), "no GPU is seen here"),
    ):
        with pytest.raises(DataError, match=message):
            machine.check_tier(tiers[key], seen)


def test_two_machines_are_told_apart():
    here = machine.fingerprint()
    assert machine.machine_id(here) == machine.machine_id(dict(here))
    assert machine.machine_id(here) != machine.machine_id(here | {"cores": -1})


def test_a_tier_s_engine_has_a_rank_a_gpu_and_the_paper_s_order_of_rates():
    request = tier.Request("2x-rtx-4090", "some/model", "float16", arguments=("--load-format", "dummy"))
    spec = tier.spec_of(request, load_tiers()["2x-rtx-4090"], "some/model")
    assert spec.arguments == ("--tensor-parallel-size", "2", "--load-format", "dummy")
    assert spec.precision == "float16"
    plans = tier.plans(request)
    assert [plan.target_qps for plan in plans] == [32.0, 16.0, 8.0, 4.0, 1.0]
    assert all(len(plan.schedule) == 200 for plan in plans)
    assert np.array_equal(plans[0].schedule.prompt, plans[-1].schedule.prompt)


def test_an_unknown_tier_is_named():
    with pytest.raises(DataError, match="9x-x: is not in tiers.yaml"):
        tier.tier_of(tier.Request("9x-x"))


# -- vLLM's client against the stub ----------------------------------------------------------------


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory):
    pytest.importorskip("vllm", reason="the engine is not installed here")
    folder = tmp_path_factory.mktemp("models")
    model = build_tiny_model(folder / "a")
    assert fingerprint(model) == fingerprint(build_tiny_model(folder / "b")), "the same bytes every time"
    return str(model)


@pytest.fixture
def start(project, tmp_path):
    interpreter = tmp_path / "python"
    interpreter.write_text(f'#!/bin/sh\nexec {sys.executable} {STUB} "$@"\n')
    interpreter.chmod(0o755)

    def started(fail=""):
        spec = EngineSpec("m", python=str(interpreter), environment={"STUB_FAIL": fail}, ready_limit_s=15.0)
        return Engine.start(spec, tmp_path / "engine.log", lambda text: None)

    return started


@pytest.mark.engine
def test_a_sweep_writes_runs_that_agree_with_the_client_and_resumes(start, tokenizer, tmp_path):
    setting = Setting(load_tiers()["cpu-local"], "m", "bf16", tokenizer, tmp_path / "traces")
    plans = [Planned("paper", 50.0, repeat, paper_schedule(50.0, 6)) for repeat in (0, 1)]
    said = []
    with start() as engine:
        folders = sweep(engine, setting, plans[:1], tmp_path / "scratch", said.append)
        folders = sweep(engine, setting, plans, tmp_path / "scratch", said.append)
    assert len(said) == 2, "the first run was not made again"
    nobody = lambda: pytest.fail("an engine was started for runs that are there")  # noqa: E731
    assert sweep_missing(nobody, setting, plans, tmp_path / "scratch", said.append) == folders
    for folder in folders:
        trace = read_trace(folder)
        row, client = summarise(trace), trace.run["client"]["summary"]
        assert (row.completed, row.failed, row.headline) == (6, 0, True), trace.failed_checks
        assert row.ttft_mean_ms == pytest.approx(client["mean_ttft_ms"])
        assert row.output_tokens == trace.run["server"]["vllm:generation_tokens_total"]
        assert (trace.requests.sent_s >= trace.requests.scheduled_s).all()


@pytest.mark.engine
def test_an_engine_killed_in_mid_run_leaves_no_run_that_can_be_read(start, tokenizer, tmp_path):
    setting = Setting(load_tiers()["cpu-local"], "m", "bf16", tokenizer, tmp_path / "traces")
    plan = Planned("paper", 50.0, 0, paper_schedule(50.0, 4))
    with start("dies_serving") as engine, pytest.raises(RuntimeError, match="stopped answering|left no result"):
        sweep(engine, setting, [plan], tmp_path / "scratch", lambda text: None)
    assert not list((tmp_path / "traces").rglob("run.json")) if (tmp_path / "traces").exists() else True
    with start() as engine:
        assert sweep(engine, setting, [plan], tmp_path / "scratch", lambda text: None)[0].is_dir()


@pytest.mark.engine
def test_a_server_that_hangs_is_an_error_at_the_limit(start, tokenizer, tmp_path):
    with start("hangs") as engine, pytest.raises(ClientError, match="took longer than 20 s"):
        run_client(engine, tokenizer, paper_schedule(50.0, 2), tmp_path / "c", limit_s=20.0)


def test_a_result_that_does_not_fit_its_schedule_is_refused():
    with pytest.raises(DataError, match="start_times.*not of the schedule's 3 requests"):
        requests_frame({"start_times": [1.0]}, paper_schedule(1.0, 3), "local")
