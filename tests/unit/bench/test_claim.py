"""The curves of the experiment `claim`: read from run folders, kept in a file, summed up in a table."""

from __future__ import annotations

import json
from pathlib import Path

from claim import Point, curves_of_runs, draw, read_curves, read_published, table, write_curves

LINES = [
    {"kind": "train", "step": 5, "loss": {}},
    {"kind": "eval", "step": 10, "accuracy": 0.25, "pool": {"accuracy": 0.5}},
    {"kind": "eval", "step": 20, "accuracy": 0.2, "pool": {"accuracy": 0.4}},
]


def write_run(folder: Path, method: str) -> None:
    folder.mkdir(parents=True)
    batch = "[batch]\nlabelled = 16\nunlabelled = 112\n"
    (folder / "config.toml").write_text(f'[method]\nname = "{method}"\n{batch}[train]\nsteps = 40\n')
    (folder / "split.json").write_text("{}")
    (folder / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in LINES))


def test_views_are_those_that_the_losses_see(tmp_path: Path) -> None:
    for method in ("sage", "labels-only"):
        write_run(tmp_path / "mid" / f"cifar10-{method}", method)
    curves = curves_of_runs(tmp_path)
    assert curves["sage"] == [Point(10, 40, 2400, 25.0, 50.0), Point(20, 40, 4800, 20.0, 40.0)]
    assert [point.views for point in curves["labels-only"]] == [160, 320]


def test_curves_survive_the_file(tmp_path: Path) -> None:
    curves = {"sage": [Point(1, 2, 3, 4.5, 6.25)], "fixmatch": [Point(2, 2, 8, 1.0, 2.0)]}
    write_curves(tmp_path / "claim.csv", curves)
    assert read_curves(tmp_path / "claim.csv") == curves
    assert read_curves(tmp_path / "missing.csv") == {}


def test_table_names_best_and_last_and_what_is_unfinished() -> None:
    points = [Point(10, 40, 1, 25.0, 50.0), Point(20, 40, 2, 20.0, 40.0)]
    assert table({"sage": points}).splitlines()[-1] == "| sage | 20 of 40 | 20.0 | 22.5 | 25.0 (10) | 40.0 |"


def test_chart_has_a_line_for_each_method_and_the_published_log(tmp_path: Path) -> None:
    (tmp_path / "log.csv").write_text("step,accuracy\n1024,24.43\n")
    published = read_published(tmp_path / "log.csv")
    figure = draw({"sage": [Point(1, 2, 3, 4.5, 6.25)]}, published)
    assert published == [(1024, 24.43)]
    assert [len(ax.lines) for ax in figure.axes] == [2, 2, 1]
