"""Matlab files as scipy writes them, and what is no such file."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from scipy.io import savemat

from unissl.data.formats.mat5 import Damaged, find_arrays, read_array

RNG = np.random.default_rng(0)
ARRAYS = {
    "X": RNG.integers(0, 256, (4, 5, 3, 7), dtype=np.uint8),
    "y": RNG.integers(1, 11, (7, 1), dtype=np.uint8),
    "one": np.array([[3]], np.int16),
    "none": np.zeros((0, 4)),
    "real": RNG.normal(size=(3, 2)),
    "single": RNG.normal(size=(2, 3)).astype(np.float32),
    "long": RNG.integers(-(2**40), 2**40, (2, 2)),
    "many": RNG.integers(0, 256, (700, 2000), dtype=np.uint8),
}


def written(path: Path, *, compressed: bool) -> Path:
    savemat(path, ARRAYS, do_compression=compressed)
    return path


@pytest.mark.parametrize("compressed", [False, True])
def test_arrays_come_back_as_scipy_wrote_them(tmp_path: Path, compressed: bool) -> None:
    path = written(tmp_path / "some.mat", compressed=compressed)
    found = find_arrays(path)
    assert {name: shape for name, (shape, _) in found.items()} == {name: a.shape for name, a in ARRAYS.items()}
    kinds = {"uint8": "uint8", "int16": "int16", "float64": "double", "float32": "single", "int64": "int64"}
    for name, array in ARRAYS.items():
        assert found[name][1] == kinds[array.dtype.name]
        read = read_array(path, name)
        assert read.shape == array.shape and np.array_equal(read, array)


def test_what_is_no_array_of_numbers_is_named_and_not_read(tmp_path: Path) -> None:
    savemat(tmp_path / "some.mat", {"text": "abc", "complex": np.array([[1 + 2j]])})
    assert {kind for _, kind in find_arrays(tmp_path / "some.mat").values()} == {"other"}
    for name in ("text", "complex"):
        with pytest.raises(Damaged, match=f"{name} is no array of numbers"):
            read_array(tmp_path / "some.mat", name)
    with pytest.raises(Damaged, match="has no array y"):
        read_array(tmp_path / "some.mat", "y")


@pytest.mark.parametrize("compressed", [False, True])
def test_a_file_cut_anywhere_is_damaged_or_ends_early(tmp_path: Path, compressed: bool) -> None:
    whole = written(tmp_path / "whole.mat", compressed=compressed).read_bytes()
    cut = tmp_path / "cut.mat"
    for length in [*range(0, 2000, 7), *range(2000, len(whole), 9973)]:
        cut.write_bytes(whole[:length])
        try:
            found = find_arrays(cut)
        except Damaged:
            continue
        whole_ones = 0
        for name in found:
            try:
                assert np.array_equal(read_array(cut, name), ARRAYS[name])
                whole_ones += 1
            except Damaged as error:
                assert "cut off" in str(error)
        assert whole_ones < len(ARRAYS)


def test_values_that_do_not_fill_their_shape(tmp_path: Path) -> None:
    content = bytearray(written(tmp_path / "some.mat", compressed=False).read_bytes())
    place = content.index(np.array(ARRAYS["X"].shape, "<i4").tobytes())
    content[place : place + 4] = (2**30).to_bytes(4, "little")
    (tmp_path / "some.mat").write_bytes(content)
    with pytest.raises(Damaged, match="the values of X do not fill its shape"):
        read_array(tmp_path / "some.mat", "X")


def test_values_stored_larger_than_they_are(tmp_path: Path) -> None:
    """A small compressed file of bytes could otherwise unpack to eight times the bytes that it announces."""
    savemat(tmp_path / "some.mat", {"X": ARRAYS["real"]})
    content = bytearray((tmp_path / "some.mat").read_bytes())
    assert content[144] == 6  # the class of the first array, double
    content[144] = 9  # bytes
    (tmp_path / "some.mat").write_bytes(content)
    with pytest.raises(Damaged, match="the values of X are stored larger than they are"):
        read_array(tmp_path / "some.mat", "X")


def test_other_files(tmp_path: Path) -> None:
    savemat(tmp_path / "old.mat", {"y": np.ones((2, 2))}, format="4")
    (tmp_path / "empty.mat").write_bytes(b"")
    for name in ("old.mat", "empty.mat"):
        with pytest.raises(Damaged, match="does not begin as one of version 5"):
            find_arrays(tmp_path / name)
