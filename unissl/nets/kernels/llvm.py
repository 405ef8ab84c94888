"""Machine code for inner loops that neither torch nor numba has: written as LLVM's instructions on whole vectors of
numbers, compiled for this processor by the LLVM that numba brings along, and run on torch's own threads.

numba compiles loops over single numbers and leaves it to LLVM to find the vectors, which fails where a loop reads and
writes many places at once. Here the vectors are said. The threads are those of torch's OpenMP library
(``GOMP_parallel``): threads of another pool would have to share the cores with torch's, which spin for a while when
they have nothing to do.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import llvmlite
import numpy as np
import torch
from llvmlite import binding, ir

from unissl.nets.kernels import code_cache as kept_code

I64 = ir.IntType(64)
PTR = ir.PointerType()
FUSED = ("contract",)
"""Lets LLVM turn a product and a sum into one instruction."""
LEVEL = 3
"""How much LLVM does for speed."""
Value = Any
"""A value inside the code that is being written; llvmlite has no types for mypy."""
THREAD_FUNCTIONS = ("omp_get_thread_num", "omp_get_num_threads")


@dataclass
class Writer:
    """Writes one function, which every thread of a team runs with the same list of whole numbers."""

    name: str
    dtype: torch.dtype
    width: int
    """Numbers in a vector."""
    module: Value = field(init=False)
    b: Value = field(init=False)

    def __post_init__(self) -> None:
        self.module = ir.Module(self.name)
        self.module.triple = binding.get_process_triple()
        self.scalar = ir.FloatType() if self.dtype == torch.float32 else ir.DoubleType()
        self.vector = ir.VectorType(self.scalar, self.width)
        self.function = ir.Function(self.module, ir.FunctionType(ir.VoidType(), [PTR]), self.name)
        self.b = ir.IRBuilder(self.function.append_basic_block())
        self.thread, self.threads = (self._ask(name) for name in THREAD_FUNCTIONS)

    def _ask(self, name: str) -> Value:
        asked = ir.Function(self.module, ir.FunctionType(ir.IntType(32), []), name)
        return self.b.sext(self.b.call(asked, []), I64)

    def number(self, place: int) -> Value:
        """A number of the list."""
        return self.b.load(self.b.gep(self.function.args[0], [I64(place)], source_etype=I64), typ=I64)

    def address(self, place: int) -> Value:
        """A number of the list that is an address."""
        return self.b.inttoptr(self.number(place), PTR)

    @contextmanager
    def loop(self, start: Value | int, end: Value | int, step: int = 1) -> Iterator[Value]:
        with self.loop_with(start, end, [], step) as (i, _):
            yield i

    @contextmanager
    def loop_with(
        self, start: Value | int, end: Value | int, first: Sequence[Value], step: int = 1
    ) -> Iterator[tuple[Value, list[Value]]]:
        """A loop that carries values along: the list that it yields holds those of the turn, to be replaced in place by
        those of the next; after the loop it holds the last ones."""
        before = self.b.block
        head, body, after = (self.b.append_basic_block() for _ in range(3))
        self.b.branch(head)
        self.b.position_at_end(head)
        i = self.b.phi(I64)
        i.add_incoming(whole(start), before)
        carried = [self.b.phi(value.type) for value in first]
        for phi, value in zip(carried, first, strict=True):
            phi.add_incoming(value, before)
        self.b.cbranch(self.b.icmp_signed("<", i, whole(end)), body, after)
        self.b.position_at_end(body)
        values = list(carried)
        yield i, values
        i.add_incoming(self.b.add(i, I64(step)), self.b.block)
        for phi, value in zip(carried, values, strict=True):
            phi.add_incoming(value, self.b.block)
        self.b.branch(head)
        self.b.position_at_end(after)
        values[:] = carried

    def share(self, total: Value) -> tuple[Value, Value]:
        """First and end of this thread's part of ``total`` things."""
        first, end = (
            self.b.sdiv(self.b.mul(total, edge), self.threads)
            for edge in (self.thread, self.b.add(self.thread, I64(1)))
        )
        return first, end

    def smaller(self, x: Value, y: Value) -> Value:
        return self.b.select(self.b.icmp_signed("<", x, y), x, y)

    def at(self, base: Value, *terms: tuple[Value | int, Value | int]) -> Value:
        """The address of a number: ``base`` and a sum of products away from it."""
        away = I64(0)
        for one, other in terms:
            product = I64(one * other) if isinstance(one, int) and isinstance(other, int) else None
            away = self.b.add(away, product or self.b.mul(whole(one), whole(other)))
        return self.b.gep(base, [away], source_etype=self.scalar)

    def load(self, address: Value) -> Value:
        return self.b.load(address, typ=self.vector, align=self.dtype.itemsize)

    def store(self, vector: Value, address: Value) -> None:
        self.b.store(vector, address, align=self.dtype.itemsize)

    def load_repeated(self, address: Value) -> Value:
        """One number in all places of a vector."""
        one = self.b.insert_element(
            ir.Constant(self.vector, ir.Undefined), self.b.load(address, typ=self.scalar), I64(0)
        )
        places = ir.Constant(ir.VectorType(ir.IntType(32), self.width), [0] * self.width)
        return self.b.shuffle_vector(one, ir.Constant(self.vector, ir.Undefined), places)

    def constant(self, number: float) -> Value:
        return ir.Constant(self.vector, [ir.Constant(self.scalar, float(number))] * self.width)

    def add(self, x: Value, y: Value) -> Value:
        return self.b.fadd(x, y, flags=FUSED)

    def subtract(self, x: Value, y: Value) -> Value:
        return self.b.fsub(x, y, flags=FUSED)

    def multiply(self, x: Value, y: Value) -> Value:
        return self.b.fmul(x, y, flags=FUSED)

    def where_positive(self, v: Value, x: Value, y: Value) -> Value:
        """x where v > 0, else y."""
        return self.b.select(self.b.fcmp_ordered(">", v, self.constant(0.0)), x, y)


def whole(value: Value | int) -> Value:
    return I64(value) if isinstance(value, int) else value


@cache
def vector_width(dtype: torch.dtype) -> int:
    """Numbers in a vector of this processor."""
    features = binding.get_host_cpu_features()
    bits = 512 if features.get("avx512f") else 256 if features.get("avx2") else 128
    return bits // 8 // dtype.itemsize


@cache
def vector_registers() -> int:
    """Vectors that this processor holds at once."""
    features = binding.get_host_cpu_features()
    return 32 if features.get("avx512f") or not features.get("sse2") else 16


@dataclass
class Native:
    """A function in machine code. The engine holds the memory that the code is in."""

    engine: Value
    entry: int

    def __call__(self, threads: int, *numbers: int) -> None:
        """Let so many of torch's threads run it, or fewer where OpenMP gives fewer. Meanwhile the interpreter is free
        for other threads."""
        given = np.array(numbers, np.int64)
        openmp().GOMP_parallel(self.entry, given.ctypes.data, threads, 0)


def compile_(written: Writer) -> Native:
    """Machine code for this processor. Takes a tenth to half of a second, where it is not kept from an earlier time."""
    openmp()
    written.b.ret_void()
    binding.initialize_native_target()
    binding.initialize_native_asmprinter()
    processor, features = binding.get_host_cpu_name(), binding.get_host_cpu_features().flatten()
    machine = binding.Target.from_default_triple().create_target_machine(cpu=processor, features=features, opt=LEVEL)
    text = str(written.module)
    path = kept_code.place(text, processor, features, llvmlite.__version__, f"level {LEVEL}")
    known = kept_code.recall(path)
    module = binding.parse_assembly(text)
    if known is None:
        builder = binding.create_pass_builder(machine, binding.PipelineTuningOptions(speed_level=LEVEL))
        builder.getModulePassManager().run(module, builder)
    engine = binding.create_mcjit_compiler(module, machine)
    engine.set_object_cache(lambda _, made: kept_code.keep(path, made), lambda _: known)
    engine.finalize_object()
    return Native(engine, engine.get_function_address(written.name))


@cache
def openmp() -> ctypes.CDLL:
    """GNU's OpenMP library as torch brought it along; ImportError where torch was built with another one."""
    home = Path(torch.__file__).parent
    for path in sorted([*home.glob("lib/libgomp*.so*"), *home.parent.glob("torch.libs/libgomp*.so*")]):
        library = ctypes.CDLL(str(path))
        library.GOMP_parallel.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_uint, ctypes.c_uint]
        library.GOMP_parallel.restype = None
        for name in THREAD_FUNCTIONS:
            binding.add_symbol(name, ctypes.cast(getattr(library, name), ctypes.c_void_p).value)
        return library
    raise ImportError("torch has no GNU OpenMP library beside it")
