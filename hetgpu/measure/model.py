"""A small Llama with random weights and a tokenizer of its own, for machines without a model hub.

It says nothing sensible and is no stand-in for a real model's quality: it exercises vLLM's whole
path (prefill, decode, prefix cache, streaming) at a speed that a CPU can serve.
"""

from __future__ import annotations

import hashlib
import json
import shutil
import tempfile
from dataclasses import dataclass
from pathlib import Path

from hetgpu.errors import DataError
from hetgpu.paths import shown

#: Names of the files that a model folder of ours must hold.
FILES = ("config.json", "generation_config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json")


@dataclass(frozen=True)
class TinyShape:
    """The small model's shape; some 25 million parameters, most of them in its layers."""

    hidden: int = 512
    layers: int = 8
    heads: int = 8
    kv_heads: int = 4
    ffn: int = 1408
    vocab: int = 2048
    max_tokens: int = 4096
    seed: int = 0


def _corpus(lines: int, seed: int) -> list[str]:
    """Text to train the tokenizer on: made here, so that nothing has to be fetched."""
    sentence = "the tier serves a request with tokens and cost per hour under load when latency of one GPU is low"
    words = sentence.split()
    state = seed + 1
    text = []
    for _ in range(lines):
        line = []
        for _ in range(12):
            # A plain congruential generator: the same words on every machine and Python.
            state = (1103515245 * state + 12345) % 2**31
            line.append(words[state % len(words)] + (str(state % 97) if state % 5 == 0 else ""))
        text.append(" ".join(line))
    return text


def _write_tokenizer(folder: Path, shape: TinyShape) -> None:
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=shape.vocab,
        special_tokens=["<s>", "</s>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(_corpus(2000, shape.seed), trainer)
    tokenizer.save(str(folder / "tokenizer.json"))
    config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": "<s>",
        "eos_token": "</s>",
        "model_max_length": shape.max_tokens,
        "clean_up_tokenization_spaces": False,
        "chat_template": "{% for m in messages %}{{ m['content'] }}\n{% endfor %}",
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(config, indent=1) + "\n")


def _write_weights(folder: Path, shape: TinyShape) -> None:
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM
    from transformers.utils import logging

    logging.disable_progress_bar()
    config = LlamaConfig(
        vocab_size=shape.vocab,
        hidden_size=shape.hidden,
        intermediate_size=shape.ffn,
        num_hidden_layers=shape.layers,
        num_attention_heads=shape.heads,
        num_key_value_heads=shape.kv_heads,
        max_position_embeddings=shape.max_tokens,
        bos_token_id=0,
        eos_token_id=1,
        tie_word_embeddings=False,
        dtype="bfloat16",
    )
    torch.manual_seed(shape.seed)
    LlamaForCausalLM(config).bfloat16().save_pretrained(folder, safe_serialization=True)


def fingerprint(folder: Path) -> str:
    """SHA-256 over the model folder's files, names included, in order of name."""
    digest = hashlib.sha256()
    for path in sorted(folder.iterdir()):
        digest.update(path.name.encode() + b"\0" + path.read_bytes())
    return digest.hexdigest()


def weights_precision(folder: Path) -> str | None:
    """The precision of a model folder's weights, by its ``config.json``; None where it does not say."""
    path = folder / "config.json"
    if not path.is_file():
        return None
    config = json.loads(path.read_text(encoding="utf-8"))
    if method := (config.get("quantization_config") or {}).get("quant_method"):
        return str(method)
    dtype = config.get("dtype") or config.get("torch_dtype")
    return {"bfloat16": "bf16", "float16": "fp16", "float32": "fp32"}.get(dtype)


def build_tiny_model(target: Path, shape: TinyShape | None = None) -> Path:
    """Write the small model to ``target``: the same bytes every time; nothing where it stands already.

    Raises
    ------
    DataError : when the packages that write it (torch, transformers) are not installed.
    """
    shape = shape or TinyShape()
    if all((target / name).is_file() for name in FILES):
        return target
    target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=target.parent, prefix=".tiny-") as beside:
        folder = Path(beside) / "model"
        folder.mkdir()
        try:
            _write_weights(folder, shape)
            _write_tokenizer(folder, shape)
        except ImportError as error:
            mend = "install the engine's lock (`make env` on Linux x86-64), or name a model that is on disk"
            raise DataError(shown(target), "", f"the small model needs {error.name}", mend) from error
        if missing := [name for name in FILES if not (folder / name).is_file()]:
            raise DataError(shown(target), "", f"was not written whole: {', '.join(missing)}", "report this")
        shutil.rmtree(target, ignore_errors=True)
        folder.rename(target)
    return target
