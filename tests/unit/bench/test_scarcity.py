"""benchmarks/scarcity.py: what is planned, and the tables of what is finished so far."""

from __future__ import annotations

import sys
from pathlib import Path
from types import ModuleType

import pytest

import unissl
from unissl.run.config import build_config
from unissl_paper.tables.sheet import render


@pytest.fixture
def scarcity(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(Path(unissl.__file__).parents[1] / "benchmarks"))
    import scarcity

    yield scarcity
    for name in ("scarcity", "compare"):
        sys.modules.pop(name, None)


def test_all_methods_have_the_same_steps_and_both_readouts_where_they_can(scarcity: ModuleType) -> None:
    for data in scarcity.DATA:
        cell = scarcity.Cell(data, 2, "long-tailed")
        configs = {
            m: build_config(scarcity.config_tree(scarcity.Planned(cell, m, 3), None, 1000)) for m in scarcity.METHODS
        }
        assert {(c.data.name, c.seed, c.train.steps, c.split.labels_per_class) for c in configs.values()} == {
            (data, 3, 1000, 2)
        }
        assert {c.split.pool_distribution for c in configs.values()} == {"long-tailed"}
        assert {m for m, c in configs.items() if c.method.readout == "head"} == {"cdmad", "meta-expert"}


def test_tables_of_what_is_there(scarcity: ModuleType, tmp_path: Path) -> None:
    cells = [scarcity.Cell("digits", labels, "uniform") for labels in (1, 4)]
    runs = [scarcity.Planned(cell, m, seed) for cell in cells for m in ("sage", "fixmatch", "cdmad") for seed in (0, 1)]
    file = tmp_path / "results" / "scarcity.csv"
    assert scarcity.collect(runs, scarcity.read_results(file, 1000)) == {}
    for run in runs:
        if run.cell.labels == 1:
            last = {"sage": 0.8, "fixmatch": 0.7, "cdmad": 0.6}[run.method] + 0.01 * run.seed * (run.method == "sage")
            readout = {"classifier": "consensus", "accuracy_head": last - 0.05, "accuracy_consensus": last}
            summary = {"accuracy": {"last": last}} | ({} if run.method == "cdmad" else {"readout": readout})
            scarcity.append_results(file, run, 1000, summary)
    assert scarcity.read_results(file, 500) == {}
    assert set(scarcity.read_results(file, 1000)) == {run for run in runs if run.cell.labels == 1}
    results = scarcity.collect(runs, scarcity.read_results(file, 1000))
    assert results[cells[0], "sage", "head"] == pytest.approx({0: 75.0, 1: 76.0})
    assert results[cells[0], "sage", "consensus"] == pytest.approx({0: 80.0, 1: 81.0})
    assert (cells[0], "cdmad", "consensus") not in results
    text = render(scarcity.tables(results, cells, ["sage", "fixmatch", "cdmad"], 2), "md")
    assert "| sage | 75.5 ± 0.7 | - | - |" in text and "| cdmad | 60.0 ± 0.0 | - | - |" in text
    assert "| sage | 80.5 ± 0.7 | - | - |" in text
    assert "| SAGE minus fixmatch | +10.50 (+4.15 to +16.85) | - | 1 / 0 / 0 (1 not tested)" in text
    with_one = render(scarcity.tables(results, cells, ["sage", "fixmatch", "cdmad"], 5), "md")
    assert "75.5 ± 0.7 (n = 2)" in with_one


def test_the_chart_has_a_line_for_each_method_with_results(scarcity: ModuleType) -> None:
    cells = [scarcity.Cell("digits", labels, "uniform") for labels in (1, 4)]
    results = {(cell, method, "head"): {0: 50.0, 1: 60.0} for cell in cells for method in ("sage", "acr")}
    (panel,) = scarcity.draw(results, cells, ["sage", "fixmatch", "acr"]).axes
    assert [list(line.get_ydata()) for line in panel.lines] == [[55.0, 55.0]] * 2
    assert [text.get_text() for text in panel.get_legend().get_texts()] == ["sage"]


def test_a_form_of_sage_has_runs_of_its_own(scarcity: ModuleType) -> None:
    cell = scarcity.Cell("digits", 1, "arbitrary")
    runs = [scarcity.Planned(cell, method, 0) for method in ("sage", "sage:default")]
    assert [run.name for run in runs] == ["digits-1-arbitrary-sage-0", "digits-1-arbitrary-sage-default-0"]
    configs = [build_config(scarcity.config_tree(run, None, 10)) for run in runs]
    assert [config.method.form for config in configs] == ["consensus", "default"]
