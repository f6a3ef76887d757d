"""The report: no typed result, every name known, the same bytes twice; and the README beside it."""

import json
import re

import pytest

from hetgpu.paths import inside
from hetgpu.show import readme
from hetgpu.show.report import collect_values, make_report
from hetgpu.show.typed import check_report, typed_numbers


@pytest.mark.parametrize(
    "source",
    [
        "The H100 is 1.49 times faster.",
        "It costs 0.139 USD.\n",
        '#figure(image("figures/a1.svg", width: 84%), caption: [About 25 % cheaper.])',
        '#datatable("t.csv", (gpu: "about 25 % cheaper"))',
        '#evidence("published")[nested 42]',
        "In 33 of the cells it holds.",
    ],
)
def test_a_typed_result_is_found_in_prose_captions_and_headings(source):
    assert typed_numbers(source)


@pytest.mark.parametrize(
    "source",
    [
        "In 2023 and May 2025, Table 2, rows 6, 11 and 13, Figure 1.",
        "2x RTX 4090 beside an H100 with Qwen-14B under vLLM 0.8.5; doi 10.1145/3775043.3775047.",
        '#figure(image("../figures/figure1.svg", width: 84%), caption: [P99 of #val("table2.cells") cells.]) <figure1>',
        "// 42 in a comment\n#let x = 42\n",
        "The paper says #quoted[62-78 %].",
    ],
)
def test_names_references_and_code_are_no_typed_results(source):
    assert typed_numbers(source) == []


def test_a_typed_result_is_named_with_its_line():
    found = typed_numbers("= Findings\n\nIt is 3.1x better.")
    assert (found[0].line, found[0].number) == (3, "3.1")


def test_the_report_types_no_result():
    assert check_report(inside("paper", "report.typ")) == []


def test_a_planted_result_stops_the_report(project, monkeypatch):
    source = project / "paper" / "report.typ"
    source.write_text(source.read_text() + "\nThe H100 is 2.03 times faster.\n")
    with pytest.raises(ValueError, match=r"2\.03.*typed.*faster"):
        make_report()


def test_every_value_the_report_asks_for_is_there():
    values = json.loads(inside("paper", "values.json").read_text())
    source = inside("paper", "report.typ").read_text()
    asked = set(re.findall(r'#val\("([^"]+)"\)', source))
    asked |= {
        f"audit.{name}.{part}"
        for name in re.findall(r'#assumption\("([^"]+)"\)', source)
        for part in ("assumption", "finding")
    }
    assert len(asked) > 10
    assert asked <= set(values)


def test_every_value_says_its_evidence_and_source():
    for name, entry in json.loads(inside("paper", "values.json").read_text()).items():
        assert set(entry) == {"value", "text", "unit", "evidence", "source"}, name
        kind = name.split(".")[0]
        allowed = (kind,) if kind in ("measured", "simulated") else ("published", "none")
        assert entry["evidence"] in allowed, name
        assert isinstance(entry["text"], str), name


def test_values_follow_from_the_stages_outputs(project):
    committed = json.loads((project / "paper" / "values.json").read_text())
    sentences = [entry["text"] for name, entry in committed.items() if name.startswith("finding.")]
    assert json.loads(json.dumps(collect_values(sentences)))["claims.count"] == committed["claims.count"]
    claims = json.loads((project / "data" / "summaries" / "claims.json").read_text())
    assert committed["claims.count"]["value"] == len(claims)


def test_the_report_is_the_same_bytes_twice_and_as_committed(project):
    before = (project / "paper" / "report.pdf").read_bytes()
    first = make_report().read_bytes()
    assert first.startswith(b"%PDF")
    assert make_report().read_bytes() == first == before


def test_the_readme_prints_the_findings_of_values_json():
    assert readme.main(["--check"]) == 0


def test_a_changed_value_is_noticed_in_the_readme(project):
    (project / "README.md").write_text(f"{readme.BEGIN}\n- another finding\n{readme.END}\n")
    assert readme.main(["--check"]) == 1
    assert readme.main([]) == 0
    assert readme.main(["--check"]) == 0
