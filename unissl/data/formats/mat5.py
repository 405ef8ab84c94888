"""Arrays of numbers in a Matlab file of version 5, the kind that SVHN comes in.

Every element is read by what the format says of it and nothing is set aside before its size is known to be right.
scipy has a reader for all kinds of Matlab files, but some damaged ones end its process.

A file is a header of 128 bytes and elements: a tag of kind and size, then the content, for a compressed element a zlib
stream with a tag of its own inside. An array consists of four such elements: flags, shape, name, values.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import numpy.typing as npt

HEADER = 128
VERSION_AND_ORDER = b"\x00\x01IM"
"""Version 1, and numbers that begin with their lowest byte."""
INT8, INT32, UINT32, MATRIX, COMPRESSED = 1, 5, 6, 14, 15
VALUES = {1: "i1", 2: "u1", 3: "<i2", 4: "<u2", 5: "<i4", 6: "<u4", 7: "<f4", 9: "<f8", 12: "<i8", 13: "<u8"}
"""How values are stored, which may be smaller than what the array is of."""
CLASSES = {6: "double", 7: "single", 8: "int8", 9: "uint8", 10: "int16", 11: "uint16", 12: "int32", 13: "uint32"}
CLASSES |= {14: "int64", 15: "uint64"}
COMPLEX = 0x0800
MOST_DIMENSIONS, MOST_NAME = 8, 64
PIECE = 1 << 20


class Damaged(Exception):
    """What is wrong, in a few words."""


@dataclass(frozen=True)
class Found:
    """An array of which the values have not been read."""

    name: str
    kind: str
    """One of ``CLASSES``, or "other"."""
    shape: tuple[int, ...]
    content: _Content


def find_arrays(path: Path) -> dict[str, tuple[tuple[int, ...], str]]:
    """Shape and kind of every array, by name; the first of two of one name."""
    with _arrays(path) as arrays:
        found: dict[str, tuple[tuple[int, ...], str]] = {}
        for array in arrays:
            found.setdefault(array.name, (array.shape, array.kind))
        return found


def read_array(path: Path, name: str) -> npt.NDArray[Any]:
    """The values as they are stored. Takes as much memory as the shape says, so look at that first."""
    with _arrays(path) as arrays:
        for array in arrays:
            if array.name == name:
                return _values(array)
    raise Damaged(f"it has no array {name}")


@contextmanager
def _arrays(path: Path) -> Iterator[Iterator[Found]]:
    with path.open("rb") as file:
        header = file.read(HEADER)
        if len(header) < HEADER or header[-4:] != VERSION_AND_ORDER:
            raise Damaged("it does not begin as one of version 5 does")
        yield _each(file)


def _each(file: BinaryIO) -> Iterator[Found]:
    while tag := file.read(8):
        if len(tag) < 8:
            raise Damaged("it is cut off")
        kind, size = struct.unpack("<II", tag)
        start = file.tell()
        content = _Content(file, size, compressed=kind == COMPRESSED)
        if kind == COMPRESSED:
            kind, _ = struct.unpack("<II", content.read(8))
        if kind != MATRIX:
            raise Damaged("it holds something that is no array")
        yield _begin(content)
        file.seek(start + size)


def _begin(content: _Content) -> Found:
    """All of an array but its values."""
    flags = _element(content, UINT32, 8)
    word = struct.unpack("<II", flags)[0] if len(flags) == 8 else 0
    kind = "other" if word & COMPLEX else CLASSES.get(word & 0xFF, "other")
    shape = np.frombuffer(_element(content, INT32, 4 * MOST_DIMENSIONS), "<i4").tolist()
    if len(shape) < 2 or min(shape) < 0:
        raise Damaged("an array has no shape")
    name = _element(content, INT8, MOST_NAME)
    if not name.isascii():
        raise Damaged("an array has no name")
    return Found(name.decode("ascii"), kind, tuple(shape), content)


def _element(content: _Content, kind: int, most: int) -> bytes:
    """The content of a small element that has to be of a kind."""
    found, size, inside = _tag(content)
    if found != kind or size > most or (kind == INT32 and size % 4):
        raise Damaged("an array is described in another way than the format has")
    if inside is not None:
        return inside[:size]
    return content.read(-(-size // 8) * 8)[:size]


def _tag(content: _Content) -> tuple[int, int, bytes | None]:
    """Kind and size; up to four bytes may stand within the tag itself."""
    tag = content.read(8)
    kind, size = struct.unpack("<II", tag)
    return (kind & 0xFFFF, kind >> 16, tag[4:]) if kind >> 16 else (kind, size, None)


def _values(array: Found) -> npt.NDArray[Any]:
    stored, size, inside = _tag(array.content)
    if array.kind == "other" or stored not in VALUES:
        raise Damaged(f"{array.name} is no array of numbers")
    dtype = np.dtype(VALUES[stored])
    if dtype.itemsize > np.dtype(array.kind).itemsize:
        raise Damaged(f"the values of {array.name} are stored larger than they are")
    if size != prod(array.shape) * dtype.itemsize or (inside is not None and size > len(inside)):
        raise Damaged(f"the values of {array.name} do not fill its shape")
    flat = np.empty(size, np.uint8)
    if inside is None:
        for start in range(0, size, PIECE):
            piece = array.content.read(min(PIECE, size - start))
            flat[start : start + len(piece)] = np.frombuffer(piece, np.uint8)
    else:
        flat[:] = np.frombuffer(inside[:size], np.uint8)
    return flat.view(dtype).reshape(array.shape, order="F")


class _Content:
    """The bytes of an element, unpacked as they are asked for."""

    def __init__(self, file: BinaryIO, size: int, *, compressed: bool) -> None:
        self.file, self.left = file, size
        self.unpacker = zlib.decompressobj() if compressed else None

    def read(self, count: int) -> bytes:
        """Exactly so many."""
        got = self._packed(count) if self.unpacker is None else self._unpacked(count)
        if len(got) < count:
            raise Damaged("it is cut off")
        return got

    def _packed(self, count: int) -> bytes:
        got = self.file.read(min(count, self.left))
        self.left -= len(got)
        return got

    def _unpacked(self, count: int) -> bytes:
        assert self.unpacker is not None
        parts: list[bytes] = []
        while count > 0 and not self.unpacker.eof:
            packed = self.unpacker.unconsumed_tail or self._packed(PIECE)
            try:
                part = self.unpacker.decompress(packed, count)
            except zlib.error:
                raise Damaged("its compressed part is damaged") from None
            if not packed and not part:
                break
            parts.append(part)
            count -= len(part)
        return b"".join(parts)
