"""How far runs on two and four processes are from the run on one, step by step, for every method.

    python benchmarks/processes.py --out docs/images/processes.svg

Each method is trained for twenty steps on 1, 2 and 4 processes (gloo, CPU), in float64 by default. The chart has a line
for each method: the largest relative difference of its loss terms at each step. The printed table has the largest one
of all steps, and that of the weights, averaged weights and statistics at the end. ``--precision float32`` shows how far
training carries a change in the order of addition.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch
from matplotlib.figure import Figure

from unissl.plots.charts import BLUE, ORANGE

TESTS = Path(__file__).resolve().parents[1] / "tests"
sys.path[:0] = [str(TESTS / "contract"), str(TESTS / "golden")]  # the runs are those of the contract tests

SIZES = (2, 4)
PRECISIONS = {"float64": "double precision", "float32": "single precision"}
FLOOR = 1e-17
"""Value at which equal numbers are drawn, since a logarithmic axis cannot show 0."""


def loss_difference(one: dict[str, list[float]], other: dict[str, list[float]]) -> npt.NDArray[np.float64]:
    """Largest difference among the loss terms at each step, relative to the term, or to 0.001 where it is smaller."""
    terms = [(np.array(values), np.array(other[name])) for name, values in one.items()]
    return np.max([np.abs(a - b) / np.maximum(np.abs(a), 1e-3) for a, b in terms], axis=0)


def draw(curves: dict[int, dict[str, npt.NDArray[np.float64]]], tolerance: float, how: str) -> Figure:
    figure = Figure(figsize=(9, 3.6), layout="constrained")
    axes = figure.subplots(1, len(curves), sharey=True)
    top = max(1e-3, *(float(values.max()) for lines in curves.values() for values in lines.values()))
    for ax, (size, lines) in zip(axes, curves.items(), strict=True):
        for case, values in lines.items():
            is_sage = case.startswith("sage")
            steps, drawn = range(1, len(values) + 1), np.maximum(values, FLOOR)
            ax.plot(
                steps, drawn, color=BLUE if is_sage else "0.65", linewidth=1.5 if is_sage else 0.8, zorder=2 + is_sage
            )
        ax.axhline(tolerance, color=ORANGE, linestyle="--", linewidth=1)
        ax.annotate(f"required: {tolerance:g}", (1, tolerance), (0, 4), textcoords="offset points", fontsize=8)
        ax.set_title(f"{size} processes against 1", fontsize=9)
        ax.set(xlabel="step", yscale="log", ylim=(FLOOR / 3, top), xticks=[1, 5, 10, 15, 20])
        ax.spines[["top", "right"]].set_visible(False)
    axes[0].set_ylabel("relative difference of the losses")
    figure.suptitle(f"SAGE in its forms (blue) and the other methods (grey), {how}", fontsize=10)
    return figure


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("docs/images/processes.svg"))
    parser.add_argument("--precision", choices=PRECISIONS, default="float64")
    arguments = parser.parse_args()
    from process_cases import CASES, TOLERANCE, relative, trained_all
    from process_group import on_processes

    settings = (CASES, getattr(torch, arguments.precision))
    single = trained_all(*settings)
    groups = {size: on_processes(size, trained_all, *settings)[0] for size in SIZES}
    curves = {
        size: {case: loss_difference(single[case][0], results[case][0]) for case in CASES}
        for size, results in groups.items()
    }
    print(f"{'method':<14}" + "".join(f"{f'losses, {size}':>12}{f'weights, {size}':>12}" for size in SIZES))
    for case in CASES:
        cells = []
        for size, results in groups.items():
            weights = max(relative(value, results[case][1][name]) for name, value in single[case][1].items())
            cells += [f"{curves[size][case].max():>12.1e}", f"{weights:>12.1e}"]
        print(f"{case:<14}" + "".join(cells))
    draw(curves, TOLERANCE, PRECISIONS[arguments.precision]).savefig(arguments.out, metadata={"Date": None})


if __name__ == "__main__":
    main()
