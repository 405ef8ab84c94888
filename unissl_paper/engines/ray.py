"""A Ray task per run, on one machine or a cluster (extra ``ray``).

Ray schedules tasks by their CPUs and GPUs. A worker that dies is replaced, and the new one resumes the run from its
last checkpoint if the run folder is on a shared disk.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from unissl.errors import UserError
from unissl.utils.current_folder import elsewhere, ignore_settings
from unissl_paper.grid.worker import Prepare, Report, Task, record_failure, work

MISSING = "The engine ray needs the package Ray; install it with: pip install ray fsspec, or use --engine local."


@dataclass(frozen=True)
class RayEngine:
    prepare: Prepare
    jobs: int
    """Parallel runs on a local Ray; a cluster schedules by its resources."""
    address: str | None = None
    """Of a cluster; by default $RAY_ADDRESS, or a local Ray."""
    cpus: float = 1.0
    gpus: float = 0.0
    retries: int = 3
    """How often a run is resumed after its worker has died."""

    def run(self, tasks: Sequence[Task]) -> Iterator[Report]:
        try:
            import ray
        except ImportError:
            raise UserError(MISSING) from None
        started_here = not ray.is_initialized()
        folder = os.getcwd() if started_here and not self._cluster else None
        if started_here:
            self._connect(ray)
        try:
            yield from self._collect(ray, tasks, folder)
        finally:
            if started_here:
                ray.shutdown()

    @property
    def _cluster(self) -> str | None:
        return self.address or os.environ.get("RAY_ADDRESS")

    def _connect(self, ray: Any) -> None:
        address = self._cluster
        quiet = {"log_to_driver": False, "configure_logging": False}
        try:
            with elsewhere():  # Ray's workers search the folder of this call first for modules
                if address:
                    ray.init(address=address, **quiet)
                else:
                    os.environ.setdefault("RAY_worker_niceness", "0")  # a local Ray has only the runs to do
                    cpus = max(1, round(self.jobs * self.cpus))
                    ray.init(address="local", num_cpus=cpus, include_dashboard=False, **quiet)
        except (ConnectionError, RuntimeError, ValueError, TimeoutError, OSError) as error:
            message = " ".join(str(error).split())[:200]
            raise UserError(
                f"Cannot connect to Ray at {address or 'this machine'} ({message}); check the address, start one with "
                "`ray start --head`, or use --engine local."
            ) from None

    def _collect(self, ray: Any, tasks: Sequence[Task], folder: str | None) -> Iterator[Report]:
        # max_calls: a new process for every run, as in the local engine
        options = {"num_cpus": self.cpus, "num_gpus": self.gpus, "max_retries": self.retries, "max_calls": 1}
        remote = ray.remote(**options)(_work_in_folder)
        waiting = {remote.options(name=task.name).remote(folder, task, self.prepare): task for task in tasks}
        while waiting:
            (done,), _ = ray.wait(list(waiting), num_returns=1)
            task = waiting.pop(done)
            try:
                report: Report = ray.get(done)
            except ray.exceptions.RayError as error:
                reason = f"Ray gave up on it ({type(error).__name__}); repeat the command to resume"
                report = record_failure(task, reason)
            if report.stop:
                for other in waiting:
                    ray.cancel(other, force=False)
                waiting.clear()
            yield report


def _work_in_folder(folder: str | None, task: Task, prepare: Prepare) -> Report:
    """Run a task in the folder of the command, which relative paths in the environment refer to; Ray was started in a
    neutral one."""
    if folder is not None:
        os.chdir(folder)
    ignore_settings()
    return work(task, prepare)
