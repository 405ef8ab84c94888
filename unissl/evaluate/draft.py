"""The draft of a table of predictions: what a killed command leaves, and what the same command continues.

One line of JSON that says which model and which files it is of, then a record of fixed length for every file done, in
the order of the files. A record that was cut off is found by arithmetic, whatever the names of files look like.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, BinaryIO

import numpy as np

from unissl.errors import UserError
from unissl.evaluate.doubt import REASONS
from unissl.evaluate.stream import CHUNK, NOT_READ, READ, RECORD, Records
from unissl.reading import parse_json
from unissl.record import RunFolder, disk_errors, open_own

FORMAT = "unissl-draft-1"
MOST_THREADS = 4096


class Draft:
    """A file beside ``out`` that grows by whole chunks. ``done`` files are in it."""

    def __init__(self, out: Path, folder: RunFolder, files: Sequence[str], threads: int, classes: int) -> None:
        self.out = out
        self.classes = classes
        self.path = out.with_name(f"{out.name}.part")
        self.total = len(files)
        owner = {"format": FORMAT, "chunk": CHUNK, "model": _hash_of_model(folder), "files": _hash_of_names(files)}
        with disk_errors(out):
            self._file: BinaryIO = open_own(self.path, "a+b")
        try:
            self._lock()
            self.threads = self._take_up(owner, threads)
            """Threads that its numbers were made with, and that the rest has to be made with."""
            self.done = self._cut_to_whole_chunks()
        except BaseException:
            self._file.close()
            raise

    def __enter__(self) -> Draft:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self._file.close()

    def append(self, records: Records) -> None:
        """Add a chunk and see it safely on the disk."""
        with disk_errors(self.out):
            self._file.write(records.tobytes())
            self._file.flush()
            os.fsync(self._file.fileno())
        self.done += len(records)

    def blocks(self) -> Iterator[Records]:
        """All records, a chunk at a time."""
        with self.path.open("rb") as file:
            file.seek(self._start)
            while block := file.read(CHUNK * RECORD.itemsize):
                yield np.frombuffer(block[: len(block) // RECORD.itemsize * RECORD.itemsize], dtype=RECORD)

    def remove(self) -> None:
        self.path.unlink(missing_ok=True)

    def _lock(self) -> None:
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise UserError(f"Another command is writing {self.path}; wait for it, or choose another --out.") from None

    def _take_up(self, owner: dict[str, Any], threads: int) -> int:
        """Read the first line, or write it where there is none; returns the number of threads that it names."""
        ours = json.dumps({**owner, "threads": threads}).encode() + b"\n"
        self._file.seek(0)
        line = self._file.readline(len(ours) + 100)
        if line != ours and ours.startswith(line):  # nothing yet, or cut off in its first line
            with disk_errors(self.out):
                self._file.truncate(0)
                self._file.write(ours)
                self._file.flush()
            line = ours
        try:
            header = parse_json(line)
            known = header["format"] == FORMAT and type(header["threads"]) is int and line.endswith(b"\n")
        except (ValueError, KeyError, TypeError):
            known = False
        if not known or not 1 <= header["threads"] <= MOST_THREADS:
            raise UserError(f"{self.path} is not a draft of this command; move it away, or choose another --out.")
        if {key: header.get(key) for key in owner} != owner:
            raise UserError(
                f"{self.path} is a draft of another model's predictions or of other files; repeat the command that "
                "it belongs to, delete it, or choose another --out."
            )
        self._start = len(line)
        threads = header["threads"]
        return int(threads)

    def _cut_to_whole_chunks(self) -> int:
        """Drop what a kill or a lost block has left unfinished; returns the number of files that are done."""
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
    """Whether every record is one that :mod:`unissl.evaluate.stream` writes: a lost block of a disk is not."""
    states, known = block["state"], (block["class"] >= 0) & (block["class"] < classes) & (block["look"] < len(REASONS))
    numbers = np.isfinite(block["confidence"]) & np.isfinite(block["margin"]) & np.isfinite(block["outlier"])
    return bool(((states == NOT_READ) | ((states == READ) & known & numbers)).all())


def _hash_of_model(folder: RunFolder) -> str:
    digest = hashlib.sha256(folder.manifest.read_bytes())
    with folder.model.open("rb") as file:
        while block := file.read(1 << 20):
            digest.update(block)
    return digest.hexdigest()


def _hash_of_names(files: Sequence[str]) -> str:
    digest = hashlib.sha256()
    for name in files:
        digest.update(os.fsencode(name) + b"\0")
    return digest.hexdigest()
