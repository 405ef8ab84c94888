"""The machine code of :mod:`unissl.nets.kernels.winograd`: one function forwards and one backwards for each shape of a map.

A thread takes a few images at a time, so few that what is made of them stays in its cache: it pads an image, transforms
its tiles, multiplies the 36 matrices of all their places with those of the weights, and transforms back. Buffers hold
place after place, of each the tiles one after the other, of each its channels. Vectors run along the channels.
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

from unissl.nets.kernels.llvm import Native, Value, Writer, compile_, vector_registers, vector_width, whole

Matrix = npt.NDArray[np.float64]

OUT, IN = 4, 6
"""Sides of a tile of the output, and of the part of the input that it depends on."""
PLACES = IN * IN
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
"""Rows of a product that are in registers at once."""
COLUMNS = 2
"""Vectors in such a row, at most; with those of both factors they must not need more registers than there are."""
IN_HAND = 600_000
"""Bytes for the tiles of the images that a thread has in hand, about: what fits into a core's own cache."""
APART = 16
"""Numbers between the tiles of two places, lest all places fall on the same lines of the cache."""


@dataclass(frozen=True)
class Shape:
    """Images of height x width with ``inputs`` channels, to be made ones of ``outputs``."""

    height: int
    width: int
    inputs: int
    outputs: int
    dtype: torch.dtype

    @property
    def tiles(self) -> int:
        """In an image."""
        return (self.height // OUT) * (self.width // OUT)

    @property
    def images(self) -> int:
        """That a thread has in hand, such that their tiles are a multiple of ``ROWS``."""
        least = ROWS // math.gcd(ROWS, self.tiles)
        wanted = IN_HAND // (PLACES * self.tiles * (self.inputs + self.outputs) * self.dtype.itemsize)
        return max(1, wanted // least) * least

    def apart(self, channels: int) -> int:
        """Numbers from one place to the next."""
        return self.images * self.tiles * channels + APART

    @property
    def padded(self) -> int:
        """Numbers of an image with a margin."""
        return (self.height + 2) * (self.width + 2) * self.inputs

    @property
    def work(self) -> int:
        """Numbers that a thread needs for itself, zeros at first."""
        return self.padded + PLACES * (self.apart(self.inputs) + self.apart(self.outputs))

    @property
    def vector(self) -> int:
        """Numbers in a vector, such that vectors fill the channels."""
        width = vector_width(self.dtype)
        while self.inputs % width or self.outputs % width:
            width //= 2
        return width

    def panel(self, channels: int) -> int:
        """Columns of a product that are computed together."""
        return self.vector * (COLUMNS if channels % (COLUMNS * self.vector) == 0 else 1)


@cache
def forward(shape: Shape, slope: float | None = None, beside: bool = False) -> Native:
    """Function of the number of images and the addresses of x, weights, y and work; of a and b, if x is to be put on a
    line before; and of a map to be added, if there is one ``beside`` it."""
    code = Code("winograd_forward", shape)
    images, x, u, y, work = code.number(0), *(code.address(i) for i in range(1, 5))
    phi = None if slope is None else Phi(code, code.address(5), code.address(6), slope)
    padded, v, m = code.divide(work)
    with code.in_hand(images) as (first, count):
        code.input_tiles(code.image(x, first, shape.inputs), count, padded, v, phi)
        with code.loop(0, PLACES) as place:
            code.product(
                Factor(code.place(v, place, shape.inputs), shape.inputs, 1),
                Panels(code.at(u, (place, shape.inputs * shape.outputs)), shape.inputs, shape.outputs),
                Result(code.place(m, place, shape.outputs), shape.outputs, add=False),
                rows=code.blocks(count),
                depth=shape.inputs,
            )
        added = code.image(code.address(7), first, shape.outputs) if beside else None
        code.output(m, count, code.image(y, first, shape.outputs), added)
    return compile_(code)


@cache
def backward(shape: Shape, slope: float | None = None) -> Native:
    """Function of the number of images and the addresses of x, dL/dy, transposed weights, dL/dx, dL/dweights (for each
    thread) and work.

    Where x was put on a line, also of a, b, the mean of x in each channel and a table (images, 2, inputs). Then what is
    written in place of dL/dx is g = phi'(a x + b) dL/dphi, and into the table its sum and that of g (x - mean).
    """
    code = Code("winograd_backward", shape)
    images, x, dy, u, dx, du, work = code.number(0), *(code.address(i) for i in range(1, 7))
    phi = None if slope is None else Phi(code, code.address(7), code.address(8), slope)
    du = code.at(du, (code.thread, PLACES * shape.inputs * shape.outputs))
    padded, v, dm = code.divide(work)
    with code.in_hand(images) as (first, count):
        x_here, dx_here = code.image(x, first, shape.inputs), code.image(dx, first, shape.inputs)
        code.input_tiles(x_here, count, padded, v, phi)
        code.gradient_tiles(code.image(dy, first, shape.outputs), count, dm)
        with code.loop(0, PLACES) as place:
            v_here, dm_here = code.place(v, place, shape.inputs), code.place(dm, place, shape.outputs)
            matrix = (place, shape.inputs * shape.outputs)
            code.product(
                Factor(v_here, 1, shape.inputs),
                Panels(dm_here, None, shape.outputs),
                Result(code.at(du, matrix), shape.outputs, add=True),
                rows=shape.inputs // ROWS,
                depth=code.b.mul(count, whole(shape.tiles)),
            )
            code.product(
                Factor(dm_here, shape.outputs, 1),
                Panels(code.at(u, matrix), shape.outputs, shape.inputs),
                Result(v_here, shape.inputs, add=False),  # in the place of what is used up
                rows=code.blocks(count),
                depth=shape.outputs,
            )
        if phi is None:
            code.input_gradient(v, count, padded, dx_here)
        else:
            table = code.at(code.address(10), (first, 2 * shape.inputs))
            summed = Summed(phi, x_here, code.address(9), table)
            code.input_gradient(v, count, padded, dx_here, summed)
    return compile_(code)


@dataclass(frozen=True)
class Factor:
    """The left factor: an address, and the numbers from a row and from a column to the next."""

    start: Value
    row: int
    column: int


@dataclass(frozen=True)
class Panels:
    """The right factor, (depth, columns): packed panel after panel, each (depth, panel), or row after row where
    ``depth`` is None."""

    start: Value
    depth: int | None
    columns: int


@dataclass(frozen=True)
class Result:
    start: Value
    row: int
    add: bool
    """To what is there."""


@dataclass(frozen=True)
class Phi:
    """phi(a x + b) of vectors of x."""

    code: Writer
    scale: Value
    shift: Value
    slope: float

    def before(self, x: Value, channel: Value) -> Value:
        """a x + b"""
        code = self.code
        scale, shift = (code.load(code.at(start, (channel, 1))) for start in (self.scale, self.shift))
        return code.add(code.multiply(scale, x), shift)

    def __call__(self, x: Value, channel: Value) -> Value:
        v = self.before(x, channel)
        return self.code.where_positive(v, v, self.code.multiply(self.code.constant(self.slope), v))

    def times_slope(self, x: Value, channel: Value, gradient: Value) -> Value:
        """phi'(a x + b) times a gradient."""
        slower = self.code.multiply(self.code.constant(self.slope), gradient)
        return self.code.where_positive(self.before(x, channel), gradient, slower)


@dataclass(frozen=True)
class Summed:
    """What a gradient is to be multiplied with and summed against: the images, the mean of each channel and the table
    for the sums."""

    phi: Phi
    x: Value
    mean: Value
    table: Value


Apply = Callable[[Matrix, Sequence[Value]], list[Value]]
Grid = list[list[Value]]


class Code(Writer):
    """Writes the steps for one shape."""

    def __init__(self, name: str, shape: Shape) -> None:
        super().__init__(name, shape.dtype, shape.vector)
        self.shape = shape

    def divide(self, work: Value) -> tuple[Value, Value, Value]:
        """This thread's padded image, tiles of the input and tiles of the output."""
        padded = self.at(work, (self.thread, self.shape.work))
        v = self.at(padded, (1, self.shape.padded))
        return padded, v, self.at(v, (PLACES, self.shape.apart(self.shape.inputs)))

    @contextmanager
    def in_hand(self, images: Value) -> Iterator[tuple[Value, Value]]:
        """This thread's images, a few at a time: the first, and how many."""
        first, end = self.share(images)
        with self.loop(first, end, self.shape.images) as start:
            yield start, self.smaller(self.b.sub(end, start), whole(self.shape.images))

    def image(self, images: Value, number: Value, channels: int) -> Value:
        return self.at(images, (number, self.shape.height * self.shape.width * channels))

    def place(self, tiles: Value, place: Value | int, channels: int) -> Value:
        return self.at(tiles, (place, self.shape.apart(channels)))

    def blocks(self, images: Value) -> Value:
        """Blocks of rows that hold all tiles; what stands behind the last tile is computed for nothing."""
        tiles = self.b.mul(images, whole(self.shape.tiles))
        return self.b.sdiv(self.b.add(tiles, whole(ROWS - 1)), whole(ROWS))

    @contextmanager
    def tiles(self, channels: int) -> Iterator[tuple[Value, Value, Value]]:
        """Of an image: row and column of a tile, and the first channel of a vector."""
        with (
            self.loop(0, self.shape.height // OUT) as row,
            self.loop(0, self.shape.width // OUT) as column,
            self.loop(0, channels, self.width) as channel,
        ):
            yield row, column, channel

    def corner(self, start: Value, line: int, channels: int, tile: tuple[Value, Value, Value]) -> Value:
        """Where a tile begins in an image with ``line`` numbers in a row."""
        row, column, channel = tile
        return self.at(start, (row, OUT * line), (column, OUT * channels), (channel, 1))

    def among_tiles(self, tiles: Value, image: Value, tile: tuple[Value, Value, Value], channels: int) -> Value:
        """Where a tile stands at the first place."""
        row, column, channel = tile
        across = self.shape.width // OUT
        return self.at(
            tiles,
            (image, self.shape.tiles * channels),
            (row, across * channels),
            (column, channels),
            (channel, 1),
        )

    def input_tiles(self, x: Value, images: Value, padded: Value, v: Value, phi: Phi | None) -> None:
        """V = B^T d B of the surroundings d of each tile. The margin of the padded image is zero."""
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
                self.put(self.transformed(self.by_rows, BT, d), self.among_tiles(v, image, tile, channels), channels)

    def output(self, m: Value, images: Value, y: Value, beside: Value | None) -> None:
        """y = A^T M A, and what stands ``beside`` it added."""
        channels = self.shape.outputs
        line = self.shape.width * channels
        with self.loop(0, images) as image, self.tiles(channels) as tile:
            places = self.take(self.among_tiles(m, image, tile, channels), channels)
            corner = self.corner(self.image(y, image, channels), line, channels, tile)
            added = None if beside is None else self.corner(self.image(beside, image, channels), line, channels, tile)
            for i, vectors in enumerate(self.transformed(self.by_columns, AT, places)):
                for j, vector in enumerate(vectors):
                    away = (i, line), (j, channels)
                    if added is not None:
                        vector = self.add(vector, self.load(self.at(added, *away)))
                    self.store(vector, self.at(corner, *away))

    def gradient_tiles(self, dy: Value, images: Value, dm: Value) -> None:
        """dL/dM = A dL/dy A^T."""
        channels = self.shape.outputs
        line = self.shape.width * channels
        with self.loop(0, images) as image, self.tiles(channels) as tile:
            corner = self.corner(self.image(dy, image, channels), line, channels, tile)
            made = self.transformed(self.by_rows, AT.T, self.read(corner, OUT, line, channels))
            self.put(made, self.among_tiles(dm, image, tile, channels), channels)

    def input_gradient(self, dv: Value, images: Value, padded: Value, dx: Value, summed: Summed | None = None) -> None:
        """dL/dd = B dL/dV B^T, summed where surroundings overlap; the margin is cleared again."""
        channels = self.shape.inputs
        line = self.shape.width * channels
        with self.loop(0, images) as image:
            self.clear(padded, self.shape.padded)
            with self.tiles(channels) as tile:
                corner = self.corner(padded, line + 2 * channels, channels, tile)
                places = self.take(self.among_tiles(dv, image, tile, channels), channels)
                for i, vectors in enumerate(self.transformed(self.by_columns, BT.T, places)):
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

    def through_activation(self, padded: Value, target: Value, summed: Summed, image: Value) -> None:
        """g = phi'(a x + b) dL/dphi for an image, and the sums of g and of g (x - mean) over it."""
        channels = self.shape.inputs
        source = self.image(summed.x, image, channels)
        sums = self.at(summed.table, (image, 2 * channels))
        self.clear(sums, 2 * channels)
        with self.pixels() as (at, at_padded, channel):
            x = self.load(self.at(source, (at, 1)))
            g = summed.phi.times_slope(x, channel, self.load(self.at(padded, (at_padded, 1))))
            self.store(g, self.at(target, (at, 1)))
            mean = self.load(self.at(summed.mean, (channel, 1)))
            for place, term in enumerate((g, self.multiply(g, self.subtract(x, mean)))):
                total = self.at(sums, (place, channels), (channel, 1))
                self.store(self.add(self.load(total), term), total)

    @contextmanager
    def pixels(self) -> Iterator[tuple[Value, Value, Value]]:
        """Of an image of the input: where a vector stands in it, where in the padded one, and its first channel."""
        channels = self.shape.inputs
        with (
            self.loop(0, self.shape.height) as row,
            self.loop(0, self.shape.width) as column,
            self.loop(0, channels, self.width) as channel,
        ):
            place = self.b.add(self.b.mul(row, whole(self.shape.width * channels)), self.b.mul(column, whole(channels)))
            margin = self.b.add(self.b.mul(row, whole(2 * channels)), whole((self.shape.width + 3) * channels))
            at = self.b.add(place, channel)
            yield at, self.b.add(at, margin), channel

    def clear(self, start: Value, count: int) -> None:
        with self.loop(0, count, self.width) as i:
            self.store(self.constant(0.0), self.at(start, (i, 1)))

    def read(self, corner: Value, side: int, line: int, channels: int) -> Grid:
        """The pixels of a square."""
        return [[self.load(self.at(corner, (i, line), (j, channels))) for j in range(side)] for i in range(side)]

    def take(self, tile: Value, channels: int) -> Grid:
        """What stands at the 36 places of a tile."""
        return [[self.load(self.place(tile, IN * i + j, channels)) for j in range(IN)] for i in range(IN)]

    def put(self, grid: Grid, tile: Value, channels: int) -> None:
        for i, vectors in enumerate(grid):
            for j, vector in enumerate(vectors):
                self.store(vector, self.place(tile, IN * i + j, channels))

    def transformed(self, apply: Apply, matrix: Matrix, grid: Grid) -> Grid:
        """Q X Q^T for a matrix Q of numbers and X of vectors."""
        columns = [apply(matrix, column) for column in zip(*grid, strict=True)]
        return [apply(matrix, row) for row in zip(*columns, strict=True)]

    def by_rows(self, matrix: Matrix, vectors: Sequence[Value]) -> list[Value]:
        """Q v, where neighbouring rows that differ in signs only share their work: e + o and e - o."""
        made: list[Value] = []
        while len(made) < len(matrix):
            row = matrix[len(made)]
            if len(made) + 1 < len(matrix) and _differ_in_signs(row, below := matrix[len(made) + 1]):
                even = self.sum_of(np.where(row == below, row, 0), vectors)
                odd = self.sum_of(np.where(row == below, 0, row), vectors)
                made += [self.add(even, odd), self.subtract(even, odd)]
            else:
                made.append(self.sum_of(row, vectors))
        return made

    def by_columns(self, matrix: Matrix, vectors: Sequence[Value]) -> list[Value]:
        """Q v, where neighbouring columns that differ in signs only share sums and differences of entries."""
        columns, entries = list(matrix.T), list(vectors)
        for j in range(len(columns) - 1):
            left, right = columns[j], columns[j + 1]
            if _differ_in_signs(left, right):
                columns[j : j + 2] = np.where(left == right, left, 0), np.where(left == right, 0, left)
                one, other = entries[j : j + 2]
                entries[j : j + 2] = self.add(one, other), self.subtract(one, other)
        return [self.sum_of(row, entries) for row in np.transpose(columns)]

    def sum_of(self, numbers: Matrix, vectors: Sequence[Value]) -> Value:
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

    def product(self, left: Factor, right: Panels, result: Result, *, rows: Value | int, depth: Value | int) -> None:
        """``rows`` blocks of ROWS rows, a panel of columns at a time, summed in registers over ``depth``."""
        panel = self.shape.panel(right.columns)
        to_next_panel = panel if right.depth is None else right.depth * panel
        to_next_row = right.columns if right.depth is None else panel
        places = [(row, column) for row in range(ROWS) for column in range(0, panel, self.width)]
        with self.loop(0, right.columns // panel) as number, self.loop(0, rows) as block:
            columns = self.at(right.start, (number, to_next_panel))
            row_start = self.at(left.start, (block, ROWS * left.row))
            target = self.at(result.start, (block, ROWS * result.row), (number, panel))
            targets = [self.at(target, (row, result.row), (column, 1)) for row, column in places]
            first = [self.load(address) if result.add else self.constant(0.0) for address in targets]
            with self.loop_with(0, depth, first) as (k, sums):
                line = self.at(columns, (k, to_next_row))
                across = {column: self.load(self.at(line, (column, 1))) for column in range(0, panel, self.width)}
                number_at = self.at(row_start, (k, left.column))
                down = [self.load_repeated(self.at(number_at, (row, left.row))) for row in range(ROWS)]
                sums[:] = [
                    self.add(one, self.multiply(down[row], across[column]))
                    for one, (row, column) in zip(sums, places, strict=True)
                ]
            for vector, address in zip(sums, targets, strict=True):
                self.store(vector, address)


def _differ_in_signs(one: Matrix, other: Matrix) -> bool:
    return bool((abs(one) == abs(other)).all() and (one != other).any())
