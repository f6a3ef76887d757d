"""Readers name the file, the line and the mend; writers leave the old file or the new one."""

import json

import pandas as pd
import pytest
from pydantic import BaseModel, ConfigDict

from hetgpu.errors import DataError
from hetgpu.evidence import files


class Row(BaseModel):
    model_config = ConfigDict(extra="forbid")

    run_id: str
    tier: str
    energy_j: float
    note: str | None = None


def write(path, text):
    path.write_text(text, encoding="utf-8")
    return path


def test_rows_glued_together_are_named_with_line_and_fields(cases):
    with pytest.raises(DataError, match=r"glued\.csv: line 3: 3 fields expected \(run_id, tier, energy_j\), 5 found"):
        files.read_csv(cases / "glued.csv", Row)


def test_columns_may_come_in_any_order_and_after_a_bom(tmp_path):
    path = write(tmp_path / "a.csv", "\ufefftier,energy_j,run_id\na,10,r1\n")
    assert files.read_csv(path, Row) == [Row(run_id="r1", tier="a", energy_j=10)]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("run_id,tier\nr1,a\n", "line 1: column missing: energy_j"),
        ("run_id,tier,energy_j,joules\nr1,a,1,1\n", "line 1: unknown column: joules"),
        ("run_id,tier,energy_j,tier\nr1,a,1,a\n", "line 1: a column stands twice"),
        ("run_id,tier,energy_j\nr1,a,ten\n", r"line 2: energy_j: .*found 'ten'"),
        ("run_id,tier,energy_j\nr1,a,\n", "line 2: energy_j: Field required"),
        ("run_id,tier,energy_j\n", "holds no rows"),
    ],
)
def test_what_is_wrong_with_a_csv_is_named(tmp_path, text, message):
    with pytest.raises(DataError, match=message):
        files.read_csv(write(tmp_path / "a.csv", text), Row)


def test_a_missing_file_is_named(tmp_path):
    with pytest.raises(DataError, match="nowhere.csv: no such file"):
        files.read_csv(tmp_path / "nowhere.csv", Row)


def test_na_is_text_and_only_an_empty_field_is_missing(tmp_path):
    frame = files.read_table(write(tmp_path / "a.csv", "zone,x\nNA,1\n,2\n"))
    assert frame.zone.tolist()[0] == "NA"
    assert frame.zone.isna().tolist() == [False, True]


def test_yaml_is_1_2_as_dvc_reads_it(tmp_path):
    content = files.read_yaml(write(tmp_path / "a.yaml", "a: 1e-3\nb: no\n"))
    assert content == {"a": 0.001, "b": "no"}
    with pytest.raises(DataError, match="line 3: expected"):
        files.read_yaml(write(tmp_path / "b.yaml", "a: 1\nb: [1\n"))


def test_yaml_rows_name_the_entry(tmp_path):
    path = write(tmp_path / "a.yaml", "rows:\n  - {run_id: r1, tier: a, energy_j: x}\n")
    with pytest.raises(DataError, match=r"entry 1 \(r1\): energy_j"):
        files.read_yaml_rows(path, Row, "rows", "run_id")
    with pytest.raises(DataError, match="holds no list 'prices'"):
        files.read_yaml_rows(path, Row, "prices", "run_id")


def test_two_rows_with_one_key_are_refused():
    rows = [Row(run_id="r", tier="a", energy_j=1), Row(run_id="r", tier="b", energy_j=2)]
    with pytest.raises(DataError, match="r stands in rows 1 and 2"):
        files.unique(rows, lambda row: row.run_id, "x.csv")


def test_a_write_that_fails_leaves_the_old_file_and_nothing_beside_it(tmp_path, monkeypatch):
    path = write(tmp_path / "a.json", "old")
    with pytest.raises(TypeError):
        files.write_json({"a": object()}, path)
    monkeypatch.setattr(files.Path, "replace", lambda self, target: (_ for _ in ()).throw(OSError("disk full")))
    with pytest.raises(OSError, match="disk full"):
        files.write_json({"a": 1}, path)
    assert path.read_text() == "old"
    assert [p.name for p in tmp_path.iterdir()] == ["a.json"]


def test_json_is_strict_and_rounded(tmp_path):
    path = files.write_json({"a": float("nan"), "b": 0.1 + 0.2}, tmp_path / "a.json")
    assert json.loads(path.read_text()) == {"a": None, "b": 0.3}
    with pytest.raises(ValueError, match="[Oo]ut of range float"):
        files.write_json({"a": float("inf")}, path)


def test_an_empty_table_is_not_written(tmp_path):
    with pytest.raises(DataError, match="no rows"):
        files.write_csv(pd.DataFrame({"a": []}), tmp_path / "a.csv")
