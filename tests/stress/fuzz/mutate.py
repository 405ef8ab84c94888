"""Valid files made invalid: the damage that disks and downloads do, and the numbers that an attacker would write."""

from __future__ import annotations

import string
import struct
from collections.abc import Callable, Sequence
from random import Random

EXTREMES = (
    0,
    1,
    2,
    7,
    127,
    128,
    255,
    256,
    2**15,
    2**16 - 1,
    2**24,
    2**31 - 1,
    2**31,
    2**32 - 1,
    2**48,
    2**63 - 1,
    2**64 - 1,
)
WORDS = (
    b"\0", b"\xff" * 8, b"../../../etc/passwd", b"/etc/passwd", b"\n", b"\r\n", b"NaN", b"1e999", b"-1", b"9" * 5000,
    b"[" * 3000, b"{" * 3000, b'"' * 3, b"\xef\xbb\xbf", b"\xff\xfe", b"\\ud800", b"%s%n", b"null", b"true", b"=", b",",
    b"__import__('os').system('true')", b"\xed\xa0\x80", b"CON", b"0x7fffffffffffffff", b"1_000", b"1970-01-01",
)  # fmt: skip


def mutated(rng: Random, files: Sequence[bytes], *, text: bool = False) -> bytes:
    """One of the files after one to four changes."""
    content = rng.choice(files)
    changes: list[Callable[[Random, bytes], bytes]] = [flip, cut, double, delete, number, noise, word, swap, zero]
    changes += [word, digits, line] if text else []
    for _ in range(rng.choice((1, 1, 1, 2, 2, 4))):
        content = splice(rng, content, rng.choice(files)) if rng.random() < 0.1 else rng.choice(changes)(rng, content)
    return rng.randbytes(rng.randrange(300)) if rng.random() < 0.01 else content


def flip(rng: Random, content: bytes) -> bytes:
    changed = bytearray(content)
    for _ in range(rng.choice((1, 1, 2, 8)) if changed else 0):
        changed[place(rng, changed)] ^= 1 << rng.randrange(8)
    return bytes(changed)


def noise(rng: Random, content: bytes) -> bytes:
    start = place(rng, content)
    some = rng.randbytes(rng.choice((1, 2, 4, 16)))
    return content[:start] + some + content[start + len(some) :]


def zero(rng: Random, content: bytes) -> bytes:
    """A block that the disk has lost."""
    start, length = place(rng, content), rng.choice((4, 16, 512))
    return content[:start] + bytes(min(length, len(content) - start)) + content[start + length :]


def cut(rng: Random, content: bytes) -> bytes:
    return content[: place(rng, content)]


def double(rng: Random, content: bytes) -> bytes:
    start, length = place(rng, content), rng.choice((1, 4, 16, 64, 512))
    return (
        content[: start + length] * 1
        + content[start : start + length] * rng.choice((1, 1, 3))
        + content[start + length :]
    )


def delete(rng: Random, content: bytes) -> bytes:
    start = place(rng, content)
    return content[:start] + content[start + rng.choice((1, 1, 4, 16, 64)) :]


def swap(rng: Random, content: bytes) -> bytes:
    one, other = sorted((place(rng, content), place(rng, content)))
    return content[one:other] + content[:one] + content[other:]


def number(rng: Random, content: bytes) -> bytes:
    """A field of one to eight bytes set to an extreme, or to nearly that."""
    code = rng.choice("BHIQ")
    size = struct.calcsize(code)
    value = (rng.choice(EXTREMES) + rng.choice((0, 0, -1, 1))) % (1 << 8 * size)
    start = place(rng, content)
    return content[:start] + struct.pack(rng.choice("<>") + code, value) + content[start + size :]


def word(rng: Random, content: bytes) -> bytes:
    start, hostile = place(rng, content), rng.choice(WORDS)
    return content[:start] + hostile + content[start + rng.choice((0, len(hostile))) :]


def digits(rng: Random, content: bytes) -> bytes:
    """A number somewhere in a text becomes another."""
    found = [i for i, byte in enumerate(content) if chr(byte) in string.digits]
    if not found:
        return content
    start = rng.choice(found)
    value = rng.choice((b"-1", b"0", b"1e308", b"nan", b"99999999999", b"1.5", b"true", b'"a"', b"[]", b"{}", b"null"))
    return content[:start] + value + content[start + 1 :]


def line(rng: Random, content: bytes) -> bytes:
    """Lines that change places, vanish or come twice."""
    lines = content.split(b"\n")
    one, other = rng.randrange(len(lines)), rng.randrange(len(lines))
    what = rng.randrange(3)
    if what == 0:
        lines[one], lines[other] = lines[other], lines[one]
    elif what == 1:
        del lines[one]
    else:
        lines.insert(one, lines[other])
    return b"\n".join(lines)


def splice(rng: Random, one: bytes, other: bytes) -> bytes:
    return one[: place(rng, one)] + other[place(rng, other) :]


def place(rng: Random, content: bytes | bytearray) -> int:
    """Headers and ends are hit as often as all that lies between."""
    if not content:
        return 0
    where = rng.random()
    if where < 0.35:
        return rng.randrange(min(64, len(content)))
    return len(content) - 1 - rng.randrange(min(64, len(content))) if where < 0.5 else rng.randrange(len(content))


HOSTILE_VALUES = (
    None, True, False, 0, -1, 1, 2, 2**31, 2**53 + 1, 2**63, 2**64, 10**400, 0.5, -0.0, 1e308, float("nan"),
    float("inf"), "", "a", "../../etc/passwd", "/dev/zero", "\x00", "\ud800", "a" * 10_000, "hf:/nowhere",
    "os:abort", "canary_of_the_fuzzer:make", "wrn-999994-999", "wrn-10-9999999", "resnet-50", [], [[]], [0], [None],
    ["a"], {}, {"a": 1}, [1e308] * 3, [[0] * 3] * 3, "labels-only", "sage",
)  # fmt: skip


def hostile_tree(rng: Random, tree: object) -> object:
    """A JSON or TOML value with one part replaced, removed, renamed or put elsewhere."""
    if isinstance(tree, dict) and tree and rng.random() < 0.85:
        key = rng.choice(list(tree))
        what = rng.random()
        if what < 0.12:
            return {name: value for name, value in tree.items() if name != key}
        if what < 0.2:
            return {(rng.choice(("", "a", key * 2)) if name == key else name): value for name, value in tree.items()}
        return {**tree, key: hostile_tree(rng, tree[key])}
    if isinstance(tree, list) and tree and rng.random() < 0.6:
        start = rng.randrange(len(tree))
        what = rng.random()
        if what < 0.2:
            return tree[:start] + tree[start + 1 :]
        if what < 0.4:
            return tree[: start + 1] + tree[start:]
        return [*tree[:start], hostile_tree(rng, tree[start]), *tree[start + 1 :]]
    return rng.choice(HOSTILE_VALUES)
