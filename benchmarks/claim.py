"""Curves of the experiment `claim` beside the published log: the chart and the table of docs/claim.md.

    nice -n 19 unissl paper run claim --scale mid --root DATA --out runs/long/claim
    python benchmarks/claim.py --runs runs/long/claim --chart docs/images/claim

Test accuracy and accuracy on the pool at each evaluation are kept in benchmarks/results/claim.csv, those of unfinished
runs too. Without --runs, chart and table are made from that file alone. The published log of SAGE (CIFAR-10, 40 labels,
arbitrary class distribution, gamma 100, seed 2) is in benchmarks/results/claim_published.csv.
"""

from __future__ import annotations

import argparse
import csv
import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from matplotlib.figure import Figure

from unissl.config import read_toml
from unissl.methods.registry import all_methods, get_method
from unissl.plots.charts import GREY, HUES, new_figure, save
from unissl.run_folder import RunFolder

RESULTS = Path(__file__).parent / "results"
PUBLISHED_VIEWS = 64 + 2 * 448
"""Views per step of the published run: 64 labelled images, and 448 unlabelled ones twice."""
LAST = 20
"""Evaluations of the mean at the end, as in every summary."""


class Point(NamedTuple):
    """An evaluation; accuracies in per cent, ``views`` are all that the losses have seen so far."""

    step: int
    steps: int
    views: int
    accuracy: float
    pool: float


Curves = Mapping[str, Sequence[Point]]


def curves_of_runs(root: Path) -> dict[str, list[Point]]:
    """The evaluations of every run in ``root``/mid, by method."""
    curves = {}
    for path in sorted((root / "mid").iterdir()):
        folder = RunFolder(path)
        if not folder.holds_run:
            continue
        config = read_toml(folder.config)
        name, batch, steps = config["method"]["name"], config["batch"], config["train"]["steps"]
        method = get_method(name)
        from_pool = method.learns_from_pool(method.Config(name=name))
        views = batch["labelled"] + 2 * batch["unlabelled"] * from_pool
        lines = [line for line in folder.read_metrics() if line["kind"] == "eval"]
        curves[name] = [
            Point(
                line["step"],
                steps,
                line["step"] * views,
                round(100 * line["accuracy"], 2),
                round(100 * line["pool"]["accuracy"], 2),
            )
            for line in lines
        ]
    return curves


def write_curves(path: Path, curves: Curves) -> None:
    with path.open("w", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(["method", *Point._fields])
        for method, points in curves.items():
            writer.writerows([method, *point] for point in points)


def read_curves(path: Path) -> dict[str, list[Point]]:
    curves: dict[str, list[Point]] = {}
    if path.exists():
        with path.open(newline="") as file:
            for row in csv.DictReader(file):
                point = Point(*(int(row[key]) for key in Point._fields[:3]), float(row["accuracy"]), float(row["pool"]))
                curves.setdefault(row["method"], []).append(point)
    return curves


def read_published(path: Path) -> list[tuple[int, float]]:
    with path.open(newline="") as file:
        return [(int(row["step"]), float(row["accuracy"])) for row in csv.DictReader(file)]


def draw(curves: Curves, published: Sequence[tuple[int, float]]) -> Figure:
    """Test accuracy against steps and against views, and accuracy on the pool against steps."""
    figure, (by_step, by_views, pool) = new_figure(10, 3.4, 3)
    by_step.plot(*zip(*published, strict=True), color=GREY, marker=".", label="SAGE, published log")
    by_views.plot([step * PUBLISHED_VIEWS for step, _ in published], [y for _, y in published], color=GREY, marker=".")
    for hue, (name, points) in zip(HUES, curves.items(), strict=False):
        steps, accuracy = [point.step for point in points], [point.accuracy for point in points]
        by_step.plot(steps, accuracy, color=hue, label=get_method(name).title)
        by_views.plot([point.views for point in points], accuracy, color=hue)
        pool.plot(steps, [point.pool for point in points], color=hue)
    for ax, label in ((by_step, "step"), (by_views, "views seen"), (pool, "step")):
        ax.set(xlabel=label, xscale="log" if ax is not pool else "linear", ylim=(0, None))
    by_step.set_ylabel("per cent")
    for ax, title in ((by_step, "test accuracy"), (by_views, "test accuracy"), (pool, "accuracy on the pool")):
        ax.set_title(title, fontsize=10)
    by_step.legend(fontsize=7, frameon=False)
    return figure


def table(curves: Curves) -> str:
    rows = ["| method | steps | last | mean of last 20 | best (step) | pool, last |", "|---|---|---|---|---|---|"]
    for name, points in curves.items():
        accuracies, last = [point.accuracy for point in points], points[-1]
        best = max(points, key=lambda point: point.accuracy)
        done = f"{last.step:,}" if last.step == last.steps else f"{last.step:,} of {last.steps:,}"
        cells = [f"{last.accuracy:.1f}", f"{statistics.fmean(accuracies[-LAST:]):.1f}"]
        cells += [f"{best.accuracy:.1f} ({best.step:,})", f"{last.pool:.1f}"]
        rows.append(f"| {name} | {done} | " + " | ".join(cells) + " |")
    return "\n".join(rows)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=Path, help="folder of `unissl paper run claim --scale mid`")
    parser.add_argument("--results", type=Path, default=RESULTS / "claim.csv")
    parser.add_argument("--chart", type=Path, help="path of the chart without its suffix")
    arguments = parser.parse_args()
    curves = read_curves(arguments.results)
    if arguments.runs is not None:
        curves |= {name: points for name, points in curves_of_runs(arguments.runs).items() if points}
        order = ["sage", *(name for name in all_methods() if name != "sage")]
        curves = {name: curves[name] for name in order if name in curves}
        write_curves(arguments.results, curves)
    if arguments.chart is not None:
        save(draw(curves, read_published(RESULTS / "claim_published.csv")), arguments.chart)
    print(table(curves))


if __name__ == "__main__":
    main()
