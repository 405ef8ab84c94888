"""Whether two images show the same photo: one is registered to the other, then their pixels are compared.

Registration finds the part of the first image that the second one shows: a box, four numbers, by Gauss-Newton steps on
a coarse and then on a fine grid of cells. The cells that both images show must then agree in three ways. Brightness
steps between adjacent cells correlate. Brightness differs nowhere by much, so that two frames of a series, or two
products before one background, are told apart. Colour differs nowhere by much, except that either image may be paler,
or grey. Brightness, contrast and white balance of the whole image do not matter.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float32]
Boxes = npt.NDArray[np.float64]
"""(n, 4): top, left, height and width of a part of an image, as fractions of its sides."""

SIDE = 96
"""Cells on a side that images are reduced to before they are compared, if they have as many pixels."""
COARSE, FINE = 16, 32
"""Cells on a side of the two grids; fewer in small images, so that a cell has at least two pixels."""
MIN_GRID = 8
COARSE_STEPS, FINE_STEPS = 5, 3
"""Gauss-Newton steps on either grid."""
MIN_COARSE, MIN_FINE = 0.8, 0.94
"""Correlation of brightness steps on either grid from which on two images count as the same."""
MAX_DIFFERENCE = 0.3
"""Largest difference of brightness within 3 x 3 cells, in standard deviations of the image."""
MAX_COLOUR_DIFFERENCE = 32.0
"""Largest difference of colour within 3 x 3 cells, in levels of 255."""
MAX_STEP, MAX_SHIFT, MAX_SCALE = 0.03, 0.12, 0.15
"""Bounds of a Gauss-Newton step, of the shift of a box, and of the change of its sides."""
LUMINANCE = (0.299, 0.587, 0.114)


def reduce_cells(count: int, size: int, low: float = 0.0, high: float = 1.0) -> Floats:
    """The matrix (count, size) that averages the pixels between two fractions of the side over equal cells."""
    weights, _ = _box_cells(np.array([low]), np.array([high - low]), count, size)
    return np.asarray(weights[0])


def brightness(images: npt.NDArray[np.uint8]) -> Floats:
    """The brightness of each pixel, (n, h, w)."""
    channels = images.shape[3]
    weights = LUMINANCE if channels == 3 else (1 / channels,) * channels
    return np.asarray(sum(images[..., c] * np.float32(weight) for c, weight in enumerate(weights)))


def reduce_plane(plane: Floats, side: int) -> Floats:
    """Values of pixels (n, h, w) as means of cells (n, side, side)."""
    return np.asarray(reduce_cells(side, plane.shape[1]) @ plane @ reduce_cells(side, plane.shape[2]).T)


def reduce_images(images: npt.NDArray[np.uint8], side: int) -> Floats:
    """Brightness and, for three channels, red and blue minus brightness, as planes (n, P, side, side) of cells."""
    bright = brightness(images)
    planes = [bright] + ([images[..., c] - bright for c in (0, 2)] if images.shape[3] == 3 else [])
    return np.stack([reduce_plane(plane, side) for plane in planes], axis=1)


def show_same_photo(first: Floats, second: Floats, boxes: Boxes) -> npt.NDArray[np.bool_]:
    """Whether the images of each pair (n, P, s, s) are the same photo; ``boxes`` are first guesses of the parts."""
    fine = min(FINE, max(MIN_GRID, first.shape[2] // 2))
    coarse = min(COARSE, fine)
    boxes = _register(first[:, 0], second[:, 0], boxes, coarse, COARSE_STEPS)
    views, whole, overlap = _see(first[:, :1], second[:, :1], boxes, coarse)
    alike = np.flatnonzero(_correlate_steps(views[:, 0], whole[:, 0], overlap) >= MIN_COARSE)
    same = np.zeros(len(first), dtype=bool)
    if len(alike):
        first, second = first[alike], second[alike]
        boxes = _register(first[:, 0], second[:, 0], boxes[alike], fine, FINE_STEPS)
        same[alike] = _agree(*_see(first, second, boxes, fine))
    return same


def _agree(views: Floats, whole: Floats, overlap: Floats) -> npt.NDArray[np.bool_]:
    """Whether views and whole images (n, P, g, g) agree where they overlap."""
    correlated = _correlate_steps(views[:, 0], whole[:, 0], overlap) >= MIN_FINE
    difference = _standardise(views[:, 0], overlap) - _standardise(whole[:, 0], overlap)
    return correlated & (_largest(difference**2) <= MAX_DIFFERENCE) & _colours_agree(views, whole, overlap)


def _colours_agree(views: Floats, whole: Floats, overlap: Floats) -> npt.NDArray[np.bool_]:
    """The weaker colours are explained by a fraction of the stronger ones."""
    if views.shape[1] == 1:
        return np.ones(len(views), dtype=bool)
    colours = [np.stack([_centre(planes[:, p], overlap) for p in (1, 2)], axis=1) for planes in (views, whole)]
    energies = [(colour**2).sum(axis=(1, 2, 3)) for colour in colours]
    swap = (energies[0] > energies[1])[:, None, None, None]
    weak, strong = np.where(swap, colours[1], colours[0]), np.where(swap, colours[0], colours[1])
    fraction = (weak * strong).sum(axis=(1, 2, 3)) / np.maximum(energies[0], energies[1]).clip(min=1e-6)
    residual = weak - fraction.clip(min=0)[:, None, None, None] * strong
    return _largest((residual**2).sum(axis=1)) <= MAX_COLOUR_DIFFERENCE


def _largest(squares: Floats) -> Floats:
    """The largest root mean square within 3 x 3 cells."""
    from scipy.ndimage import uniform_filter  # not at once: whoever reads a run folder imports this file

    return np.asarray(np.sqrt(uniform_filter(squares, (0, 3, 3), mode="constant").max(axis=(1, 2))))


def _register(first: Floats, second: Floats, boxes: Boxes, grid: int, steps: int) -> Boxes:
    """Move the boxes so that the parts of ``first`` (n, s, s) that they cut out resemble ``second``."""
    position = ((np.arange(grid) + 0.5) / grid).astype(np.float32)
    low = [-MAX_SHIFT, -MAX_SHIFT, 1 - MAX_SCALE, 1 - MAX_SCALE]
    high = [MAX_SHIFT, MAX_SHIFT, 1 + MAX_SCALE, 1 + MAX_SCALE]
    for _ in range(steps):
        views, whole, overlap = _see(first[:, None], second[:, None], boxes, grid)
        one, other = _standardise(views[:, 0], overlap), _standardise(whole[:, 0], overlap)
        down, across = np.gradient(one, axis=(1, 2))
        down *= overlap * (grid / boxes[:, 2, None, None])
        across *= overlap * (grid / boxes[:, 3, None, None])
        slopes = np.stack([down, across, down * position[:, None], across * position], axis=-1)
        slopes = slopes.reshape(len(one), -1, 4).astype(np.float64)
        error = (other - one).reshape(len(one), -1, 1).astype(np.float64)
        transposed = slopes.transpose(0, 2, 1)
        curvature = transposed @ slopes + 1e-3 * np.eye(4)
        step = np.linalg.solve(curvature, transposed @ error)[..., 0]
        boxes = np.clip(boxes + step.clip(-MAX_STEP, MAX_STEP), low, high)
    return boxes


def _see(first: Floats, second: Floats, boxes: Boxes, grid: int) -> tuple[Floats, Floats, Floats]:
    """The boxes of ``first`` and all of ``second`` in cells (n, P, g, g), and 1 for cells that both show, (n, g, g)."""
    side = first.shape[2]
    down, has_row = _box_cells(boxes[:, 0], boxes[:, 2], grid, side)
    across, has_column = _box_cells(boxes[:, 1], boxes[:, 3], grid, side)
    whole = reduce_cells(grid, side)
    overlap = (has_row[:, :, None] & has_column[:, None, :]).astype(np.float32)
    views = down[:, None] @ first @ across.transpose(0, 2, 1)[:, None]
    return np.asarray(views, np.float32), np.asarray(whole @ second @ whole.T, np.float32), overlap


def _box_cells(
    low: npt.NDArray[np.float64], share: npt.NDArray[np.float64], count: int, size: int
) -> tuple[Floats, npt.NDArray[np.bool_]]:
    """Matrices (n, count, size) that average the pixels of each cell, and which cells are inside the image."""
    edges = (low[:, None] + share[:, None] * np.linspace(0, 1, count + 1)) * size
    pixel = np.arange(size)
    overlap = (np.minimum(edges[:, 1:, None], pixel + 1) - np.maximum(edges[:, :-1, None], pixel)).clip(min=0)
    covered = overlap.sum(axis=2)
    inside = covered >= 0.99 * share[:, None] * size / count
    return (overlap / covered.clip(min=1e-6)[..., None]).astype(np.float32), inside


def _centre(cells: Floats, overlap: Floats) -> Floats:
    count = overlap.sum(axis=(1, 2), keepdims=True).clip(min=1)
    return np.asarray((cells - (cells * overlap).sum(axis=(1, 2), keepdims=True) / count) * overlap)


def _standardise(cells: Floats, overlap: Floats) -> Floats:
    """Mean 0 and variance 1 over the cells that both images show; 0 elsewhere."""
    centred = _centre(cells, overlap)
    count = overlap.sum(axis=(1, 2), keepdims=True).clip(min=1)
    return np.asarray(centred / np.sqrt((centred**2).sum(axis=(1, 2), keepdims=True) / count).clip(min=1e-6))


def _correlate_steps(one: Floats, other: Floats, overlap: Floats) -> Floats:
    """Correlation of the differences between adjacent cells that both images show, (n,)."""
    steps = []
    for cells in (one, other):
        down = np.diff(cells, axis=1) * overlap[:, 1:] * overlap[:, :-1]
        across = np.diff(cells, axis=2) * overlap[:, :, 1:] * overlap[:, :, :-1]
        steps.append(np.hstack([down.reshape(len(cells), -1), across.reshape(len(cells), -1)]))
    lengths = [np.sqrt((step**2).sum(axis=1)) for step in steps]
    return np.asarray((steps[0] * steps[1]).sum(axis=1) / (lengths[0] * lengths[1]).clip(min=1e-6))
