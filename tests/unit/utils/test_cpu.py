from __future__ import annotations

import os
import subprocess
import sys

import pytest


@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="the system cannot keep a process to some cores")
def test_only_cores_that_the_process_may_use_count() -> None:
    confine = "import os; os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})"
    command = [sys.executable, "-c", f"{confine}; from unissl.utils.cpu import cpu_count; print(cpu_count())"]
    assert subprocess.run(command, capture_output=True, text=True, check=True).stdout == "1\n"
