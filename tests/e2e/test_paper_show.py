"""unissl paper table and unissl paper figure: what they print, write and refuse."""

from __future__ import annotations

import csv
from pathlib import Path

import pytest
from cli_helpers import Refuses, succeed

from unissl.paper.experiments.registry import get_experiment
from unissl.paper.grid.plan import Part, mini, plan
from unissl.run.pipeline import run


def test_tables_and_figures_of_an_experiment_take_the_runs_that_are_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(mini.BUDGET, "steps", 2)
    monkeypatch.setitem(mini.BUDGET, "epochs", 2)
    (planned,) = plan(get_experiment("motivation"), "mini", Part(["sage"]))
    root = tmp_path / "runs"
    run(planned.config, planned.folder(root), quiet=True)
    words = ("motivation", "--scale", "mini", "--runs", root)
    out = tmp_path / "table.csv"
    succeed("paper", "table", *words, "--only", "sage", "--seeds", "2,3", "--format", "csv", "--out", out)
    lines = list(csv.DictReader(out.read_text(encoding="utf-8").splitlines()))
    assert [(line["reading"], line["n"], line["seeds"], line["holes"]) for line in lines] == [
        (reading, "1", "2", "3: missing") for reading in ("last", "mean_last_20", "best")
    ]
    assert 0 < float(lines[0]["mean"]) < 100
    shown = succeed("paper", "table", *words).out
    assert "one seed, so no deviation" in shown and "2 of 3 runs missing" in shown
    said = succeed("paper", "figure", "stability", "--scale", "mini", "--runs", root, "--out", tmp_path / "x.svg").out
    assert "Correction ratio" in said and (tmp_path / "x.svg").exists()


def test_a_figure_of_a_run(finished_run: Path, tmp_path: Path) -> None:
    said = succeed("paper", "figure", "pseudo-labels", finished_run, "--out", tmp_path / "x.svg").out
    assert "averaged weights on the images as they are" in said and "<svg" in (tmp_path / "x.svg").read_text()


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("table", "tabel1"), "Did you mean 'table1'"),
        (("table", "overhead"), "no grid of runs"),
        (("table", "table1", "--seeds", "x"), "--seeds takes numbers"),
        (("table", "table1", "--out", "taken"), "exists already"),
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
