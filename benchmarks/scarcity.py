"""SAGE and other methods where labels are scarce: each in every cell, with the head and with the consensus readout.

    python benchmarks/scarcity.py --out runs/scarcity --jobs 2
    python benchmarks/scarcity.py --out runs/scarcity --data digits --labels 1 --distributions arbitrary --seeds 0-4
    python benchmarks/scarcity.py --out runs/scarcity --table --chart docs/images/scarcity

A cell is a data set, a number of labels per class and a class distribution of the pool; all methods train for the same
steps. Results are appended to --results, by default benchmarks/results/scarcity.csv, and runs that it holds are not
repeated, so the grid can go on on another machine. Interrupted runs in --out are resumed; --table prints what is
finished so far and trains nothing.

A run of a method that predicts with the network's head has ``method.readout = "consensus"``: its summary states the
accuracy of both readouts, so that each training gives two rows. Differences are paired over seeds, head with head and
consensus with consensus; wins, ties and losses are counted with Holm's correction. ``--methods sage:default`` is
SAGE in another form than that of the recipes.
"""

from __future__ import annotations

import argparse
import csv
import itertools
import multiprocessing
import statistics
import sys
from collections.abc import Iterator, Mapping
from concurrent.futures import ProcessPoolExecutor, as_completed
from pathlib import Path
from typing import Any, NamedTuple

from compare import method_settings, one_run, seeds
from matplotlib.figure import Figure

from unissl.config import ConfigTree, merge, parse_overrides, without_none
from unissl.errors import UserError
from unissl.plots.charts import HUES, save
from unissl_paper.tables.collect import mean_and_sd
from unissl_paper.tables.differences import interval_text
from unissl_paper.tables.sheet import EMPTY, Sheet, Tables, format_mean, render
from unissl_paper.tables.significance import Comparison, Tally, holm, paired

METHODS = (
    *("sage", "fixmatch", "flexmatch", "freematch", "softmatch", "cgmatch", "acr", "simpro", "cdmad", "meta-expert"),
    *("cpg", "labels-only"),
)
DISTRIBUTIONS = ("uniform", "long-tailed", "arbitrary")
STEPS = 1000
RESULTS = Path(__file__).parent / "results" / "scarcity.csv"
DATA: dict[str, ConfigTree] = {
    "digits": {},
    "fashion-mnist": {
        "data": {"name": "fashion-mnist", "image_size": 16, "test_limit": 1000},
        "augment": {"pad": 2},
        "split": {"max_count": 496, "gamma": 10.0},
        "train": {"evaluations": 20, "method_periods": 20},
    },
}
"""Differences from the recipe: ``digits`` for digits, ``short`` for Fashion-MNIST."""
READOUTS = ("head", "consensus")
COLOURS = {"sage": HUES[0], "fixmatch": HUES[1], "freematch": HUES[2], "labels-only": "0.2"}
"""In the chart; the other methods are grey."""
COLUMNS = ("data", "labels", "distribution", "method", "seed", "steps", "readout", "accuracy")
"""Of the file of results."""


class Cell(NamedTuple):
    data: str
    labels: int
    distribution: str


class Planned(NamedTuple):
    cell: Cell
    method: str
    seed: int

    @property
    def name(self) -> str:
        method = self.method.replace(":", "-")
        return f"{self.cell.data}-{self.cell.labels}-{self.cell.distribution}-{method}-{self.seed}"


Results = Mapping[tuple[Cell, str, str], Mapping[int, float]]
"""Accuracy in per cent by cell, method and readout, and by seed."""


def config_tree(run: Planned, root: Path | None, steps: int, overrides: ConfigTree | None = None) -> ConfigTree:
    from unissl.autoconfig.recipes import with_recipe
    from unissl.methods.registry import get_method

    method = method_settings(run.method)
    keeps_head = method.get("form") in ("released", "paper") or not get_method(method["name"]).uses_network_head()
    chosen = {
        "method": {**method, "readout": None if keeps_head else "consensus"},
        "seed": run.seed,
        "split": {"labels_per_class": run.cell.labels, "pool_distribution": run.cell.distribution},
        "data": {"root": root if run.cell.data != "digits" else None},
        "train": {"steps": steps},
        "machine": {"threads": 1},
    }
    tree = merge(DATA[run.cell.data], without_none(chosen), overrides or {})
    return with_recipe(tree, "digits" if run.cell.data == "digits" else "short")


def train(runs: list[Planned], arguments: argparse.Namespace) -> list[str]:
    """Train what has no results yet; the reasons of runs that failed."""
    known = read_results(arguments.results, arguments.steps)
    todo = [run for run in runs if run not in known]
    print(f"{len(runs) - len(todo)} of {len(runs)} runs are finished", file=sys.stderr, flush=True)
    failed: list[str] = []
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(arguments.jobs, mp_context=context) as pool:
        futures = {
            pool.submit(
                one_run,
                config_tree(run, arguments.root, arguments.steps, parse_overrides(arguments.set)),
                arguments.out / run.name,
            ): run
            for run in todo
        }
        for number, future in enumerate(as_completed(futures), 1):
            run = futures[future]
            try:
                summary = future.result()
                append_results(arguments.results, run, arguments.steps, summary)
                result = f"{100 * summary['accuracy']['last']:.1f}"
            except UserError as error:
                result = str(error)
                failed.append(result)
            print(f"{number}/{len(todo)} {run.name}: {result}", file=sys.stderr, flush=True)
    return failed


def append_results(path: Path, run: Planned, steps: int, summary: Mapping[str, Any]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    is_new = not path.exists()
    with path.open("a", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        if is_new:
            writer.writerow(COLUMNS)
        for readout, accuracy in accuracies(summary):
            writer.writerow([*run.cell, run.method, run.seed, steps, readout, f"{accuracy:.6f}"])


def read_results(path: Path, steps: int) -> dict[Planned, dict[str, float]]:
    """Accuracy by readout of the runs of so many steps that are finished."""
    known: dict[Planned, dict[str, float]] = {}
    if path.exists():
        with path.open(newline="") as file:
            for row in csv.DictReader(file):
                if int(row["steps"]) == steps:
                    cell = Cell(row["data"], int(row["labels"]), row["distribution"])
                    run = Planned(cell, row["method"], int(row["seed"]))
                    known.setdefault(run, {})[row["readout"]] = float(row["accuracy"])
    return known


def collect(runs: list[Planned], known: Mapping[Planned, Mapping[str, float]]) -> Results:
    results: dict[tuple[Cell, str, str], dict[int, float]] = {}
    for run in runs:
        for readout, accuracy in known.get(run, {}).items():
            results.setdefault((run.cell, run.method, readout), {})[run.seed] = 100 * accuracy
    return results


def accuracies(summary: Mapping[str, Any]) -> Iterator[tuple[str, float]]:
    """The head's accuracy; and that of the classifier that the consensus readout ships, where there is one."""
    if "readout" in summary:
        yield "head", summary["readout"]["accuracy_head"]
        yield "consensus", summary["accuracy"]["last"]
    else:
        yield "head", summary["accuracy"]["last"]


def tables(results: Results, cells: list[Cell], methods: list[str], planned: int) -> Tables:
    """For each data set and readout: accuracies, and differences of SAGE to each method."""
    sheets, rows = [], []
    for data, readout in itertools.product(dict.fromkeys(cell.data for cell in cells), READOUTS):
        columns = [cell for cell in cells if cell.data == data]
        present = [m for m in methods if any(results.get((cell, m, readout)) for cell in columns)]
        if present:
            sheets.append(accuracy_sheet(results, columns, present, readout, planned))
        if "sage" in present and len(present) > 1:
            sheets.append(difference_sheet(results, columns, [m for m in present if m != "sage"], readout))
    for (cell, method, readout), by_seed in results.items():
        rows += [(*map(str, cell), method, readout, str(seed), f"{by_seed[seed]:.4f}") for seed in sorted(by_seed)]
    head = ("data", "labels", "distribution", "method", "readout", "seed", "accuracy")
    return Tables(tuple(sheets), Sheet("scarcity", head, tuple(rows), words=6))


def accuracy_sheet(results: Results, cells: list[Cell], methods: list[str], readout: str, planned: int) -> Sheet:
    """Mean and deviation over seeds; a cell with fewer seeds than planned states how many it has."""
    rows = []
    for method in methods:
        texts, means = [], []
        for cell in cells:
            values = list(results.get((cell, method, readout), {}).values())
            numbers = mean_and_sd(values)
            if numbers is None:
                texts.append(EMPTY)
                continue
            means.append(numbers[0])
            texts.append(format_mean(*numbers, digits=1) + ("" if len(values) == planned else f" (n = {len(values)})"))
        average = f"{statistics.fmean(means):.1f}" if len(means) == len(cells) else EMPTY
        rows.append((method, *texts, average))
    head = ("method", *(f"{cell.labels}, {cell.distribution}" for cell in cells), "average")
    note = (
        "Test accuracy in per cent after the last step, mean ± sample standard deviation over seeds; columns: labels "
    )
    note += "per class and class distribution of the pool. The average needs all columns."
    return Sheet(f"{cells[0].data}, readout {readout}", head, tuple(rows), (note,))


def difference_sheet(results: Results, cells: list[Cell], others: list[str], readout: str) -> Sheet:
    nothing: Mapping[int, float] = {}
    compared: list[Comparison] = []
    rows = []
    for method in others:
        texts = []
        for cell in cells:
            one, other = (results.get((cell, name, readout), nothing) for name in ("sage", method))
            texts.append(interval_text([one[seed] - other[seed] for seed in sorted(one.keys() & other.keys())]))
            compared.append(paired(one, other))
        rows.append((f"SAGE minus {method}", *texts))
    corrected = holm(compared)
    counts = []
    for number in range(len(others)):
        part = slice(number * len(cells), (number + 1) * len(cells))
        counts.append((str(Tally.of(c.verdict for c in compared[part])), str(Tally.of(corrected[part]))))
    head = ("difference", *(f"{c.labels}, {c.distribution}" for c in cells), "win / tie / loss", "after Holm")
    total = (str(Tally.of(c.verdict for c in compared)), str(Tally.of(corrected)))
    full = [(*row, *count) for row, count in zip(rows, counts, strict=True)]
    full.append(("all", *(EMPTY for _ in cells), *total))
    note = (
        "Points, paired over seeds, with 95 % intervals (Student's t). Wins and losses of SAGE are two-sided at .05: "
    )
    note += "each comparison by itself, and with Holm's correction over all comparisons of this table."
    return Sheet(f"{cells[0].data}, readout {readout}: differences", head, tuple(full), (note,))


def draw(results: Results, cells: list[Cell], methods: list[str]) -> Figure:
    """Mean accuracy of the head against labels per class: a row for each data set, a panel for each distribution."""
    data, distributions = (list(dict.fromkeys(getattr(c, key) for c in cells)) for key in ("data", "distribution"))
    figure = Figure(figsize=(3.2 * len(distributions), 2.9 * len(data)), layout="constrained")
    axes = figure.subplots(len(data), len(distributions), squeeze=False, sharex=True, sharey="row")
    for (row, name), (column, distribution) in itertools.product(enumerate(data), enumerate(distributions)):
        ax = axes[row][column]
        for method in methods:
            shown = [cell for cell in cells if (cell.data, cell.distribution) == (name, distribution)]
            values = {cell.labels: results.get((cell, method, "head"), {}) for cell in shown}
            points = [(labels, statistics.fmean(by_seed.values())) for labels, by_seed in values.items() if by_seed]
            if points:
                named = method in COLOURS
                label, colour = (method, COLOURS[method]) if named else (None, "0.75")
                ax.plot(*zip(*points, strict=True), color=colour, marker=".", label=label, zorder=2 + named)
        ax.set_title(f"{name}, {distribution}", fontsize=10)
        ax.set(xscale="log", xlabel="labels per class")
        ax.set_xticks([cell.labels for cell in cells], [str(cell.labels) for cell in cells], minor=False)
        ax.minorticks_off()
        ax.spines[["top", "right"]].set_visible(False)
    axes[0][0].set_ylabel("test accuracy, per cent")
    axes[0][0].legend(fontsize=7, frameon=False)
    return figure


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", default="digits,fashion-mnist")
    parser.add_argument("--root", type=Path, help="folder of Fashion-MNIST, if it is not in the usual place")
    parser.add_argument("--labels", default="1,2,4,10", help="labels per class")
    parser.add_argument("--distributions", default=",".join(DISTRIBUTIONS))
    parser.add_argument("--methods", default=",".join(METHODS))
    parser.add_argument("--seeds", type=seeds, default=list(range(5)))
    parser.add_argument("--steps", type=int, default=STEPS)
    parser.add_argument("--set", action="append", default=[], help="a setting of all runs; give --results as well")
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--table", action="store_true", help="print what is finished; train nothing")
    parser.add_argument("--chart", type=Path, help="path of a chart of what is finished, without its suffix")
    parser.add_argument("--format", choices=("md", "csv", "latex", "html"), default="md")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--results", type=Path, default=RESULTS)
    arguments = parser.parse_args()
    if arguments.set and arguments.results == RESULTS:
        parser.error("runs with --set are another table; give a file of their own with --results")
    labels = [int(text) for text in arguments.labels.split(",")]
    methods = arguments.methods.split(",")
    names = itertools.product(arguments.data.split(","), labels, arguments.distributions.split(","))
    cells = [Cell(*cell) for cell in names]
    # Cell by cell within a seed, so that an interrupted grid has whole rows of comparisons.
    runs = [Planned(cell, method, seed) for seed in arguments.seeds for cell in cells for method in methods]
    failed = [] if arguments.table else train(runs, arguments)
    results = collect(runs, read_results(arguments.results, arguments.steps))
    if arguments.chart is not None:
        save(draw(results, cells, methods), arguments.chart)
    print(render(tables(results, cells, methods, len(arguments.seeds)), arguments.format))
    if failed:
        sys.exit(f"{len(failed)} of {len(runs)} runs failed: {failed[0]}")


if __name__ == "__main__":
    main()
