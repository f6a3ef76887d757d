"""``hetgpu`` in a shell: a verb, then what that verb's own module takes."""

from __future__ import annotations

import sys
from collections.abc import Callable

from hetgpu.errors import DataError


def _clean(arguments: list[str]) -> int:
    from hetgpu.pipeline import clean_notebooks

    print(f"{len(clean_notebooks())} notebooks cleaned")
    return 0


def _stage(arguments: list[str]) -> int:
    from hetgpu.pipeline import StageError, run_stage

    if len(arguments) != 1:
        print("usage: hetgpu stage NAME (a stage of dvc.yaml)", file=sys.stderr)
        return 2
    try:
        run_stage(arguments[0])
    except StageError as error:
        print(f"hetgpu: {error}", file=sys.stderr)
        return 1
    return 0


def _report(arguments: list[str]) -> int:
    from hetgpu.show.report import make_report

    print(make_report())
    return 0


def _readme(arguments: list[str]) -> int:
    from hetgpu.show.readme import main

    return main(arguments)


def _notebooks(arguments: list[str]) -> int:
    from hetgpu.notebooks import main

    return main(arguments)


def _measure(arguments: list[str]) -> int:
    from hetgpu.measure.cli import main

    return main(arguments)


def _page(arguments: list[str]) -> int:
    from hetgpu.notebooks import write_page

    print(write_page())
    return 0


def _sharegpt(arguments: list[str]) -> int:
    from hetgpu.measure.prompts import fetch_sharegpt

    print(fetch_sharegpt())
    return 0


def _campaign(arguments: list[str]) -> int:
    return _measure(["campaign", *arguments])


def _repro(arguments: list[str]) -> int:
    from hetgpu.reproduce import main

    return main(arguments)


def _import(arguments: list[str]) -> int:
    from hetgpu.evidence.importers.cli import main

    return main(arguments)


def _doctor(arguments: list[str]) -> int:
    from hetgpu.doctor import main

    return main(arguments)


def _gateway(arguments: list[str]) -> int:
    from hetgpu.route.serve import main

    return main(arguments)


#: verb -> (what it does, the function)
VERBS: dict[str, tuple[str, Callable[[list[str]], int]]] = {
    "repro": ("recompute everything and compare with the committed results", _repro),
    "doctor": ("say what this machine can do, and what to mend", _doctor),
    "import": ("read result files of vLLM's client, GuideLLM, AIPerf or inference-perf", _import),
    "measure": ("run vLLM on this machine: a small experiment, or a tier (--tier; --help says more)", _measure),
    "campaign": ("run it for the record: data/traces/measured", _campaign),
    "gateway": ("route OpenAI requests over vLLM endpoints by a policy (--help says more)", _gateway),
    "page": ("write the page of what this machine measured", _page),
    "sharegpt": ("fetch the authors' data set", _sharegpt),
    "stage": ("run one notebook stage (what dvc.yaml calls)", _stage),
    "clean": ("write cleaned copies of the notebooks (what dvc.yaml calls)", _clean),
    "report": ("typeset paper/report.pdf (what dvc.yaml calls)", _report),
    "notebooks": ("test every notebook against its stored outputs, or keep fresh ones with --write", _notebooks),
    "readme": ("write the README's findings from paper/values.json, or --check them", _readme),
}


def usage() -> str:
    """The verbs, a line each."""
    lines = [f"  {verb:<10} {what}" for verb, (what, _) in VERBS.items()]
    return "\n".join(["usage: hetgpu VERB [ARGUMENT ...]", "", *lines])


def main(arguments: list[str] | None = None) -> int:
    """Run a verb; 0 on success, 1 where what was asked for failed, 2 where it could not be understood."""
    arguments = sys.argv[1:] if arguments is None else arguments
    if not arguments or arguments[0] in ("-h", "--help", "help"):
        print(usage())
        return 0 if arguments else 2
    verb, rest = arguments[0], arguments[1:]
    if verb not in VERBS:
        print(f"hetgpu: unknown verb {verb!r}\n{usage()}", file=sys.stderr)
        return 2
    try:
        return VERBS[verb][1](rest)
    except DataError as error:
        print(f"hetgpu: {error}", file=sys.stderr)
        return 2
