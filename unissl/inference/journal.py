"""The partial file of ``unissl predict``: an interrupted command leaves it, and the same command resumes from it.

One line of JSON identifies the model and the files; then follows a record of fixed length for every file that is done,
in the order of the files. A truncated record is detected by its length, whatever the file names look like.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, BinaryIO

import numpy as np

from unissl.errors import UserError
from unissl.inference.model import CHUNK
from unissl.inference.prediction_table import NOT_READ, NUMERIC_COLUMNS, READ, RECORD, Records
from unissl.inference.review import REASONS
from unissl.run_folder import RunFolder
from unissl.utils.atomic import explain_disk_errors, open_regular
from unissl.utils.bounded_io import open_file, parse_json

FORMAT = "unissl-journal-1"
MAX_THREADS = 4096


class PredictionJournal:
    """The file ``out``.part, which grows by whole chunks and holds the first ``done`` files."""

    def __init__(self, out: Path, folder: RunFolder, files: Sequence[str], threads: int, classes: int) -> None:
        self.out = out
        self.classes = classes
        self.path = out.with_name(f"{out.name}.part")
        self.total = len(files)
        owner = {"format": FORMAT, "chunk": CHUNK, "model": _hash_of_model(folder), "files": _hash_of_names(files)}
        with explain_disk_errors(out):
            self._file: BinaryIO = open_regular(self.path, "a+b")
        try:
            self._lock()
            self.threads = self._read_header(owner, threads)
            """Number of threads of the first part, which the rest must use to be equal to the last bit."""
            self.done = self._cut_to_whole_chunks()
        except BaseException:
            self._file.close()
            raise

    def __enter__(self) -> PredictionJournal:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self._file.close()

    def append(self, records: Records) -> None:
        """Add a chunk and flush it to the disk."""
        with explain_disk_errors(self.out):
            self._file.write(records.tobytes())
            self._file.flush()
            os.fsync(self._file.fileno())
        self.done += len(records)

    def blocks(self) -> Iterator[Records]:
        """All records, a chunk at a time."""
        with open_regular(self.path, "rb") as file:
            file.seek(self._start)
            while block := file.read(CHUNK * RECORD.itemsize):
                yield np.frombuffer(block[: len(block) // RECORD.itemsize * RECORD.itemsize], dtype=RECORD)

    def remove(self) -> None:
        self.path.unlink(missing_ok=True)

    def _lock(self) -> None:
        try:
            import fcntl
        except ImportError:
            return  # Windows: a second command with the same --out is not noticed
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise UserError(f"Another command is writing {self.path}; wait for it, or choose another --out.") from None

    def _read_header(self, owner: dict[str, Any], threads: int) -> int:
        """Read the first line, or write it if there is none; returns its number of threads."""
        expected = json.dumps({**owner, "threads": threads}).encode() + b"\n"
        self._file.seek(0)
        line = self._file.readline(len(expected) + 100)
        if line != expected and expected.startswith(line):  # empty, or truncated in its first line
            with explain_disk_errors(self.out):
                self._file.truncate(0)
                self._file.write(expected)
                self._file.flush()
            line = expected
        try:
            header = parse_json(line)
            valid = header["format"] == FORMAT and type(header["threads"]) is int and line.endswith(b"\n")
        except (ValueError, KeyError, TypeError):
            valid = False
        if not valid or not 1 <= header["threads"] <= MAX_THREADS:
            raise UserError(
                f"{self.path} is not a partial file of this command; move it away, or choose another --out."
            )
        if {key: header.get(key) for key in owner} != owner:
            raise UserError(
                f"{self.path} is a partial file of another model or of other images; repeat the command that wrote it, "
                "delete it, or choose another --out."
            )
        self._start = len(line)
        return int(header["threads"])

    def _cut_to_whole_chunks(self) -> int:
        """Drop what a kill or a lost disk block left incomplete; returns the number of files that are done."""
        done = 0
        for block in self.blocks():
            if not are_records(block, self.classes) or done + len(block) > self.total:
                break
            if len(block) < CHUNK and done + len(block) != self.total:
                break
            done += len(block)
        self._file.truncate(self._start + done * RECORD.itemsize)
        return done


def are_records(block: Records, classes: int) -> bool:
    """Whether every record is one that :mod:`unissl.inference.model` writes: a lost disk block is not."""
    states, index = block["state"], block["class_index"]
    known = (index >= 0) & (index < classes) & (block["review"] < len(REASONS))
    numbers = np.all([np.isfinite(block[name]) for name in NUMERIC_COLUMNS], axis=0)
    return bool(((states == NOT_READ) | ((states == READ) & known & numbers)).all())


def _hash_of_model(folder: RunFolder) -> str:
    digest = hashlib.sha256()
    for path in (folder.manifest, folder.model):
        with open_file(path) as file:
            hashlib.file_digest(file, lambda: digest)
    return digest.hexdigest()


def _hash_of_names(files: Sequence[str]) -> str:
    digest = hashlib.sha256()
    for name in files:
        digest.update(os.fsencode(name) + b"\0")
    return digest.hexdigest()
