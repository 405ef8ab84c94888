"""Files that are written whole or not at all, and never through a link.

A file is written next to its final path and renamed to it, so a reader sees the old one or the new one, never a part.
A folder may come from a stranger. It may itself be reached through a link; links inside it are never written through,
since they lead to files that do not belong to it.
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

from unissl.errors import UserError
from unissl.utils.bounded_io import parse_json, read_text, reject_surrogates

SECOND_NAME = "a hard link, a second name of another file"


@contextmanager
def explain_disk_errors(path: Path) -> Iterator[None]:
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


def require_real_folder(top: Path, *names: str) -> Path:
    """The folder ``top``/names, which need not be there; links on the way from ``top`` to it are refused."""
    place = top
    for name in names:
        place /= name
        _check_kind(place, "folder")
    return place


def require_regular_file(path: Path) -> Path:
    """``path``, which need not be there and will be written to; a link, which leads elsewhere, a file with a second
    name, as of a copy by ``cp -l``, and a pipe, which hangs, are refused."""
    _check_kind(path, "file")
    if path.exists() and path.stat().st_nlink > 1:
        raise _not_real(path, SECOND_NAME, "file")
    return path


def open_regular(path: Path, mode: Literal["rb", "ab", "a+b", "r+b", "wb", "w+b", "xb"]) -> BinaryIO:
    """``open`` of a regular file that is no link, whatever is put in its place meanwhile."""
    _check_kind(path, "file")
    return open(path, mode, opener=_open_regular)


def _open_regular(path: str, flags: int) -> int:
    careful = getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0)  # Windows has neither
    descriptor = os.open(path, flags & ~os.O_TRUNC | careful, 0o666)
    status = os.fstat(descriptor)
    shared = status.st_nlink > 1 and flags & (os.O_WRONLY | os.O_RDWR)
    if shared or not stat.S_ISREG(status.st_mode):
        os.close(descriptor)
        raise _not_real(Path(path), SECOND_NAME if shared else "not a regular file", "file")
    if flags & os.O_TRUNC:  # not before it is known whose content would be lost
        os.ftruncate(descriptor, 0)
    return descriptor


def _check_kind(path: Path, wanted: Literal["file", "folder"]) -> None:
    try:
        mode = path.lstat().st_mode
    except OSError:  # nothing is there, or nothing can be: writing will say so
        return
    if stat.S_ISLNK(mode):
        raise _not_real(path, "a symbolic link", wanted)
    if not (stat.S_ISREG(mode) if wanted == "file" else stat.S_ISDIR(mode)):
        raise _not_real(path, f"not a {'regular file' if wanted == 'file' else 'folder'}", wanted)


def _not_real(path: Path, found: str, wanted: str) -> UserError:
    return UserError(f"{path} is {found}, and nothing is written through it; put a real {wanted} there, or remove it.")


def write_atomically(path: Path, write: Callable[[Path], object], *, overwrite: bool = True) -> None:
    """Let ``write`` fill a file beside ``path``, flush it to the disk and move it into place.

    Without ``overwrite``, a file that has appeared there meanwhile is kept, and an error.
    """
    draft = path.with_name(f".{path.name}.{os.getpid()}.draft")
    with explain_disk_errors(path):
        try:
            draft.unlink(missing_ok=True)
            open_regular(draft, "xb").close()  # made here, for a link of this name would be written through
            write(draft)
            flush(draft)
            if overwrite:
                os.replace(draft, path)
            else:
                _move_to_unused(draft, path)
            flush(path.parent)
        finally:
            draft.unlink(missing_ok=True)


def _move_to_unused(draft: Path, path: Path) -> None:
    """A link, unlike a renaming, fails where a file exists."""
    try:
        os.link(draft, path)
    except OSError:  # a file exists, or the file system has no hard links: what remains is to look right before
        if os.path.lexists(path):
            raise UserError(
                f"{path} has appeared meanwhile and is kept; move it elsewhere and repeat the command."
            ) from None
        os.replace(draft, path)


def flush(path: Path) -> None:
    """Flush a file or folder to disk, so that a power cut cannot leave a name without its content."""
    if os.name == "nt" and path.is_dir():
        return  # Windows opens no folders
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    except OSError as error:
        if error.errno != errno.EINVAL:  # some file systems cannot flush folders
            raise
    finally:
        os.close(descriptor)


def write_text(path: Path, text: str, *, overwrite: bool = True) -> None:
    write_atomically(path, lambda draft: draft.write_text(text, encoding="utf-8"), overwrite=overwrite)


def write_tensors(path: Path, tensors: Mapping[str, Tensor], header: dict[str, str] | None = None) -> None:
    """A safetensors file; ``header`` is text that is kept beside the tensors."""

    def write(draft: Path) -> None:
        ready = {name: value.detach().cpu().contiguous() for name, value in tensors.items()}
        try:
            save_file(ready, draft, metadata=header)
        except SafetensorError as error:
            found = re.search(r"os error (\d+)", str(error))  # the library wraps the error of the system
            if found is None:
                raise
            raise OSError(int(found[1]), os.strerror(int(found[1]))) from error

    write_atomically(path, write)


def write_json(path: Path, value: Any, *, overwrite: bool = True) -> None:
    write_text(path, json.dumps(value, indent=2) + "\n", overwrite=overwrite)


def read_json(path: Path) -> Any:
    try:
        value = parse_json(read_text(path))
        reject_surrogates(value)
        return value
    except FileNotFoundError:
        raise UserError(f"{path} is missing; is {path.parent} the folder of a finished run?") from None
    except OSError as error:
        raise UserError(f"{path} cannot be read ({error.strerror}); check the run folder.") from None
    except ValueError:
        raise UserError(f"{path} is not valid JSON; the run folder is damaged, train again.") from None
