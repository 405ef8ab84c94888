"""Tables from made-up runs: means, missing runs, seeds, differences, formats; and statistics of the printed numbers."""

from __future__ import annotations

import csv
import io
import json
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import numpy as np
import pytest
from scipy import stats

from unissl.config import to_toml
from unissl.errors import UserError
from unissl_paper.experiments import get_experiment
from unissl_paper.experiments.experiment import Cell, Column, Experiment, Printed, Variant
from unissl_paper.grid.plan import Selection, plan
from unissl_paper.tables import make_tables
from unissl_paper.tables.collect import CellResult
from unissl_paper.tables.differences import difference_sheet, interval
from unissl_paper.tables.experiment_table import csv_sheet, published_sheet, results_sheet
from unissl_paper.tables.gain import average_gain, gains
from unissl_paper.tables.sheet import Format, Sheet, Tables, render
from unissl_paper.tables.significance import Tally
from unissl_paper.tables.significance_table import PUBLISHED, matches, printed_comparison, significance_tables

ROWS = tuple(
    Variant(name, name.title(), {"method": {"name": name}}) for name in ("fully-supervised", "fixmatch", "sage")
)
COLUMNS = tuple(Column(f"s{n}", f"Set {n}", {"data": {"name": "cifar10"}}) for n in (1, 2))
PRINTED = {("sage", "s1"): Printed(70.0, 1.5), ("fixmatch", "s1"): Printed(60.0, 2.0)}
EXPERIMENT = Experiment("made-up", "Made up", COLUMNS, ROWS, (0, 1, 2), PRINTED)


def summary(last: float, best: float) -> dict[str, Any]:
    return {"accuracy": {"last": last, "mean_last_20": last, "best": best}}


def made_up() -> dict[Cell, CellResult]:
    """SAGE 10 points above FixMatch but for seed 2, which FixMatch lacks in the second column."""
    cells: dict[Cell, CellResult] = {}
    for column in ("s1", "s2"):
        for name, base in (("fully-supervised", 0.9), ("fixmatch", 0.5), ("sage", 0.6)):
            cells[name, column] = CellResult({seed: summary(base, base + seed / 100) for seed in range(3)})
    del cells["fixmatch", "s2"].summaries[2]
    cells["fixmatch", "s2"].missing[2] = "failed: a | odd & reason"
    return cells


def test_means_deviations_and_missing_runs() -> None:
    sheet = results_sheet(EXPERIMENT, "full", made_up(), COLUMNS, range(3))
    rows = {row[:2]: row[2:] for row in sheet.rows}
    assert rows["Sage", "best"] == ("61.00 ± 1.00", "61.00 ± 1.00", "61.00")
    assert rows["Sage", "last"] == ("60.00 ± 0.00", "60.00 ± 0.00", "60.00")
    assert rows["Fixmatch", "best"] == ("51.00 ± 1.00", "50.50 ± 0.71 (seeds 0-1)", "50.75")
    assert rows["Sage", "published (best)"] == ("70.00 ± 1.50", "-", "-")
    notes = " ".join(sheet.notes)
    assert "sample standard deviation (n - 1) over seeds. Seeds 0-2." in notes
    assert "1 of 18 runs failed: a | odd & reason: fixmatch s2 seed 2." in notes
    assert "61.00 - 50.75 (Fixmatch) = +10.25" in notes and "8.56" in notes


def test_published_numbers_are_never_in_a_table_of_miniature_runs() -> None:
    mini = results_sheet(EXPERIMENT, "mini", made_up(), COLUMNS, range(3))
    assert not any("70.00" in cell or "published (best)" in cell for row in mini.rows for cell in row)
    assert "not comparable" in mini.title and "digits for cifar10" in mini.notes[0]
    assert published_sheet(EXPERIMENT).rows == (
        ("Fixmatch", "60.00 ± 2.00", "-", "-"),
        ("Sage", "70.00 ± 1.50", "-", "-"),
    )


def test_the_csv_table_has_every_number_once() -> None:
    sheet = csv_sheet(EXPERIMENT, "mini", made_up())
    lines = [dict(zip(sheet.head, row, strict=True)) for row in sheet.rows]
    assert len(lines) == 3 * 2 * 3
    (one,) = [x for x in lines if (x["method"], x["column"], x["metric"]) == ("fixmatch", "s2", "best")]
    assert (one["n"], one["mean"], one["seeds"], one["missing"]) == (
        "2",
        "50.500000",
        "0 1",
        "2: failed: a | odd & reason",
    )
    assert {x["published_full_size_mean"] for x in lines if x["metric"] != "best"} == {""}


def test_differences_are_paired_with_students_interval() -> None:
    cells = made_up()
    for seed, gain in enumerate((0.02, 0.05, 0.11)):
        cells["sage", "s1"].summaries[seed] = summary(0.5 + gain, 0.9)
    sheet = difference_sheet(EXPERIMENT, cells, COLUMNS)
    assert sheet is not None
    row = next(row for row in sheet.rows if row[:2] == ("Sage minus Fixmatch", "last"))
    low, high = stats.t.interval(0.95, 2, loc=6.0, scale=stats.sem([2.0, 5.0, 11.0]))
    assert row[2] == f"+6.00 ({low:+.2f} to {high:+.2f})"
    assert row[4].startswith("+6.75 (")  # seeds 0 and 1: (2 + 10) / 2 and (5 + 10) / 2
    assert interval([1.0, 3.0])[0] == 2.0
    one_seed = {cell: CellResult({0: result.summaries[0]}) for cell, result in made_up().items()}
    assert difference_sheet(EXPERIMENT, one_seed, COLUMNS) is None


def test_an_ablation_is_compared_step_by_step() -> None:
    ablation = get_experiment("table4")
    cells = {
        (v.name, s.name): CellResult({seed: summary(0.1 * index + seed / 100, 0.5) for seed in range(2)})
        for index, v in enumerate(ablation.variants)
        for s in ablation.columns
    }
    sheet = difference_sheet(ablation, cells, ablation.columns)
    assert sheet is not None
    names = list(dict.fromkeys(row[0] for row in sheet.rows))
    assert (
        len(names) == 4 and names[0].startswith("V2") and names[-1].startswith("V4") and names[-1].endswith("V1: none")
    )
    assert all(cell.startswith("+10.00") for cell in sheet.rows[0][2:])


@pytest.mark.parametrize("form", ["md", "csv", "latex", "html"])
def test_formats_keep_every_cell(form: Format) -> None:
    nasty = Sheet("50 % & more", ("method", "a_b"), (("x | y", "1.00 ± 0.10"), ("<b>", "\\ {#}")), ("γ = 5",))
    text = render(Tables((nasty,), nasty), form)
    if form == "csv":
        assert list(csv.reader(io.StringIO(text))) == [list(nasty.head), *(list(row) for row in nasty.rows)]
    elif form == "md":
        assert r"| x \| y | 1.00 ± 0.10 |" in text and "- γ = 5" in text
    elif form == "latex":
        assert r"50 \% \& more" in text and r"a\_b" in text and r"\textbackslash{} \{\#\}" in text and r"$\pm$" in text
    else:
        body = text.split("<body>")[1].split("</body>")[0]
        cells = [cell.text for cell in ElementTree.fromstring(f"<x>{body}</x>").iter("td")]
        assert cells == [cell for row in nasty.rows for cell in row]


def test_the_rule_of_the_average_gain_gives_8_56() -> None:
    results = []
    for name in ("table1", "table2", "table3"):
        experiment = get_experiment(name)
        results += gains(experiment, {cell: printed.mean for cell, printed in experiment.printed.items()})
    assert [(gain.data, gain.baseline) for gain in results] == [
        ("cifar10", "CGMatch"),
        ("cifar100", "CPG"),
        ("svhn", "FixMatch"),
        ("food101", "CPG"),
        ("stl10", "CGMatch"),
    ]
    assert round(average_gain(results), 2) == 8.56


def test_the_printed_numbers_by_welch() -> None:
    """190 of the paper's 195 comparisons are printed; the other five are STL-10 for methods Table 3 lacks."""
    results = matches([get_experiment(f"table{n}") for n in (1, 2, 3)], printed_comparison, include_unprinted=True)
    assert len(results) == 195
    assert {(m.baseline, m.column) for m in results if m.comparison.p is None} == {
        (name, "stl10") for name in ("freematch", "softmatch", "acr", "simpro", "cdmad")
    }
    assert Tally.of(m.comparison.verdict for m in results) == Tally(121, 69, 0, 5)
    example = next(m for m in results if (m.baseline, m.column) == ("cpg", "cifar10-a150"))
    expected = stats.ttest_ind_from_stats(61.24, 4.72, 3, 50.24, 8.01, 3, equal_var=False)
    assert example.comparison.p == pytest.approx(expected.pvalue)
    numbers = {name: [[int(n) for n in cell.split("/")] for cell in cells] for name, cells in PUBLISHED.items()}
    assert numbers["all"] == np.sum([cells for name, cells in numbers.items() if name != "all"], axis=0).tolist()
    for name, cells in numbers.items():
        assert np.sum(cells[:3], axis=0).tolist() == cells[3]
        assert sum(cells[3]) == sum(m.baseline == name or name == "all" for m in results)


def test_significance_without_runs_is_that_of_the_print(tmp_path: Any) -> None:
    tables = significance_tables("mini", tmp_path, ("table1", "table2", "table3"))
    assert len(tables.sheets) == 2 and tables.sheets[0].rows[-1][4:] == (
        "121 / 69 / 0 (5 not tested)",
        "15 / 175 / 0 (5 not tested)",
        "136 / 59 / 0",
    )
    assert "106 / 84 / 0" in tables.sheets[0].notes[-1]


def test_names_without_a_table_are_errors(tmp_path: Any) -> None:
    with pytest.raises(UserError, match="Did you mean 'table1'"):
        make_tables("tabel1", "mini", tmp_path)
    with pytest.raises(UserError, match="unissl paper figure"):
        make_tables("settings", "mini", tmp_path)
    with pytest.raises(UserError, match="leave out --methods"):
        make_tables("gain", "mini", tmp_path, Selection(methods=["sage"]))
    with pytest.raises(UserError, match="at least one"):
        make_tables("table4", "mini", tmp_path, Selection(methods=[]))
    with pytest.raises(UserError, match="unissl paper run table4 --scale mini"):
        make_tables("table4", "mini", tmp_path, Selection(columns=["cifar10-a50"]))


def finish(root: Path, name: str, selection: Selection) -> None:
    """Write the files that make the selected runs of an experiment finished."""
    for run in plan(get_experiment(name), "mini", selection):
        folder = run.folder(root)
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "config.toml").write_text(to_toml(run.config))
        (folder / "summary.json").write_text(json.dumps({"config": run.key, **summary(0.5 + run.seed / 10, 0.9)}))


def test_a_table_shows_the_seeds_that_are_there(tmp_path: Path) -> None:
    """Table 4 plans seed 2; the README's miniature has seed 0."""
    finish(tmp_path, "table4", Selection(seeds=[0]))
    sheet = make_tables("table4", "mini", tmp_path).sheets[0]
    assert {cell for row in sheet.rows if row[1] == "last" for cell in row[2:]} == {"50.00"}
    notes = " ".join(sheet.notes)
    assert "one seed, so no deviation. Seed 0 (the experiment plans 2)." in notes and "missing" not in notes


def test_planned_seeds_are_shown_before_others(tmp_path: Path) -> None:
    finish(tmp_path, "table4", Selection(seeds=[2]))
    finish(tmp_path, "table1", Selection(methods=["sage"], seeds=[0, 1]))  # also cells of table 4
    sheet = make_tables("table4", "mini", tmp_path).sheets[0]
    assert {cell for row in sheet.rows if row[1] == "last" for cell in row[2:]} == {"70.00"}
    notes = " ".join(make_tables("table1", "mini", tmp_path, Selection(methods=["sage"])).sheets[0].notes)
    assert "Seeds 0-2." in notes and "runs missing" in notes  # seed 2 has the columns of table 4 only


def test_some_of_the_planned_seeds(tmp_path: Path) -> None:
    finish(tmp_path, "forms", Selection(seeds=[0]))
    assert "Seeds 0 of 0-2." in make_tables("forms", "mini", tmp_path).sheets[0].notes[1]
    finish(tmp_path, "forms", Selection(methods=["sage"], seeds=[1, 4]))
    sheet = make_tables("forms", "mini", tmp_path).sheets[0]
    assert [row[2] for row in sheet.rows if row[1] == "last"] == ["55.00 ± 7.07", "50.00 (seed 0)", "50.00 (seed 0)"]
    assert "2 of 6 runs missing: released cifar10-a100 seed 1, text cifar10-a100 seed 1." in sheet.notes
