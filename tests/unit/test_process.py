"""The set-up of a process that trains; in a process of its own, since it cannot be undone."""

from __future__ import annotations

import os
import platform
import subprocess
import sys
from pathlib import Path

import pytest

from unissl import SPINS

THP = Path("/sys/kernel/mm/transparent_hugepage/enabled")
LOOK = """
import re, resource, sys
from unissl.utils.process import prepare_process

def huge():
    return int(re.search(r"AnonHugePages:\\s+(\\d+)", open("/proc/self/smaps_rollup").read())[1]) * 1024

def resident():
    return int(open("/proc/self/statm").read().split()[1]) * resource.getpagesize()

before = resident()
prepare_process()
taken = resident() - before
blocks = []
for turn in range(3):
    faults = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    block = bytearray(64 << 20)
    block[::4096] = bytes([1]) * len(block[::4096])
    del block
    blocks.append(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - faults)
print(taken, huge(), *blocks)
"""


def look() -> list[int]:
    said = subprocess.run([sys.executable, "-c", LOOK], check=True, capture_output=True, text=True).stdout
    return [int(word) for word in said.split()]


LIMITED = """
import resource
from unissl.utils.process import prepare_process

resource.setrlimit(resource.RLIMIT_AS, (1 << 45, resource.RLIM_INFINITY))
pages = lambda: int(open("/proc/self/statm").read().split()[0])
before = pages()
prepare_process()
print((pages() - before) * resource.getpagesize())
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="it does nothing under another libc")
def test_no_addresses_are_reserved_where_they_are_limited() -> None:
    said = subprocess.run([sys.executable, "-c", LIMITED], check=True, capture_output=True, text=True).stdout
    assert int(said) < 256 << 20


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="it does nothing under another libc")
def test_freed_memory_serves_again_and_the_reserve_takes_none() -> None:
    taken, huge, _, *later = look()
    assert taken < 32 << 20
    assert max(later) < 100  # 64 MB are 16,384 ordinary pages
    if THP.exists() and "[never]" not in THP.read_text():
        assert huge >= 32 << 20


WAITING = """
import os, sys
import unissl.utils.process as machine

def look(prepare=machine.prepare_process):
    loaded = "torch" in sys.modules
    prepare()
    print(loaded, os.environ.get("GOMP_SPINCOUNT"))
    os._exit(0)

import unissl.cli
unissl.cli.prepare_process = look
from unissl.cli import main
sys.argv = ["unissl", *sys.argv[1:]]
main()
"""


@pytest.mark.parametrize(
    ("said", "spins"),
    [({}, str(SPINS)), ({"GOMP_SPINCOUNT": "7"}, "7"), ({"OMP_WAIT_POLICY": "active"}, "None")],
)
@pytest.mark.parametrize("words", [("train", "--data", "digits"), ("predict", "run", "a.png"), ("demo",)])
def test_threads_wait_asleep_unless_the_user_says_otherwise(
    words: tuple[str, ...], said: dict[str, str], spins: str, tmp_path: Path
) -> None:
    """Said before torch is there, since OpenMP looks at it once, when it is loaded."""
    kept = {name: value for name, value in os.environ.items() if name not in ("GOMP_SPINCOUNT", "OMP_WAIT_POLICY")}
    command = [sys.executable, "-c", WAITING, *words]
    made = subprocess.run(command, cwd=tmp_path, env=kept | said, check=True, capture_output=True, text=True)
    assert made.stdout.split() == ["False", spins]


BORROWED = """
import resource
from unissl.utils.allocator import keep_freed_memory, release_freed_memory

def resident():
    return int(open("/proc/self/statm").read().split()[1]) * resource.getpagesize()

def faults_of_a_block():
    faults = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    bytearray(64 << 20)[::4096] = bytes([1]) * (16 << 10)
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - faults

before = resident()
with keep_freed_memory():
    with keep_freed_memory():
        faults_of_a_block()
    inside, kept = faults_of_a_block(), resident() - before
    release_freed_memory()
    released = resident() - before
    faults_of_a_block()
print(inside, kept, released, resident() - before, faults_of_a_block())
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="it does nothing under another libc")
def test_a_library_call_keeps_freed_memory_only_until_it_returns() -> None:
    result = subprocess.run([sys.executable, "-c", BORROWED], check=True, capture_output=True, text=True).stdout
    inside, kept, released, returned, afterwards = (int(word) for word in result.split())
    assert inside < 100  # 64 MB are 16,384 ordinary pages
    assert kept > 56 << 20 and released < 8 << 20
    assert returned < 8 << 20
    assert afterwards > 1000
