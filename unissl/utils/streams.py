"""Standard output and error of a process that works: that nobody reads them any more must not stop the work.

A pipe whose reader has gone, a stream that was closed before the start and a full disk behind a redirection all make
``print`` raise, in the middle of a training. In here they fall silent instead, and what went wrong is remembered, to be
told when the work is done. One object in the place of ``sys.stdout`` does this for ``print``, rich and cyclopts alike.
"""

from __future__ import annotations

import errno
import os
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from typing import Any, TextIO, cast

OUTPUT_LOST = 74
"""Exit code when standard output could not be written, though all else is done: the system's EX_IOERR."""


class OutputLost(Exception):
    """Standard output, which was to be the result, takes no more; its stream knows why."""


class Stream:
    """A text stream that goes silent at its first error. ``stream`` is None where it was closed before the start."""

    def __init__(self, stream: TextIO | None, descriptor: int) -> None:
        self.error: OSError | None = None
        """The first one, if there was any."""
        self.absent = stream is None
        self._stream = stream or open(descriptor, "w", encoding="utf-8", closefd=False)  # noqa: SIM115
        self._terminal = self.isatty()
        self.is_result = False

    def write(self, text: str) -> int:
        if self.absent and text:
            self._fall_silent(OSError(errno.EBADF, "it is closed"))
        try:
            try:
                self._stream.write(text)
            except UnicodeEncodeError:
                if self.is_result:
                    raise
                # A letter that the encoding lacks must not stop the work either.
                self._stream.write(text.encode(self.encoding, "backslashreplace").decode(self.encoding))
        except OSError as error:
            self._fall_silent(error)
        return len(text)

    def writelines(self, lines: Iterable[str]) -> None:
        for line in lines:
            self.write(line)

    def flush(self) -> None:
        try:
            self._stream.flush()
        except OSError as error:
            self._fall_silent(error)

    def isatty(self) -> bool:
        return not self.absent and self._stream.isatty()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    @property
    def reader_left(self) -> bool:
        """Whether the error is that a reader has seen enough, as ``head`` has, or that a terminal was closed."""
        hung_up = self._terminal and self.error is not None and self.error.errno == errno.EIO
        return hung_up or isinstance(self.error, ConnectionError)

    def _fall_silent(self, error: OSError) -> None:
        if self.error is None:
            self.error = error
            with suppress(OSError):  # it may be no file at all
                _direct_nowhere(self._stream.fileno())
        if self.is_result:
            raise OutputLost from error


@contextmanager
def steady_streams() -> Iterator[tuple[Stream, Stream]]:
    """Standard output and error that raise nothing, for as long as this lasts."""
    _occupy_descriptors()
    before = sys.stdout, sys.stderr
    out, err = Stream(sys.stdout, 1), Stream(sys.stderr, 2)
    sys.stdout, sys.stderr = cast(TextIO, out), cast(TextIO, err)
    try:
        yield out, err
    finally:
        out.flush()
        err.flush()
        sys.stdout, sys.stderr = before


@contextmanager
def printed_result() -> Iterator[TextIO]:
    """Standard output where it is what the command is for: raises :class:`OutputLost` where it cannot be written."""
    stream: object = sys.stdout
    if not isinstance(stream, Stream):
        yield sys.stdout
        return
    stream.is_result = True
    try:
        if stream.absent:
            stream.write("\n")
        yield sys.stdout
        stream.flush()
    finally:
        stream.is_result = False


def _occupy_descriptors() -> None:
    """Put nothing in the place of standard streams that are closed.

    The next files to be opened would take their numbers, and whatever compiled code says on descriptor 2, or a process
    that is started from here, would be written into a checkpoint.
    """
    for descriptor in (0, 1, 2):
        try:
            os.fstat(descriptor)
        except OSError:
            _direct_nowhere(descriptor)


def _direct_nowhere(descriptor: int) -> None:
    """What is still in buffers goes nowhere from now on, so that neither the interpreter, which flushes when it ends,
    nor compiled code, nor a process that is started from here meets an error."""
    nowhere = os.open(os.devnull, os.O_RDWR)
    if nowhere == descriptor:
        os.set_inheritable(descriptor, True)
        return
    os.dup2(nowhere, descriptor)
    os.close(nowhere)
