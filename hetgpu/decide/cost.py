"""Runs priced: every run under every price set, with the three denominators side by side."""

from __future__ import annotations

import datetime as dt

import pandas as pd

from hetgpu.errors import DataError
from hetgpu.evidence import metrics
from hetgpu.evidence.catalog import Price, PriceSet, load_price_sets, load_prices, prices_of_set

#: What identifies a run in the tables made from it.
KEYS = ["run_id", "evidence", "tier", "gpu", "gpu_count", "model", "target_qps", "record"]

COST_COLUMNS = [
    "usd_per_gpu_hour",
    "usd_per_run",
    "usd_per_mtok_total",
    "usd_per_mtok_out",
    "usd_per_mtok_in",
    "tok_total_per_usd",
]


def price_runs(runs: pd.DataFrame, price_set: PriceSet, offers: dict[str, Price]) -> pd.DataFrame:
    """Every run's cost under one price set.

    Parameters
    ----------
    runs : summary rows.
    offers : the set's price per GPU, from :func:`~hetgpu.evidence.catalog.prices_of_set`.

    Returns
    -------
    One row a run: the run's keys, ``price_set``, :data:`COST_COLUMNS` (USD) and ``cost_reason``,
    which says why a cost is missing. Formulas: :mod:`hetgpu.evidence.metrics`.
    """
    costs = runs[KEYS].copy()
    costs["price_set"] = price_set.key
    price = runs.gpu.map({gpu: offer.usd_per_gpu_hour for gpu, offer in offers.items()}).astype(float)
    usd = metrics.usd_per_run(price, runs.gpu_count, runs.duration_s)
    costs["usd_per_gpu_hour"] = price
    costs["usd_per_run"] = usd
    costs["usd_per_mtok_total"] = metrics.usd_per_mtok(usd, runs.input_tokens + runs.output_tokens)
    costs["usd_per_mtok_out"] = metrics.usd_per_mtok(usd, runs.output_tokens)
    costs["usd_per_mtok_in"] = metrics.usd_per_mtok(usd, runs.input_tokens)
    costs["tok_total_per_usd"] = metrics.tok_total_per_usd(runs.tok_total_per_s, price, runs.gpu_count)
    costs["cost_reason"] = None
    costs.loc[runs.output_tokens == 0, "cost_reason"] = "no tokens out"
    costs.loc[price.isna(), "cost_reason"] = f"no price for this GPU in {price_set.key}"
    return costs


def price_all(runs: pd.DataFrame, keys: list[str]) -> pd.DataFrame:
    """:func:`price_runs` under each named price set, one below the other.

    Raises
    ------
    DataError : for a price set that ``price_sets.yaml`` does not hold.
    """
    known, prices = load_price_sets(), load_prices()
    frames = []
    for key in keys:
        if key not in known:
            raise DataError("params.yaml", "cost.price_sets", f"unknown {key!r}", f"use one of {', '.join(known)}")
        frames.append(price_runs(runs, known[key], prices_of_set(known[key], prices)))
    return pd.concat(frames, ignore_index=True)


def price_ratios(keys: list[str], enterprise: str, consumer: str) -> pd.DataFrame:
    """What an hour of one GPU costs in hours of the other, per price set.

    Returns
    -------
    Columns ``price_set``, ``label``, ``enterprise_usd_per_gpu_hour``, ``consumer_usd_per_gpu_hour``,
    ``price_ratio`` (enterprise over consumer), ``as_of``.
    """
    known, prices = load_price_sets(), load_prices()
    rows = []
    for key in keys:
        offers = prices_of_set(known[key], prices)
        high, low = offers[enterprise], offers[consumer]
        rows.append(
            {
                "price_set": key,
                "label": known[key].label,
                "enterprise_usd_per_gpu_hour": high.usd_per_gpu_hour,
                "consumer_usd_per_gpu_hour": low.usd_per_gpu_hour,
                "price_ratio": metrics.ratio(high.usd_per_gpu_hour, low.usd_per_gpu_hour),
                "as_of": high.as_of,
            }
        )
    return pd.DataFrame(rows)


def price_age(ratios: pd.DataFrame, reference_date: str, max_age_days: int) -> pd.DataFrame:
    """Price ratios with ``age_days`` on a ``reference_date`` and ``stale`` where that is over ``max_age_days``.

    The date is a parameter and not today's, so that the same inputs give the same table.
    """
    seen = pd.to_datetime(ratios.as_of.map(lambda text: text if len(text) == 10 else f"{text}-01"))
    age = (pd.Timestamp(dt.date.fromisoformat(reference_date)) - seen).dt.days
    return ratios.assign(age_days=age, stale=age > max_age_days, reference_date=reference_date)
