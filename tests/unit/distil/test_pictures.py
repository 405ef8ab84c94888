"""More pictures of photos: what the backbone makes of them, what is left out, what is found again, what is refused."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from unissl.augment import AugmentConfig, normalise
from unissl.data import DataConfig
from unissl.data.decode import decode
from unissl.data.fit import COVER, Fit, Whole
from unissl.data.folder import load_folder
from unissl.distil import pictures as module
from unissl.distil.pictures import ZOOM, MoreMaps, Pictures, picture_size, pictures
from unissl.errors import UserError
from unissl.features import BATCH, backbone, first_stages
from unissl.nets.half import cpu_computes_in_half
from unissl.nets.pretrained import MEAN, STD, WEIGHTS
from unissl.types import ImageTable

LITE0 = "efficientnet-lite0"
SIZE = 40
CPU = torch.device("cpu")
MIRRORED, AS_IT_IS = AugmentConfig(pad=2, flip=True), AugmentConfig(pad=2, flip=False)

needs_weights = pytest.mark.skipif(
    importlib.util.find_spec(WEIGHTS[LITE0].package) is None, reason="needs the extra 'photos'"
)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    rng = np.random.default_rng(0)
    for number in range(BATCH + 3):
        place = tmp_path / "photos" / ("ab"[number % 2] if number < 4 else "unlabelled")
        place.mkdir(parents=True, exist_ok=True)
        coarse = rng.integers(0, 256, (6, 9, 3), dtype=np.uint8)
        Image.fromarray(coarse).resize((90, 60), Image.Resampling.BILINEAR).save(place / f"{number:02}.png")
    (tmp_path / "photos" / "unlabelled" / "10broken.png").write_bytes(b"no image")
    return tmp_path / "photos"


@pytest.fixture
def table(root: Path) -> ImageTable:
    return load_folder(DataConfig(name="folder", root=str(root), size=SIZE)).train


def made(table: ImageTable, augment: AugmentConfig = MIRRORED, *, from_files: bool = True) -> Pictures:
    return pictures(table, LITE0, augment, CPU, from_files=from_files)


def vector(pixels: np.ndarray) -> np.ndarray:
    """Of one image, alone."""
    with torch.no_grad():
        shown = normalise(torch.from_numpy(np.array(pixels))[None], (MEAN,) * 3, (STD,) * 3)
        return backbone(LITE0, 3)(shown).feat[0].numpy()


@needs_weights
def test_every_picture_against_one_image_at_a_time(table: ImageTable, root: Path, in_float32: None) -> None:
    """Over the end of a batch and behind a file that was left out."""
    seen = made(table)
    assert seen.mirrored is not None and seen.mirror_maps is not None and len(seen.others) == 2
    assert table.files is not None and picture_size(SIZE) == 32
    fits: tuple[Callable[..., Image.Image], ...] = (Fit(middle=ZOOM), Whole())
    for row in (0, 20, BATCH + 2):
        file = str(root / table.files[row])
        np.testing.assert_array_equal(table.images[row], decode(file, SIZE, 3, COVER))
        np.testing.assert_allclose(seen.mirrored[row], vector(table.images[row][:, ::-1]), rtol=1e-3, atol=1e-4)
        for fit, vectors in zip(fits, seen.others, strict=True):
            np.testing.assert_allclose(vectors[row], vector(decode(file, 32, 3, fit)), rtol=1e-3, atol=1e-4)
        with torch.no_grad():
            flipped = torch.from_numpy(np.array(table.images[row][:, ::-1]))[None]
            entering = first_stages(backbone(LITE0, 3))(normalise(flipped, (MEAN,) * 3, (STD,) * 3))[0]
        np.testing.assert_allclose(seen.mirror_maps[row, 0], entering.permute(1, 2, 0).numpy(), rtol=1e-2, atol=1e-2)


@needs_weights
@pytest.mark.skipif(not cpu_computes_in_half(), reason="needs a CPU that computes in bfloat16")
def test_half_precision_is_near(table: ImageTable, request: pytest.FixtureRequest) -> None:
    half = made(table)
    request.getfixturevalue("in_float32")
    exact = made(table)
    for quick, slow in zip((half.mirrored, *half.others), (exact.mirrored, *exact.others), strict=True):
        assert quick is not None and slow is not None
        assert 0 < np.linalg.norm(quick - slow) / np.linalg.norm(slow) < 0.1


@needs_weights
def test_what_does_not_apply_is_left_out(table: ImageTable) -> None:
    assert made(table, AS_IT_IS, from_files=False) == Pictures(None, None, ())
    turned = made(table, AS_IT_IS)
    assert turned.mirrored is None and turned.mirror_maps is None and len(turned.others) == 2
    without = made(replace(table, originals=None))
    assert without.mirrored is not None and without.others == ()
    assert np.array_equal(made(table, from_files=False).mirrored, without.mirrored)
    assert np.array_equal(turned.others[0], made(table).others[0])


@needs_weights
def test_a_second_call_asks_neither_files_nor_backbone(table: ImageTable, monkeypatch: pytest.MonkeyPatch) -> None:
    first = made(table)

    def forbidden(*given: object, **named: object) -> None:
        raise AssertionError("asked again")

    monkeypatch.setattr(module, "backbone", forbidden)
    again = made(replace(table, originals=forbidden))  # type: ignore[arg-type]
    assert np.array_equal(again.mirrored, first.mirrored) and np.array_equal(again.others[1], first.others[1])


@needs_weights
def test_a_file_that_is_gone_is_named(table: ImageTable, root: Path) -> None:
    (root / "unlabelled" / "11.png").unlink()
    with pytest.raises(UserError, match=r"unlabelled/11\.png could be read before .*does not exist.*put it back"):
        made(table)


@pytest.mark.parametrize(("size", "smaller"), [(96, 80), (128, 96), (160, 128), (192, 160), (224, 176), (8, 16)])
def test_sizes_of_pictures(size: int, smaller: int) -> None:
    assert picture_size(size) == smaller


def test_maps_side_by_side_are_as_one_array() -> None:
    maps = np.random.default_rng(0).normal(size=(5, 4, 2, 2, 3)).astype(np.float16)
    both = MoreMaps(maps[:, :3], maps[:, 3:])
    rows, views = np.array([4, 0, 0, 2]), np.array([3, 2, 3, 0])
    assert both.shape == maps.shape and len(both) == 5
    assert np.array_equal(both[rows, views], maps[rows, views])
    assert np.array_equal(both[rows, np.zeros(4, dtype=np.int64)], maps[rows, 0])
