"""Benchmark unissl against a plain PyTorch implementation, interleaved.

    PYTHONPATH=benchmarks python -m suite step --threads 2 --out runs/bench-step

All benchmarks take about an hour on two cores and up to 12 GB of memory; nothing else should run meanwhile. Each ratio
is the median of at least five pairs, with its range. Results go to bench.json, with a chart of each benchmark.

step: a whole training step. augment: views on one core. gri: SAGE's graph loss on one core. waiting: time of the parts
of a step. startup: --help and evaluation. memory: peak memory and page faults. growth: batch, pool, classes. methods: a
step of each method against FixMatch's.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import median
from typing import Any

from rich.table import Column, Table

from suite import machine
from suite.augment import augment
from suite.charts import draw
from suite.gri import gri
from suite.growth import growth
from suite.measure import Result
from suite.memory import memory
from suite.methods import methods
from suite.setup import Setup
from suite.startup import startup
from suite.step import step
from suite.waiting import waiting
from unissl.errors import UserError
from unissl.plots.charts import save
from unissl.run_folder import RunFolder
from unissl.utils import printing
from unissl.utils.atomic import write_json
from unissl.utils.process import prepare_process
from unissl.utils.progress import log_to_stderr

BENCHMARKS: dict[str, Callable[[Setup], Result]] = {
    "startup": startup,
    "augment": augment,
    "gri": gri,
    "step": step,
    "waiting": waiting,
    "memory": memory,
    "growth": growth,
    "methods": methods,
}
"""In the order in which they run."""


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command; an error of the user is printed as one sentence, with exit code 1."""
    parser = argparse.ArgumentParser("suite", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("name", nargs="?", default="all", choices=[*BENCHMARKS, "all"])
    parser.add_argument("--quick", action="store_true", help="tiny cases, under a minute in all: a smoke test")
    parser.add_argument("--threads", type=int, help="CPU threads of the steps; by default torch's")
    parser.add_argument("--out", type=Path, help="folder for the results; by default runs/bench-DATE-TIME")
    options = parser.parse_args(arguments)
    log_to_stderr()
    try:
        run_benchmarks(options.name, options.quick, options.threads, options.out)
    except UserError as error:
        sys.exit(f"error: {error}")


def run_benchmarks(name: str, quick: bool, threads: int | None, out: Path | None) -> None:
    """Run one benchmark, or all, and write bench.json and the charts to a new folder."""
    if sys.platform == "win32":
        raise UserError(
            "The benchmarks stop and continue processes, which Windows cannot do; run them on Linux or macOS."
        )
    if threads is not None and threads < 1:
        raise UserError(f"--threads takes a number of at least 1, not {threads}.")
    folder = RunFolder(out or Path("runs") / time.strftime("bench-%Y%m%d-%H%M%S"))
    folder.check_unused()
    folder.create()
    setup = Setup(threads, quick, prepare_process)
    results: list[Result] = []
    for one in BENCHMARKS if name == "all" else (name,):
        result = BENCHMARKS[one](setup)
        results.append(result)
        show(result)
        save(draw(result), folder.path / one)
        write_json(folder.path / "bench.json", as_json(setup, results))  # after each, so that a failure loses only one
    print(f"written to {folder.path}")


def as_json(setup: Setup, results: Sequence[Result]) -> dict[str, Any]:
    return {"machine": machine.facts(setup), "benchmarks": {result.name: result.as_json() for result in results}}


def show(result: Result) -> None:
    """Print a table of seconds, ratios and further numbers, a row per case."""
    ours, other = result.sides
    table = Table(Column("case"), f"{ours}, s", f"{other}, s", f"{result.ratio} (range)", "also", title=result.title)
    for row in result.rows:
        ratio = "-" if row.ratio is None else f"{row.ratio.median:.2f} ({row.ratio.low:.2f} to {row.ratio.high:.2f})"
        also = ", ".join(f"{name} {_number(value)}" for name, value in row.facts.items())
        table.add_row(row.case, _seconds(row.ours), _seconds(row.other), ratio, also)
    printing.show(table)


def _seconds(values: Sequence[float]) -> str:
    return f"{median(values):.4g}" if values else "-"


def _number(value: float | int | str | None) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)


if __name__ == "__main__":
    main()
