"""Parquet files in the layout of Hugging Face image data sets.

The image column is a struct of ``bytes`` and ``path`` named img or image; the label column holds whole numbers, and
their names stand in the schema's metadata under ``huggingface``, as info.features.<label column>.names.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import chain, compress, islice
from pathlib import Path
from typing import Any

import numpy as np

from unissl.data.dataset import DataConfig, Dataset, choose_holdout, numbered_classes, require_two_classes
from unissl.data.images.decode import Unreadable, image_size
from unissl.data.images.issues import describe_issues
from unissl.data.store.decode_to_cache import store_encoded
from unissl.errors import UserError, shortened
from unissl.types import UNLABELLED, ImageTable, Labels, Rows
from unissl.utils.bounded_io import parse_json
from unissl.utils.cache import Entry, cached, save_array
from unissl.utils.parquet_file import intact, open_parquet, read_columns

IMAGE_COLUMNS = ("image", "img")
LABEL_COLUMNS = ("label", "labels", "fine_label")
MIXED_SIZE = 32
READ_ROWS = 256
MAX_SAMPLED = 100
"""Images at the front that decide whether all have the same size."""


@dataclass(frozen=True)
class Parts:
    train: tuple[Path, ...]
    test: tuple[Path, ...]


def load_parquet(config: DataConfig) -> Dataset:
    """The images of ``root``; the test set is its test part, ``config.test``, or a holdout."""
    if config.root is None:
        raise UserError("Give the parquet file, or the folder that holds train*.parquet, with --root.")
    parts = _parts(Path(config.root))
    test_files = parts.test
    if config.test is not None:
        named = _parts(Path(config.test))
        test_files = named.test or named.train
    if test_files and config.test_holdout:
        raise UserError(
            "The data have a test part, so no images can be held out; leave out --holdout (data.test_holdout)."
        )
    if not parts.train:
        raise UserError(
            f"{config.root} holds test files only; add train*.parquet or give the training file with --root."
        )
    train_part = _Part(parts.train, config.test_holdout)
    entry = _entry(train_part, config.image_size)
    train = replace(_table(train_part, entry), originals=lambda: _originals(parts.train, entry))
    test = None
    if test_files or config.test_holdout:
        test_part = _Part(test_files or parts.train, config.test_holdout, train.class_names)
        test = _table(test_part, _entry(test_part, train.images.shape[1], train.images.shape[3]))
    return Dataset("parquet", train, test, tuple(entry.meta["mean"]), tuple(entry.meta["std"]), flip=True)


def parquet_test_table(path: Path, class_names: tuple[str, ...], size: int, channels: int) -> ImageTable:
    """Labelled test images of these classes."""
    parts = _parts(path)
    part = _Part(parts.test or parts.train, None, class_names)
    return _table(part, _entry(part, size, channels))


def first_images(root: Path, count: int) -> tuple[Labels, list[bytes]]:
    """The labels of the training part, and the bytes of its first ``count`` images."""
    columns = [_Columns.of(path) for path in _parts(root).train]
    if not columns:
        return np.zeros(0, dtype=np.int64), []
    return np.concatenate([column.labels() for column in columns]), list(islice(columns[0].images(), count))


def find_parquet(root: Path) -> Parts | None:
    """The training and test files at ``root`` or one folder below it; None if there are none."""
    if root.is_file():
        return Parts((root,), ()) if root.suffix == ".parquet" else None
    for pattern in ("*.parquet", "*/*.parquet"):
        files = sorted(path for path in root.glob(pattern) if not path.name.startswith("."))
        train, test, validation = (
            tuple(path for path in files if path.name.startswith(part)) for part in ("train", "test", "validation")
        )
        if files:
            others = tuple(path for path in files if path not in test + validation)
            return Parts(train or others, test or validation)
    return None


def _parts(root: Path) -> Parts:
    if not root.exists():
        raise UserError(f"There is no file or folder {root}; check the path.")
    parts = find_parquet(root)
    if parts is None:
        raise UserError(f"{root} holds no parquet file; give the file, or a folder that holds train*.parquet.")
    return parts


@dataclass(frozen=True)
class _Part:
    """Rows of files: all, those held out, or the rest. A test part has the classes of the training part."""

    files: tuple[Path, ...]
    holdout: int | None
    test_classes: tuple[str, ...] | None = None

    def rows(self, labels: Labels) -> Rows:
        if self.holdout is None:
            return np.arange(len(labels))
        test_rows = choose_holdout(labels, self.holdout)
        return test_rows if self.test_classes else np.setdiff1d(np.arange(len(labels)), test_rows)

    def name(self, row: int) -> str:
        """A name for a row, counted over all files, for messages."""
        return f"{self.files[0] if len(self.files) == 1 else self.files[0].parent} row {row}"


def _table(part: _Part, entry: Entry) -> ImageTable:
    origin = _origin(entry)
    return ImageTable(
        entry.arrays["images"],
        np.asarray(entry.arrays["labels"])[entry.arrays["rows"]],
        tuple(entry.meta["class_names"]),
        skipped=tuple((name, reason) for name, reason in entry.meta["skipped"]),
        content=entry.hashes["images"],
        issues=describe_issues(np.asarray(entry.arrays["issues"]), lambda row: part.name(origin[row])),
    )


def _origin(entry: Entry) -> Rows:
    """The row of each image, counted over all files."""
    return np.asarray(entry.arrays["origin"])[entry.arrays["rows"]]


def _originals(files: tuple[Path, ...], entry: Entry) -> Iterator[bytes]:
    """The bytes of the images of a cache entry that was built from these files."""
    return (image for _, image in _select([_Columns.of(path) for path in files], _origin(entry)))


def _entry(part: _Part, size: int | None, channels: int | None = None) -> Entry:
    """The decoded images and the labels of one part."""

    def build(target: Path) -> dict[str, Any]:
        columns = [_Columns.of(path) for path in part.files]
        every_label = np.concatenate([column.labels() for column in columns])
        class_names = _checked_classes(part, columns, every_label)
        rows = part.rows(every_label)
        labels = every_label[rows]
        save_array(target / "labels.npy", labels)
        save_array(target / "origin.npy", rows)
        meta = store_encoded(
            target,
            _select(columns, rows),
            len(rows),
            size or _common_size(columns[0]),
            channels,
            lambda row: None if labels[row] == UNLABELLED else part.name(rows[row]),
        )
        skipped = [(part.name(rows[row]), reason) for row, reason in meta["skipped"]]
        return {**meta, "class_names": class_names, "skipped": skipped}

    settings = {"holdout": part.holdout, "test_classes": part.test_classes, "size": size, "channels": channels}
    return cached("parquet", part.files, settings, build)


def _checked_classes(part: _Part, columns: Sequence[_Columns], labels: Labels) -> tuple[str, ...]:
    """The class names, after a check that files and labels agree with them."""
    where = str(part.files[0])
    if len(labels) == 0:
        raise UserError(f"{where} holds no rows; give a file with images.")
    class_names = part.test_classes or columns[0].class_names or numbered_classes(labels, where)
    for column in columns:
        if column.class_names not in (None, class_names):
            raise UserError(f"{column.path} has other class names than the other files; give files of one data set.")
    if labels.min() < UNLABELLED or labels.max() >= len(class_names):
        raise UserError(f"{where} has labels outside 0 to {len(class_names) - 1}; correct its label column.")
    if part.test_classes and part.holdout is None and labels.min() == UNLABELLED:
        raise UserError(f"The test file {where} has unlabelled rows; give a labelled file with --test.")
    require_two_classes(class_names, where)
    return class_names


@dataclass(frozen=True)
class _Columns:
    """An open parquet file with its image and label column."""

    path: Path
    file: Any
    image: str
    label: str
    class_names: tuple[str, ...] | None

    @classmethod
    def of(cls, path: Path) -> _Columns:
        import pyarrow as pa

        file = open_parquet(path)
        schema = file.schema_arrow
        image = next((name for name in IMAGE_COLUMNS if name in schema.names), None)
        label = next((name for name in LABEL_COLUMNS if name in schema.names), None)
        if image is None or label is None:
            raise UserError(
                f"{path} has the columns {shortened(', '.join(schema.names))}; it needs an image and a label column."
            )
        kind = schema.field(image).type
        inner = kind.field("bytes").type if pa.types.is_struct(kind) and kind.get_field_index("bytes") >= 0 else None
        if inner is None or not (pa.types.is_binary(inner) or pa.types.is_large_binary(inner)):
            what = shortened(str(kind))
            raise UserError(f"Column {image!r} of {path} is {what}; it must be a struct with the image's bytes.")
        if not pa.types.is_integer(schema.field(label).type):
            raise UserError(
                f"Column {label!r} of {path} is {shortened(str(schema.field(label).type))}; it must hold whole numbers."
            )
        return cls(path, file, image, label, _class_names(schema.metadata or {}, label))

    def labels(self) -> Labels:
        column = read_columns(self.path, self.file, [self.label]).column(self.label)
        with intact(self.path):
            numbers = column.cast("int64").fill_null(UNLABELLED).to_numpy()
        return np.asarray(numbers, dtype=np.int64)

    def images(self) -> Iterator[bytes]:
        """The bytes of each image in turn; empty bytes, which no decoder reads, for a row without an image."""
        read, names = 0, [f"{self.image}.bytes"]
        with intact(self.path):
            for group in range(self.file.metadata.num_row_groups):  # asked for all at once, pyarrow keeps all of them
                for batch in self.file.iter_batches(READ_ROWS, row_groups=[group], columns=names, use_threads=False):
                    batch.validate(full=True)
                    for value in batch.column(0).field("bytes"):
                        read += 1
                        yield value.as_py() or b""
        if read != self.file.metadata.num_rows:
            raise UserError(f"{self.path} does not hold the rows it announces; download it again.")


def _class_names(metadata: dict[bytes, bytes], label: str) -> tuple[str, ...] | None:
    """Names from the Hugging Face metadata, where there are any."""
    try:
        names = parse_json(metadata[b"huggingface"])["info"]["features"][label]["names"]
    except (KeyError, TypeError, ValueError):
        return None
    if not isinstance(names, list) or not all(isinstance(name, str | int) for name in names):
        return None
    texts = tuple(str(name) for name in names)
    return texts if all(text and text.isprintable() for text in texts) else None


def _select(columns: Sequence[_Columns], rows: Rows) -> Iterator[tuple[int, bytes]]:
    """The images of the ascending ``rows`` over all files, numbered from 0."""
    wanted = np.isin(np.arange(sum(column.file.metadata.num_rows for column in columns)), rows)
    return enumerate(compress(chain.from_iterable(column.images() for column in columns), wanted))


def _common_size(columns: _Columns) -> int:
    """The side of the images if those at the front are all square and alike, otherwise 32."""
    sizes = set()
    for image in islice(columns.images(), MAX_SAMPLED):
        try:
            sizes.add(image_size(image))
        except Unreadable:
            continue
    width, height = next(iter(sizes)) if len(sizes) == 1 else (0, 1)
    return width if width == height else MIXED_SIZE
