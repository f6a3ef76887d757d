"""ShareGPT, the authors' data set: its prompts' very tokens and its answers' lengths, as vLLM's client picks them.

The file is fetched once by ``make sharegpt``; nothing else of the project needs it.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

from hetgpu.errors import DataError
from hetgpu.measure.schedule import Prompts
from hetgpu.paths import inside, shown

REPOSITORY = "anon8231489123/ShareGPT_Vicuna_unfiltered"
FILE = "ShareGPT_V3_unfiltered_cleaned_split.json"
#: The seed of the authors' client.
SEED = 42


def fetch_sharegpt() -> Path:
    """Fetch the file from its hub to ``data/external``, checked against the hub's own hash; its path.

    Raises
    ------
    DataError : when the hub cannot be reached.
    """
    from huggingface_hub import hf_hub_download

    folder = inside("data", "external")
    try:
        return Path(hf_hub_download(REPOSITORY, FILE, repo_type="dataset", local_dir=folder))
    except Exception as error:  # the hub's, its HTTP library's and the system's own errors
        mend = f"fetch {FILE} of {REPOSITORY} elsewhere and put it into data/external"
        raise DataError(FILE, REPOSITORY, f"cannot be fetched: {error}", mend) from error


def sharegpt(path: Path, tokenizer: str, n: int) -> Prompts:
    """``n`` prompts and the lengths of their answers, chosen and shuffled by vLLM's own reader (seed 42).

    An answer's length is the data set's and is forced, so that every tier says equally much; the
    authors' models stopped when they were done.

    Parameters
    ----------
    tokenizer : folder or name; the model's.

    Raises
    ------
    DataError : when there is no such file, it is no ShareGPT file, or it holds too few usable conversations.
    """
    if not path.is_file():
        raise DataError(shown(path), "", "no such file", "`make sharegpt` fetches it")
    from vllm.benchmarks.datasets import ShareGPTDataset
    from vllm.tokenizers import get_tokenizer

    try:
        reader = ShareGPTDataset(dataset_path=str(path), random_seed=SEED)
        encode = get_tokenizer(tokenizer)
        samples = reader.sample(encode, n, no_oversample=True)
    except (ValueError, KeyError, TypeError) as error:
        raise DataError(shown(path), "", f"is no ShareGPT file: {error}", "`make sharegpt` fetches one") from error
    if len(samples) < n:
        raise DataError(shown(path), "", f"{len(samples)} usable conversations, {n} are wanted", "ask for fewer")
    tokens = tuple(tuple(encode(str(sample.prompt)).input_ids) for sample in samples)
    lengths = np.array([len(ids) for ids in tokens])
    answers = np.array([sample.expected_output_len for sample in samples])
    return Prompts(lengths, answers, path.name, tokens)
