"""One process at a time in a run folder.

The system locks the open file ``.lock``: the lock ends with its process, however that ends, so that a killed run never
blocks the next one. On a file system without such locks (some network disks) filelock writes a marker file with the
holder's process number instead.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from filelock import FileLock, Timeout

from unissl.distributed.collectives import broadcast_from_main
from unissl.errors import UserError
from unissl.run_folder import RunFolder
from unissl.training.signals import resume_hint
from unissl.utils.atomic import require_regular_file

NAME = ".lock"


@contextmanager
def locked(folder: RunFolder) -> Iterator[None]:
    """Lock the folder, which is created if necessary; an error if another process has locked it. A folder in which no
    run was started is left as it was. Of the processes of one run the main one holds the lock for all.

    A command that is stopped inside names the one that continues the run.
    """
    lock = RunLock(folder)
    try:
        broadcast_from_main(lock.acquire)
        with resume_hint(folder.path):
            yield
    finally:
        lock.release()


class RunLock:
    """The lock of one folder; releasing it without having it does nothing."""

    def __init__(self, folder: RunFolder) -> None:
        self.folder, self.path, self.created = folder, folder.path / NAME, False
        self.lock = FileLock(self.path)

    def acquire(self) -> None:
        self.created = not self.folder.path.exists()
        self.folder.create()
        self.folder.check_links()
        require_regular_file(self.path)  # older versions of filelock empty the file that a link leads to
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # about the marker file, see above
                self.lock.acquire(timeout=0)
        except Timeout:
            raise UserError(
                f"Another process is using {self.folder.path}; wait for it, or choose another --out."
            ) from None
        except OSError as error:
            raise UserError(
                f"Cannot write {self.path} ({error.strerror}); make the folder writable, or choose another --out."
            ) from error

    def release(self) -> None:
        if self.lock.is_locked and not self.folder.holds_run:
            self.path.unlink(missing_ok=True)
        if self.created:
            with suppress(OSError):  # not empty: a run was started, here or by another process
                os.rmdir(self.folder.path)
        self.lock.release()
