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

from unissl.errors import UserError
from unissl.record import RunFolder, disk_errors

NAME = ".lock"


@contextmanager
def sole_user(folder: RunFolder) -> Iterator[None]:
    """Hold the folder, which is made if need be; another process that holds it is a refusal. A folder in which nothing
    was begun is left as it was found."""
    new = not folder.path.exists()
    folder.create()
    lock = FileLock(folder.path / NAME)
    try:
        with disk_errors(lock_path := folder.path / NAME), warnings.catch_warnings():
            warnings.simplefilter("ignore")  # about the marker file, see above
            lock.acquire(timeout=0)
    except Timeout:
        raise UserError(f"Another process is at work in {folder.path}; wait for it, or choose another --out.") from None
    try:
        yield
    finally:
        if not folder.holds_run:
            lock_path.unlink(missing_ok=True)
            if new:
                with suppress(OSError):  # something else was put there
                    os.rmdir(folder.path)
        lock.release()
