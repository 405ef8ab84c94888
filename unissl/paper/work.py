"""One run of a grid, wherever it is carried out: begun, continued or left alone, and what became of it.

An engine sends a :class:`Task` to a process of its own and gets a :class:`Report`. All that matters is in the folder of
the run, so an engine may die at any moment and another one go on.
"""

from __future__ import annotations

import errno
import os
import traceback
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

from unissl.config import Tree, merge, to_tree
from unissl.errors import UserError
from unissl.paper.grid import PlannedRun
from unissl.paper.place import FAILED, ORIGIN, LocalPlace, RemotePlace, State, examine, is_url, place_of
from unissl.record import RunFolder, own_file, own_folder, write_json
from unissl.run_config import build_config
from unissl.runs import resume, run
from unissl.streams import steady_streams
from unissl.train.signals import Interrupted

Prepare = Callable[[], None]
"""Set-up of a process that will train, from those who may do so (:mod:`unissl.cli.machine`)."""
SECONDS_FOR_LOCK = 20.0
"""A killed process frees its lock at once; one that is still at it after this long will finish the run itself."""


@dataclass(frozen=True)
class Task:
    """A planned run as plain values that any process can take."""

    name: str
    key: str
    scale: str
    tree: Tree
    root: str
    """Folder or URL of all results."""
    scratch: str
    """Folder of this machine to work in where the results go to a URL."""
    data: str | None = None
    """Folder that holds the data sets, as $UNISSL_DATA."""
    origin: dict[str, Any] = field(default_factory=dict)

    @classmethod
    def of(cls, run: PlannedRun, root: str, scratch: str, data: str | None, machine: Tree) -> Task:
        tree = merge(to_tree(run.config), {"machine": machine})
        return cls(run.name, run.key, run.scale, tree, root, scratch, data, run.origin)

    @property
    def place(self) -> LocalPlace | RemotePlace:
        """Where the results are looked for."""
        return place_of(self.root, self.scale, self.name)

    @property
    def folder(self) -> Path:
        """Where the run is carried out."""
        return self._top / self.scale / self.name

    def beside(self, *names: str) -> Path:
        """A folder in that of all runs of this scale; a link in its place is refused, for runs write into it."""
        return own_folder(self._top, self.scale, *names)

    @property
    def _top(self) -> Path:
        return Path(self.scratch if is_url(self.root) else self.root)


@dataclass(frozen=True)
class Report:
    """What became of a task. ``stop`` says that others would fail the same way, as on a full disk."""

    task: Task
    state: State
    summary: dict[str, Any] | None = None
    reason: str | None = None
    stop: bool = False


@steady_streams()  # whoever started the grid may have closed the terminal, or piped it to a reader that has left
def work(task: Task, prepare: Prepare) -> Report:
    """Carry out a task in a process of its own; nothing but a signal gets out of it."""
    try:
        prepare()
        if task.data is not None:
            os.environ["UNISSL_DATA"] = task.data
        task.beside(task.name)
        lock = own_file(task.beside(".locks") / f"{task.name}.lock")
        lock.parent.mkdir(parents=True, exist_ok=True)
        with FileLock(lock, timeout=SECONDS_FOR_LOCK):
            return _locked(task)
    except Timeout:
        return Report(task, "failed", reason=f"another process is at work in {task.folder}; wait for it")
    except Interrupted:
        return Report(task, "cut off")
    except Exception as error:
        return record_failure(task, error)


def _locked(task: Task) -> Report:
    before = examine(task.place, task.key)
    if before.state == "done" or before.foreign:
        return Report(task, before.state, before.summary, before.reason)
    here = LocalPlace(task.folder)
    if (found := examine(here, task.key)).foreign:
        return Report(task, "failed", reason=found.reason)
    (task.folder / FAILED).unlink(missing_ok=True)
    if RunFolder(task.folder).holds_run:
        finished = resume(task.folder, {"machine": task.tree["machine"]}, quiet=True)
    else:
        finished = run(build_config(task.tree), task.folder, quiet=True)
    write_json(task.folder / ORIGIN, task.origin)
    if isinstance(task.place, RemotePlace):
        task.place.receive(task.folder)
    return Report(task, "done", finished.summary)


def record_failure(task: Task, error: Exception | str) -> Report:
    """Put the reason beside what there is of the run, if the disk takes it, and say it in any case."""
    said = " ".join(str(error).split())
    expected = isinstance(error, UserError | str)
    reason = said if expected else f"{type(error).__name__}: {said}"
    facts: dict[str, Any] = {"reason": reason, **task.origin}
    if isinstance(error, Exception) and not expected:
        facts["traceback"] = traceback.format_exception(error)
    try:
        task.beside(task.name).mkdir(parents=True, exist_ok=True)
        write_json(task.folder / FAILED, facts)
        if isinstance(task.place, RemotePlace):
            task.place.receive_file(task.folder / FAILED)
    except (UserError, OSError):
        pass  # the report says it, and the next start finds a run that was cut off
    return Report(task, "failed", reason=reason, stop=isinstance(error, Exception) and _disk_is_full(error))


def _disk_is_full(error: BaseException | None) -> bool:
    while error is not None:
        if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT):
            return True
        error = error.__cause__ or error.__context__
    return False
