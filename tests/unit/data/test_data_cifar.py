"""CIFAR from its official archives, whose pickles are written here opcode by opcode as Python 2 wrote them."""

from __future__ import annotations

import io
import os
import pickle
import re
import struct
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from unissl.data import DataConfig, known, load
from unissl.data.sources.cifar import unpickle_batch
from unissl.errors import UserError

RNG = np.random.RandomState(0)
TRAIN = [RNG.randint(0, 256, (4, 3072), dtype=np.uint8) for _ in range(5)]
TEST = RNG.randint(0, 256, (3, 3072), dtype=np.uint8)
NAMES10 = ["airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck"]


def py2_str(text: bytes) -> bytes:
    """SHORT_BINSTRING or BINSTRING: the 8-bit strings of Python 2."""
    return b"U" + bytes([len(text)]) + text if len(text) < 256 else b"T" + struct.pack("<i", len(text)) + text


def py2_int(value: int) -> bytes:
    return b"M" + struct.pack("<H", value)


def py2_list(items: list[bytes]) -> bytes:
    return b"](" + b"".join(items) + b"e"


def py2_array(array: np.ndarray) -> bytes:
    """An uint8 array as numpy 1 under Python 2 reduced it: _reconstruct, then its state with dtype and raw bytes."""
    empty = b"cnumpy.core.multiarray\n_reconstruct\n" + b"cnumpy\nndarray\n" + b"K\x00\x85" + b"U\x01b" + b"\x87R"
    dtype = b"cnumpy\ndtype\n" + b"U\x02u1K\x00K\x01\x87R" + b"(K\x03U\x01|NNNJ\xff\xff\xff\xffJ\xff\xff\xff\xffK\x00tb"
    shape = py2_int(array.shape[0]) + py2_int(array.shape[1]) + b"\x86"
    return empty + b"(K\x01" + shape + dtype + b"\x89" + py2_str(array.tobytes()) + b"tb"


def py2_dict(items: dict[bytes, bytes]) -> bytes:
    return b"\x80\x02}(" + b"".join(py2_str(key) + value for key, value in items.items()) + b"u."


def batch(data: np.ndarray, labels: list[int], label_key: bytes = b"labels") -> bytes:
    return py2_dict(
        {
            b"batch_label": py2_str(b"a batch"),
            label_key: py2_list([py2_int(label) for label in labels]),
            b"data": py2_array(data),
            b"filenames": py2_list([py2_str(b"%d.png" % i) for i in range(len(labels))]),
        }
    )


def meta(key: bytes, names: list[str]) -> bytes:
    return py2_dict({key: py2_list([py2_str(name.encode()) for name in names]), b"num_vis": py2_int(3072)})


def cifar10_files() -> dict[str, bytes]:
    files = {f"data_batch_{i + 1}": batch(data, [i, 9, 0, 3]) for i, data in enumerate(TRAIN)}
    return {**files, "test_batch": batch(TEST, [7, 8, 9]), "batches.meta": meta(b"label_names", NAMES10)}


def cifar100_files() -> dict[str, bytes]:
    names = [f"thing {i}" for i in range(100)]
    return {
        "train": batch(TRAIN[0], [99, 0, 5, 17], b"fine_labels"),
        "test": batch(TEST, [1, 2, 3], b"fine_labels"),
        "meta": meta(b"fine_label_names", names),
    }


Publish = Callable[..., Path]


def write_folder(folder: Path, files: dict[str, bytes]) -> Path:
    folder.mkdir(parents=True)
    for name, content in files.items():
        (folder / name).write_bytes(content)
    return folder


def write_archive(path: Path, top: str, files: dict[str, bytes]) -> Path:
    with tarfile.open(path, "w:gz") as archive:
        for name, content in {"readme.html": b"<p>", **files}.items():
            member = tarfile.TarInfo(f"{top}/{name}")
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))
    return path


def as_folder(tmp_path: Path) -> Path:
    return write_folder(tmp_path / "cifar-10-batches-py", cifar10_files())


def as_archive(tmp_path: Path) -> Path:
    return write_archive(tmp_path / "cifar-10-python.tar.gz", "cifar-10-batches-py", cifar10_files())


@pytest.mark.parametrize("write", [as_folder, as_archive])
@pytest.mark.parametrize("root", ["itself", "its folder"])
def test_cifar10(tmp_path: Path, write: Callable[[Path], Path], root: str, publish: Publish) -> None:
    path = publish(write(tmp_path))
    dataset = load(DataConfig(name="cifar10", root=str(path if root == "itself" else tmp_path)))
    pixels = np.concatenate(TRAIN)
    assert dataset.train.images.shape == (20, 32, 32, 3)
    for row, y, x, c in [(0, 0, 0, 0), (5, 3, 7, 1), (19, 31, 30, 2)]:
        assert dataset.train.images[row, y, x, c] == pixels[row, c * 1024 + y * 32 + x]
    assert dataset.train.labels.tolist() == [label for i in range(5) for label in (i, 9, 0, 3)]
    assert dataset.test is not None and dataset.test.labels.tolist() == [7, 8, 9]
    assert dataset.test.images[2, 1, 2, 1] == TEST[2, 1024 + 34]
    assert dataset.train.class_names == tuple(NAMES10)
    assert dataset.mean == (0.485, 0.456, 0.406) and dataset.std == (0.229, 0.224, 0.225)
    assert dataset.flip


def test_cifar100_has_fine_labels_and_its_own_mean_and_std(tmp_path: Path, publish: Publish) -> None:
    publish(write_archive(tmp_path / "cifar-100-python.tar.gz", "cifar-100-python", cifar100_files()))
    dataset = load(DataConfig(name="cifar100", root=str(tmp_path), image_size=16))
    assert dataset.train.labels.tolist() == [99, 0, 5, 17]
    assert dataset.train.class_names[17] == "thing 17" and dataset.train.num_classes == 100
    assert dataset.train.images.shape == (4, 16, 16, 3)
    assert dataset.mean == pytest.approx((0.50706, 0.48667, 0.44078), abs=1e-5)
    assert dataset.std == pytest.approx((0.26745, 0.25647, 0.27608), abs=1e-5)


def test_found_in_the_data_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, publish: Publish) -> None:
    with pytest.raises(UserError, match=r"cifar-10-python\.tar\.gz.*cifar-10-batches-py.*UNISSL_DATA.*--root"):
        load(DataConfig(name="cifar10"))
    monkeypatch.setenv("UNISSL_DATA", str(tmp_path))
    assert not {card.name: card.present for card in known()}["cifar10"]
    publish(as_archive(tmp_path))
    present = {card.name for card in known() if card.present}
    assert present - {"fashion-mnist"} == {"digits", "cifar10"}
    assert len(load(DataConfig(name="cifar10")).train) == 20
    with pytest.raises(UserError, match="there is nothing in"):
        load(DataConfig(name="cifar100", root=str(tmp_path)))


class Payload:
    def __init__(self, call: Callable[..., Any], *arguments: Any) -> None:
        self.reduced = call, arguments

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[Any, ...]]:
        return self.reduced


@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
def test_a_pickle_that_would_run_a_command_is_refused(tmp_path: Path, protocol: int) -> None:
    trace = tmp_path / "trace"
    content = pickle.dumps({"data": Payload(os.system, f"touch {trace}")}, protocol=protocol)
    with pytest.raises(UserError, match=r"data_batch_1 is not an official batch \((posix|nt)\.system\); delete it"):
        unpickle_batch(io.BytesIO(content), "data_batch_1")
    assert not trace.exists()


@pytest.mark.parametrize(
    "reference",
    [
        b"cbuiltins\neval\n",
        b"cbuiltins\ngetattr\n",
        b"cnumpy\nload\n",
        b"cnumpy.core.multiarray\nscalar\n",
        b"c_codecs\ndecode\n",
    ],
)
def test_nothing_else_is_known(reference: bytes) -> None:
    with pytest.raises(UserError, match="is not an official batch"):
        unpickle_batch(io.BytesIO(b"\x80\x02" + reference + b"."), "x")


@pytest.mark.parametrize("write", [as_folder, as_archive])
def test_a_file_with_another_checksum_is_not_parsed(
    tmp_path: Path, write: Callable[[Path], Path], publish: Publish, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = publish(write(tmp_path))
    changed = path if path.is_file() else path / "batches.meta"
    changed.write_bytes(changed.read_bytes() + b"!")
    monkeypatch.setattr("tarfile.open", None)
    sentence = r"is not the published cifar-10-.* \(its MD5 is \w{32}, the published one \w{32}\); download it again\."
    with pytest.raises(UserError, match=re.escape(str(changed)) + " " + sentence):
        load(DataConfig(name="cifar10", root=str(path)))


def test_batch_missing_from_a_folder(tmp_path: Path, publish: Publish) -> None:
    path = publish(as_folder(tmp_path))
    (path / "data_batch_4").unlink()
    with pytest.raises(UserError, match=r"data_batch_4 cannot be read"):
        load(DataConfig(name="cifar10", root=str(path)))


@pytest.mark.parametrize("content", [b"no archive", b""])
def test_another_file_is_not_taken_for_the_archive(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "other.tar.gz"
    path.write_bytes(content)
    with pytest.raises(
        UserError, match=r"other\.tar\.gz is not the published cifar-10-python\.tar\.gz .*download it again"
    ):
        load(DataConfig(name="cifar10", root=str(path)))
