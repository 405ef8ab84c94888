"""Features of further crops of photos: their values, their cache, and errors."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from unissl.augment import normalise
from unissl.data import DataConfig
from unissl.data.folder.load import load_folder
from unissl.data.images.decode import decode
from unissl.data.images.resize import CENTER_CROP, CenterCrop, Letterbox, Resize
from unissl.errors import UserError
from unissl.features import BATCH, load_backbone, multi_crop, multi_crop_features
from unissl.features.multi_crop import ZOOM
from unissl.nets import INPUT_MEAN, INPUT_STD, backbone_installed
from unissl.nets.bf16 import cpu_supports_bf16
from unissl.types import ImageTable

LITE0 = "efficientnet-lite0"
SIZE = 40
CPU = torch.device("cpu")

needs_weights = pytest.mark.skipif(not backbone_installed(LITE0), reason="needs the extra 'photos'")


@pytest.fixture
def root(tmp_path: Path) -> Path:
    rng = np.random.default_rng(0)
    for number in range(BATCH + 3):
        folder = tmp_path / "photos" / ("ab"[number % 2] if number < 4 else "unlabelled")
        folder.mkdir(parents=True, exist_ok=True)
        coarse = rng.integers(0, 256, (6, 9, 3), dtype=np.uint8)
        Image.fromarray(coarse).resize((90, 60), Image.Resampling.BILINEAR).save(folder / f"{number:02}.png")
    (tmp_path / "photos" / "unlabelled" / "10broken.png").write_bytes(b"no image")
    return tmp_path / "photos"


@pytest.fixture
def table(root: Path) -> ImageTable:
    return load_folder(DataConfig(name="folder", root=str(root), image_size=SIZE)).train


def feature(pixels: np.ndarray) -> np.ndarray:
    """Of one image, alone."""
    with torch.no_grad():
        shown = normalise(torch.from_numpy(np.array(pixels))[None], (INPUT_MEAN,) * 3, (INPUT_STD,) * 3)
        return load_backbone(LITE0, 3)(shown).feat[0].numpy()


@needs_weights
def test_every_crop_against_one_image_at_a_time(table: ImageTable, root: Path, in_float32: None) -> None:
    """Over the end of a batch and behind a file that was left out."""
    fits: tuple[Resize, ...] = (CenterCrop(middle=ZOOM), Letterbox())
    assert table.files is not None
    for row in (0, 20, BATCH + 2):
        file = str(root / table.files[row])
        np.testing.assert_array_equal(table.images[row], decode(file, SIZE, 3, CENTER_CROP))
        for fit, features in zip(fits, multi_crop_features(table, LITE0, CPU), strict=True):
            assert features.shape == (BATCH + 3, 1280)
            np.testing.assert_allclose(features[row], feature(decode(file, SIZE, 3, fit)), rtol=1e-3, atol=1e-4)


@needs_weights
def test_stopped_crops_continue_after_their_last_batch(
    table: ImageTable, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(multi_crop, "BATCH", 32)
    shown, really = [], multi_crop.forward_features
    with monkeypatch.context() as patch:
        patch.setenv("UNISSL_CACHE", str(tmp_path / "undisturbed"))
        whole = multi_crop_features(table, LITE0, CPU)

    def stopped(*arguments: Any, **options: Any) -> Any:
        shown.append(len(arguments[1]))
        if len(shown) == 4:
            raise KeyboardInterrupt
        return really(*arguments, **options)

    monkeypatch.setattr(multi_crop, "forward_features", stopped)
    with pytest.raises(KeyboardInterrupt):
        multi_crop_features(table, LITE0, CPU)
    again = multi_crop_features(table, LITE0, CPU)
    assert shown == [32, 32, 32, 32, 32, 32, 3, 3]  # two crops of each batch, and those of the second once more
    for one, other in zip(again, whole, strict=True):
        assert np.array_equal(one, other)


@needs_weights
@pytest.mark.skipif(not cpu_supports_bf16(), reason="needs a CPU that computes in bfloat16")
def test_half_precision_is_near(table: ImageTable, request: pytest.FixtureRequest) -> None:
    half = multi_crop_features(table, LITE0, CPU)
    request.getfixturevalue("in_float32")
    for quick, slow in zip(half, multi_crop_features(table, LITE0, CPU), strict=True):
        assert 0 < np.linalg.norm(quick - slow) / np.linalg.norm(slow) < 0.1


def test_without_files_there_are_none(table: ImageTable) -> None:
    assert multi_crop_features(replace(table, originals=None), LITE0, CPU) == ()


@needs_weights
def test_another_backbone_sees_the_centre_crop_first(table: ImageTable, in_float32: None) -> None:
    """With the crops that a call without it has, and from the pixels of the table where there are no files."""
    centre, *further = multi_crop_features(table, LITE0, CPU, centre=True)
    for row in (0, BATCH + 2):
        np.testing.assert_allclose(centre[row], feature(table.images[row]), rtol=1e-3, atol=1e-4)
    assert all(
        np.array_equal(one, two) for one, two in zip(further, multi_crop_features(table, LITE0, CPU), strict=True)
    )
    (alone,) = multi_crop_features(replace(table, originals=None), LITE0, CPU, centre=True)
    np.testing.assert_array_equal(alone, centre)


@needs_weights
def test_a_second_call_asks_neither_files_nor_backbone(table: ImageTable, monkeypatch: pytest.MonkeyPatch) -> None:
    first = multi_crop_features(table, LITE0, CPU)

    def forbidden(*given: object, **named: object) -> None:
        raise AssertionError("asked again")

    monkeypatch.setattr(multi_crop, "load_backbone", forbidden)
    again = multi_crop_features(replace(table, originals=forbidden), LITE0, CPU)  # type: ignore[arg-type]
    assert all(np.array_equal(one, two) for one, two in zip(first, again, strict=True))


@needs_weights
def test_a_file_that_is_gone_is_named(table: ImageTable, root: Path) -> None:
    (root / "unlabelled" / "11.png").unlink()
    with pytest.raises(
        UserError, match=r"unlabelled/11\.png was read before and can no longer be read .*does not exist.*restore it"
    ):
        multi_crop_features(table, LITE0, CPU)


@needs_weights
def test_a_file_that_has_changed_is_named(table: ImageTable, root: Path) -> None:
    Image.new("RGB", (90, 60), (200, 10, 10)).save(root / "unlabelled" / "11.png")
    with pytest.raises(UserError, match=r"unlabelled/11\.png has changed since it was first read"):
        multi_crop_features(table, LITE0, CPU)


@needs_weights
def test_rows_without_a_file_are_counted(table: ImageTable) -> None:
    assert table.originals is not None
    files = list(table.originals())[:5]
    with pytest.raises(UserError, match=r"62 of 67 images no longer exist; restore them"):
        multi_crop_features(replace(table, originals=lambda: iter(files)), LITE0, CPU)
