"""The hand-kept facts, and what is refused among a user's own."""

import csv
import datetime as dt
import warnings

import pytest
from ruamel.yaml import YAML

from hetgpu.decide.cost import price_age, price_ratios, price_runs
from hetgpu.decide.energy import energy_both
from hetgpu.errors import DataError, DataWarning
from hetgpu.evidence import catalog


def price(**changes):
    offer = {"gpu": "X", "provider": "p", "plan": "on_demand", "usd_per_hour": 4.0, "basis": "per_gpu"}
    return catalog.Price(**(offer | {"as_of": "2026-01", "source": "list price"} | changes))


def test_every_catalog_file_is_read_and_agrees_with_the_others():
    gpus, tiers = catalog.load_gpus(), catalog.load_tiers()
    prices, sets = catalog.load_prices(), catalog.load_price_sets()
    assert {tier.gpu for tier in tiers.values()} - {None} <= set(gpus)
    assert all(price.source and price.as_of for price in prices)
    for price_set in sets.values():
        offers = catalog.prices_of_set(price_set, prices)
        assert {"H100-PCIe", "RTX-4090"} <= set(offers), price_set.key
    paper = catalog.prices_of_set(sets["paper-2025-05"], prices)
    assert (paper["H100-PCIe"].usd_per_gpu_hour, paper["RTX-4090"].usd_per_gpu_hour) == (2.0, 0.25)


def test_the_pcie_card_s_tdp_is_its_own():
    gpus = catalog.load_gpus()
    assert (gpus["H100-PCIe"].tdp_w, gpus["H100-SXM"].tdp_w, gpus["RTX-4090"].tdp_w) == (350, 700, 450)


def test_a_node_s_price_is_divided_once_and_a_card_s_never(cases):
    with (cases / "basis.csv").open(newline="") as stream:
        rows = {row["tier"]: row for row in csv.DictReader(stream)}

    def read(row):
        values = {"sku": row["sku"], "usd_per_hour": row["usd_per_hour"], "gpus_in_sku": row["gpus_in_sku"]}
        return price(basis=row["basis"], **values).usd_per_gpu_hour

    assert read(rows["a"]) == pytest.approx(12.29)
    assert read(rows["b"]) == pytest.approx(4.10)


def test_a_price_without_a_basis_is_an_error_that_names_the_row(tmp_path, cases):
    text = (cases / "basis.csv").read_text().splitlines()
    lines = ["gpu,sku,usd_per_hour,basis,gpus_in_sku,provider,plan,as_of,source"]
    lines += [f"{line},p,on_demand,2026-01,a list" for line in text[1:]]
    path = tmp_path / "prices.csv"
    path.write_text("\n".join(lines) + "\n")
    with pytest.raises(DataError, match=r"prices\.csv: line 4: basis: Field required"):
        catalog.load_prices(path)


def test_a_price_without_date_and_source_is_an_error_and_an_old_one_warns(tmp_path, cases):
    entries = YAML(typ="safe").load((cases / "undated.yaml").read_text())["prices"]
    ours = []
    for entry in entries:
        entry = {key: str(value) for key, value in entry.items()}
        entry["gpu"], entry["usd_per_hour"] = entry.pop("tier"), float(entry.pop("usd_per_gpu_hour"))
        ours.append(entry | {"provider": "p"})
    path = tmp_path / "prices.yaml"
    with path.open("w") as stream:
        YAML().dump({"prices": ours}, stream)
    with pytest.raises(DataError, match=r"entry 2 \(b\): as_of: Field required; source: Field required"):
        catalog.load_prices(path)
    with path.open("w") as stream:
        YAML().dump({"prices": ours[:1]}, stream)
    with pytest.warns(DataWarning, match="2024-01-15 is over 365 days old on 2026-12-01"):
        catalog.load_prices(path, today=dt.date(2026, 12, 1), max_age_days=365)


def test_the_same_offer_twice_is_an_error(tmp_path):
    path = tmp_path / "prices.csv"
    row = "X,p,on_demand,1.0,per_gpu,2026-01,a list\n"
    path.write_text("gpu,provider,plan,usd_per_hour,basis,as_of,source\n" + row + row)
    with pytest.raises(DataError, match="stands in rows 1 and 2"):
        catalog.load_prices(path)


@pytest.mark.parametrize("usd", [0.01, 98.32])
def test_an_implausible_price_warns(tmp_path, usd):
    path = tmp_path / "prices.csv"
    path.write_text(f"gpu,provider,plan,usd_per_hour,basis,as_of,source\nX,p,spot,{usd},per_gpu,2026-01,a list\n")
    with pytest.warns(DataWarning, match=r"row 1 \(X\).*is the basis right"):
        catalog.load_prices(path)


def test_the_project_s_own_prices_do_not_warn():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert catalog.load_prices()


def test_na_is_a_zone_and_an_unknown_one_an_error(cases):
    grids = catalog.load_grids(cases / "zones.csv")
    assert catalog.find_grid("NA", grids).gco2_per_kwh == 120
    with pytest.raises(DataError, match="SE-SE3: unknown zone.*SE"):
        catalog.find_grid("SE-SE3", grids)
    with pytest.raises(DataError, match="unknown zone"):
        catalog.find_grid("Dalarna County", grids)


def test_a_fallback_zone_is_carried_by_every_answer(cases):
    grid = catalog.find_grid("SE-SE3", catalog.load_grids(cases / "zones.csv"), fallback="SE")
    assert (grid.zone, grid.gco2_per_kwh, grid.fallback_for) == ("SE", 20, "SE-SE3")


def test_a_kept_library_s_zones_agree_with_ours():
    ours, packaged = catalog.load_grids(), catalog._packaged_grids()
    assert len(packaged) > 150
    for zone in ("FRA", "DEU", "POL", "SWE", "USA", "NAM"):
        assert ours[zone].gco2_per_kwh == pytest.approx(packaged[zone].gco2_per_kwh, abs=0.06), zone
    assert catalog.find_grid("NOR", ours).source.startswith("codecarbon")


def test_an_unknown_gpu_in_a_tier_is_refused(project):
    path = project / "data" / "catalog" / "tiers.yaml"
    path.write_text(path.read_text().replace("gpu: H100-SXM", "gpu: H100-XXL"))
    with pytest.raises(DataError, match=r"1x-h100-sxm: gpu 'H100-XXL' is not in gpus\.csv"):
        catalog.load_tiers()


def test_a_fallback_grid_is_named_in_every_row_of_energy(runs):
    grids = catalog.load_grids()
    with pytest.raises(DataError, match="XXX: unknown zone"):
        catalog.find_grid("XXX", grids)
    energy = energy_both(runs, {"H100-PCIe": 700.0}, catalog.find_grid("XXX", grids, fallback="FRA"))
    assert set(energy.grid) == {"FRA for XXX"}
    assert set(energy.gco2_per_kwh) == {56.0}
    assert set(energy[energy.tdp_w.isna()].energy_reason) == {"no TDP of this GPU (paper)"}
    assert energy[energy.tdp_w.isna()].gco2_per_mtok_total.isna().all()


def test_old_prices_are_marked_on_the_reference_date():
    keys = ["paper-2025-05", "runpod-spot-2026-03"]
    aged = price_age(price_ratios(keys, "H100-PCIe", "RTX-4090"), "2026-12-01", 365)
    assert aged.stale.tolist() == [True, False]
    assert aged.age_days.tolist() == [579, 275]
    assert aged.price_ratio.tolist() == pytest.approx([8.0, 1.99 / 0.34])


def test_a_gpu_without_a_price_has_no_cost_and_a_reason(runs):
    prices = catalog.load_prices()
    only = catalog.PriceSet(
        key="x",
        label="x",
        select=[catalog.Selector(provider="hyperscalers", plan="on_demand", as_of="2025-05", sku="low end of range")],
    )
    costs = price_runs(runs, only, catalog.prices_of_set(only, prices))
    without = costs[costs.gpu == "RTX-4090"]
    assert without.usd_per_mtok_total.isna().all()
    assert set(without.cost_reason) == {"no price for this GPU in x"}
    assert costs[costs.gpu == "H100-PCIe"].usd_per_mtok_total.notna().all()
