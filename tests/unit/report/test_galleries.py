"""Which images are chosen, and that the page holds the right pixels."""

from __future__ import annotations

import base64
import io
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest
from PIL import Image

from unissl.report import galleries
from unissl.report.label_issues import LabelIssues
from unissl.report.outliers import Outliers, outliers_by_score
from unissl.types import ImageTable


def decoded(source: str) -> npt.NDArray[np.uint8]:
    return np.asarray(Image.open(io.BytesIO(base64.b64decode(source.partition(",")[2]))))


def table_of(images: npt.NDArray[np.uint8], files: tuple[str, ...] | None = None) -> ImageTable:
    return ImageTable(images, np.zeros(len(images), dtype=np.int64), ("cat", "dog"), files)


@pytest.mark.parametrize("channels", [1, 3])
def test_small_images_lose_nothing(channels: int) -> None:
    pixels = np.random.default_rng(0).integers(0, 256, (32, 32, channels), dtype=np.uint8)
    source = galleries.data_uri(pixels)
    assert source.startswith("data:image/png;base64,")
    assert np.array_equal(decoded(source).reshape(pixels.shape), pixels)


def test_large_images_become_small_jpegs() -> None:
    source = galleries.data_uri(np.full((300, 200, 3), 90, dtype=np.uint8))
    assert source.startswith("data:image/jpeg;base64,")
    assert decoded(source).shape == (112, 75, 3) and abs(int(decoded(source).mean()) - 90) <= 2


def test_extremes_against_sorting() -> None:
    classes = np.array([0, 1, 0, 0, 1, 0, 0, 0, 0, 0])
    confidence = np.array([0.5, 0.9, 0.1, 0.8, 0.2, 0.7, 0.3, 0.9, 0.6, 0.4], dtype=np.float32)
    most, least = galleries.confidence_extremes(classes, confidence, 0, 3)
    ranked = sorted(np.flatnonzero(classes == 0).tolist(), key=lambda i: -confidence[i])
    assert most.tolist() == ranked[:3] and least.tolist() == ranked[::-1][:3]


@pytest.mark.parametrize("members", [0, 1, 2, 3, 7])
def test_no_image_is_both_sure_and_unsure(members: int) -> None:
    most, least = galleries.confidence_extremes(
        np.zeros(members, np.int64), np.linspace(0, 1, members, dtype=np.float32), 0, 4
    )
    both = [*most.tolist(), *least.tolist()]
    assert len(both) == len(set(both)) == members


def test_of_many_classes_those_with_the_most_uncertain_images() -> None:
    classes = np.array([0, 0, 1, 2, 2, 4])
    confidence = np.array([0.9, 0.9, 0.5, 0.1, 0.8, 0.95], dtype=np.float32)
    assert galleries.most_uncertain_classes(classes, confidence, 6, 2) == [1, 2]
    assert galleries.most_uncertain_classes(classes, confidence, 6, 9) == [0, 1, 2, 4], "empty classes have no images"


def test_thumbnails_come_from_files_and_else_from_the_table(tmp_path: Path) -> None:
    Image.new("RGB", (300, 200), (200, 10, 10)).save(tmp_path / "red.png")
    thumbnails = galleries.Thumbnails(
        table_of(np.zeros((2, 8, 8, 3), np.uint8), ("red.png", "gone.png")), str(tmp_path)
    )
    red, gone = thumbnails.with_captions([0, 1], ["confidence 80 %", "confidence 20 %"], "predicted cat, ")
    assert decoded(red.source).shape == (112, 112, 3) and decoded(red.source)[50, 50].tolist()[0] > 190
    assert decoded(gone.source).shape == (8, 8, 3)
    assert red.alt == "red.png: predicted cat, confidence 80 %" and red.caption == "confidence 80 %"
    assert not thumbnails.is_coarse


def test_tables_without_files_are_shown_as_they_are() -> None:
    thumbnails = galleries.Thumbnails(table_of(np.full((1, 8, 8, 1), 7, np.uint8)), "/nowhere")
    (only,) = thumbnails.with_captions([0], ["x"])
    assert only.alt == "image 0: x" and decoded(only.source).tolist() == [[7] * 8] * 8
    assert thumbnails.is_coarse


def test_possible_label_errors_are_in_order() -> None:
    thumbnails = galleries.Thumbnails(table_of(np.zeros((9, 4, 4, 3), np.uint8)), None)
    rows, labels = np.array([5, 6, 7, 8]), np.array([0, 1, 0, 0])
    issues = LabelIssues(np.array([1, 0, 1, 1]), np.array([0.4, 0.9, 0.3, -1], dtype=np.float32))
    shown = galleries.label_issue_gallery(thumbnails, rows, labels, issues, ["cat", "dog"])
    assert [p.alt for p in shown] == [
        "image 6: labelled dog, predicted cat",
        "image 5: labelled cat, predicted dog",
    ]


def outliers_of(score: npt.NDArray[np.float64]) -> Outliers:
    return outliers_by_score(score.astype(np.float32), np.zeros(len(score), np.int64))


def test_outliers_are_shown_by_score() -> None:
    thumbnails = galleries.Thumbnails(table_of(np.zeros((100, 4, 4, 3), np.uint8)), None)
    rows, score = np.arange(100)[::-1], np.linspace(0, 1, 100)
    first, more = galleries.outlier_gallery(thumbnails, rows, outliers_of(score), ["cat", "dog"])
    assert len(first) == galleries.MAX_OUTLIERS and first[0].alt == "image 0: score 1.00; nearest cat"
    assert [p.alt for p in more] == ["image 48: nearest cat", "image 49: nearest cat"], "50 are above one half"
    few, none = galleries.outlier_gallery(thumbnails, rows, outliers_of(score / 10), ["cat", "dog"])
    assert len(few) == galleries.MIN_OUTLIERS and none == []


def test_very_many_outliers_are_cut_to_a_page() -> None:
    thumbnails = galleries.Thumbnails(table_of(np.zeros((2000, 64, 64, 3), np.uint8)), None)
    first, more = galleries.outlier_gallery(thumbnails, np.arange(2000), outliers_of(np.ones(2000)), ["cat", "dog"])
    assert len(first) == galleries.MAX_OUTLIERS and len(more) == galleries.MAX_TINY
    assert decoded(more[0].source).shape == (52, 52, 3) and more[0].caption == ""
