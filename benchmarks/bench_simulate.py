"""How fast the simulator is: requests a second of wall time on one core, against one step at a time in plain Python.

An H100 with a 14B model at 16 QPS, answers of 200 tokens, preemption and prefix cache in the model.
Run by ``make bench``; ``--quick`` leaves out the ten million.
"""

import resource
import sys
import time
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))
import naive_engine

from hetgpu.evidence.catalog import load_gpus, load_models
from hetgpu.evidence.records import read_stage_output
from hetgpu.simulate.calibrate import read_constants
from hetgpu.simulate.engine import EngineShape, Load, simulate
from hetgpu.simulate.steptime import kv_tokens, step_costs


def load(requests: int) -> Load:
    """Poisson arrivals at 16 QPS, prompts of 4 to 800 tokens, answers of 200."""
    draw = np.random.default_rng(0)
    arrivals = np.cumsum(draw.exponential(1 / 16, requests))
    return Load(arrivals, draw.integers(4, 800, requests), np.full(requests, 200))


def main() -> None:
    """Print requests a second by size, the ratio to the plain engine, and the memory at the end."""
    gpu, model = load_gpus()["H100-PCIe"], load_models()["deepseek-ai/DeepSeek-R1-Distill-Qwen-14B"]
    constants = read_constants(read_stage_output("constants"))[gpu.gpu]
    costs, shape = step_costs(gpu, 1, model, constants), EngineShape(kv_tokens(gpu, 1, model, constants), 8192, 1024)
    simulate(costs, shape, load(100))  # compiles, or reads what was compiled
    plain = load(300)
    began = time.perf_counter()
    naive_engine.serve(costs, shape, [plain])
    slow = 300 / (time.perf_counter() - began)
    print(f"one step at a time {slow:12,.0f} requests/s")
    speeds = {}
    for requests in (10**5, 10**6) if "--quick" in sys.argv else (10**5, 10**6, 10**7):
        asked = load(requests)
        began = time.perf_counter()
        simulate(costs, shape, asked)
        speeds[requests] = requests / (time.perf_counter() - began)
        print(
            f"{requests:>12,} requests {speeds[requests]:12,.0f} requests/s, {speeds[requests] / slow:,.0f} times that"
        )
    fewest, most = min(speeds), max(speeds)
    print(f"time a request, {most:,} over {fewest:,}: {speeds[fewest] / speeds[most]:.2f}")
    print(f"memory at most {resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20:.2f} GiB")


if __name__ == "__main__":
    main()
