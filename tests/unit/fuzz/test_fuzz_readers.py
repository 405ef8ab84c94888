"""A few malformed files for every reader; ``tests/stress/fuzz/run.py`` makes thousands, in watched processes."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest
from case import Reader
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from readers import NAMES, make

from unissl.errors import UserError

FEW = settings(
    max_examples=12,
    deadline=None,
    derandomize=True,
    database=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
NOT_HERE = {"report-page": "each page takes a second; its own test is below"}


@pytest.fixture
def reader(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Reader]:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("UNISSL_CACHE", str(tmp_path / "cache"))
    monkeypatch.syspath_prepend(str(tmp_path))
    yield make(request.param, tmp_path)


@pytest.mark.parametrize(
    ("reader", "name"), [(name, name) for name in NAMES if name not in NOT_HERE], indirect=["reader"]
)
@FEW
@given(number=st.integers(0, 10**9))
def test_a_malformed_file_is_read_or_refused_in_a_sentence(reader: Reader, name: str, number: int) -> None:
    read_or_refuse(reader, reader.case(1, name, number))


@pytest.mark.parametrize(
    ("reader", "name"), [(name, name) for name in NAMES if name not in NOT_HERE], indirect=["reader"]
)
def test_what_is_whole_is_read(reader: Reader, name: str) -> None:
    for content in reader.files:
        reader.read(content)


@pytest.mark.parametrize("reader", ["report-page"], indirect=True)
def test_the_page_can_be_made_of_all_that_is_let_through(reader: Reader) -> None:
    for number in range(2, 10):
        read_or_refuse(reader, reader.case(3, "report-page", number))


def read_or_refuse(reader: Reader, content: bytes) -> None:
    try:
        reader.read(content)
    except UserError as error:
        assert 0 < len(str(error)) < 1500 and "\n" not in str(error)


@cache
def covered() -> set[str]:
    """Files of the package that read files."""
    package = Path(__file__).parents[3] / "unissl"
    marks = (
        "json.loads", "tomllib", "torch.load", "np.load", "safe_open", " load_file", "ParquetFile", "gzip.open",
        "ZipFile(", "loadmat", "Unpickler", "np.frombuffer",
    )  # fmt: skip
    files = (path for path in package.rglob("*.py") if "bench" not in path.parts)
    return {path.relative_to(package).as_posix() for path in files if any(m in path.read_text() for m in marks)}


def test_no_reader_is_forgotten() -> None:
    """A file that parses something and is not in this list needs a reader in ``tests/stress/fuzz/readers``."""
    verified_by_checksum = {"data/sources/cifar.py", "data/sources/svhn.py"}  # nothing malformed reaches their parsers
    fuzzed = {
        "config.py", "data/sources/fashion_mnist.py", "data/sources/imagenet127.py", "data/sources/npz.py",
        "data/sources/stl10.py", "data/store/decode_to_cache.py", "inference/journal.py", "inference/model.py",
        "nets/backbones/base.py", "nets/external/safetensors_file.py", "training/checkpoint.py", "utils/bounded_io.py",
        "utils/cache.py", "utils/parquet_file.py",
    }  # fmt: skip
    assert covered() == fuzzed | verified_by_checksum
