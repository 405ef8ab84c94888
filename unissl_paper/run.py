"""Run an experiment for `unissl paper run`: print the plan, run it, print the results."""

from __future__ import annotations

import os
import sys
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

from unissl.errors import UserError
from unissl.training.signals import stop_hint
from unissl.utils.cache import user_cache_folder
from unissl.utils.printing import echo
from unissl.utils.progress import Progress
from unissl_paper.engines import Engine
from unissl_paper.engines.local import LocalEngine
from unissl_paper.engines.ray import RayEngine
from unissl_paper.experiments import get_experiment
from unissl_paper.grid.plan import Selection, plan
from unissl_paper.grid.status import grid_status
from unissl_paper.grid.storage import is_url, require_folder
from unissl_paper.grid.worker import Prepare, Report, Task

if TYPE_CHECKING:
    from unissl_paper.cli import GridOptions

MAX_REASONS = 5


def run_experiment(name: str, options: GridOptions, prepare: Prepare) -> None:
    """Run the unfinished runs of an experiment; raises at the end if some failed."""
    options.check()
    experiment = get_experiment(name)
    if not experiment.runs:
        reads = f" It reads the runs of {', '.join(experiment.reads)}: run those." if experiment.reads else ""
        raise UserError(f"{name} has no runs of its own.{reads} {experiment.note}")
    selection = Selection(split_names(options.methods), split_names(options.columns), parse_seeds(options.seeds))
    status = grid_status(plan(experiment, options.scale, selection), options.out)
    for line in status.lines(options.jobs):
        echo(f"{name}, {options.scale}: {line}")
    if options.dry_run or not status.todo:
        return
    require_folder(options.out)
    machine = {"device": options.device, "threads": options.threads, "prefetch": options.device != "cpu"}
    root = options.root or os.environ.get("UNISSL_DATA")  # workers on other machines have another environment
    data = None if root is None else str(Path(root).resolve())
    out = options.out if is_url(options.out) else str(Path(options.out).resolve())
    scratch = str(user_cache_folder() / "paper")  # for runs whose results go to a URL; they resume there
    tasks = [Task.of(run, out, scratch, data, machine) for run in status.todo]
    with stop_hint(f"finished runs and checkpoints are kept in {options.out}", "repeat the command to continue"):
        reports = show_progress(make_engine(options, prepare).run(tasks), len(tasks), name)
    summarise(reports, len(tasks), options.out)


def make_engine(options: GridOptions, prepare: Prepare) -> Engine:
    if options.engine == "ray":
        cpus = float(options.threads) if options.cpus is None else options.cpus
        return RayEngine(prepare, options.jobs, options.address, cpus, options.gpus)
    return LocalEngine(options.jobs, prepare)


def split_names(text: str | None) -> list[str] | None:
    """Comma-separated names."""
    return None if text is None else [word.strip() for word in text.split(",") if word.strip()]


def parse_seeds(text: str | None) -> list[int] | None:
    """``0,1,2`` or ``0-4``."""
    if text is None:
        return None
    seeds: list[int] = []
    try:
        for part in text.split(","):
            first, dash, last = part.strip().partition("-")
            seeds += range(int(first), int(last) + 1) if dash else [int(first)]
    except ValueError:
        raise UserError(f"--seeds takes numbers such as 0,1,2 or 0-4, not {text!r}.") from None
    if not seeds or max(seeds) >= 2**32:
        raise UserError(f"--seeds takes numbers from 0 to 2^32 - 1, such as 0,1,2 or 0-4, not {text!r}.")
    return list(dict.fromkeys(seeds))


def show_progress(reports: Iterable[Report], total: int, title: str) -> list[Report]:
    """A progress bar and the runs that fail in a terminal, else a line for each run that ends."""
    finished: list[Report] = []
    with Progress(title, total, unit="runs") as progress:
        for report in reports:
            finished.append(report)
            progress.advance()
            if report.state != "done" or not sys.stderr.isatty():
                echo(f"{len(finished)}/{total} {describe(report)}", err=True)
    return finished


def describe(report: Report) -> str:
    cell = report.task.origin
    title = f"{cell['column']} {cell['variant']} seed {cell['seed']}"
    if report.summary is not None:
        accuracy = report.summary.get("accuracy", {}).get("last")
        result = "done" if accuracy is None else f"accuracy {accuracy:.4f}"
        return f"{title}: {result}, {report.summary['seconds']:.0f} s"
    return f"{title}: {report.state}" + (f" ({report.reason})" if report.reason else "")


def summarise(reports: list[Report], total: int, out: str) -> None:
    """Print the number of finished runs; raise if some are missing."""
    done = sum(report.state == "done" for report in reports)
    echo(f"{done} of {total} runs finished; all are in {out}")
    reasons = Counter(report.reason or report.state for report in reports if report.state != "done")
    if not reasons and done == total:
        return
    listed = "; ".join(f"{count} x {reason.rstrip('.')}" for reason, count in reasons.most_common(MAX_REASONS))
    if any(report.stop for report in reports):
        raise UserError(f"The grid was stopped after {len(reports)} of {total} runs: {listed}.")
    raise UserError(f"{total - done} of {total} runs did not finish: {listed}. Repeat the command to try them again.")
