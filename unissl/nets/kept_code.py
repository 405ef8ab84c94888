"""Machine code that was compiled once, kept in the cache folder for the next process: compiling takes seconds.

A file begins with the hash of the rest, since LLVM would believe anything. Where it cannot be read, is damaged, or may
have been written by somebody else, the code is compiled again; where it cannot be written, it is compiled every time.
"""

from __future__ import annotations

import hashlib
import os
import stat
from contextlib import suppress
from pathlib import Path

from unissl.data.cache import cache_folder
from unissl.errors import UserError
from unissl.record import open_own, own_folder

HASH = hashlib.sha256().digest_size


def place(*says: str) -> Path:
    """Of the code that all of this says how to make."""
    return cache_folder() / "code" / hashlib.sha256("\0".join(says).encode()).hexdigest()


def recall(path: Path) -> bytes | None:
    try:
        kept = path.read_bytes() if _only_ours(path) and _only_ours(path.parent) and path.is_file() else b""
    except OSError:
        return None
    digest, code = kept[:HASH], kept[HASH:]
    return code if hashlib.sha256(code).digest() == digest else None


def _only_ours(path: Path) -> bool:
    """Whether nobody else can have written here; the cache folder may be shared, and this will be run."""
    if not hasattr(os, "getuid"):
        return True
    state = path.lstat()  # what a link leads to may be ours, and whoever made the link has chosen it
    return state.st_uid == os.getuid() and not state.st_mode & (stat.S_IWGRP | stat.S_IWOTH)


def keep(path: Path, code: bytes) -> None:
    draft = path.with_name(f".{path.name}.{os.getpid()}.draft")
    try:
        path.parent.parent.mkdir(parents=True, exist_ok=True)
        own_folder(path.parent.parent, path.parent.name).mkdir(mode=0o700, exist_ok=True)
        draft.unlink(missing_ok=True)
        with open_own(draft, "xb") as file:
            file.write(hashlib.sha256(code).digest() + code)
        draft.chmod(0o600)
        os.replace(draft, path)
    except UserError:  # a link in the place of the folder: what lies behind it is not touched
        return
    except OSError:
        with suppress(OSError):
            draft.unlink(missing_ok=True)
