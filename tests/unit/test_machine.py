"""The set-up of a process that trains; in a process of its own, since it cannot be undone."""

from __future__ import annotations

import platform
import subprocess
import sys
from pathlib import Path

import pytest

THP = Path("/sys/kernel/mm/transparent_hugepage/enabled")
LOOK = """
import re, resource, sys
from unissl.cli.machine import prepare_process

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
from unissl.cli.machine import prepare_process

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
