"""Machine code of :mod:`unissl.nets.kernels.norm_act_conv` besides the convolution: passes over a map by pixels."""

from __future__ import annotations

from functools import cache

from unissl.nets.kernels.llvm import CompiledFunction, compile_function
from unissl.nets.kernels.winograd_ir import Shape, WinogradWriter


@cache
def moments(shape: Shape) -> CompiledFunction:
    """Function of the number of images and the addresses of x and of a table (images, 2, inputs) of zeros, which it
    fills with the mean over the pixels of an image and the sum of squared differences from it."""
    code = WinogradWriter("moments", shape)
    images, x, table = code.number(0), code.address(1), code.address(2)
    with code.loop(*code.share(images)) as image:
        source = code.image(x, image, shape.inputs)
        means = code.at(table, (image, 2 * shape.inputs))
        squares = code.at(means, (1, shape.inputs))
        with code.pixels() as (at, _, channel):
            code.add_to(code.at(means, (channel, 1)), code.load(code.at(source, (at, 1))))
        with code.loop(0, shape.inputs, code.width) as channel:
            mean = code.at(means, (channel, 1))
            code.store(code.multiply(code.load(mean), code.constant(1 / (shape.height * shape.width))), mean)
        with code.pixels() as (at, _, channel):  # the image is still in the cache
            difference = code.subtract(code.load(code.at(source, (at, 1))), code.load(code.at(means, (channel, 1))))
            code.add_to(code.at(squares, (channel, 1)), code.multiply(difference, difference))
    return compile_function(code)


@cache
def through_norm(shape: Shape) -> CompiledFunction:
    """Function of the number of images and the addresses of g, x and of four vectors: g becomes
    a g - c - t (x - mean)."""
    code = WinogradWriter("through_norm", shape)
    g, x, a, c, t, mean = (code.address(i) for i in range(1, 7))
    with code.loop(*code.share(code.number(0))) as image:
        gradient, source = (code.image(start, image, shape.inputs) for start in (g, x))
        with code.pixels() as (at, _, channel):
            address = code.at(gradient, (at, 1))
            scale, constant, tilt, centre = (code.load(code.at(start, (channel, 1))) for start in (a, c, t, mean))
            difference = code.subtract(code.load(code.at(source, (at, 1))), centre)
            level = code.subtract(code.multiply(scale, code.load(address)), constant)
            code.store(code.subtract(level, code.multiply(tilt, difference)), address)
    return compile_function(code)
