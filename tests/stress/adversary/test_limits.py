"""Limits of the system: too small ones are refused. Limits of ours: small JSON that takes twenty times its size."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pytest

from unissl.errors import UserError
from unissl.run_folder import RunFolder
from unissl.utils import bounded_io
from unissl.utils.atomic import read_json
from unissl.utils.parquet_file import intact

pytestmark = pytest.mark.adversary
PROGRAM = """
import resource, sys
from pathlib import Path
from unissl.utils.bounded_io import Malformed, parse_json, read_text
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
try:
    parse_json(read_text(Path(sys.argv[1])))
except Malformed:
    print((resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) // 1024)
"""


def test_memory_for_millions_of_lists(tmp_path: Path) -> None:
    """Each empty list of three characters takes some sixty bytes."""
    path = tmp_path / "summary.json"
    path.write_text("[" + "[]," * 10_000_000 + "[]]")
    done = subprocess.run([sys.executable, "-c", PROGRAM, path], capture_output=True, text=True, check=True)
    assert int(done.stdout) < 128


def test_lists_are_counted_over_all_lines(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bounded_io, "MAX_LISTS", 99)
    folder = RunFolder(tmp_path)
    folder.metrics.write_text("{}\n" * 99)
    assert len(folder.read_metrics()) == 99
    folder.metrics.write_text("{}\n" * 100)
    with pytest.raises(UserError, match="damaged"):
        folder.read_metrics()


@pytest.mark.parametrize("text", ["[" + "1," * 100 + "1]", '{"a": [' + "{}, " * 9 + "{}]}"])
def test_values_and_tables_are_counted(text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "x.json").write_text(text)
    read_json(tmp_path / "x.json")
    monkeypatch.setattr(bounded_io, "MAX_VALUES", 99)
    monkeypatch.setattr(bounded_io, "MAX_LISTS", 11)
    with pytest.raises(UserError, match="not valid JSON"):
        read_json(tmp_path / "x.json")


def under_limits(limits: dict[str, int], *words: str) -> subprocess.CompletedProcess[str]:
    resource = pytest.importorskip("resource")

    def limit() -> None:
        for name, value in limits.items():
            resource.setrlimit(getattr(resource, name), (value, value))

    command = [sys.executable, "-m", "unissl", *words]
    return subprocess.run(command, preexec_fn=limit, capture_output=True, text=True, timeout=60)


def threads() -> int:
    return 1 if os.environ.get("OMP_NUM_THREADS") == "1" else len(os.sched_getaffinity(0))


@pytest.mark.parametrize("words", [("train", "--data", "digits", "--out", "run"), ("report", "run"), ("methods",)])
@pytest.mark.parametrize("megabytes", [150, 300, 750, 1500, 2048, 2600])
def test_a_limit_that_the_libraries_do_not_load_under(megabytes: int, words: tuple[str, ...], here: Path) -> None:
    """At 750 MB, scipy's OpenBLAS waited for memory for ever and no signal but SIGKILL ended it; at 2,048 MB it did so
    when a report was written."""
    done = under_limits({"RLIMIT_AS": megabytes << 20}, *words)
    assert done.returncode == 1 and not (here / "run").exists()
    assert done.stderr == (
        f"error: The limit on address space is {megabytes:,} MB (ulimit -v), and at least {2816 + 128 * threads():,} "
        f"MB are needed with {threads()} threads; raise it, or limit the memory of the job instead.\n"
    )


@pytest.mark.parametrize("megabytes", [300, 600, 900, 1500])
def test_a_limit_on_data_that_the_libraries_do_not_work_under(megabytes: int, here: Path) -> None:
    """A report waited for ever at 600 MB, other commands crashed at 300 MB."""
    done = under_limits({"RLIMIT_DATA": megabytes << 20}, "report", "run")
    assert done.returncode == 1
    assert done.stderr == (
        f"error: The limit on data memory is {megabytes:,} MB (ulimit -d), and at least {1792 + 128 * threads():,} MB "
        f"are needed with {threads()} threads; raise it, or limit the memory of the job instead.\n"
    )


PEAK = """
import resource, sys
from pathlib import Path
from unissl.utils.process import prepare_process
resource.setrlimit(resource.RLIMIT_DATA, (4 << 30, 4 << 30))
prepare_process()
import numpy, scipy.linalg
matrix = numpy.eye(200)
del (heap := [bytearray(16 << 20)])[:]  # stays in the process, for the results
used = int(Path("/proc/self/status").read_text().split("VmData:")[1].split()[0]) * 1024
resource.setrlimit(resource.RLIMIT_DATA, (used + (4 << 20), 4 << 30))
scipy.linalg.svd(matrix)
print(numpy.linalg.svd(matrix @ matrix)[1].sum())
"""


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_openblas_has_its_buffers_when_memory_runs_out() -> None:
    """Without them, the first product of matrices waits for ever."""
    done = subprocess.run([sys.executable, "-c", PEAK], capture_output=True, text=True, timeout=30)
    assert done.stdout == "200.0\n", done.stderr


@pytest.mark.parametrize(
    "error", [pa.ArrowMemoryError("malloc"), pa.ArrowException("Resource temporarily unavailable")]
)
def test_a_lack_of_memory_is_not_a_damaged_file(error: Exception, tmp_path: Path) -> None:
    """pyarrow was refused a thread, and an intact table was called damaged."""
    with pytest.raises(MemoryError), intact(tmp_path / "predictions.parquet"):
        raise error


def test_help_needs_little_memory() -> None:
    assert under_limits({"RLIMIT_AS": 300 << 20}, "train", "--help").returncode == 0


def test_the_largest_split_may_be_read() -> None:
    """Ten million rows of eight characters."""
    assert 10_000_000 * len("9999999,") < bounded_io.MAX_SPLIT_BYTES and bounded_io.MAX_VALUES > 10_000_000
