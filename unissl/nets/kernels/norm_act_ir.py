"""Machine code of :mod:`unissl.nets.kernels.norm_act_conv` besides the convolution: passes over a map by pixels."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache

import torch
from llvmlite import ir

from unissl.nets.kernels.llvm import CompiledFunction, Value, Writer, compile_function, vector_width


@cache
def moments(pixels: int, channels: int, dtype: torch.dtype) -> CompiledFunction:
    """Function of the number of images and the addresses of x and of a table (images, 2, channels), which it fills with
    the mean over the pixels of an image and the sum of squared differences from it."""
    code = Passes("moments", pixels, channels, dtype)
    x, table = code.address(1), code.address(2)
    share = ir.Constant(code.vector, [ir.Constant(code.scalar, 1 / pixels)] * code.width)
    with code.images() as image:
        source = code.at(x, (image, pixels * channels))
        means = code.at(table, (image, 2 * channels))
        squares = code.at(means, (1, channels))
        with code.loop(0, 2 * channels, code.width) as i:
            code.store(code.constant(0.0), code.at(means, (i, 1)))
        with code.vectors() as (at, channel):
            code.add_to(code.at(means, (channel, 1)), code.load(code.at(source, (at, 1))))
        with code.loop(0, channels, code.width) as channel:
            mean = code.at(means, (channel, 1))
            code.store(code.multiply(code.load(mean), share), mean)
        with code.vectors() as (at, channel):  # the image is still in the cache
            difference = code.subtract(code.load(code.at(source, (at, 1))), code.load(code.at(means, (channel, 1))))
            code.add_to(code.at(squares, (channel, 1)), code.multiply(difference, difference))
    return compile_function(code)


@cache
def through_norm(pixels: int, channels: int, dtype: torch.dtype) -> CompiledFunction:
    """Function of the number of images and the addresses of g, x and of four vectors: g becomes
    a g - c - t (x - mean)."""
    code = Passes("through_norm", pixels, channels, dtype)
    g, x, a, c, t, mean = (code.address(i) for i in range(1, 7))
    with code.images() as image:
        gradient, source = (code.at(start, (image, pixels * channels)) for start in (g, x))
        with code.vectors() as (at, channel):
            address = code.at(gradient, (at, 1))
            scale, constant, tilt, centre = (code.load(code.at(start, (channel, 1))) for start in (a, c, t, mean))
            difference = code.subtract(code.load(code.at(source, (at, 1))), centre)
            level = code.subtract(code.multiply(scale, code.load(address)), constant)
            code.store(code.subtract(level, code.multiply(tilt, difference)), address)
    return compile_function(code)


class Passes(Writer):
    """Writes passes over images of some pixels with some channels."""

    def __init__(self, name: str, pixels: int, channels: int, dtype: torch.dtype) -> None:
        width = vector_width(dtype)
        while channels % width:
            width //= 2
        super().__init__(name, dtype, width)
        self.pixels, self.channels = pixels, channels

    @contextmanager
    def images(self) -> Iterator[Value]:
        first, end = self.share(self.number(0))
        with self.loop(first, end) as image:
            yield image

    @contextmanager
    def vectors(self) -> Iterator[tuple[Value, Value]]:
        """The vectors of an image: offset and first channel."""
        with self.loop(0, self.pixels) as pixel, self.loop(0, self.channels, self.width) as channel:
            yield self.b.add(self.b.mul(pixel, ir.IntType(64)(self.channels)), channel), channel

    def add_to(self, address: Value, vector: Value) -> None:
        self.store(self.add(self.load(address), vector), address)
