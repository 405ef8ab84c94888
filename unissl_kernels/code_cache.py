"""Compiled machine code, stored in the cache folder for later processes, since compiling takes seconds.

A file begins with the hash of the rest, since LLVM checks nothing. Where it cannot be read, is damaged, or may have
been written by another user, the code is compiled again; where it cannot be written, it is compiled every time.
"""

from __future__ import annotations

import hashlib
import os
from contextlib import suppress
from pathlib import Path

from unissl.errors import UserError
from unissl.utils.atomic import open_regular, require_real_folder, write_atomically
from unissl.utils.cache import cache_folder
from unissl.utils.ownership import only_writable_by_user, writable_by_others

HASH_SIZE = hashlib.sha256().digest_size


def code_path(*inputs: str) -> Path:
    """File of the code that is compiled from these inputs: source, processor, versions."""
    return cache_folder() / "code" / hashlib.sha256("\0".join(inputs).encode()).hexdigest()


def read_code(path: Path) -> bytes | None:
    """The stored code; None where there is none that can be trusted."""
    try:
        if not all(only_writable_by_user(folder.lstat()) for folder in (path.parent, path.parent.parent)):
            return None
        if writable_by_others(path.parent.parent) is not None:
            return None
        with open_regular(path, "rb") as file:  # no link, and the file that is checked is the one that is read
            content = file.read() if only_writable_by_user(os.fstat(file.fileno())) else b""
    except (OSError, UserError):
        return None
    digest, code = content[:HASH_SIZE], content[HASH_SIZE:]
    return code if hashlib.sha256(code).digest() == digest else None


def write_code(path: Path, code: bytes) -> None:
    """Store the code atomically; does nothing where the folder cannot be written, or is a link."""

    def write(draft: Path) -> None:
        draft.chmod(0o600)
        draft.write_bytes(hashlib.sha256(code).digest() + code)

    with suppress(OSError, UserError):
        path.parent.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        require_real_folder(path.parent.parent, path.parent.name).mkdir(mode=0o700, exist_ok=True)
        write_atomically(path, write)
