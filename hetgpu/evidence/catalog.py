"""The hand-kept facts: GPUs, models, tiers, prices, price sets and grids, typed and checked when read.

Every row names its source. A price has a date, a plan, a currency and a basis; a grid a year.
"""

from __future__ import annotations

import datetime as dt
import difflib
import importlib.metadata
import json
import warnings
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, model_validator

from hetgpu.errors import DataError, DataWarning
from hetgpu.evidence.files import read_csv, read_yaml_rows, unique
from hetgpu.paths import inside, shown

#: USD per GPU-hour outside of which a price is more likely a slip than an offer.
PLAUSIBLE_USD_PER_GPU_HOUR = (0.05, 15.0)


class Fact(BaseModel):
    """A row that is read and never changed; a column the model does not know is an error."""

    model_config = ConfigDict(extra="forbid", frozen=True, populate_by_name=True)


def _split(value: Any) -> Any:
    return [part.strip() for part in value.split("|") if part.strip()] if isinstance(value, str) else value


def _day(text: str) -> dt.date:
    return dt.date.fromisoformat(text if len(text) == 10 else f"{text}-01")


def _iso(value: Any) -> Any:
    """YAML reads an unquoted 2024-01-15 as a date; here it stays the text that was written."""
    return value.isoformat() if type(value) is dt.date else value


def _real_day(text: str) -> str:
    _day(text)
    return text


#: ``2025-05`` or ``2025-05-31``, a month or day that there is.
AsOf = Annotated[str, BeforeValidator(_iso), Field(pattern=r"^\d{4}-\d{2}(-\d{2})?$"), AfterValidator(_real_day)]


class Gpu(Fact):
    """One GPU model, form factor included, by its data sheet."""

    gpu: str
    nvml_names: Annotated[list[str], BeforeValidator(_split)]
    gpu_class: Literal["enterprise", "consumer", "workstation"]
    memory_gb: float = Field(gt=0)
    bandwidth_gb_per_s: float = Field(gt=0)
    fp16_dense_tflop_per_s: float = Field(gt=0)
    tdp_w: float = Field(gt=0)
    pcie_gen: int | None = None
    card_to_card: str
    data_sheet: str
    verified: str


class Model(Fact):
    """One language model: what its configuration file says of its shape."""

    model: str
    short_name: str
    family: str
    parameters_b: float = Field(gt=0)
    layers: int
    hidden: int
    heads: int
    kv_heads: int
    head_dim: int
    ffn: int
    vocab: int
    weight_dtype: Literal["bf16", "fp8"]
    tied_embeddings: bool
    source: str
    verified: str


class Tier(Fact):
    """A kind of machine: GPU (form factor included) x count x link x host."""

    key: str
    label: str
    gpu: str | None = None
    gpu_count: int = Field(ge=0)
    link: str
    host: str

    @model_validator(mode="after")
    def _cpu_has_no_gpu(self) -> Self:
        if (self.gpu is None) != (self.gpu_count == 0):
            raise ValueError("a tier has a gpu and a gpu_count of 1 or more, or neither (a CPU tier)")
        return self


class Price(Fact):
    """One offer: what an hour of a GPU, or of a node of several, costs."""

    gpu: str
    provider: str
    region: str = "not stated"
    plan: Literal["on_demand", "spot", "interruptible", "reserved", "owned"]
    sku: str = "1 GPU"
    usd_per_hour: float = Field(gt=0)
    currency: Literal["USD"] = "USD"
    basis: Literal["per_gpu", "per_node"]
    gpus_in_sku: int = Field(default=1, ge=1)
    as_of: AsOf
    source: str = Field(min_length=3)

    @property
    def usd_per_gpu_hour(self) -> float:
        """USD per GPU-hour: a node's price over its GPUs, a GPU's price as it stands."""
        return self.usd_per_hour / (self.gpus_in_sku if self.basis == "per_node" else 1)

    @property
    def as_of_date(self) -> dt.date:
        """The day the price was seen; the first of the month where only that is known."""
        return _day(self.as_of)


class Selector(Fact):
    """Which offers a price set takes: all of one provider, plan and date (and of some GPUs or one SKU)."""

    provider: str
    plan: str
    as_of: AsOf
    gpus: list[str] | None = None
    sku: str | None = None

    def takes(self, price: Price) -> bool:
        """Whether this selector means that offer."""
        wanted = (self.provider, self.plan, self.as_of)
        return (
            wanted == (price.provider, price.plan, price.as_of)
            and (self.gpus is None or price.gpu in self.gpus)
            and (self.sku is None or price.sku == self.sku)
        )


class PriceSet(Fact):
    """One price per GPU, so that tiers are compared on one market at one time; the first match wins."""

    key: str
    label: str
    select: list[Selector] = Field(min_length=1)


class Grid(Fact):
    """A grid's yearly average carbon intensity."""

    zone: str = Field(alias="region")
    gco2_per_kwh: float = Field(ge=0)
    year: int = Field(ge=1990, le=2100)
    source: str = "the user's file"
    #: The zone that was asked for where this one stands in for it; None when it is the zone itself.
    fallback_for: str | None = None


def _keyed(rows: list[Any], field: str, path: Path) -> dict[str, Any]:
    unique(rows, lambda row: getattr(row, field), shown(path))
    return {getattr(row, field): row for row in rows}


def load_gpus(path: Path | None = None) -> dict[str, Gpu]:
    """GPUs by key (``H100-PCIe``)."""
    path = path or inside("data", "catalog", "gpus.csv")
    return _keyed(read_csv(path, Gpu), "gpu", path)


def load_models(path: Path | None = None) -> dict[str, Model]:
    """Models by full name."""
    path = path or inside("data", "catalog", "models.csv")
    return _keyed(read_csv(path, Model), "model", path)


def load_tiers(path: Path | None = None) -> dict[str, Tier]:
    """Tiers by key (``2x-rtx-4090``), each GPU of theirs known to the catalog.

    Raises
    ------
    DataError : for a key that stands twice or a GPU that ``gpus.csv`` does not hold.
    """
    path = path or inside("data", "catalog", "tiers.yaml")
    tiers: dict[str, Tier] = _keyed(read_yaml_rows(path, Tier, "tiers", "key"), "key", path)
    known = load_gpus()
    for tier in tiers.values():
        if tier.gpu is not None and tier.gpu not in known:
            raise DataError(shown(path), tier.key, f"gpu {tier.gpu!r} is not in gpus.csv", "add it there first")
    return tiers


def _warn_of_price(price: Price, where: str, today: dt.date | None, max_age_days: int | None) -> None:
    low, high = PLAUSIBLE_USD_PER_GPU_HOUR
    if not low <= price.usd_per_gpu_hour <= high:
        text = f"{price.usd_per_gpu_hour:g} USD per GPU-hour is outside {low:g}-{high:g}: is the basis right?"
        warnings.warn(f"{where}: {text}", DataWarning, stacklevel=3)
    if today and max_age_days and (today - price.as_of_date).days > max_age_days:
        text = f"price of {price.as_of} is over {max_age_days} days old on {today}"
        warnings.warn(f"{where}: {text}", DataWarning, stacklevel=3)


def load_prices(path: Path | None = None, today: dt.date | None = None, max_age_days: int | None = None) -> list[Price]:
    """All offers of a price list, CSV or YAML (rows under ``prices:``).

    Parameters
    ----------
    today, max_age_days : where both are given, an older price warns.

    Raises
    ------
    DataError : for a row without date, source, currency or basis, and for two rows of one offer
        (gpu, provider, region, plan, sku, as_of).
    """
    path = path or inside("data", "catalog", "prices.csv")
    is_csv = path.suffix == ".csv"
    prices = read_csv(path, Price) if is_csv else read_yaml_rows(path, Price, "prices", "gpu")
    unique(prices, lambda p: (p.gpu, p.provider, p.region, p.plan, p.sku, p.as_of), shown(path))
    for number, price in enumerate(prices, start=1):
        _warn_of_price(price, f"{shown(path)}: row {number} ({price.gpu})", today, max_age_days)
    return prices


def load_price_sets(path: Path | None = None) -> dict[str, PriceSet]:
    """Price sets by key (``paper-2025-05``)."""
    path = path or inside("data", "catalog", "price_sets.yaml")
    return _keyed(read_yaml_rows(path, PriceSet, "price_sets", "key"), "key", path)


def prices_of_set(price_set: PriceSet, prices: list[Price]) -> dict[str, Price]:
    """The set's one offer per GPU; a GPU that it does not price is not in the answer.

    Raises
    ------
    DataError : when a selector meets two offers for one GPU, or none at all.
    """
    chosen: dict[str, Price] = {}
    for selector in price_set.select:
        met = [price for price in prices if selector.takes(price)]
        if not met:
            problem = f"no offer of {selector.provider}, {selector.plan}, {selector.as_of} in the price list"
            raise DataError("price set", price_set.key, problem, "correct the selector or add the rows")
        unique(met, lambda price: price.gpu, f"price set {price_set.key}")
        for price in met:
            chosen.setdefault(price.gpu, price)
    return chosen


def _packaged_grids() -> dict[str, Grid]:
    """Countries' yearly averages that codecarbon ships (Our World in Data), by ISO 3166 alpha-3 code."""
    package = importlib.metadata.distribution("codecarbon")
    path = Path(str(package.locate_file("codecarbon/data/private_infra/global_energy_mix.json")))
    source = f"codecarbon {package.version} global_energy_mix (Our World in Data)"
    grids = {}
    for zone, row in json.loads(path.read_text(encoding="utf-8")).items():
        grids[zone] = Grid(zone=zone, gco2_per_kwh=float(row["carbon_intensity"]), year=int(row["year"]), source=source)
    return grids


def load_grids(path: Path | None = None) -> dict[str, Grid]:
    """Grids by zone: those of ``grids.csv`` (or a user's file), and for the project's own also
    the countries that codecarbon ships; a row of ours wins.
    """
    own = path is None
    path = path or inside("data", "catalog", "grids.csv")
    listed: dict[str, Grid] = _keyed(read_csv(path, Grid), "zone", path)
    return {**_packaged_grids(), **listed} if own else listed


def find_grid(zone: str, grids: dict[str, Grid], fallback: str | None = None) -> Grid:
    """The grid of a zone.

    Parameters
    ----------
    fallback : a zone to use instead of an unknown one; the answer then carries ``fallback_for``.

    Raises
    ------
    DataError : for an unknown zone without a fallback, with the nearest names.
    """
    if zone in grids:
        return grids[zone]
    if fallback is not None:
        return find_grid(fallback, grids).model_copy(update={"fallback_for": zone})
    near = difflib.get_close_matches(zone, grids, n=3, cutoff=0.4)
    hint = f" (near: {', '.join(near)})" if near else ""
    raise DataError("grids", zone, f"unknown zone{hint}", "add it to grids.csv, or set a fallback zone")
