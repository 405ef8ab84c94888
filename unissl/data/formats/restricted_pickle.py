"""The plain values in a pickle, without unpickling.

A pickle is a program. Reading it with :mod:`pickle`, even with a list of allowed names, still runs it: its instructions
may ask for gigabytes of bookkeeping or bring numpy's objects into states they were not made for. Here the instructions
that a batch of CIFAR consists of are followed one by one, and what they make is numbers, texts, lists, small tables and
arrays of numbers. Everything else is refused before it means anything.
"""

from __future__ import annotations

import pickletools
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np
import numpy.typing as npt

MOST_KEYS = 64
"""Entries of a table; the batches have five."""
MOST_INSTRUCTIONS = 2_000_000
"""A bound on the memory that short instructions can ask for; the longest batch has a tenth of it."""
MOST_PLACES = 2**32


class Forbidden(Exception):
    """The name of something that does not belong into a batch."""


class Damaged(Exception):
    """What is wrong, in a few words."""


@dataclass(frozen=True)
class _Name:
    """Something that a pickle refers to; it is only a name here."""

    module: str
    name: str


class _Array:
    """An array of numbers in the making: numpy writes an empty one first and its state afterwards."""

    made: npt.NDArray[Any] | None = None

    def set_state(self, state: Any) -> None:
        if not isinstance(state, tuple) or len(state) != 5:
            raise Damaged("an array without its five parts")
        _, shape, dtype, by_columns, content = state
        if not isinstance(dtype, _Dtype):
            raise Damaged("an array that is not of numbers")
        if not isinstance(shape, tuple) or not all(type(side) is int and side >= 0 for side in shape):
            raise Damaged("an array without a shape")
        if not isinstance(content, bytes) or by_columns or len(shape) > 4:
            raise Damaged("an array whose values are not in rows")
        if prod(shape) * dtype.kind.itemsize != len(content):
            raise Damaged("an array whose values do not fill its shape")
        self.made = np.frombuffer(content, dtype=dtype.kind).reshape(shape)


class _Dtype:
    """The type of an array, which can only be one of plain numbers; its state says in what order their bytes are."""

    def __init__(self, code: str) -> None:
        self.kind = np.dtype(f"<{code}")

    def set_state(self, state: Any) -> None:
        if not isinstance(state, tuple) or len(state) < 2 or state[1] not in ("<", b"<", "|", b"|"):
            raise Damaged("an array whose bytes are in another order")


_ARRAY = (_Name("numpy.core.multiarray", "_reconstruct"), _Name("numpy._core.multiarray", "_reconstruct"))
_NDARRAY, _DTYPE, _ENCODE = _Name("numpy", "ndarray"), _Name("numpy", "dtype"), _Name("_codecs", "encode")
_KNOWN = frozenset({*_ARRAY, _NDARRAY, _DTYPE, _ENCODE})


def read_plain(content: bytes) -> Any:
    """The value that is pickled in ``content``: :class:`Forbidden` or :class:`Damaged` if it is not a plain one."""
    machine = _Machine()
    try:
        for count, (instruction, argument, _) in enumerate(pickletools.genops(content)):
            if count == MOST_INSTRUCTIONS:
                raise Damaged("it is longer than any batch")
            machine.follow(instruction.name, argument)
        return machine.result()
    except (ValueError, IndexError, KeyError, TypeError, AttributeError, EOFError) as error:
        raise Damaged(str(error) or "it ends too early") from None


class _Machine:
    """The stack and the memory of a pickle. Numbers, texts and names are pushed; the rest makes values of these."""

    def __init__(self) -> None:
        self.stack: list[Any] = []
        self.below: list[list[Any]] = []
        self.memory: dict[int, Any] = {}

    def follow(self, name: str, argument: Any) -> None:
        if name in _IGNORED:
            return
        if name in _CONSTANTS:
            self.stack.append(_CONSTANTS[name])
        elif name in _NUMBERS or name in _TEXTS:
            self.stack.append(argument)
        elif name in _OLD_TEXTS:  # 8-bit text of Python 2, which the reader of instructions shows as latin-1
            self.stack.append(argument.encode("latin-1"))
        else:
            getattr(self, "_" + name.lower(), self._unknown(name))(argument)

    def result(self) -> Any:
        if len(self.stack) != 1 or self.below:
            raise Damaged("it does not hold one value")
        value = self.stack[0]
        return {key: _plain(inner) for key, inner in value.items()} if isinstance(value, dict) else _plain(value)

    def _unknown(self, name: str) -> Any:
        def refuse(argument: Any) -> None:
            raise Damaged(f"it has the instruction {name}, as no batch does")

        return refuse

    def _since_mark(self) -> list[Any]:
        found, self.stack = self.stack, self.below.pop()
        return found

    # containers

    def _mark(self, _: Any) -> None:
        self.below.append(self.stack)
        self.stack = []

    def _empty_list(self, _: Any) -> None:
        self.stack.append([])

    def _list(self, _: Any) -> None:
        found = self._since_mark()
        self.stack.append([])
        self._extend(found)

    def _append(self, _: Any) -> None:
        self._extend([self.stack.pop()])

    def _appends(self, _: Any) -> None:
        self._extend(self._since_mark())

    def _extend(self, values: list[Any]) -> None:
        target = self.stack[-1]
        if not isinstance(target, list) or any(isinstance(value, list | dict | tuple) for value in values):
            raise Damaged("a list that is not of plain values")
        target.extend(values)

    def _empty_dict(self, _: Any) -> None:
        self.stack.append({})

    def _dict(self, _: Any) -> None:
        found = self._since_mark()
        self.stack.append({})
        self._fill(found)

    def _setitem(self, _: Any) -> None:
        value, key = self.stack.pop(), self.stack.pop()
        self._fill([key, value])

    def _setitems(self, _: Any) -> None:
        self._fill(self._since_mark())

    def _fill(self, pairs: list[Any]) -> None:
        target = self.stack[-1]
        for key, value in zip(pairs[::2], pairs[1::2], strict=True):
            if not isinstance(target, dict) or not isinstance(key, bytes | str) or len(target) == MOST_KEYS:
                raise Damaged("a table that is not that of a batch")
            target[key] = value

    def _empty_tuple(self, _: Any) -> None:
        self.stack.append(())

    def _tuple(self, _: Any) -> None:
        found = self._since_mark()
        self.stack.append(tuple(found))

    def _tuple1(self, _: Any) -> None:
        self._take(1)

    def _tuple2(self, _: Any) -> None:
        self._take(2)

    def _tuple3(self, _: Any) -> None:
        self._take(3)

    def _take(self, count: int) -> None:
        if len(self.stack) < count:
            raise Damaged("it ends too early")
        self.stack[-count:] = [tuple(self.stack[-count:])]

    # memory

    def _put(self, place: int) -> None:
        if not 0 <= place < MOST_PLACES:
            raise Damaged("it remembers at an impossible place")
        self.memory[place] = self.stack[-1]

    _binput = _long_binput = _put

    def _memoize(self, _: Any) -> None:
        self.memory[len(self.memory)] = self.stack[-1]

    def _get(self, place: int) -> None:
        self.stack.append(self.memory[place])

    _binget = _long_binget = _get

    # names, and the three calls that numpy's arrays and Python 3's old protocols are made of

    def _global(self, argument: str) -> None:
        module, _, name = argument.partition(" ")
        self._refer(module, name)

    def _stack_global(self, _: Any) -> None:
        name, module = self.stack.pop(), self.stack.pop()
        self._refer(str(module), str(name))

    def _refer(self, module: str, name: str) -> None:
        found = _Name(module, name)
        if found not in _KNOWN:
            raise Forbidden(f"{module}.{name}")
        self.stack.append(found)

    def _reduce(self, _: Any) -> None:
        arguments, call = self.stack.pop(), self.stack.pop()
        if call in _ARRAY and arguments[0] == _NDARRAY:
            self.stack.append(_Array())
        elif call == _DTYPE and arguments[0] in _CODES:
            self.stack.append(_Dtype(_CODES[arguments[0]]))
        elif call == _ENCODE and isinstance(arguments[0], str):
            self.stack.append(arguments[0].encode("latin-1"))
        else:
            raise Damaged("it calls for something that is not an array of numbers")

    def _build(self, _: Any) -> None:
        state, target = self.stack.pop(), self.stack[-1]
        if not isinstance(target, _Array | _Dtype):
            raise Damaged("it calls for something that is not an array of numbers")
        target.set_state(state)


def _plain(value: Any) -> Any:
    """A number, a text, a list of these or an array; half-made things and tables within tables are refused."""
    if isinstance(value, _Array) and value.made is not None:
        return value.made
    values = value if isinstance(value, list) else [value]
    if all(one is None or isinstance(one, int | float | str | bytes) for one in values):
        return value
    raise Damaged("it holds something that no batch does")


_CODES: dict[Any, str] = {
    form: code for code in ("u1", "i1", "i2", "i4", "i8", "f4", "f8") for form in (code, code.encode())
}
_IGNORED = frozenset({"PROTO", "FRAME", "STOP"})
_CONSTANTS = {"NONE": None, "NEWTRUE": True, "NEWFALSE": False}
_NUMBERS = frozenset({"INT", "BININT", "BININT1", "BININT2", "LONG", "LONG1", "FLOAT", "BINFLOAT"})
_TEXTS = frozenset(
    {"UNICODE", "BINUNICODE", "SHORT_BINUNICODE", "BINUNICODE8", "BINBYTES", "SHORT_BINBYTES", "BINBYTES8"}
)
_OLD_TEXTS = frozenset({"STRING", "BINSTRING", "SHORT_BINSTRING"})
