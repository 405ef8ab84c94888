"""One process at a time in a run folder.

The lock is the system's own on the open file ``.lock``: it ends with its process, however that ends, so that a killed
run never blocks the next one. Where a file system has no such locks (some network disks), filelock puts a marker file
with the holder's process in its place.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from filelock import FileLock, Timeout

from unissl.distributed.agreement import from_first
from unissl.errors import UserError
from unissl.record import RunFolder, own_file

NAME = ".lock"


@contextmanager
def sole_user(folder: RunFolder) -> Iterator[None]:
    """Hold the folder, which is made if need be; another process that holds it is a refusal. A folder in which nothing
    was begun is left as it was found. Of the processes of one run the first holds it for all."""
    hold = Hold(folder)
    try:
        from_first(hold.take)
        yield
    finally:
        hold.let_go()


class Hold:
    """The lock of one folder; letting go what was never taken does nothing."""

    def __init__(self, folder: RunFolder) -> None:
        self.folder, self.place, self.made = folder, folder.path / NAME, False
        self.lock = FileLock(self.place)

    def take(self) -> None:
        self.made = not self.folder.path.exists()
        self.folder.create()
        self.folder.refuse_links()
        own_file(self.place)  # older versions of filelock empty the file that a link leads to
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # about the marker file, see above
                self.lock.acquire(timeout=0)
        except Timeout:
            raise UserError(
                f"Another process is at work in {self.folder.path}; wait for it, or choose another --out."
            ) from None
        except OSError as error:
            raise UserError(
                f"Cannot write {self.place} ({error.strerror}); make the folder writable, or choose another place "
                "with --out."
            ) from error

    def let_go(self) -> None:
        if self.lock.is_locked and not self.folder.holds_run:
            self.place.unlink(missing_ok=True)
        if self.made:
            with suppress(OSError):  # it is not empty: begun here, or by another process
                os.rmdir(self.folder.path)
        self.lock.release()
