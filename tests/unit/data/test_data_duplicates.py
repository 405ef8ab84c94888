"""Copies are found, whatever was done to them; different pictures are not; all parts of the data are told apart."""

from __future__ import annotations

import io
from collections.abc import Callable

import numpy as np
import numpy.typing as npt
import pytest
from PIL import Image, ImageEnhance

from unissl.data.images import decode, duplicates, registration
from unissl.data.images.duplicates import CROPS, WHOLE, Copy, find_duplicates
from unissl.types import ImageTable

Pixels = npt.NDArray[np.uint8]
SIZE = 32


def picture(seed: int, side: int = 96) -> Image.Image:
    """Soft blobs of colour with detail on every scale, like a photo."""
    random = np.random.default_rng(seed)
    total = np.zeros((side, side, 3))
    for cells in (3, 6, 12, 24):
        noise = Image.fromarray(random.integers(0, 256, (cells, cells, 3), dtype=np.uint8))
        total += np.asarray(noise.resize((side, side), Image.Resampling.BICUBIC), dtype=float) / cells**0.5
    return Image.fromarray((total / total.max() * 255).astype(np.uint8))


def pixels(image: Image.Image, size: int = SIZE) -> Pixels:
    buffer = io.BytesIO()
    image.save(buffer, "PNG")
    return decode.decode(buffer.getvalue(), size, 3)


def table(images: list[Pixels], labels: list[int] | None = None) -> ImageTable:
    given = np.full(len(images), -1) if labels is None else np.array(labels)
    return ImageTable(np.stack(images), given.astype(np.int64), ("a", "b", "c"))


def saved_again(image: Image.Image, quality: int) -> Image.Image:
    buffer = io.BytesIO()
    image.save(buffer, "JPEG", quality=quality)
    return Image.open(buffer)


CHANGES: dict[str, Callable[[Image.Image], Image.Image]] = {
    "recompressed": lambda image: saved_again(image, 40),
    "half the size": lambda image: image.resize((48, 48), Image.Resampling.LANCZOS),
    "twice the size": lambda image: image.resize((192, 192), Image.Resampling.BICUBIC),
    "cropped at a corner": lambda image: image.crop((5, 5, 96, 96)),
    "cropped all around": lambda image: image.crop((2, 2, 94, 94)),
    "brighter": lambda image: ImageEnhance.Brightness(image).enhance(1.1),
    "grey": lambda image: image.convert("L"),
}


@pytest.mark.parametrize("change", CHANGES)
def test_changed_copies_are_found_and_nothing_else(change: str) -> None:
    originals = [picture(seed) for seed in range(30)]
    copies = [pixels(CHANGES[change](image)) for image in originals[:5]]
    groups = find_duplicates(table([pixels(image) for image in originals]), table(copies, [0] * 5))
    assert [group.copies for group in groups] == [(Copy("test", i, 0), Copy("pool", i, None)) for i in range(5)]
    assert all(group.kind == "near" and group.leaks_test and not group.labels_disagree for group in groups)


def test_the_search_finds_what_comparing_everything_with_everything_finds() -> None:
    """Slow reference: every pair, starting from every view."""
    images = [picture(seed) for seed in range(8)]
    images += [change(images[i]) for i in range(2) for change in CHANGES.values()]
    stack = np.stack([pixels(image, 48) for image in images])
    planes = registration.reduce_images(stack, 48)
    expected = set()
    for i in range(len(images)):
        for j in range(len(images)):
            one, other = (np.repeat(planes[k : k + 1], 1 + len(CROPS), axis=0) for k in (i, j))
            boxes = np.array([WHOLE, *CROPS])
            if i != j and registration.show_same_photo(one, other, boxes).any():
                expected.add((i, j))
    found = duplicates._near_pairs([stack], np.arange(len(images)))
    assert {tuple(pair) for pair in found.tolist()} <= expected
    assert _components(expected) == _components({(int(i), int(j)) for i, j in found})


def _components(pairs: set[tuple[int, int]]) -> set[frozenset[int]]:
    groups = [frozenset(pair) for pair in pairs]
    while merged := next(((a, b) for a in groups for b in groups if a != b and a & b), None):
        groups = [group for group in groups if group not in merged] + [merged[0] | merged[1]]
    return set(groups)


def test_parts_labels_and_order_of_gravity() -> None:
    a, b, c, d, e = (pixels(picture(seed)) for seed in range(5))
    train = table([c, a, c, b, b, d, e, e], [0, 1, 2, 1, 1, -1, -1, -1])
    groups = find_duplicates(train, table([d, a], [2, 1]))
    assert [[(copy.part, copy.row, copy.label) for copy in group.copies] for group in groups] == [
        [("test", 0, 2), ("pool", 5, None)],
        [("test", 1, 1), ("labelled", 1, 1)],
        [("labelled", 0, 0), ("labelled", 2, 2)],
        [("labelled", 3, 1), ("labelled", 4, 1)],
        [("pool", 6, None), ("pool", 7, None)],
    ]
    assert [group.leaks_test for group in groups] == [True, True, False, False, False]
    assert [group.labels_disagree for group in groups] == [False, False, True, False, False]
    assert all(group.kind == "exact" for group in groups)


def test_labels_of_the_pool_are_not_looked_at() -> None:
    a = pixels(picture(0))
    (group,) = find_duplicates(table([a, a], [0, 1]), labelled=np.array([1]))
    assert group.copies == (Copy("labelled", 1, 1), Copy("pool", 0, None)) and not group.labels_disagree


def test_a_chain_of_copies_is_one_group() -> None:
    image = picture(3)
    (group,) = find_duplicates(table([pixels(image), pixels(image), pixels(saved_again(image, 40))]))
    assert group.kind == "near" and [copy.row for copy in group.copies] == [0, 1, 2]


def test_flat_images_are_copies_only_if_equal() -> None:
    flat = [np.full((SIZE, SIZE, 3), value, dtype=np.uint8) for value in (0, 90, 90, 255)]
    faint = flat[1] + np.random.default_rng(0).integers(0, 2, flat[1].shape, dtype=np.uint8)
    (group,) = find_duplicates(table([*flat, faint]))
    assert group.kind == "exact" and [copy.row for copy in group.copies] == [1, 2]


@pytest.mark.parametrize("size", [16, 28, 45, 64])
@pytest.mark.parametrize("channels", [1, 3])
def test_any_size_and_channels(size: int, channels: int) -> None:
    images = [pixels(picture(seed), size)[..., :channels] for seed in range(6)]
    brighter = (images[2] * 0.9).astype(np.uint8)
    (group,) = find_duplicates(table([*images, brighter]))
    assert [copy.row for copy in group.copies] == [2, 6]


def test_tiny_images_are_copies_only_if_equal() -> None:
    """Two handwritten digits of 8 x 8 pixels may agree in all that can be compared."""
    images = [pixels(picture(seed), 8) for seed in range(4)]
    darker = (images[2] * 0.9).astype(np.uint8)
    (group,) = find_duplicates(table([*images, darker, images[1]]))
    assert group.kind == "exact" and [copy.row for copy in group.copies] == [1, 5]


def painted(image: Image.Image, box: tuple[int, int, int, int], colour: tuple[int, int, int]) -> Image.Image:
    other = image.copy()
    other.paste(colour, box)
    return other


DIFFERENT: dict[str, Callable[[Image.Image], Image.Image]] = {
    "another object in the same scene": lambda image: painted(image, (40, 40, 52, 52), (120, 60, 200)),
    "another colour of the same brightness": lambda image: recoloured(image),
    "another part of the photo": lambda image: image.crop((24, 0, 96, 72)),
}


def recoloured(image: Image.Image) -> Image.Image:
    brightness, blue, red = image.convert("YCbCr").split()
    return Image.merge("YCbCr", (brightness, red, blue)).convert("RGB")


@pytest.mark.parametrize("difference", DIFFERENT)
def test_similar_photos_are_no_copies(difference: str) -> None:
    originals = [picture(seed) for seed in range(6)]
    similar = [pixels(DIFFERENT[difference](image), 96) for image in originals]
    assert find_duplicates(table([pixels(image, 96) for image in originals] + similar)) == ()


@pytest.mark.parametrize("edges", [(5, 5, 91, 91), (5, 0, 96, 96), (0, 0, 96, 91), (0, 0, 91, 91)])
def test_five_per_cent_cropped_at_any_edge_are_found(edges: tuple[int, int, int, int]) -> None:
    originals = [detailed(seed) for seed in range(12)]
    copies = [pixels(saved_again(image.crop(edges), 70), 96) for image in originals]
    groups = find_duplicates(table([pixels(image, 96) for image in originals] + copies))
    assert [[copy.row for copy in group.copies] for group in groups] == [[i, 12 + i] for i in range(12)]


def detailed(seed: int) -> Image.Image:
    """As much detail as a photo of leaves."""
    noise = np.random.default_rng(seed).integers(0, 256, (40, 40, 3), dtype=np.uint8)
    fine = Image.fromarray(noise).resize((96, 96), Image.Resampling.BICUBIC)
    return Image.blend(picture(seed), fine, 0.3)


def test_registration_finds_the_box() -> None:
    image = picture(5, 192)
    whole = registration.reduce_images(np.asarray(image)[None], 96)
    part = registration.reduce_images(np.asarray(image.crop((12, 6, 186, 180)))[None], 96)
    box = registration._register(whole[:, 0], part[:, 0], np.array([[0.05, 0.05, 0.9, 0.9]]), 16, 5)
    box = registration._register(whole[:, 0], part[:, 0], box, 32, 3)
    assert np.allclose(box, [[6 / 192, 12 / 192, 174 / 192, 174 / 192]], atol=2e-3)


def test_cells_average_the_pixels() -> None:
    matrix = registration.reduce_cells(2, 3)
    assert np.allclose(matrix @ [3, 6, 9], [(3 + 6 / 2) / 1.5, (9 + 6 / 2) / 1.5])
    assert np.allclose(registration.reduce_cells(2, 10, 0.2, 0.6) @ np.arange(10), [2.5, 4.5])


def test_without_images_or_copies() -> None:
    nothing = ImageTable(np.zeros((0, 4, 4, 3), np.uint8), np.zeros(0, np.int64), ("a", "b"))
    assert find_duplicates(nothing) == () and find_duplicates(nothing, nothing) == ()
    assert find_duplicates(table([pixels(picture(0)), pixels(picture(1))])) == ()


def test_thousands_of_frames_of_one_scene_are_one_group() -> None:
    scene = pixels(picture(0)).astype(int)
    random = np.random.default_rng(0)
    frames = [(scene + random.integers(-2, 3, scene.shape)).clip(0, 255).astype(np.uint8) for _ in range(300)]
    (group,) = find_duplicates(table(frames))
    assert len(group.copies) == 300


def test_of_very_many_images_a_part_of_the_pool_is_compared(monkeypatch: pytest.MonkeyPatch) -> None:
    """Equal pixels are found among all, near copies among the test images, the labelled ones and some of the pool."""
    originals = [picture(seed) for seed in range(20)]
    learnt = [pixels(image) for image in originals]
    tested = [pixels(saved_again(originals[seed], 40)) for seed in (0, 7)]
    train, test = table([*learnt, learnt[13]], [0, *[-1] * 20]), table(tested, [0, 0])
    assert len(find_duplicates(train, test)) == 3
    monkeypatch.setattr(duplicates, "MAX_COMPARED", 5)  # two test images, a labelled one, the ends of the pool
    assert [group.copies for group in find_duplicates(train, test)] == [
        (Copy("test", 0, 0), Copy("labelled", 0, 0)),
        (Copy("pool", 13, None), Copy("pool", 20, None)),
    ]
