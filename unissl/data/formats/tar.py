"""Files of a tar archive by name, without unpacking anything to disk and with a bound on what is read at all."""

from __future__ import annotations

import tarfile
from collections.abc import Iterator

from unissl.utils.bounded_io import Bytes, read_at_most

MOST_BYTES = 256 << 20
"""Of all that an archive unpacks to; the official ones have three quarters of it."""
MOST_MEMBERS = 1000
"""Files and folders of an archive; the official ones have ten."""
BLOCK = 512


def members(stream: Bytes, names: tuple[str, ...]) -> Iterator[tuple[str, bytes]]:
    """The plain files of these names, whatever folder they are said to be in; ``TarError`` for what is no archive.

    Headers are taken one by one: links, devices, and the extensions for long names that tar knows are passed over.
    """
    left = MOST_BYTES
    for _ in range(MOST_MEMBERS):
        header = read_at_most(stream, BLOCK)
        if not header.strip(b"\0"):
            return
        member = tarfile.TarInfo.frombuf(header, "utf-8", "surrogateescape")
        padded = -(-member.size // BLOCK) * BLOCK
        left -= BLOCK + padded
        if member.size < 0 or left < 0:
            raise tarfile.TarError
        name = member.name.rpartition("/")[2]
        content = read_at_most(stream, padded)
        if len(content) < padded:
            raise EOFError
        if member.isreg() and name in names:
            yield name, content[: member.size]
    raise tarfile.TarError
