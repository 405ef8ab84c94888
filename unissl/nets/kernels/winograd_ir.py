"""Machine code of :mod:`unissl.nets.kernels.winograd`: one forward and one backward function for each shape of a map.

A thread processes a few images at a time, so few that their tiles stay in its cache: it pads an image, transforms its
tiles, multiplies the matrices of all 36 tile positions with those of the weights, and transforms back. Buffers are
ordered by position, then tile, then channel. SIMD vectors run along the channels.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache

import numpy as np
import numpy.typing as npt
import torch

from unissl.nets.kernels.llvm import (
    CompiledFunction,
    Value,
    Writer,
    compile_function,
    vector_registers,
    vector_width,
    whole,
)

Matrix = npt.NDArray[np.float64]

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
def forward(shape: Shape, slope: float | None = None, residual: bool = False) -> CompiledFunction:
    """Function of the number of images and the addresses of x, weights, y and work; of a and b, if phi(a x + b) is
    convolved (``slope`` is given); and of the residual, if there is one."""
    code = WinogradWriter("winograd_forward", shape)
    images, x, u, y, work = code.number(0), *(code.address(i) for i in range(1, 5))
    phi = None if slope is None else AffineActivationIR(code, code.address(5), code.address(6), slope)
    padded, v, m = code.split_work(work)
    with code.working_sets(images) as (first, count):
        code.input_tiles(code.image(x, first, shape.inputs), count, padded, v, phi)
        with code.loop(0, POSITIONS) as position:
            code.product(
                LeftFactor(code.position(v, position, shape.inputs), shape.inputs, 1),
                RightFactor(code.at(u, (position, shape.inputs * shape.outputs)), shape.inputs, shape.outputs),
                Result(code.position(m, position, shape.outputs), shape.outputs, add=False),
                rows=code.blocks(count),
                depth=shape.inputs,
            )
        added = code.image(code.address(7), first, shape.outputs) if residual else None
        code.output(m, count, code.image(y, first, shape.outputs), added)
    return compile_function(code)


@cache
def backward(shape: Shape, slope: float | None = None) -> CompiledFunction:
    """Function of the number of images and the addresses of x, dL/dy, transposed weights, dL/dx, dL/dweights (for each
    thread) and work.

    If phi(a x + b) was convolved, also of a, b, the mean of x in each channel and a table (images, 2, inputs). Then it
    writes g = phi'(a x + b) dL/dphi in position of dL/dx, and into the table the sums of g and of g (x - mean).
    """
    code = WinogradWriter("winograd_backward", shape)
    images, x, dy, u, dx, du, work = code.number(0), *(code.address(i) for i in range(1, 7))
    phi = None if slope is None else AffineActivationIR(code, code.address(7), code.address(8), slope)
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
                LeftFactor(v_here, 1, shape.inputs),
                RightFactor(dm_here, None, shape.outputs),
                Result(code.at(du, matrix), shape.outputs, add=True),
                rows=shape.inputs // ROWS,
                depth=code.b.mul(count, whole(shape.tiles)),
            )
            code.product(
                LeftFactor(dm_here, shape.outputs, 1),
                RightFactor(code.at(u, matrix), shape.outputs, shape.inputs),
                Result(v_here, shape.inputs, add=False),  # overwrites V, which is no longer needed
                rows=code.blocks(count),
                depth=shape.outputs,
            )
        if phi is None:
            code.input_gradient(v, count, padded, dx_here)
        else:
            table = code.at(code.address(10), (first, 2 * shape.inputs))
            summed = GradientSums(phi, x_here, code.address(9), table)
            code.input_gradient(v, count, padded, dx_here, summed)
    return compile_function(code)


@dataclass(frozen=True)
class LeftFactor:
    """The left factor: an address, and its row and column strides."""

    start: Value
    row: int
    column: int


@dataclass(frozen=True)
class RightFactor:
    """The right factor, (depth, columns): packed by panels, each (depth, panel), or by rows where ``depth`` is None."""

    start: Value
    depth: int | None
    columns: int


@dataclass(frozen=True)
class Result:
    start: Value
    row: int
    add: bool
    """Whether the product is added to the present values."""


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


@dataclass(frozen=True)
class GradientSums:
    """Where the sums of a gradient go: the activation, the images, the mean of each channel and the table."""

    phi: AffineActivationIR
    x: Value
    mean: Value
    table: Value


Apply = Callable[[Matrix, Sequence[Value]], list[Value]]
Grid = list[list[Value]]


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
    def tiles(self, channels: int) -> Iterator[tuple[Value, Value, Value]]:
        """The tiles of an image: row, column and the first channel of a vector."""
        with (
            self.loop(0, self.shape.height // OUT) as row,
            self.loop(0, self.shape.width // OUT) as column,
            self.loop(0, channels, self.width) as channel,
        ):
            yield row, column, channel

    def corner(self, start: Value, line: int, channels: int, tile: tuple[Value, Value, Value]) -> Value:
        """The address of a tile in an image with ``line`` elements in a row."""
        row, column, channel = tile
        return self.at(start, (row, OUT * line), (column, OUT * channels), (channel, 1))

    def tile_address(self, tiles: Value, image: Value, tile: tuple[Value, Value, Value], channels: int) -> Value:
        """The address of a tile at the first position."""
        row, column, channel = tile
        across = self.shape.width // OUT
        return self.at(
            tiles,
            (image, self.shape.tiles * channels),
            (row, across * channels),
            (column, channels),
            (channel, 1),
        )

    def input_tiles(self, x: Value, images: Value, padded: Value, v: Value, phi: AffineActivationIR | None) -> None:
        """V = B^T d B of the input d of each tile. The margin of the padded image is zero."""
        channels = self.shape.inputs
        line = self.shape.width * channels
        with self.loop(0, images) as image:
            source = self.image(x, image, channels)
            with self.pixels() as (at, at_padded, channel):
                vector = self.load(self.at(source, (at, 1)))
                vector = vector if phi is None else phi(vector, channel)
                self.store(vector, self.at(padded, (at_padded, 1)))
            with self.tiles(channels) as tile:
                corner = self.corner(padded, line + 2 * channels, channels, tile)
                d = self.read(corner, IN, line + 2 * channels, channels)
                self.store_tile(
                    self.transformed(self.by_rows, BT, d), self.tile_address(v, image, tile, channels), channels
                )

    def output(self, m: Value, images: Value, y: Value, residual: Value | None) -> None:
        """y = A^T M A, plus the residual."""
        channels = self.shape.outputs
        line = self.shape.width * channels
        with self.loop(0, images) as image, self.tiles(channels) as tile:
            positions = self.load_tile(self.tile_address(m, image, tile, channels), channels)
            corner = self.corner(self.image(y, image, channels), line, channels, tile)
            added = (
                None if residual is None else self.corner(self.image(residual, image, channels), line, channels, tile)
            )
            for i, vectors in enumerate(self.transformed(self.by_columns, AT, positions)):
                for j, vector in enumerate(vectors):
                    offset = (i, line), (j, channels)
                    if added is not None:
                        vector = self.add(vector, self.load(self.at(added, *offset)))
                    self.store(vector, self.at(corner, *offset))

    def gradient_tiles(self, dy: Value, images: Value, dm: Value) -> None:
        """dL/dM = A dL/dy A^T."""
        channels = self.shape.outputs
        line = self.shape.width * channels
        with self.loop(0, images) as image, self.tiles(channels) as tile:
            corner = self.corner(self.image(dy, image, channels), line, channels, tile)
            transformed = self.transformed(self.by_rows, AT.T, self.read(corner, OUT, line, channels))
            self.store_tile(transformed, self.tile_address(dm, image, tile, channels), channels)

    def input_gradient(
        self, dv: Value, images: Value, padded: Value, dx: Value, summed: GradientSums | None = None
    ) -> None:
        """dL/dd = B dL/dV B^T, summed where inputs of tiles overlap; the margin is cleared again."""
        channels = self.shape.inputs
        line = self.shape.width * channels
        with self.loop(0, images) as image:
            self.clear(padded, self.shape.padded)
            with self.tiles(channels) as tile:
                corner = self.corner(padded, line + 2 * channels, channels, tile)
                positions = self.load_tile(self.tile_address(dv, image, tile, channels), channels)
                for i, vectors in enumerate(self.transformed(self.by_columns, BT.T, positions)):
                    for j, vector in enumerate(vectors):
                        address = self.at(corner, (i, line + 2 * channels), (j, channels))
                        self.store(self.add(self.load(address), vector), address)
            target = self.image(dx, image, channels)
            if summed is None:
                with self.pixels() as (at, at_padded, _):
                    self.store(self.load(self.at(padded, (at_padded, 1))), self.at(target, (at, 1)))
            else:
                self.through_activation(padded, target, summed, image)
        self.clear(padded, self.shape.padded)

    def through_activation(self, padded: Value, target: Value, summed: GradientSums, image: Value) -> None:
        """g = phi'(a x + b) dL/dphi for an image, and the sums of g and of g (x - mean) over it."""
        channels = self.shape.inputs
        source = self.image(summed.x, image, channels)
        sums = self.at(summed.table, (image, 2 * channels))
        self.clear(sums, 2 * channels)
        with self.pixels() as (at, at_padded, channel):
            x = self.load(self.at(source, (at, 1)))
            g = summed.phi.backward(x, channel, self.load(self.at(padded, (at_padded, 1))))
            self.store(g, self.at(target, (at, 1)))
            mean = self.load(self.at(summed.mean, (channel, 1)))
            for position, term in enumerate((g, self.multiply(g, self.subtract(x, mean)))):
                total = self.at(sums, (position, channels), (channel, 1))
                self.store(self.add(self.load(total), term), total)

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

    def read(self, corner: Value, side: int, line: int, channels: int) -> Grid:
        """The pixels of a square."""
        return [[self.load(self.at(corner, (i, line), (j, channels))) for j in range(side)] for i in range(side)]

    def load_tile(self, tile: Value, channels: int) -> Grid:
        """The vectors at the 36 positions of a tile."""
        return [[self.load(self.position(tile, IN * i + j, channels)) for j in range(IN)] for i in range(IN)]

    def store_tile(self, grid: Grid, tile: Value, channels: int) -> None:
        for i, vectors in enumerate(grid):
            for j, vector in enumerate(vectors):
                self.store(vector, self.position(tile, IN * i + j, channels))

    def transformed(self, apply: Apply, matrix: Matrix, grid: Grid) -> Grid:
        """Q X Q^T for a matrix Q of numbers and X of vectors."""
        columns = [apply(matrix, column) for column in zip(*grid, strict=True)]
        return [apply(matrix, row) for row in zip(*columns, strict=True)]

    def by_rows(self, matrix: Matrix, vectors: Sequence[Value]) -> list[Value]:
        """Q v; neighbouring rows that differ in signs only share their work: e + o and e - o."""
        products: list[Value] = []
        while len(products) < len(matrix):
            row = matrix[len(products)]
            if len(products) + 1 < len(matrix) and _differ_in_signs(row, below := matrix[len(products) + 1]):
                even = self.linear_combination(np.where(row == below, row, 0), vectors)
                odd = self.linear_combination(np.where(row == below, 0, row), vectors)
                products += [self.add(even, odd), self.subtract(even, odd)]
            else:
                products.append(self.linear_combination(row, vectors))
        return products

    def by_columns(self, matrix: Matrix, vectors: Sequence[Value]) -> list[Value]:
        """Q v; neighbouring columns that differ in signs only share sums and differences of entries."""
        columns, entries = list(matrix.T), list(vectors)
        for j in range(len(columns) - 1):
            left, right = columns[j], columns[j + 1]
            if _differ_in_signs(left, right):
                columns[j : j + 2] = np.where(left == right, left, 0), np.where(left == right, 0, left)
                one, other = entries[j : j + 2]
                entries[j : j + 2] = self.add(one, other), self.subtract(one, other)
        return [self.linear_combination(row, entries) for row in np.transpose(columns)]

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
        self, left: LeftFactor, right: RightFactor, result: Result, *, rows: Value | int, depth: Value | int
    ) -> None:
        """``rows`` blocks of ROWS rows, a panel of columns at a time, summed in registers over ``depth``."""
        panel = self.shape.panel(right.columns)
        to_next_panel = panel if right.depth is None else right.depth * panel
        to_next_row = right.columns if right.depth is None else panel
        positions = [(row, column) for row in range(ROWS) for column in range(0, panel, self.width)]
        with self.loop(0, right.columns // panel) as number, self.loop(0, rows) as block:
            columns = self.at(right.start, (number, to_next_panel))
            row_start = self.at(left.start, (block, ROWS * left.row))
            target = self.at(result.start, (block, ROWS * result.row), (number, panel))
            targets = [self.at(target, (row, result.row), (column, 1)) for row, column in positions]
            first = [self.load(address) if result.add else self.constant(0.0) for address in targets]
            with self.loop_with(0, depth, first) as (k, sums):
                line = self.at(columns, (k, to_next_row))
                across = {column: self.load(self.at(line, (column, 1))) for column in range(0, panel, self.width)}
                number_at = self.at(row_start, (k, left.column))
                down = [self.load_repeated(self.at(number_at, (row, left.row))) for row in range(ROWS)]
                sums[:] = [
                    self.add(one, self.multiply(down[row], across[column]))
                    for one, (row, column) in zip(sums, positions, strict=True)
                ]
            for vector, address in zip(sums, targets, strict=True):
                self.store(vector, address)


def _differ_in_signs(one: Matrix, other: Matrix) -> bool:
    return bool((abs(one) == abs(other)).all() and (one != other).any())
