"""Text and JSON from files that anybody may have written: of bounded length, and with one kind of error.

The parsers of the standard library raise several types for bad input (``RecursionError`` for brackets within brackets,
plain ``ValueError`` for numbers of thousands of digits), and read whatever a file holds into memory first.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol

MAX_BYTES = 256 << 20
"""Longest text that is read at all; the split of ten million images has a third of it."""
BLOCK = 1 << 20
MAX_DEPTH = 32
"""Levels of tables within tables that any file of ours could need, several times over."""


class Bytes(Protocol):
    """An open file, or what unpacks one."""

    def read(self, size: int, /) -> bytes: ...


class Malformed(ValueError):
    """What is wrong with a text, in a few words."""


def read_text(path: Path, most: int = MAX_BYTES) -> str:
    """The UTF-8 text of a file; :class:`Malformed` if it is none or longer than ``most`` bytes, ``OSError`` as ever."""
    with path.open("rb") as file:
        content = read_at_most(file, most + 1)
    if len(content) > most:
        raise Malformed(f"longer than {most >> 20} MB")
    try:
        return content.decode("utf-8")
    except UnicodeDecodeError:
        raise Malformed("not UTF-8 text") from None


def read_at_most(file: Bytes, most: int) -> bytes:
    """The next bytes, ``most`` or all there are, in blocks: asked for at once, the whole length would be set aside."""
    content = bytearray()
    while len(content) < most and (block := file.read(min(BLOCK, most - len(content)))):
        content += block
    return bytes(content)


def parse_json(text: str | bytes) -> Any:
    """The value; :class:`Malformed` if it is not JSON, too deep, or has numbers that no program means."""
    try:
        value = json.loads(text)
    except (ValueError, RecursionError) as error:
        reason = "nested too deep" if isinstance(error, RecursionError) else str(error)
        raise Malformed(reason) from None
    reject_deep_nesting(value)
    return value


def reject_surrogates(value: Any) -> None:
    """:class:`Malformed` for text with half of a character, which JSON can hold and no file can be written with."""
    try:
        json.dumps(value, ensure_ascii=False).encode("utf-8")
    except UnicodeEncodeError:
        raise Malformed("text that is not Unicode") from None


def reject_deep_nesting(value: Any) -> None:
    """:class:`Malformed` where lists and tables lie in each other deeper than any of ours do."""
    level = [value]
    for _ in range(MAX_DEPTH):
        level = [inner for outer in level for inner in _inside(outer)]
        if not level:
            return
    raise Malformed("nested too deep")


def _inside(value: Any) -> list[Any]:
    """The lists and tables within one; plain values are not looked at again."""
    if isinstance(value, Mapping):
        return [inner for inner in value.values() if isinstance(inner, Mapping | list)]
    return [inner for inner in value if isinstance(inner, Mapping | list)] if isinstance(value, list) else []
