"""One run of a grid: started, resumed or skipped, in the process of any engine.

An engine sends a :class:`Task` to a new process and gets a :class:`Report`. All state is in the run folder, so an
engine may be killed at any moment and another one continue.
"""

from __future__ import annotations

import errno
import logging
import os
import traceback
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

from unissl.config import ConfigTree, merge, to_tree
from unissl.errors import UserError
from unissl.run.config import build_config
from unissl.run.pipeline import resume, run
from unissl.run_folder import RunFolder
from unissl.training.signals import Interrupted
from unissl.utils.atomic import require_real_folder, require_regular_file, write_json
from unissl.utils.progress import silenced
from unissl.utils.streams import steady_streams
from unissl_paper.grid.plan import PlannedRun
from unissl_paper.grid.storage import (
    FAILED,
    ORIGIN,
    LocalStorage,
    RemoteStorage,
    State,
    is_url,
    read_status,
    run_storage,
)

Prepare = Callable[[], None]
"""Set-up of a process that trains (:mod:`unissl.utils.process`)."""
LOCK_TIMEOUT = 20.0
"""Seconds. A killed process frees its lock at once; one that holds it for longer will finish the run itself."""


@dataclass(frozen=True)
class Task:
    """A planned run as plain values, to be pickled."""

    name: str
    key: str
    scale: str
    tree: ConfigTree
    root: str
    """Folder or URL of all results."""
    scratch: str
    """Local folder to train in, if the results go to a URL."""
    data: str | None = None
    """Folder of the data sets, as $UNISSL_DATA."""
    origin: dict[str, Any] = field(default_factory=dict)

    @classmethod
    def of(cls, run: PlannedRun, root: str, scratch: str, data: str | None, machine: ConfigTree) -> Task:
        tree = merge(to_tree(run.config), {"machine": machine})
        return cls(run.name, run.key, run.scale, tree, root, scratch, data, run.origin)

    @property
    def storage(self) -> LocalStorage | RemoteStorage:
        """The folder of the results."""
        return run_storage(self.root, self.scale, self.name)

    @property
    def folder(self) -> Path:
        """The local folder that the run trains in."""
        return self._top / self.scale / self.name

    def subfolder(self, *names: str) -> Path:
        """A folder below that of all runs of this scale; a symbolic link is an error, since runs write into it."""
        return require_real_folder(self._top, self.scale, *names)

    @property
    def _top(self) -> Path:
        return Path(self.scratch if is_url(self.root) else self.root)


@dataclass(frozen=True)
class Report:
    """Result of a task. ``stop`` if other tasks would fail the same way, as on a full disk."""

    task: Task
    state: State
    summary: dict[str, Any] | None = None
    reason: str | None = None
    stop: bool = False


@steady_streams()  # the terminal may be closed, or the reader of a pipe gone
def work(task: Task, prepare: Prepare) -> Report:
    """Run a task in a process of its own; every error becomes a report."""
    try:
        prepare()
        if task.data is not None:
            os.environ["UNISSL_DATA"] = task.data
        task.subfolder(task.name)
        lock = require_regular_file(task.subfolder(".locks") / f"{task.name}.lock")
        lock.parent.mkdir(parents=True, exist_ok=True)
        # Many workers share one terminal; warnings are in each run's record.
        with FileLock(lock, timeout=LOCK_TIMEOUT), silenced(logging.ERROR):
            return _locked(task)
    except Timeout:
        return Report(task, "failed", reason=f"another process runs in {task.folder}; wait for it")
    except Interrupted:
        return Report(task, "interrupted")
    except Exception as error:
        return record_failure(task, error)


def _locked(task: Task) -> Report:
    stored = read_status(task.storage, task.key)
    if stored.state == "done" or stored.foreign:
        return Report(task, stored.state, stored.summary, stored.reason)
    local = read_status(LocalStorage(task.folder), task.key)
    if local.foreign:
        return Report(task, "failed", reason=local.reason)
    (task.folder / FAILED).unlink(missing_ok=True)
    if RunFolder(task.folder).holds_run:
        finished = resume(task.folder, {"machine": task.tree["machine"]})
    else:
        finished = run(build_config(task.tree), task.folder)
    write_json(task.folder / ORIGIN, task.origin)
    if isinstance(task.storage, RemoteStorage):
        task.storage.upload(task.folder)
    return Report(task, "done", finished.summary)


def record_failure(task: Task, error: Exception | str) -> Report:
    """Write the reason to the run folder, if the disk allows it, and return it as a report."""
    message = " ".join(str(error).split())
    expected = isinstance(error, UserError | str)
    reason = message if expected else f"{type(error).__name__}: {message}"
    record: dict[str, Any] = {"reason": reason, **task.origin}
    if isinstance(error, Exception) and not expected:
        record["traceback"] = traceback.format_exception(error)
    try:
        task.subfolder(task.name).mkdir(parents=True, exist_ok=True)
        write_json(task.folder / FAILED, record)
        if isinstance(task.storage, RemoteStorage):
            task.storage.upload_file(task.folder / FAILED)
    except (UserError, OSError):
        pass  # the report has the reason, and the next start resumes an interrupted run
    return Report(task, "failed", reason=reason, stop=isinstance(error, Exception) and _disk_is_full(error))


def _disk_is_full(error: BaseException | None) -> bool:
    while error is not None:
        if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT):
            return True
        error = error.__cause__ or error.__context__
    return False
