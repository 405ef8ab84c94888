"""What a reader may not do while it reads: write elsewhere, start something, use the network, import what it was given.

Python reports such acts to audit hooks, also those of libraries, as long as they go through Python. Memory and time are
bounded by the system.
"""

from __future__ import annotations

import os
import resource
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

MEMORY = 1536
"""Megabytes of address space that reading may take beyond what the process has before."""
SECONDS = 10.0
"""Of the process's own time for one case."""
STARTS = ("subprocess.", "os.system", "os.exec", "os.posix_spawn", "os.spawn", "os.fork", "pty.", "ctypes.dlopen")
NETWORK = ("socket.connect", "socket.bind", "socket.getaddrinfo", "urllib.", "http.", "ftplib.", "smtplib.")
CHANGES = {
    "os.rename": 2, "os.remove": 1, "os.mkdir": 1, "os.rmdir": 1, "os.link": 2, "os.symlink": 2, "os.truncate": 1,
    "os.chmod": 1, "os.chown": 1, "os.utime": 1, "shutil.rmtree": 1, "shutil.move": 2, "shutil.copyfile": 2,
}  # fmt: skip
"""Acts that change files, with the number of paths they name."""
WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND


class Forbidden(BaseException):
    """Not an ``Exception``, so that no reader takes it for a damaged file."""


class TooSlow(BaseException):
    pass


class Guard:
    """Armed while a reader reads."""

    def __init__(self, home: Path) -> None:
        self.home = os.path.realpath(home)
        self.armed = False
        self.seen: list[str] = []
        sys.addaudithook(self._hook)

    def _hook(self, event: str, arguments: tuple[Any, ...]) -> None:
        if not self.armed:
            return
        problem = self._problem(event, arguments)
        if problem:
            self.seen.append(problem)
            raise Forbidden(problem)

    def _problem(self, event: str, arguments: tuple[Any, ...]) -> str | None:
        if event.startswith(STARTS) or event.startswith(NETWORK) or event == "pickle.find_class":
            return f"{event} {arguments!r}"[:300]
        if event == "open":
            path, mode, flags = arguments
            writes = (isinstance(flags, int) and flags & WRITING) or (isinstance(mode, str) and set(mode) & set("wax+"))
            if writes and not self._inside(path):
                return f"open {path!r} for writing"
        elif event in CHANGES:
            for path in arguments[: CHANGES[event]]:
                if not self._inside(path):
                    return f"{event} {path!r}"
        elif event == "exec" and str(getattr(arguments[0], "co_filename", "")).startswith(self.home):
            return f"exec of {arguments[0].co_filename}"
        elif event == "import" and "canary" in str(arguments[0]):
            return f"import of {arguments[0]}"
        return None

    def _inside(self, path: object) -> bool:
        if isinstance(path, int):  # an open file, which was judged when it was opened
            return True
        name = os.fsdecode(path) if isinstance(path, str | bytes | os.PathLike) else ""
        return name == os.devnull or os.path.realpath(os.path.abspath(name)).startswith(self.home + os.sep)

    @contextmanager
    def watching(self, seconds: float) -> Iterator[None]:
        """Up to ``seconds`` of this process's own time, so that a busy machine is not taken for a hang."""
        self.seen.clear()
        self.armed = True
        signal.setitimer(signal.ITIMER_PROF, seconds)
        try:
            yield
        finally:
            signal.setitimer(signal.ITIMER_PROF, 0)
            self.armed = False


def stop_slow(number: int, frame: FrameType | None) -> None:
    raise TooSlow


def limit_memory(megabytes: int) -> None:
    """So much address space beyond what the process has already."""
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    limit = pages * resource.getpagesize() + (megabytes << 20)
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    signal.signal(signal.SIGPROF, stop_slow)


def peak_megabytes() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
