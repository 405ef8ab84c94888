"""Streams that raise nothing: what shows through of the real ones, and which errors mean that a reader has left."""

from __future__ import annotations

import errno
import io
import os
import sys

import pytest
from rich.console import Console
from suite.worker import Turn, Worker

from unissl.errors import UserError
from unissl.utils.streams import OutputLost, Stream, printed_result, steady_streams


class Failing(io.StringIO):
    """A stream that takes nothing."""

    def __init__(self, number: int, terminal: bool = False) -> None:
        super().__init__()
        self.number, self.terminal, self.tries = number, terminal, 0

    def write(self, text: str) -> int:
        self.tries += 1
        raise OSError(self.number, os.strerror(self.number))

    def isatty(self) -> bool:
        return self.terminal


@pytest.mark.parametrize(
    ("number", "terminal", "left"),
    [
        (errno.EPIPE, False, True),
        (errno.ECONNRESET, False, True),
        (errno.EIO, True, True),
        (errno.EIO, False, False),
        (errno.ENOSPC, False, False),
    ],
)
def test_print_and_rich_raise_nothing_and_the_reason_is_kept(
    number: int, terminal: bool, left: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "stdout", Failing(number, terminal))
    with steady_streams() as (out, err):
        print("a line", flush=True)
        Console().print("another")
        assert out.error is not None and out.error.errno == number and out.reader_left is left
        assert err.error is None
    assert isinstance(sys.stdout, Failing)


def test_a_result_that_cannot_be_written_ends_the_work(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdout", Failing(errno.ENOSPC))
    with steady_streams():
        with pytest.raises(OutputLost), printed_result() as table:
            table.write("a row")
        print("no longer a result")


def test_the_file_behind_it_shows_through_and_leads_nowhere_after_an_error() -> None:
    reader, writer = os.pipe()
    with open(writer, "w", encoding="latin-1") as pipe:
        stream = Stream(pipe, writer)
        assert (stream.encoding, stream.fileno(), stream.isatty()) == ("latin-1", writer, False)
        stream.write("Łódź\n")
        stream.flush()
        assert os.read(reader, 100) == b"\\u0141\xf3d\\u017a\n"
        os.close(reader)
        stream.writelines(["lost\n"])
        stream.flush()
        assert stream.reader_left
        pipe.write("to nowhere")
        pipe.flush()


class Dies:
    """A task whose process ends between two turns."""

    def run(self, turn: Turn) -> None:
        turn()
        os._exit(1)


def test_a_process_of_a_benchmark_that_is_gone_is_an_error() -> None:
    """Its broken pipe used to pass for a reader's, and the command ended with code 0."""
    with Worker(Dies()) as worker:
        worker.wait_until_ready()
        with pytest.raises(UserError, match="ended without a message"):
            worker.turn()
        with pytest.raises(UserError, match="ended without a message"):
            worker.turn()
