"""What `unissl paper run` does once its flags are read: say what there is to do, have it done, say what came out."""

from __future__ import annotations

import os
import sys
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from unissl.errors import UserError
from unissl.paper.engines import Engine
from unissl.paper.engines.local import LocalEngine
from unissl.paper.engines.ray import RayEngine
from unissl.paper.experiments.registry import get_experiment
from unissl.paper.grid.plan import Part, plan
from unissl.paper.grid.status import survey
from unissl.paper.grid.storage import is_url, require_folder
from unissl.paper.grid.worker import Prepare, Report, Task

SHOWN_REASONS = 5


@dataclass(frozen=True)
class Request:
    """The flags of the command."""

    name: str
    only: str | None
    settings: str | None
    seeds: str | None
    scale: Literal["full", "mini"]
    engine: Literal["local", "ray"]
    jobs: int
    root: str | None
    out: str
    device: str
    threads: int
    address: str | None
    cpus: float | None
    gpus: float

    def check(self) -> None:
        for flag, value in (("--jobs", self.jobs), ("--threads", self.threads)):
            if value < 1:
                raise UserError(f"{flag} takes a number of at least 1, not {value}.")
        if self.gpus < 0 or (self.cpus is not None and self.cpus <= 0):
            raise UserError("--cpus and --gpus are shares of a machine; give numbers above 0.")
        if is_url(self.out) and self.engine == "local":
            raise UserError("--out is a URL, which is for --engine ray; give --engine local a folder.")
        if self.root is not None and not Path(self.root).is_dir():
            raise UserError(f"There is no folder {self.root}; name the one that holds the data sets with --root.")

    def make_engine(self, prepare: Prepare) -> Engine:
        if self.engine == "ray":
            cpus = float(self.threads) if self.cpus is None else self.cpus
            return RayEngine(prepare, self.jobs, self.address, cpus, self.gpus)
        return LocalEngine(self.jobs, prepare)


def run_request(request: Request, prepare: Prepare, *, dry_run: bool) -> None:
    request.check()
    experiment = get_experiment(request.name)
    if not experiment.runs:
        reads = f" It reads the runs of {', '.join(experiment.reads)}: run those." if experiment.reads else ""
        raise UserError(f"{experiment.name} has no runs of its own.{reads} {experiment.note}")
    part = Part(words(request.only), words(request.settings), seed_list(request.seeds))
    runs = plan(experiment, request.scale, part)
    found = survey(runs, request.out)
    for line in found.lines(request.jobs):
        print(f"{experiment.name}, {request.scale}: {line}", flush=True)
    if dry_run or not found.todo:
        return
    require_folder(request.out)
    machine = {"device": request.device, "threads": request.threads, "prefetch": request.device != "cpu"}
    root = request.root or os.environ.get("UNISSL_DATA")  # workers elsewhere have another environment
    data = None if root is None else str(Path(root).resolve())
    out = request.out if is_url(request.out) else str(Path(request.out).resolve())
    tasks = [Task.of(run, out, _scratch(), data, machine) for run in found.todo]
    try:
        ended = show_progress(request.make_engine(prepare).run(tasks), len(tasks), experiment.name)
    except KeyboardInterrupt as stop:
        stop.args = ("stopped; repeat the command to continue",)
        raise
    finish(ended, len(tasks), request.out)


def words(text: str | None) -> list[str] | None:
    return None if text is None else [word.strip() for word in text.split(",") if word.strip()]


def seed_list(text: str | None) -> list[int] | None:
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


def _scratch() -> str:
    """Where runs are carried out whose results go to a URL: they resume there on the same machine."""
    from platformdirs import user_cache_path

    return str(user_cache_path("unissl") / "paper")


def show_progress(reports: Iterable[Report], total: int, title: str) -> list[Report]:
    """A bar on a terminal, else a line for each run that ends."""
    console = Console(stderr=True, highlight=False)
    ended: list[Report] = []
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console, disable=not console.is_terminal) as bar:
        task = bar.add_task(title, total=total)
        for report in reports:
            ended.append(report)
            bar.advance(task)
            line = f"{len(ended)}/{total} {describe(report)}"
            if not console.is_terminal:
                print(line, file=sys.stderr, flush=True)
            elif report.state != "done":
                bar.console.print(line, markup=False)
    return ended


def describe(report: Report) -> str:
    cell = report.task.origin
    where = f"{cell['setting']} {cell['variant']} seed {cell['seed']}"
    if report.summary is not None:
        accuracy = report.summary.get("accuracy", {}).get("last")
        said = "done" if accuracy is None else f"accuracy {accuracy:.4f}"
        return f"{where}: {said}, {report.summary['seconds']:.0f} s"
    return f"{where}: {report.state}" + (f" ({report.reason})" if report.reason else "")


def finish(ended: list[Report], total: int, out: str) -> None:
    """Say what came out; a hole in the grid is an error at the very end, after everything else was done."""
    done = sum(report.state == "done" for report in ended)
    print(f"{done} of {total} runs finished; all are in {out}")
    reasons = Counter(report.reason or report.state for report in ended if report.state != "done")
    if not reasons and done == total:
        return
    shown = "; ".join(f"{count} x {reason}" for reason, count in reasons.most_common(SHOWN_REASONS))
    if any(report.stop for report in ended):
        raise UserError(f"The grid was stopped after {len(ended)} of {total} runs: {shown}")
    raise UserError(f"{total - done} of {total} runs did not finish: {shown}. Repeat the command to try them again.")
