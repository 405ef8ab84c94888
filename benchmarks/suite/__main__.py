"""unissl bench"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from unissl.bench.measure import Result

What = Literal["step", "augment", "gri", "waiting", "startup", "memory", "growth", "methods", "all"]


def bench(what: What = "all", /, *, quick: bool = False, threads: int | None = None, out: Path | None = None) -> None:
    """Measure the speed of this machine: our path and a plain one, in turns.

    All of it takes about an hour on two cores and up to 12 GB of memory; nothing else should run meanwhile. Each ratio
    is the median of at least five pairs, with its range. Results go to bench.json, with a picture of each benchmark.

    Example: unissl bench step --threads 2 --out runs/bench-step

    Parameters
    ----------
    what
        step: a whole training step. augment: views on one core. gri: SAGE's graph loss on one core. waiting: where a
        step's time goes. startup: --help and evaluation. memory: peak and page faults. growth: batch, pool, classes.
        methods: each beside FixMatch.
    quick
        Tiny cases, under a minute in all: shows that everything works; the numbers mean little.
    threads
        CPU threads of the steps; by default what torch finds.
    out
        Folder for the results; by default runs/bench-DATE-TIME.
    """
    import sys
    import time

    from unissl.errors import UserError

    if sys.platform == "win32":
        raise UserError(
            "The benchmarks stop and continue processes, which Windows cannot do; run them on Linux or macOS."
        )
    if threads is not None and threads < 1:
        raise UserError(f"--threads takes a number of at least 1, not {threads}.")
    from unissl.bench.charts import draw
    from unissl.bench.setup import Setup
    from unissl.bench.suite import BENCHMARKS, as_json
    from unissl.cli.process import prepare_process
    from unissl.plots.charts import save
    from unissl.run_folder import RunFolder, write_json

    folder = RunFolder(out or Path("runs") / time.strftime("bench-%Y%m%d-%H%M%S"))
    folder.refuse_if_taken()
    folder.create()
    setup = Setup(threads, quick, prepare_process)
    results: list[Result] = []
    for name in BENCHMARKS if what == "all" else (what,):
        result = BENCHMARKS[name](setup)
        results.append(result)
        show(result)
        save(draw(result), folder.path / name)
        write_json(folder.path / "bench.json", as_json(setup, results))  # what is measured is kept, whatever comes next
    print(f"written to {folder.path}")


def show(result: Result) -> None:
    """A table of seconds and ratios, and what else was found, case by case."""
    from rich.console import Console
    from rich.table import Column, Table

    from unissl.cli.listings import WIDE

    console = Console(highlight=False)
    if not console.is_terminal:
        console = Console(highlight=False, width=WIDE)
    ours, other = result.sides
    table = Table(Column("case"), f"{ours}, s", f"{other}, s", f"{result.ratio} (range)", "also", title=result.title)
    for row in result.rows:
        cells = [_seconds(row.ours), _seconds(row.other)]
        ratio = row.ratio
        cells.append("-" if ratio is None else f"{ratio.median:.2f} ({ratio.low:.2f} to {ratio.high:.2f})")
        also = ", ".join(f"{name} {_value(value)}" for name, value in row.facts.items())
        table.add_row(row.case, *cells, also)
    console.print(table)


def _seconds(values: object) -> str:
    from statistics import median

    return f"{median(values):.4g}" if isinstance(values, list | tuple) and values else "-"


def _value(value: float | int | str | None) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)
