"""``hetgpu gateway``: serve an OpenAI-compatible endpoint over the upstreams of a configuration."""

from __future__ import annotations

import argparse
import logging
from importlib.util import find_spec
from pathlib import Path

from hetgpu.errors import DataError
from hetgpu.route.config import load_config
from hetgpu.route.upstream import LOG

#: How long open streams may go on after a first Ctrl-C.
SHUTDOWN_LIMIT_S = 30


def parser() -> argparse.ArgumentParser:
    """The command's arguments."""
    made = argparse.ArgumentParser(prog="hetgpu gateway", description=__doc__)
    made.add_argument("config", type=Path, help="a YAML file; data/catalog/gateway.example.yaml explains every key")
    made.add_argument("--host", default="127.0.0.1", help="an address to listen at (default: this machine only)")
    made.add_argument("--port", type=int, default=8080)
    return made


def require_server() -> None:
    """Refuse where there is no ASGI server.

    Raises
    ------
    DataError : naming what is missing.
    """
    if missing := [name for name in ("starlette", "uvicorn") if find_spec(name) is None]:
        mend = (
            "install the engine's environment: `make env` without HETGPU_NO_ENGINE, or run it where vLLM is installed"
        )
        raise DataError("hetgpu gateway", "", f"{' and '.join(missing)} cannot be imported", mend)


def main(arguments: list[str]) -> int:
    """Serve until stopped.

    Raises
    ------
    DataError : for a configuration that cannot be used, or an environment without an ASGI server.
    """
    given = parser().parse_args(arguments)
    config = load_config(given.config)
    require_server()
    import uvicorn

    from hetgpu.route.gateway import Gateway

    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(name)s %(levelname)s %(message)s")
    # It would log each poll.
    logging.getLogger("httpx").setLevel(logging.WARNING)
    if config.keys and given.host not in ("127.0.0.1", "::1", "localhost"):
        LOG.warning("whoever reaches %s may use the keys of %s", given.host, ", ".join(config.keys))
    uvicorn.run(
        Gateway(config).app, host=given.host, port=given.port, log_config=None, access_log=False, server_header=False,
        timeout_graceful_shutdown=SHUTDOWN_LIMIT_S,
    )  # fmt: skip
    return 0
