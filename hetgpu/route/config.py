"""The gateway's configuration: a policy, traffic classes and upstreams in one YAML file, checked before anything runs.

A message never shows the value of a key that is not known here: it may be a secret that was written down by mistake.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Self, TypeVar
from urllib.parse import urlsplit

import httpx
from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from hetgpu.errors import DataError
from hetgpu.evidence.files import problems, read_yaml, unique
from hetgpu.paths import shown
from hetgpu.route.policy import Ask, Policy, Profile, all_policies

#: A name that can stand in a response header, a metric's label and a log.
NAME = r"^[A-Za-z0-9._-]+$"

Part = TypeVar("Part", bound=BaseModel)


class Strict(BaseModel):
    """A part of the file that knows all its keys and takes no infinity: what has no limit is left out, or null."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)


class Endpoint(Strict):
    """An upstream: an OpenAI-compatible server, and what is known of it before a request is sent.

    Parameters
    ----------
    url : its root, without ``/v1``.
    key_env : the environment variable that holds its key; the client's own ``Authorization`` is sent where empty.
    The others : as in :class:`~hetgpu.route.policy.Profile`.
    """

    name: str = Field(pattern=NAME)
    url: str
    tier: str = Field(pattern=NAME)
    enterprise: bool
    network_ms: float = Field(ge=0)
    idle_ttft_ms: float = Field(ge=0)
    ttft_ms_per_running: float = Field(ge=0)
    room: int = Field(ge=1)
    capacity_req_per_s: float = Field(gt=0)
    usd_per_mtok: float = Field(ge=0)
    gco2_per_mtok: float = Field(ge=0)
    key_env: str = ""

    @model_validator(mode="after")
    def _url_is_a_server_s_root(self) -> Self:
        # Checked with the whole entry, and not with the field: a field's error would print a password in the URL.
        try:
            httpx.URL(self.url)  # refuses what it could not send to
            parts = urlsplit(self.url)
            good = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
        except (ValueError, httpx.InvalidURL):
            good = False
        if not good:
            raise ValueError("url is no http:// or https:// address of a host")
        if parts.username is not None or parts.password is not None:
            raise ValueError("url holds a user or a password: put the key in an environment variable (key_env)")
        if parts.path.rstrip("/") or parts.query or parts.fragment:
            raise ValueError(f"url goes beyond the host: leave out {self.url.split(parts.netloc, 1)[1]!r}")
        return self

    @property
    def profile(self) -> Profile:
        """What a policy sees of it."""
        return Profile(**{name: getattr(self, name) for name in Profile.__dataclass_fields__})


class TrafficClass(Strict):
    """What the requests of one class want; a limit that is left out is infinite."""

    ttft_slo_ms: float | None = Field(None, gt=0)
    deadline_s: float | None = Field(None, gt=0)
    expected_output_tokens: float = Field(gt=0)

    def ask(self, name: str, input_tokens: int) -> Ask:
        """A request of the class as a policy sees it when it comes."""
        slo, deadline = (float("inf") if limit is None else limit for limit in (self.ttft_slo_ms, self.deadline_s))
        return Ask(name, slo, deadline, input_tokens, self.expected_output_tokens)


class _File(Strict):
    policy: str
    default_class: str = ""
    silence_limit_s: float = Field(600.0, gt=0)
    upstreams: list[Any] = Field(min_length=1)
    classes: dict[Annotated[str, Field(pattern=NAME)], Any] = Field(min_length=1)


@dataclass(frozen=True)
class Config:
    """A checked configuration.

    Parameters
    ----------
    policy : a fresh object.
    default_class : the class of a request that names none.
    silence_limit_s : how long an upstream may send nothing before its answer counts as failed.
    keys : an upstream's name -> its own key, where it has one.
    """

    policy: Policy
    default_class: str
    silence_limit_s: float
    endpoints: tuple[Endpoint, ...]
    classes: Mapping[str, TrafficClass]
    keys: Mapping[str, str]

    def __repr__(self) -> str:
        return f"Config({self.policy.name}, {', '.join(endpoint.name for endpoint in self.endpoints)})"


def _typed(model: type[Part], value: Any, file: str, where: str) -> Part:
    try:
        return model.model_validate(value)
    except ValidationError as error:
        unknown = [str(item["loc"][-1]) for item in error.errors() if item["type"] == "extra_forbidden"]
        problem = f"unknown key: {', '.join(unknown)}" if unknown else problems(error)
        raise DataError(file, where, problem, f"known keys: {', '.join(model.model_fields)}") from None


def _endpoints(entries: list[Any], file: str) -> tuple[Endpoint, ...]:
    made = []
    for number, entry in enumerate(entries, start=1):
        label = f" ({entry['name']})" if isinstance(entry, Mapping) and "name" in entry else ""
        made.append(_typed(Endpoint, entry, file, f"upstreams, entry {number}{label}"))
    unique(made, lambda endpoint: endpoint.name, f"{file}: upstreams")
    return tuple(made)


def _keys(endpoints: tuple[Endpoint, ...], file: str) -> dict[str, str]:
    keys = {}
    for endpoint in endpoints:
        if endpoint.key_env:
            key = os.environ.get(endpoint.key_env, "").strip()
            if not key:
                # Its value is not shown: whoever writes the key itself here would find it in a log.
                problem, mend = "names an environment variable that is not set", "set it, or leave key_env out"
                raise DataError(file, f"upstreams, {endpoint.name}, key_env", problem, mend)
            keys[endpoint.name] = key
    return keys


def load_config(path: Path) -> Config:
    """A gateway's configuration from a YAML file; upstreams' keys from the environment.

    Raises
    ------
    DataError : naming the file, the place and the mend, for a missing file, a key that is unknown or missing, a
        value that cannot be, a name that stands twice, an unknown policy or class, or a variable that is not set.
    """
    file = shown(path)
    top = _typed(_File, read_yaml(path), file, "")
    policies = all_policies()
    if top.policy not in policies:
        raise DataError(file, "policy", f"{top.policy!r} is not known", f"use one of {', '.join(policies)}")
    classes = {name: _typed(TrafficClass, value, file, f"classes, {name}") for name, value in top.classes.items()}
    default = top.default_class or next(iter(classes))
    if default not in classes:
        raise DataError(file, "default_class", f"{default!r} is no class", f"use one of {', '.join(classes)}")
    endpoints = _endpoints(top.upstreams, file)
    return Config(policies[top.policy], default, top.silence_limit_s, endpoints, classes, _keys(endpoints, file))
