"""How long a step of the engine takes, from facts of the card and the model and a few fitted constants."""

from __future__ import annotations

from dataclasses import asdict, dataclass, fields

import numpy as np

from hetgpu.errors import DataError
from hetgpu.evidence.catalog import Gpu, Model

BYTES = {"bf16": 2.0, "fp16": 2.0, "fp32": 4.0, "fp8": 1.0, "awq": 0.56, "gptq": 0.56}
#: KV cache and activations are 16 bit whatever the weights are.
KV_BYTES = 2.0
#: Of a card's memory (its GB are GiB) a little is the driver's: 23.6 of 24 are seen on a 4090, 79.1 of 80 on an H100.
SEEN_SHARE = 0.985


@dataclass(frozen=True)
class StepCosts:
    """What a step's time is made of, all in seconds.

    A step with P prefill and D decoding tokens that reads K tokens of KV, with A pairs of (new token,
    token of its own context) in its prefill, takes

        max(floor_s, card) + per_seq_s D + (mixed_s if P > 0)        where card is
        base_s + (weights^n + (compute_s T)^n)^(1/n) + per_kv_token_s K + per_token_s T + per_pair_s A

    with T = P + D, weights = weights_s (1 + batch_loss T / (T + 8)) and n = ``knee``: reading the weights and
    multiplying by them overlap wholly (large n) or not (n = 1).

    Parameters
    ----------
    base_s : kernel launches and the constant part of communication.
    weights_s : one pass over the weights.
    per_seq_s : sampling and bookkeeping of a sequence that decodes.
    per_kv_token_s : reading one token's keys and values.
    per_token_s : communication of one token's activations.
    compute_s : floating-point work of one token.
    mixed_s : what a step with prefill costs beside.
    per_pair_s : attention of one pair in prefill.
    api_s : from the client's send to the scheduler.
    out_s : from the step's end to the client.
    floor_s : no step is shorter: what the host does while the card works.
    batch_loss : how much slower weights are read for a batch than for one token (matrix times matrix, not vector).
    """

    base_s: float
    weights_s: float = 0.0
    per_seq_s: float = 0.0
    per_kv_token_s: float = 0.0
    per_token_s: float = 0.0
    compute_s: float = 0.0
    mixed_s: float = 0.0
    per_pair_s: float = 0.0
    api_s: float = 0.0
    out_s: float = 0.0
    floor_s: float = 0.0
    knee: float = 4.0
    batch_loss: float = 0.0

    def __post_init__(self) -> None:
        """Refuse a time that cannot be."""
        for name, seconds in asdict(self).items():
            if not (np.isfinite(seconds) and seconds >= 0):
                raise DataError("step costs", name, f"is {seconds}", "give seconds, 0 or more")
        if self.base_s + self.weights_s + self.floor_s <= 0 or self.knee < 1:
            problem = f"a step takes no time, or the knee {self.knee} is below 1"
            raise DataError("step costs", "base_s, weights_s, floor_s, knee", problem, "give one of the times")

    def array(self) -> np.ndarray:
        """The costs in the kernel's order."""
        return np.array([getattr(self, field.name) for field in fields(self)])


@dataclass(frozen=True)
class Constants:
    """What is fitted once for a GPU, whatever the model.

    Parameters
    ----------
    bandwidth_share, kv_share, flop_share : of the data sheet's bandwidth (weights; KV) and dense FP16 rate.
    host_s : per step, whatever the model. per_layer_s : kernel launches of a layer. seq_s : per decoding sequence.
    mixed_s, api_s, floor_s, knee, batch_loss : as in :class:`StepCosts`.
    allreduce_s : start of one all-reduce between cards (alpha). link_gb_per_s : its rate (1 / beta).
    overhead_gb : memory per card (GiB) that is neither weights nor KV. several_overhead_gb : what each of several
        cards needs beside (buffers of the all-reduce).
    """

    bandwidth_share: float
    kv_share: float
    flop_share: float
    host_s: float
    per_layer_s: float
    seq_s: float
    mixed_s: float
    api_s: float
    floor_s: float = 0.0
    knee: float = 4.0
    batch_loss: float = 0.0
    allreduce_s: float = 30e-6
    link_gb_per_s: float = 10.0
    overhead_gb: float = 2.0
    several_overhead_gb: float = 0.0


def weight_bytes(model: Model, precision: str = "") -> float:
    """Bytes of a model's weights."""
    return model.parameters_b * 1e9 * BYTES[precision or model.weight_dtype]


def kv_bytes_per_token(model: Model) -> float:
    """Bytes of keys and values that one token keeps: 2 x layers x KV heads x head size x 2."""
    return 2 * model.layers * model.kv_heads * model.head_dim * KV_BYTES


def kv_tokens(gpu: Gpu, count: int, model: Model, constants: Constants, precision: str = "") -> int:
    """Tokens of KV that fit beside the weights in 0.9 of the cards' memory (vLLM's default share).

    Raises
    ------
    DataError : when the weights alone do not fit.
    """
    overhead = constants.overhead_gb + (constants.several_overhead_gb if count > 1 else 0.0)
    free = count * (gpu.memory_gb * SEEN_SHARE * 0.9 - overhead) * 2**30 - weight_bytes(model, precision)
    if free < 0:
        short = weight_bytes(model, precision) / 2**30
        problem = f"{model.model} needs {short:.0f} GiB for its weights, {count}x {gpu.gpu} cannot hold it"
        raise DataError("tier", f"{count}x {gpu.gpu}", problem, "take more cards, or fewer bits")
    return int(free / kv_bytes_per_token(model))


def step_costs(gpu: Gpu, count: int, model: Model, constants: Constants, precision: str = "") -> StepCosts:
    """A tier's step costs from facts of ``data/catalog`` and fitted constants.

    Tensor parallelism divides weights, work and KV by the cards and adds two all-reduces a layer: a
    start each, and 2 (n - 1) / n x hidden x 2 bytes a token over the link (ring all-reduce).
    """
    bandwidth = gpu.bandwidth_gb_per_s * 1e9
    flops = gpu.fp16_dense_tflop_per_s * 1e12 * constants.flop_share * count
    table = model.vocab * model.hidden
    # A tied table is read once a step, as the output's; an untied input table is looked up, not read.
    looked_up = 0 if model.tied_embeddings else table
    streamed = weight_bytes(model, precision) * (1 - looked_up / (model.parameters_b * 1e9))
    # Logits are made for the sampled positions alone, so prefill works neither table.
    worked = model.parameters_b * 1e9 - looked_up - table
    reduced = 2 * model.layers if count > 1 else 0
    per_token = 2 * (count - 1) / count * model.hidden * 2 / (constants.link_gb_per_s * 1e9)
    return StepCosts(
        base_s=constants.host_s + model.layers * constants.per_layer_s + reduced * constants.allreduce_s,
        weights_s=streamed / (bandwidth * constants.bandwidth_share * count),
        per_seq_s=constants.seq_s,
        per_kv_token_s=kv_bytes_per_token(model) / (bandwidth * constants.kv_share * count),
        per_token_s=reduced * per_token,
        compute_s=2 * worked / flops,
        mixed_s=constants.mixed_s,
        # Two products (scores, values) of 2 operations over all query heads.
        per_pair_s=4 * model.layers * model.heads * model.head_dim / flops,
        api_s=constants.api_s,
        floor_s=constants.floor_s,
        knee=constants.knee,
        batch_loss=constants.batch_loss,
    )
