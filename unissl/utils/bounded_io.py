"""Read text and JSON from untrusted files, with bounded length and one kind of error.

The parsers of the standard library raise several types for bad input (``RecursionError`` for brackets within brackets,
plain ``ValueError`` for numbers of thousands of digits), and read whatever a file holds into memory first.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol

MAX_BYTES = 256 << 20
"""Size of the largest text; the split of ten million images has a third of it."""
BLOCK = 1 << 20
MAX_DEPTH = 32
"""Nesting depth, several times that of any file that a run writes."""


class Bytes(Protocol):
    """An open file or a decompressor."""

    def read(self, size: int, /) -> bytes: ...


class Malformed(ValueError):
    """What is wrong with a text, in a few words."""


def read_text(path: Path, max_bytes: int = MAX_BYTES) -> str:
    """The UTF-8 text of a file; :class:`Malformed` if it is not UTF-8 or longer than ``max_bytes``."""
    with path.open("rb") as file:
        content = read_at_most(file, max_bytes + 1)
    if len(content) > max_bytes:
        raise Malformed(f"longer than {max_bytes >> 20} MB")
    try:
        return content.decode("utf-8")
    except UnicodeDecodeError:
        raise Malformed("not UTF-8 text") from None


def read_at_most(file: Bytes, max_bytes: int) -> bytes:
    """The next ``max_bytes`` bytes or all there are, read in blocks: one large read would allocate the whole length."""
    content = bytearray()
    while len(content) < max_bytes and (block := file.read(min(BLOCK, max_bytes - len(content)))):
        content += block
    return bytes(content)


def parse_json(text: str | bytes) -> Any:
    """The value; :class:`Malformed` if it is not JSON, nested too deep, or has numbers of thousands of digits."""
    try:
        value = json.loads(text)
    except (ValueError, RecursionError) as error:
        reason = "nested too deep" if isinstance(error, RecursionError) else str(error)
        raise Malformed(reason) from None
    reject_deep_nesting(value)
    return value


def reject_surrogates(value: Any) -> None:
    """:class:`Malformed` for text with lone surrogates, which JSON can hold but no UTF-8 file."""
    try:
        json.dumps(value, ensure_ascii=False).encode("utf-8")
    except UnicodeEncodeError:
        raise Malformed("text that is not Unicode") from None


def reject_deep_nesting(value: Any) -> None:
    """:class:`Malformed` for lists and tables nested deeper than ``MAX_DEPTH``."""
    level = [value]
    for _ in range(MAX_DEPTH):
        level = [inner for outer in level for inner in _inside(outer)]
        if not level:
            return
    raise Malformed("nested too deep")


def _inside(value: Any) -> list[Any]:
    """The lists and tables directly inside one."""
    if isinstance(value, Mapping):
        return [inner for inner in value.values() if isinstance(inner, Mapping | list)]
    return [inner for inner in value if isinstance(inner, Mapping | list)] if isinstance(value, list) else []
