"""The run folder: the only thing that passes between training and every other verb.

    config.toml         the fully resolved configuration
    split.json          which images were labelled and which were the pool
    data.json           hashes of the images and labels it was started on
    metrics.jsonl       one line per logged step and per evaluation
    checkpoints/        the newest states training can continue from
    model.safetensors   the inference module alone, with manifest.json beside it
    predictions.parquet what the model says about the pool
    test_predictions.parquet    and about the test images
    estimate.json       without test images, what refits say about labels that were left out (folds/ has the refits)
    summary.json        accuracies, recalls and the confusion matrix of the finished run
    plots/              the pictures
    report.html         all of it on one page, for people

Files are written beside their place and moved into it, so a reader sees the old one or the new one, never a half.

A folder may come from a stranger. It may itself be reached through a link; links inside it are never written through,
since they lead to files that are not the run's.
"""

from __future__ import annotations

import errno
import json
import os
import re
import stat
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO, Literal

from safetensors import SafetensorError
from safetensors.torch import save_file
from torch import Tensor

from unissl.distributed.group import current
from unissl.errors import UserError
from unissl.reading import parse_json, read_text, refuse_halves

FOLDS, REFERENCE = "folds", "labels-only"
"""Folders inside a run's: for the refits of its estimate, and for the run that it is compared with."""
WALL_CLOCK_FIELDS = frozenset({"seconds"})
"""Fields that differ between two runs of the same configuration."""


@contextmanager
def disk_errors(path: Path) -> Iterator[None]:
    """Turn what a disk can refuse into a sentence."""
    try:
        yield
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise UserError(
                f"The disk is full at {path}; free some space and repeat the command, with --resume if a run had begun."
            ) from error
        if error.errno is None:
            raise
        reason = os.strerror(error.errno)
        raise UserError(f"Cannot write {path} ({reason}); choose another place with --out.") from error


def own_folder(top: Path, *names: str) -> Path:
    """The folder ``top``/names, which need not be there; links on the way from ``top`` to it are refused."""
    place = top
    for name in names:
        place /= name
        _refuse_others(place, "folder")
    return place


def own_file(path: Path) -> Path:
    """``path``, which need not be there; a link, which leads elsewhere, and a pipe, which hangs, are refused."""
    _refuse_others(path, "file")
    return path


def open_own(path: Path, mode: Literal["rb", "ab", "a+b", "r+b", "wb", "w+b", "xb"]) -> BinaryIO:
    """``open`` of a regular file that is no link, whatever is put in its place meanwhile."""
    return open(own_file(path), mode, opener=_open_regular)


def _open_regular(path: str, flags: int) -> int:
    careful = getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0)  # Windows has neither
    descriptor = os.open(path, flags | careful, 0o666)
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise _not_own(Path(path), "not a regular file", "file")
    return descriptor


def _refuse_others(path: Path, wanted: Literal["file", "folder"]) -> None:
    try:
        mode = path.lstat().st_mode
    except OSError:  # nothing is there, or nothing can be: writing will say so
        return
    if stat.S_ISLNK(mode):
        raise _not_own(path, "a symbolic link", wanted)
    if not (stat.S_ISREG(mode) if wanted == "file" else stat.S_ISDIR(mode)):
        raise _not_own(path, f"not a {'regular file' if wanted == 'file' else 'folder'}", wanted)


def _not_own(path: Path, found: str, wanted: str) -> UserError:
    return UserError(f"{path} is {found}, and nothing is written through it; put a real {wanted} there, or remove it.")


def write_atomically(path: Path, write: Callable[[Path], None]) -> None:
    """Let ``write`` fill a file beside ``path``, flush it to the disk and move it into place."""
    draft = path.with_name(f".{path.name}.{os.getpid()}.draft")
    with disk_errors(path):
        try:
            draft.unlink(missing_ok=True)
            open_own(draft, "xb").close()  # made here, for a link of this name would be written through
            write(draft)
            with draft.open("rb") as handle:
                os.fsync(handle.fileno())
            os.replace(draft, path)
            _sync_folder(path.parent)
        finally:
            draft.unlink(missing_ok=True)


def _sync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def write_text(path: Path, text: str) -> None:
    write_atomically(path, lambda draft: _write(draft, text))


def _write(path: Path, text: str) -> None:
    path.write_text(text, encoding="utf-8")


def write_tensors(path: Path, tensors: Mapping[str, Tensor], header: dict[str, str] | None = None) -> None:
    """A safetensors file; ``header`` is text that is kept beside the tensors."""
    write_atomically(path, lambda draft: _write_tensors(draft, tensors, header))


def _write_tensors(path: Path, tensors: Mapping[str, Tensor], header: dict[str, str] | None) -> None:
    ready = {name: value.detach().cpu().contiguous() for name, value in tensors.items()}
    try:
        save_file(ready, path, metadata=header)
    except SafetensorError as error:
        found = re.search(r"os error (\d+)", str(error))  # the library wraps what the system said
        if found is None:
            raise
        raise OSError(int(found[1]), os.strerror(int(found[1]))) from error


def write_json(path: Path, value: Any) -> None:
    write_text(path, json.dumps(value, indent=2) + "\n")


def read_json(path: Path) -> Any:
    try:
        value = parse_json(read_text(path))
        refuse_halves(value)
        return value
    except FileNotFoundError:
        raise UserError(f"{path} is missing; is {path.parent} the folder of a finished run?") from None
    except OSError as error:
        raise UserError(f"{path} cannot be read ({error.strerror}); check the run folder.") from None
    except ValueError:
        raise UserError(f"{path} is not valid JSON; the run folder is damaged, train again.") from None


class RunFolder:
    """Paths and metrics of one run."""

    def __init__(self, path: Path | str) -> None:
        self.path = Path(path)
        self.config = self.path / "config.toml"
        self.split = self.path / "split.json"
        self.data = self.path / "data.json"
        self.metrics = self.path / "metrics.jsonl"
        self.checkpoints = self.path / "checkpoints"
        self.model = self.path / "model.safetensors"
        self.manifest = self.path / "manifest.json"
        self.predictions = self.path / "predictions.parquet"
        self.summary = self.path / "summary.json"
        self.plots = self.path / "plots"

    @property
    def holds_run(self) -> bool:
        return self.config.exists()

    @property
    def finished(self) -> bool:
        return self.summary.exists()

    def refuse_if_taken(self) -> None:
        """Nothing that is already in a folder is ever overwritten."""
        if self.path.exists() and (not self.path.is_dir() or any(_visible(self.path))):
            if self.holds_run:
                raise UserError(f"{self.path} already holds a run; choose another --out, or continue it with --resume.")
            what = "is not empty" if self.path.is_dir() else "is a file"
            raise UserError(f"{self.path} {what}; choose another --out.")

    def create(self) -> None:
        with disk_errors(self.path):
            self.path.mkdir(parents=True, exist_ok=True)

    def inside(self, *names: str) -> RunFolder:
        """The folder of another run in this one."""
        return RunFolder(own_folder(self.path, *names))

    def refuse_links(self) -> None:
        """Refuse what would lead writing elsewhere, before hours of training and not after."""
        own_file(self.metrics)
        for name in (self.checkpoints.name, self.plots.name, FOLDS, REFERENCE):
            own_folder(self.path, name)

    def remove_drafts(self) -> None:
        """Clear away what a killed process was about to write."""
        self.refuse_links()
        with disk_errors(self.path):
            for folder in (self.path, self.checkpoints, self.plots):
                for draft in folder.glob(".*.draft"):
                    draft.unlink(missing_ok=True)

    def append_metrics(self, line: Mapping[str, Any]) -> None:
        if not current().first:
            return
        with disk_errors(self.metrics), open_own(self.metrics, "ab") as handle:
            handle.write(json.dumps(line).encode() + b"\n")

    def metrics_size(self) -> int:
        """Bytes of metrics that are safely on the disk."""
        if not self.metrics.exists():
            return 0
        with disk_errors(self.metrics), open_own(self.metrics, "rb") as handle:
            os.fsync(handle.fileno())
        return self.metrics.stat().st_size

    def cut_metrics(self, size: int) -> None:
        """Drop the lines that were written after the checkpoint that training continues from."""
        present = own_file(self.metrics).stat().st_size if self.metrics.exists() else 0
        if present < size:
            raise UserError(f"{self.metrics} has lost lines since the checkpoint; restore it or train again.")
        if present > size:
            with disk_errors(self.metrics), open_own(self.metrics, "r+b") as handle:
                handle.truncate(size)

    def read_metrics(self) -> list[dict[str, Any]]:
        if not self.metrics.exists():
            return []
        try:
            lines = [parse_json(line) for line in read_text(self.metrics).split("\n") if line]
            refuse_halves(lines)
        except (ValueError, OSError):
            raise UserError(f"{self.metrics} is not what a run writes; restore it or train again.") from None
        if not all(isinstance(line, dict) for line in lines):
            raise UserError(f"{self.metrics} has lines that are no entries; restore it or train again.")
        return lines


def _visible(folder: Path) -> Iterator[Path]:
    return (entry for entry in folder.iterdir() if not entry.name.startswith("."))
