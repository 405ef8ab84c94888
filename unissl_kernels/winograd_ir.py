"""Machine code of :mod:`unissl_kernels.winograd`, one forward and one backward function for each shape of a map,
and of the gradient of BatchNorm in :mod:`unissl_kernels.norm_act_conv`.

A thread processes a few images at a time, so few that their tiles stay in its cache: it pads an image, transforms its
tiles, multiplies the matrices of all 36 tile positions with those of the weights, and transforms back. Buffers are
ordered by position, then tile, then channel. SIMD vectors run along the channels.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from itertools import chain
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch

from unissl_kernels.llvm import (
    CompiledFunction,
    Value,
    Writer,
    compile_function,
    vector_registers,
    vector_width,
    whole,
)

Matrix = npt.NDArray[np.floating[Any]]
Grid = Sequence[Sequence[Value]]
Tile = tuple[Value, Value, Value]

OUT, IN = 4, 6
"""Sides of an output tile, and of the part of the input that it depends on."""
POSITIONS = IN * IN
AT: Matrix = np.array([[1, 1, 1, 1, 1, 0], [0, 1, -1, 2, -2, 0], [0, 1, 1, 4, 4, 0], [0, 1, -1, 8, -8, 1]], float)
BT: Matrix = np.array(
    [
        [4, 0, -5, 0, 1, 0],
        [0, -4, -4, 1, 1, 0],
        [0, 4, -4, -1, 1, 0],
        [0, -2, -1, 2, 1, 0],
        [0, 2, -1, -2, 1, 0],
        [0, 4, 0, -5, 0, 1],
    ],
    float,
)
PAIRS: Matrix = np.eye(IN)
PAIRS[1:3, 1:3] = PAIRS[3:5, 3:5] = [[1, 1], [1, -1]]
"""Sums and differences: rows 1 and 2 of BT differ in signs only, as do rows 3 and 4 and the columns of AT. With this
factor taken out, what they share is computed once."""
A_HALF, B_HALF = np.linalg.solve(PAIRS, AT.T), np.linalg.solve(PAIRS, BT)
"""A = PAIRS A_HALF and BT = PAIRS B_HALF."""

ROWS = vector_registers() // 4
"""Rows of a matrix product that are in registers at once."""
COLUMNS = 2
"""Vectors in such a row, at most; with those of both factors they must fit into the registers."""
WORKING_SET = 600_000
"""Bytes for the tiles of the images that a thread processes together, about: the size of a core's own cache."""
POSITION_PADDING = 16
"""Elements between the tiles of two positions, so that positions do not share cache lines."""


@dataclass(frozen=True)
class Shape:
    """Images of height x width with ``inputs`` channels, convolved to ``outputs`` channels."""

    height: int
    width: int
    inputs: int
    outputs: int
    dtype: torch.dtype

    @property
    def tiles(self) -> int:
        """Tiles of an image."""
        return (self.height // OUT) * (self.width // OUT)

    @property
    def images(self) -> int:
        """Images that a thread processes together; their tiles are a multiple of ``ROWS``."""
        multiple = ROWS // math.gcd(ROWS, self.tiles)
        fitting = WORKING_SET // (POSITIONS * self.tiles * (self.inputs + self.outputs) * self.dtype.itemsize)
        return max(1, fitting // multiple) * multiple

    def position_stride(self, channels: int) -> int:
        """Elements from one position to the next."""
        return self.images * self.tiles * channels + POSITION_PADDING

    @property
    def padded(self) -> int:
        """Elements of a padded image."""
        return (self.height + 2) * (self.width + 2) * self.inputs

    @property
    def work(self) -> int:
        """Elements of a thread's work buffer, zeros at first."""
        return self.padded + POSITIONS * (self.position_stride(self.inputs) + self.position_stride(self.outputs))

    @property
    def vector(self) -> int:
        """Lanes of a vector, such that vectors fill the channels."""
        width = vector_width(self.dtype)
        while self.inputs % width or self.outputs % width:
            width //= 2
        return width

    def panel(self, channels: int) -> int:
        """Columns of a product that are computed together."""
        return self.vector * (COLUMNS if channels % (COLUMNS * self.vector) == 0 else 1)


@cache
def forward(shape: Shape, slope: float | None = None) -> CompiledFunction:
    """Function of the number of images and the addresses of x, weights, y and work; and of a and b, if phi(a x + b) is
    convolved (``slope`` is given)."""
    code = WinogradWriter("winograd_forward", shape)
    images, x, u, y, work = code.number(0), *(code.address(i) for i in range(1, 5))
    phi = None if slope is None else AffineActivationIR(code, code.address(5), code.address(6), slope)
    panel = shape.panel(shape.outputs)
    padded, v, m = code.split_work(work)
    with code.working_sets(images) as (first, count):
        code.input_tiles(code.image(x, first, shape.inputs), count, padded, v, phi)
        with code.loop(0, POSITIONS) as position:
            code.product(
                Factor(code.position(v, position, shape.inputs), shape.inputs, 1),
                Factor(code.at(u, (position, shape.inputs * shape.outputs)), panel, shape.inputs * panel),
                code.position(m, position, shape.outputs),
                columns=shape.outputs,
                rows=code.blocks(count),
                depth=shape.inputs,
            )
        code.output(m, count, code.image(y, first, shape.outputs))
    return compile_function(code)


@cache
def backward(shape: Shape, slope: float | None = None) -> CompiledFunction:
    """Function of the number of images and the addresses of x, dL/dy, transposed weights, dL/dx, dL/dweights (for each
    thread) and work.

    If phi(a x + b) was convolved, also of a, b, the mean of x in each channel and a table (images, 2, inputs) of zeros.
    Then it writes g = phi'(a x + b) dL/dphi in position of dL/dx, and into the table the sums of g and of g (x - mean).
    """
    code = WinogradWriter("winograd_backward", shape)
    images, x, dy, u, dx, du, work = code.number(0), *(code.address(i) for i in range(1, 7))
    phi = None if slope is None else AffineActivationIR(code, code.address(7), code.address(8), slope)
    mean, table = (x, x) if phi is None else (code.address(9), code.address(10))
    panel = shape.panel(shape.inputs)
    du = code.at(du, (code.thread, POSITIONS * shape.inputs * shape.outputs))
    padded, v, dm = code.split_work(work)
    with code.working_sets(images) as (first, count):
        x_here, dx_here = code.image(x, first, shape.inputs), code.image(dx, first, shape.inputs)
        code.input_tiles(x_here, count, padded, v, phi)
        code.gradient_tiles(code.image(dy, first, shape.outputs), count, dm)
        with code.loop(0, POSITIONS) as position:
            v_here, dm_here = code.position(v, position, shape.inputs), code.position(dm, position, shape.outputs)
            matrix = (position, shape.inputs * shape.outputs)
            code.product(
                Factor(v_here, 1, shape.inputs),
                Factor(dm_here, shape.outputs, shape.panel(shape.outputs)),
                code.at(du, matrix),
                columns=shape.outputs,
                rows=shape.inputs // ROWS,
                depth=code.b.mul(count, whole(shape.tiles)),
                add=True,
            )
            code.product(
                Factor(dm_here, shape.outputs, 1),
                Factor(code.at(u, matrix), panel, shape.outputs * panel),
                v_here,  # overwrites V, which is no longer needed
                columns=shape.inputs,
                rows=code.blocks(count),
                depth=shape.outputs,
            )
        with code.input_gradient(v, count, padded) as (image, at, channel, gradient):
            if phi is not None:
                value = code.load(code.at(code.image(x_here, image, shape.inputs), (at, 1)))
                gradient = phi.backward(value, channel, gradient)
                centred = code.subtract(value, code.load(code.at(mean, (channel, 1))))
                sums = code.at(table, (first, 2 * shape.inputs), (image, 2 * shape.inputs), (channel, 1))
                code.add_to(sums, gradient)
                code.add_to(code.at(sums, (1, shape.inputs)), code.multiply(gradient, centred))
            code.store(gradient, code.at(code.image(dx_here, image, shape.inputs), (at, 1)))
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


class Factor(NamedTuple):
    """A matrix: its address, the stride of its rows, and that of its columns or, in a right factor, of its panels."""

    start: Value
    row: int
    column: int


@dataclass(frozen=True)
class AffineActivationIR:
    """Code of phi(a x + b) for vectors of x."""

    code: Writer
    scale: Value
    shift: Value
    slope: float

    def affine(self, x: Value, channel: Value) -> Value:
        """a x + b"""
        code = self.code
        scale, shift = (code.load(code.at(start, (channel, 1))) for start in (self.scale, self.shift))
        return code.add(code.multiply(scale, x), shift)

    def __call__(self, x: Value, channel: Value) -> Value:
        v = self.affine(x, channel)
        return self.code.where_positive(v, v, self.code.multiply(self.code.constant(self.slope), v))

    def backward(self, x: Value, channel: Value, gradient: Value) -> Value:
        """phi'(a x + b) times a gradient."""
        slower = self.code.multiply(self.code.constant(self.slope), gradient)
        return self.code.where_positive(self.affine(x, channel), gradient, slower)


class WinogradWriter(Writer):
    """Writes the steps of the convolution for one shape."""

    def __init__(self, name: str, shape: Shape) -> None:
        super().__init__(name, shape.dtype, shape.vector)
        self.shape = shape

    def split_work(self, work: Value) -> tuple[Value, Value, Value]:
        """This thread's padded image, tiles of the input and tiles of the output."""
        padded = self.at(work, (self.thread, self.shape.work))
        v = self.at(padded, (1, self.shape.padded))
        return padded, v, self.at(v, (POSITIONS, self.shape.position_stride(self.shape.inputs)))

    @contextmanager
    def working_sets(self, images: Value) -> Iterator[tuple[Value, Value]]:
        """This thread's images, a few at a time: the first, and their number."""
        first, end = self.share(images)
        with self.loop(first, end, self.shape.images) as start:
            yield start, self.smaller(self.b.sub(end, start), whole(self.shape.images))

    def image(self, images: Value, number: Value, channels: int) -> Value:
        return self.at(images, (number, self.shape.height * self.shape.width * channels))

    def position(self, tiles: Value, position: Value | int, channels: int) -> Value:
        return self.at(tiles, (position, self.shape.position_stride(channels)))

    def blocks(self, images: Value) -> Value:
        """Blocks of rows that hold all tiles; rows after the last tile are computed and ignored."""
        tiles = self.b.mul(images, whole(self.shape.tiles))
        return self.b.sdiv(self.b.add(tiles, whole(ROWS - 1)), whole(ROWS))

    @contextmanager
    def tiles(self, channels: int) -> Iterator[Tile]:
        """The tiles of an image: row, column and the first channel of a vector."""
        with (
            self.loop(0, self.shape.height // OUT) as row,
            self.loop(0, self.shape.width // OUT) as column,
            self.loop(0, channels, self.width) as channel,
        ):
            yield row, column, channel

    def square(self, start: Value, line: int, channels: int, tile: Tile, side: int) -> Grid:
        """The addresses of a tile's pixels in an image with ``line`` elements in a row."""
        row, column, channel = tile
        corner = self.at(start, (row, OUT * line), (column, OUT * channels), (channel, 1))
        return [[self.at(corner, (i, line), (j, channels)) for j in range(side)] for i in range(side)]

    def positions(self, tiles: Value, image: Value, tile: Tile, channels: int) -> Grid:
        """The addresses of a tile's vectors at all positions."""
        row, column, channel = tile
        across = self.shape.width // OUT * channels
        first = self.at(tiles, (image, self.shape.tiles * channels), (row, across), (column, channels), (channel, 1))
        return [[self.position(first, IN * i + j, channels) for j in range(IN)] for i in range(IN)]

    def input_tiles(self, x: Value, images: Value, padded: Value, v: Value, phi: AffineActivationIR | None) -> None:
        """V = B^T d B of the input d of each tile. The margin of the padded image is zero."""
        channels = self.shape.inputs
        line = (self.shape.width + 2) * channels
        with self.loop(0, images) as image:
            source = self.image(x, image, channels)
            with self.pixels() as (at, at_padded, channel):
                vector = self.load(self.at(source, (at, 1)))
                self.store(vector if phi is None else phi(vector, channel), self.at(padded, (at_padded, 1)))
            with self.tiles(channels) as tile:
                d = self.load_grid(self.square(padded, line, channels, tile, IN))
                self.store_grid(self.transformed(d, B_HALF, PAIRS), self.positions(v, image, tile, channels))

    def output(self, m: Value, images: Value, y: Value) -> None:
        """y = A^T M A."""
        channels = self.shape.outputs
        line = self.shape.width * channels
        with self.loop(0, images) as image, self.tiles(channels) as tile:
            products = self.load_grid(self.positions(m, image, tile, channels))
            target = self.square(self.image(y, image, channels), line, channels, tile, OUT)
            self.store_grid(self.transformed(products, PAIRS, A_HALF.T), target)

    def gradient_tiles(self, dy: Value, images: Value, dm: Value) -> None:
        """dL/dM = A dL/dy A^T."""
        channels = self.shape.outputs
        line = self.shape.width * channels
        with self.loop(0, images) as image, self.tiles(channels) as tile:
            gradient = self.load_grid(self.square(self.image(dy, image, channels), line, channels, tile, OUT))
            self.store_grid(self.transformed(gradient, A_HALF, PAIRS), self.positions(dm, image, tile, channels))

    @contextmanager
    def input_gradient(self, dv: Value, images: Value, padded: Value) -> Iterator[tuple[Value, Value, Value, Value]]:
        """dL/dd = B dL/dV B^T, summed where inputs of tiles overlap: image, offset in it, first channel and vector. The
        margin is cleared again."""
        channels = self.shape.inputs
        line = (self.shape.width + 2) * channels
        with self.loop(0, images) as image:
            self.clear(padded, self.shape.padded)
            with self.tiles(channels) as tile:
                products = self.load_grid(self.positions(dv, image, tile, channels))
                target = self.square(padded, line, channels, tile, IN)
                self.store_grid(self.transformed(products, PAIRS, B_HALF.T), target, add=True)
            with self.pixels() as (at, at_padded, channel):
                yield image, at, channel, self.load(self.at(padded, (at_padded, 1)))
        self.clear(padded, self.shape.padded)

    @contextmanager
    def pixels(self) -> Iterator[tuple[Value, Value, Value]]:
        """The vectors of an input image: offset in it, offset in the padded one, and first channel."""
        channels = self.shape.inputs
        with (
            self.loop(0, self.shape.height) as row,
            self.loop(0, self.shape.width) as column,
            self.loop(0, channels, self.width) as channel,
        ):
            position = self.b.add(
                self.b.mul(row, whole(self.shape.width * channels)), self.b.mul(column, whole(channels))
            )
            margin = self.b.add(self.b.mul(row, whole(2 * channels)), whole((self.shape.width + 3) * channels))
            at = self.b.add(position, channel)
            yield at, self.b.add(at, margin), channel

    def clear(self, start: Value, count: int) -> None:
        with self.loop(0, count, self.width) as i:
            self.store(self.constant(0.0), self.at(start, (i, 1)))

    def add_to(self, address: Value, vector: Value) -> None:
        self.store(self.add(self.load(address), vector), address)

    def load_grid(self, addresses: Grid) -> Grid:
        return [[self.load(address) for address in row] for row in addresses]

    def store_grid(self, vectors: Grid, addresses: Grid, *, add: bool = False) -> None:
        """Store vectors or, with ``add``, their sums with those that are stored there."""
        for vector, address in zip(chain(*vectors), chain(*addresses), strict=True):
            self.store(self.add(vector, self.load(address)) if add else vector, address)

    def transformed(self, grid: Grid, *matrices: Matrix) -> Grid:
        """Q X Q^T for X of vectors and Q = Q_2 Q_1, the matrices in the order in which they are applied."""

        def multiplied(vectors: Sequence[Value]) -> Sequence[Value]:
            for matrix in matrices:
                vectors = [self.linear_combination(row, vectors) for row in matrix]
            return vectors

        columns = [multiplied(column) for column in zip(*grid, strict=True)]
        return [multiplied(row) for row in zip(*columns, strict=True)]

    def linear_combination(self, numbers: Matrix, vectors: Sequence[Value]) -> Value:
        """The sum of numbers times vectors, without products by 0 and 1."""
        used = sorted(((n, v) for n, v in zip(numbers, vectors, strict=True) if n), key=lambda pair: pair[0] != 1)
        (number, vector), *others = used
        total = vector if number == 1 else self.multiply(self.constant(number), vector)
        for number, vector in others:
            if abs(number) == 1:
                total = self.add(total, vector) if number > 0 else self.subtract(total, vector)
            else:
                total = self.add(total, self.multiply(self.constant(number), vector))
        return total

    def product(
        self,
        left: Factor,
        right: Factor,
        result: Value,
        *,
        columns: int,
        rows: Value | int,
        depth: Value | int,
        add: bool = False,
    ) -> None:
        """``rows`` blocks of ROWS rows, a panel of columns at a time, summed in registers over ``depth``; with ``add``
        from the present values of the result on."""
        panel = self.shape.panel(columns)
        positions = [(row, column) for row in range(ROWS) for column in range(0, panel, self.width)]
        with self.loop(0, columns // panel) as number, self.loop(0, rows) as block:
            panel_start = self.at(right.start, (number, right.column))
            row_start = self.at(left.start, (block, ROWS * left.row))
            target = self.at(result, (block, ROWS * columns), (number, panel))
            targets = [self.at(target, (row, columns), (column, 1)) for row, column in positions]
            first = [self.load(address) if add else self.constant(0.0) for address in targets]
            with self.loop_with(0, depth, first) as (k, sums):
                line = self.at(panel_start, (k, right.row))
                across = {column: self.load(self.at(line, (column, 1))) for column in range(0, panel, self.width)}
                number_at = self.at(row_start, (k, left.column))
                down = [self.load_repeated(self.at(number_at, (row, left.row))) for row in range(ROWS)]
                sums[:] = [
                    self.add(one, self.multiply(down[row], across[column]))
                    for one, (row, column) in zip(sums, positions, strict=True)
                ]
            for vector, address in zip(sums, targets, strict=True):
                self.store(vector, address)
