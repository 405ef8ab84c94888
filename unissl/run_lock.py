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

from filelock import BaseFileLock, FileLock, Timeout

from unissl.errors import UserError
from unissl.record import RunFolder

NAME = ".lock"


@contextmanager
def sole_user(folder: RunFolder) -> Iterator[None]:
    """Hold the folder, which is made if need be; another process that holds it is a refusal. A folder in which nothing
    was begun is left as it was found."""
    new = not folder.path.exists()
    folder.create()
    place = folder.path / NAME
    lock = FileLock(place)
    try:
        _acquire(lock, folder)
        yield
    finally:
        if lock.is_locked and not folder.holds_run:
            place.unlink(missing_ok=True)
        if new:
            with suppress(OSError):  # it is not empty: begun here, or by another process
                os.rmdir(folder.path)
        lock.release()


def _acquire(lock: BaseFileLock, folder: RunFolder) -> None:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # about the marker file, see above
            lock.acquire(timeout=0)
    except Timeout:
        raise UserError(f"Another process is at work in {folder.path}; wait for it, or choose another --out.") from None
    except OSError as error:
        raise UserError(
            f"Cannot write {folder.path / NAME} ({error.strerror}); make the folder writable, or choose another place "
            "with --out."
        ) from error
