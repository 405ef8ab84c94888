"""Parquet files in the Hugging Face layout, written with pyarrow alone."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from PIL import Image

from unissl.data import DataConfig, Dataset, load
from unissl.data.images.decode import decode
from unissl.data.images.issues import MESSAGES, ImageIssue, merge_issues
from unissl.data.sources.parquet import _Columns
from unissl.data.store import decode_to_cache as store
from unissl.errors import UserError

NAMES = ["cat", "dog", "owl"]


def png(value: int, size: tuple[int, int] = (4, 4), mode: str = "RGB") -> bytes:
    colour: Any = (value, 255 - value, 7) if mode == "RGB" else value
    buffer = io.BytesIO()
    Image.new(mode, size, colour).save(buffer, "PNG")
    return buffer.getvalue()


def encoded(pixels: npt.NDArray[np.uint8]) -> bytes:
    buffer = io.BytesIO()
    Image.fromarray(pixels).save(buffer, "PNG")
    return buffer.getvalue()


def write(
    path: Path,
    images: list[bytes | None],
    labels: list[int | None],
    names: list[str] | None = NAMES,
    image: str = "img",
    label: str = "label",
) -> Path:
    struct = pa.struct([("bytes", pa.binary()), ("path", pa.string())])
    column = pa.array([{"bytes": data, "path": None} for data in images], type=struct)
    table = pa.table({image: column, label: pa.array(labels, type=pa.int64())})
    if names is not None:
        features = {image: {"_type": "Image"}, label: {"names": names, "_type": "ClassLabel"}}
        table = table.replace_schema_metadata({"huggingface": json.dumps({"info": {"features": features}})})
    pq.write_table(table, path, row_group_size=3)
    return path


def parquet(root: Path, **settings: Any) -> Dataset:
    return load(DataConfig(name="parquet", root=str(root), **settings))


def test_folder_with_train_and_test(tmp_path: Path) -> None:
    write(tmp_path / "train.parquet", [png(v) for v in (10, 20, 30, 40)], [0, 1, 2, 1])
    write(tmp_path / "test.parquet", [png(50)], [2])
    dataset = parquet(tmp_path)
    assert dataset.train.images.shape == (4, 4, 4, 3)
    assert dataset.train.images[:, 3, 2].tolist() == [[10, 245, 7], [20, 235, 7], [30, 225, 7], [40, 215, 7]]
    assert dataset.train.labels.tolist() == [0, 1, 2, 1] and dataset.train.class_names == ("cat", "dog", "owl")
    assert dataset.test is not None and dataset.test.images[0, 0, 0].tolist() == [50, 205, 7]
    assert dataset.mean == tuple(round(m / 255, 4) for m in (25, 230, 7))
    assert dataset.std == (round(125**0.5 / 255, 4),) * 2 + (1.0,)  # blue is constant
    assert dataset.flip


def test_shards_in_order_and_validation_for_test_one_folder_down(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    write(tmp_path / "data" / "train-00001-of-00002.parquet", [png(3)], [2], image="image")
    write(tmp_path / "data" / "train-00000-of-00002.parquet", [png(1), png(2)], [0, 1], image="image")
    write(tmp_path / "data" / "validation-00000-of-00001.parquet", [png(9)], [1], image="image")
    dataset = parquet(tmp_path)
    assert dataset.train.images[:, 0, 0, 0].tolist() == [1, 2, 3] and dataset.train.labels.tolist() == [0, 1, 2]
    assert dataset.test is not None and dataset.test.labels.tolist() == [1]


def test_single_file_has_no_test_unless_named(tmp_path: Path) -> None:
    one = write(tmp_path / "images.parquet", [png(1), png(2)], [0, 1])
    two = write(tmp_path / "others.parquet", [png(5)], [1], names=None)
    assert parquet(one).test is None
    test = parquet(one, test=str(two)).test
    assert test is not None and test.class_names == ("cat", "dog", "owl")


def test_grey_images_have_one_channel_and_so_has_the_test_part(tmp_path: Path) -> None:
    grey_rgb = Image.new("RGB", (4, 4), (9, 9, 9))
    buffer = io.BytesIO()
    grey_rgb.save(buffer, "PNG")
    write(tmp_path / "train.parquet", [png(10, mode="L"), buffer.getvalue()], [0, 1])
    write(tmp_path / "test.parquet", [png(255)], [0])
    dataset = parquet(tmp_path)
    assert dataset.train.images[:, 0, 0].tolist() == [[10], [9]]
    assert dataset.test is not None and dataset.test.images[0, 0, 0].tolist() == [77]  # .299 * 255 + .114 * 7
    assert len(dataset.mean) == 1


@pytest.mark.parametrize(("sizes", "side"), [([(6, 6), (6, 6)], 6), ([(6, 6), (8, 8)], 32), ([(6, 4), (6, 4)], 32)])
def test_size_left_out(tmp_path: Path, sizes: list[tuple[int, int]], side: int) -> None:
    path = write(tmp_path / "a.parquet", [png(1, size) for size in sizes], [0, 1])
    assert parquet(path).train.images.shape[1:3] == (side, side)


def test_size_given(tmp_path: Path) -> None:
    path = write(tmp_path / "a.parquet", [png(1, (6, 8)), png(2)], [0, 1])
    assert parquet(path, image_size=5).train.images.shape == (2, 5, 5, 3)


def test_names_default_to_numbers_and_null_is_unlabelled(tmp_path: Path) -> None:
    path = write(tmp_path / "a.parquet", [png(1), png(2), png(3)], [1, None, -1], names=None, label="fine_label")
    train = parquet(path).train
    assert train.class_names == ("0", "1") and train.labels.tolist() == [1, -1, -1]


def test_unreadable_pool_image_is_skipped_and_listed(tmp_path: Path) -> None:
    path = write(tmp_path / "a.parquet", [png(1), b"junk", png(2), None], [0, -1, 1, -1])
    train = parquet(path).train
    assert train.images[:, 0, 0, 0].tolist() == [1, 2] and train.labels.tolist() == [0, 1]
    assert train.skipped == (
        (f"{path} row 1", "not an image that Pillow can read"),
        (f"{path} row 3", "the file is empty"),
    )


def test_unreadable_labelled_image_stops(tmp_path: Path) -> None:
    path = write(tmp_path / "a.parquet", [png(1), b"junk"], [0, 1])
    with pytest.raises(UserError, match=r"a\.parquet row 1 cannot be read"):
        parquet(path)


@pytest.mark.parametrize("holdout", [None, 3])
def test_originals_are_the_files_of_the_rows(holdout: int | None, tmp_path: Path) -> None:
    """In their order and from all files, without what cannot be read or is held out."""
    for number in (0, 1):
        images = [png(60 * number + 5 * row, (6, 4)) for row in range(8)]
        write(tmp_path / f"train-{number}.parquet", [*images[:6], b"no image", images[7]], [0, 1, 2, 0, 1, 2, None, 1])
    train = parquet(tmp_path, image_size=4, test_holdout=holdout).train
    assert train.originals is not None and len(train) == 14 - (holdout or 0)
    again = [decode(original, 4, 3) for original in train.originals()]
    assert np.array_equal(np.stack(again), train.images)
    assert np.array_equal(np.stack([decode(original, 4, 3) for original in train.originals()]), train.images)


@pytest.mark.parametrize("holdout", [None, 3])
def test_odd_images_are_told_of_by_their_row(holdout: int | None, tmp_path: Path) -> None:
    """Whatever is not read or held out before them."""
    noise = np.random.default_rng(0).integers(0, 256, (9, 20, 20, 3), dtype=np.uint8)
    images = [encoded(image) for image in noise]
    images[0], images[4], images[7] = b"no image", encoded(noise[4, :3, :3]), encoded(noise[7, :3, :3])
    path = write(tmp_path / "a.parquet", images, [None, 0, 1, 0, 1, 0, 1, None, 0])
    dataset = parquet(path, image_size=16, test_holdout=holdout)
    told = merge_issues([table.issues for table in (dataset.train, dataset.test) if table is not None])
    assert {text: sorted(rows) for text, rows in told.items()} == {
        MESSAGES[ImageIssue.TINY]: [f"{path} row 4", f"{path} row 7"]
    }


def test_holdout_is_disjoint_fixed_and_labelled(tmp_path: Path) -> None:
    labels = [0, 1, 2, -1] * 5
    path = write(tmp_path / "a.parquet", [png(v) for v in range(20)], labels)
    dataset = parquet(path, test_holdout=6)
    assert dataset.test is not None
    train, test = dataset.train.images[:, 0, 0, 0].tolist(), dataset.test.images[:, 0, 0, 0].tolist()
    assert sorted(labels[v] for v in test) == [0, 0, 1, 1, 2, 2]
    again = parquet(path, test_holdout=6).test
    assert again is not None and again.images[:, 0, 0, 0].tolist() == test
    assert train == sorted(set(range(20)) - set(test))
    assert dataset.train.labels.tolist() == [labels[v] for v in train]
    assert dataset.test.labels.tolist() == [labels[v] for v in test]
    with pytest.raises(UserError, match=r"of 15 labelled images 9 can be held out"):
        parquet(path, test_holdout=15)


def test_warm_load_decodes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write(tmp_path / "a.parquet", [png(1), png(2)], [0, 1])
    cold = parquet(path)
    monkeypatch.delattr(store, "decode_stream")
    monkeypatch.setattr(pq, "ParquetFile", None)
    warm = parquet(path)
    assert np.array_equal(cold.train.images, warm.train.images) and cold.mean == warm.mean
    assert cold.train.labels.tolist() == warm.train.labels.tolist()


def test_cifar10_as_parquet_gets_its_published_moments(tmp_path: Path) -> None:
    names = [f"class {i}" for i in range(10)]
    write(tmp_path / "train.parquet", [png(1), png(2)], [0, 9], names=names)
    write(tmp_path / "test.parquet", [png(3)], [5], names=names)
    dataset = load(DataConfig(name="cifar10", root=str(tmp_path)))
    assert dataset.name == "cifar10" and dataset.mean == (0.485, 0.456, 0.406)
    with pytest.raises(UserError, match="has 10 classes, so it is not cifar100"):
        load(DataConfig(name="cifar100", root=str(tmp_path)))


def test_no_more_than_a_row_group_is_in_memory(tmp_path: Path) -> None:
    """Pools of millions of images are read from parquet files; asked for all row groups, pyarrow keeps every one."""
    group = 3 * 100_000
    images: list[bytes | None] = [bytes([number]) * 100_000 for number in range(60)]
    path = write(tmp_path / "large.parquet", images, [0, 1] * 30)
    before, most, count = pa.total_allocated_bytes(), 0, 0
    for image in _Columns.of(path).images():
        most, count = max(most, pa.total_allocated_bytes() - before), count + 1
        assert len(image) == 100_000
    assert count == 60 and most < 4 * group


def test_a_file_that_is_no_parquet(tmp_path: Path) -> None:
    (tmp_path / "train.parquet").write_bytes(b"PAR1 but not really")
    with pytest.raises(UserError, match="is not an intact parquet file"):
        parquet(tmp_path)


def test_a_file_with_a_spoilt_page(tmp_path: Path) -> None:
    path = write(tmp_path / "train.parquet", [png(1), png(2)], [0, 1])
    content = bytearray(path.read_bytes())
    content[4:24] = b"\xff" * 20  # the header of the first page, right after the magic number
    path.write_bytes(content)
    with pytest.raises(UserError, match="is not an intact parquet file") as caught:
        parquet(path)
    assert "\n" not in str(caught.value)


def test_places_without_data(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="--root"):
        load(DataConfig(name="parquet"))
    with pytest.raises(UserError, match="There is no file or folder"):
        parquet(tmp_path / "nowhere")
    with pytest.raises(UserError, match="holds no parquet file"):
        parquet(tmp_path)
    write(tmp_path / "test.parquet", [png(1)], [0])
    with pytest.raises(UserError, match="test files only"):
        parquet(tmp_path)


def test_wrong_columns(tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    pq.write_table(pa.table({"img": ["text"], "label": [1]}), path)
    with pytest.raises(UserError, match="must be a struct"):
        parquet(path)
    pq.write_table(pa.table({"picture": ["text"], "label": [1]}), path)
    with pytest.raises(UserError, match="has the columns picture, label"):
        parquet(path)
    pq.write_table(pa.table({"img": [{"bytes": b"", "path": ""}], "label": ["cat"]}), path)
    with pytest.raises(UserError, match="must hold whole numbers"):
        parquet(path)


@pytest.mark.parametrize(
    ("labels", "names", "sentence"),
    [
        ([0, 3], NAMES, "labels outside 0 to 2"),
        ([0, -2], NAMES, "labels outside 0 to 2"),
        ([0, 0], ["cat"], "at least two classes"),
        ([-1, -1], None, "at least two classes"),
    ],
)
def test_wrong_labels(tmp_path: Path, labels: list[int | None], names: list[str] | None, sentence: str) -> None:
    path = write(tmp_path / "a.parquet", [png(1), png(2)], labels, names=names)
    with pytest.raises(UserError, match=sentence):
        parquet(path)


def test_test_file_that_does_not_fit(tmp_path: Path) -> None:
    train = write(tmp_path / "a.parquet", [png(1), png(2)], [0, 1])
    other = write(tmp_path / "b.parquet", [png(1)], [0], names=["dog", "cat", "owl"])
    with pytest.raises(UserError, match="other class names"):
        parquet(train, test=str(other))
    hidden = write(tmp_path / "c.parquet", [png(1)], [-1])
    with pytest.raises(UserError, match="has unlabelled rows"):
        parquet(train, test=str(hidden))
    with pytest.raises(UserError, match="leave out --holdout "):
        parquet(train, test=str(other), test_holdout=1)


def test_empty_file(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="holds no rows"):
        parquet(write(tmp_path / "a.parquet", [], []))
