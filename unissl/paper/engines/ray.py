"""A Ray task per run, on one machine or a cluster (extra ``ray``).

Ray places the tasks by their share of CPUs and GPUs. A worker that dies is replaced, and the new one finds the folder
of the run and continues from its last checkpoint, if the folder is on a disk that both can see.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from unissl.current_folder import elsewhere, ignore_settings
from unissl.errors import UserError
from unissl.paper.work import Prepare, Report, Task, record_failure, work

MISSING = "The engine ray needs the package Ray; install it with: pip install 'unissl[ray]', or use --engine local."


@dataclass(frozen=True)
class RayEngine:
    prepare: Prepare
    jobs: int
    """Runs at a time on a Ray that is started here; a cluster decides for itself."""
    address: str | None = None
    """Of a cluster; by default $RAY_ADDRESS, or a Ray of its own on this machine."""
    cpus: float = 1.0
    gpus: float = 0.0
    retries: int = 3
    """How often a run is taken up again after its worker has died."""

    def run(self, tasks: Sequence[Task]) -> Iterator[Report]:
        try:
            import ray
        except ImportError:
            raise UserError(MISSING) from None
        begun_here = not ray.is_initialized()
        folder = os.getcwd() if begun_here and not self._cluster else None
        if begun_here:
            self._connect(ray)
        try:
            yield from self._collect(ray, tasks, folder)
        finally:
            if begun_here:
                ray.shutdown()

    @property
    def _cluster(self) -> str | None:
        return self.address or os.environ.get("RAY_ADDRESS")

    def _connect(self, ray: Any) -> None:
        address = self._cluster
        quiet = {"log_to_driver": False, "configure_logging": False}
        try:
            with elsewhere():  # workers look for modules in the folder that this is called in, before all others
                if address:
                    ray.init(address=address, **quiet)
                else:
                    os.environ.setdefault("RAY_worker_niceness", "0")  # here the runs are all there is to do
                    cpus = max(1, round(self.jobs * self.cpus))
                    ray.init(address="local", num_cpus=cpus, include_dashboard=False, **quiet)
        except (ConnectionError, RuntimeError, ValueError, TimeoutError, OSError) as error:
            said = " ".join(str(error).split())[:200]
            raise UserError(
                f"No Ray answers at {address or 'this machine'} ({said}); check the address, start one with "
                "`ray start --head`, or use --engine local."
            ) from None

    def _collect(self, ray: Any, tasks: Sequence[Task], folder: str | None) -> Iterator[Report]:
        # max_calls: a process of its own for every run, as in the local engine
        options = {"num_cpus": self.cpus, "num_gpus": self.gpus, "max_retries": self.retries, "max_calls": 1}
        remote = ray.remote(**options)(_work_in)
        waiting = {remote.options(name=task.name).remote(folder, task, self.prepare): task for task in tasks}
        while waiting:
            (done,), _ = ray.wait(list(waiting), num_returns=1)
            task = waiting.pop(done)
            try:
                report: Report = ray.get(done)
            except ray.exceptions.RayError as error:
                report = record_failure(task, f"Ray gave it up ({type(error).__name__}); repeat the command to go on")
            if report.stop:
                for other in waiting:
                    ray.cancel(other, force=False)
                waiting.clear()
            yield report


def _work_in(folder: str | None, task: Task, prepare: Prepare) -> Report:
    """Relative names in the environment are meant from the folder of the command; Ray itself was started elsewhere."""
    if folder is not None:
        os.chdir(folder)
    ignore_settings()
    return work(task, prepare)
