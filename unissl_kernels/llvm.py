"""Machine code for inner loops that neither torch nor numba has: LLVM instructions on SIMD vectors, compiled for this
processor by the LLVM that numba installs, and run on torch's threads.

numba compiles scalar loops and leaves vectorisation to LLVM, which fails where a loop reads and writes many addresses.
Here the vectors are explicit. The threads are those of torch's OpenMP library (``GOMP_parallel``): a second thread pool
would share the cores with torch's threads, which spin for a while when idle.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import llvmlite
import numpy as np
import torch
from llvmlite import binding, ir

from unissl_kernels import code_cache

I64 = ir.IntType(64)
PTR = ir.PointerType()
FUSED = ("contract",)
"""Lets LLVM fuse a product and a sum into one instruction."""
LEVEL = 3
"""Optimisation level of LLVM."""
Value = Any
"""A value inside the code that is being written; llvmlite has no type annotations."""
THREAD_FUNCTIONS = ("omp_get_thread_num", "omp_get_num_threads")


class Writer:
    """Writes one function, which every thread of a team runs with the same list of integers. Its vectors have ``width``
    lanes."""

    def __init__(self, name: str, dtype: torch.dtype, width: int) -> None:
        self.name, self.dtype, self.width = name, dtype, width
        self.module: Value = ir.Module(name)
        self.module.triple = binding.get_process_triple()
        self.scalar = ir.FloatType() if dtype == torch.float32 else ir.DoubleType()
        self.vector = ir.VectorType(self.scalar, width)
        self.function = ir.Function(self.module, ir.FunctionType(ir.VoidType(), [PTR]), name)
        self.b: Value = ir.IRBuilder(self.function.append_basic_block())
        self.thread, self.threads = (self._call(name) for name in THREAD_FUNCTIONS)

    def _call(self, name: str) -> Value:
        function = ir.Function(self.module, ir.FunctionType(ir.IntType(32), []), name)
        return self.b.sext(self.b.call(function, []), I64)

    def number(self, index: int) -> Value:
        """An integer argument."""
        return self.b.load(self.b.gep(self.function.args[0], [I64(index)], source_etype=I64), typ=I64)

    def address(self, index: int) -> Value:
        """An integer argument that is an address."""
        return self.b.inttoptr(self.number(index), PTR)

    @contextmanager
    def loop(self, start: Value | int, end: Value | int, step: int = 1) -> Iterator[Value]:
        with self.loop_with(start, end, [], step) as (i, _):
            yield i

    @contextmanager
    def loop_with(
        self, start: Value | int, end: Value | int, first: Sequence[Value], step: int = 1
    ) -> Iterator[tuple[Value, list[Value]]]:
        """A loop with carried values: it yields a list with those of the iteration, to be replaced in place by those of
        the next; after the loop the list holds the last ones."""
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
        """First and end of this thread's part of ``total`` items."""
        first, end = (
            self.b.sdiv(self.b.mul(total, edge), self.threads)
            for edge in (self.thread, self.b.add(self.thread, I64(1)))
        )
        return first, end

    def smaller(self, x: Value, y: Value) -> Value:
        return self.b.select(self.b.icmp_signed("<", x, y), x, y)

    def at(self, base: Value, *terms: tuple[Value | int, Value | int]) -> Value:
        """The address at an offset from ``base``, the sum of products of the terms."""
        offset = I64(0)
        for one, other in terms:
            offset = self.b.add(offset, self.b.mul(whole(one), whole(other)))
        return self.b.gep(base, [offset], source_etype=self.scalar)

    def load(self, address: Value) -> Value:
        return self.b.load(address, typ=self.vector, align=self.dtype.itemsize)

    def store(self, vector: Value, address: Value) -> None:
        self.b.store(vector, address, align=self.dtype.itemsize)

    def load_repeated(self, address: Value) -> Value:
        """One number in all lanes of a vector."""
        one = self.b.insert_element(
            ir.Constant(self.vector, ir.Undefined), self.b.load(address, typ=self.scalar), I64(0)
        )
        lanes = ir.Constant(ir.VectorType(ir.IntType(32), self.width), [0] * self.width)
        return self.b.shuffle_vector(one, ir.Constant(self.vector, ir.Undefined), lanes)

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
    """Lanes of a SIMD vector of this processor."""
    features = binding.get_host_cpu_features()
    bits = 512 if features.get("avx512f") else 256 if features.get("avx2") else 128
    return bits // 8 // dtype.itemsize


@cache
def vector_registers() -> int:
    """SIMD registers of this processor."""
    features = binding.get_host_cpu_features()
    return 32 if features.get("avx512f") or not features.get("sse2") else 16


@dataclass
class CompiledFunction:
    """A function in machine code; the engine owns its memory."""

    engine: Value
    entry: int

    def __call__(self, threads: int, *numbers: int) -> None:
        """Run it on up to ``threads`` of torch's threads, without the interpreter lock."""
        arguments = np.array(numbers, np.int64)
        openmp().GOMP_parallel(self.entry, arguments.ctypes.data, threads, 0)


def compile_function(writer: Writer) -> CompiledFunction:
    """Machine code for this processor. Takes a tenth to half of a second unless it is in the code cache."""
    openmp()
    writer.b.ret_void()
    binding.initialize_native_target()
    binding.initialize_native_asmprinter()
    processor, features = binding.get_host_cpu_name(), binding.get_host_cpu_features().flatten()
    machine = binding.Target.from_default_triple().create_target_machine(cpu=processor, features=features, opt=LEVEL)
    text = str(writer.module)
    path = code_cache.code_path(text, processor, features, llvmlite.__version__, f"level {LEVEL}")
    stored = code_cache.read_code(path)
    module = binding.parse_assembly(text)
    if stored is None:
        builder = binding.create_pass_builder(machine, binding.PipelineTuningOptions(speed_level=LEVEL))
        builder.getModulePassManager().run(module, builder)
    engine = binding.create_mcjit_compiler(module, machine)
    engine.set_object_cache(lambda _, code: code_cache.write_code(path, code), lambda _: stored)
    engine.finalize_object()
    return CompiledFunction(engine, engine.get_function_address(writer.name))


@cache
def openmp() -> ctypes.CDLL:
    """GNU's OpenMP library as torch ships it; ImportError where torch was built with another one."""
    home = Path(torch.__file__).parent
    for path in sorted([*home.glob("lib/libgomp*.so*"), *home.parent.glob("torch.libs/libgomp*.so*")]):
        library = ctypes.CDLL(str(path))
        library.GOMP_parallel.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_uint, ctypes.c_uint]
        library.GOMP_parallel.restype = None
        for name in THREAD_FUNCTIONS:
            binding.add_symbol(name, ctypes.cast(getattr(library, name), ctypes.c_void_p).value)
        return library
    raise ImportError("torch ships no GNU OpenMP library")
