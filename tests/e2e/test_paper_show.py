"""unissl paper table and unissl paper figure: output, files and errors."""

from __future__ import annotations

import csv
from pathlib import Path

import pytest
from cli_helpers import Refuses, succeed

from unissl.run.pipeline import run
from unissl_paper.experiments import get_experiment
from unissl_paper.grid import scales
from unissl_paper.grid.plan import Selection, plan


def test_tables_and_figures_of_an_experiment_take_the_runs_that_are_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(scales.MINI_BUDGET, "steps", 2)
    monkeypatch.setitem(scales.MINI_BUDGET, "evaluations", 2)
    (planned,) = plan(get_experiment("motivation"), "mini", Selection(["sage"]))
    root = tmp_path / "runs"
    run(planned.config, planned.folder(root))
    words = ("motivation", "--scale", "mini", "--runs", root)
    out = tmp_path / "table.csv"
    succeed("paper", "table", *words, "--methods", "sage", "--seeds", "2,3", "--format", "csv", "--out", out)
    lines = list(csv.DictReader(out.read_text(encoding="utf-8").splitlines()))
    assert [(line["metric"], line["n"], line["seeds"], line["missing"]) for line in lines] == [
        (metric, "1", "2", "3: missing") for metric in ("last", "mean_last_20", "best")
    ]
    assert 0 < float(lines[0]["mean"]) < 100
    shown = succeed("paper", "table", *words).out
    assert "one seed, so no deviation. Seed 2." in shown and "2 of 3 runs missing" in shown
    out = succeed("paper", "figure", "stability", "--scale", "mini", "--runs", root, "--out", tmp_path / "x.svg").out
    assert "Correction ratio" in out and (tmp_path / "x.svg").exists()


def test_a_figure_of_a_run(finished_run: Path, tmp_path: Path) -> None:
    out = succeed("paper", "figure", "pseudo-labels", finished_run, "--out", tmp_path / "x.svg").out
    assert "averaged weights on the images as they are" in out and "<svg" in (tmp_path / "x.svg").read_text()


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("table", "tabel1"), "Did you mean 'table1'"),
        (("table", "overhead"), "no grid of runs"),
        (("table", "table1", "--seeds", "x"), "--seeds takes numbers"),
        (("table", "table1", "--out", "taken"), "exists already"),
        (("table", "table4", "--scale", "mini"), "unissl paper run table4 --scale mini"),
        (("figure", "tsen"), "Did you mean 'tsne'"),
        (("figure", "tsne", "--out", "x.jpg"), "change the end of --out"),
        (("figure", "tsne", "nowhere"), "holds no run"),
        (("figure", "lambda", "--scale", "mini"), "unissl paper run lambda --scale mini"),
        (("figure", "settings", "--out", "taken"), "exists already"),
    ],
)
def test_bad_input_is_one_sentence(refuses: Refuses, here: Path, words: tuple[str, ...], says: str) -> None:
    (here / "taken").write_text("mine", encoding="utf-8")
    refuses("paper", *words, says=(says,))
