"""Calls that macOS or Windows lack are not needed: training, prediction and the report without them.

A simulation on Linux: other platforms themselves are not tested.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from cli_helpers import TRAIN_DIGITS, make_photos

WITHOUT = """
import os, signal, sys
for module in ("fcntl", "resource", "pwd", "grp"):
    sys.modules[module] = None
for owner, names in (
    (os, ("getuid", "geteuid", "sched_getaffinity", "O_NOFOLLOW", "O_NONBLOCK", "O_DIRECTORY", "mkfifo")),
    (signal, ("SIGUSR1", "SIGUSR2", "SIGALRM")),
):
    for name in names:
        if hasattr(owner, name):
            delattr(owner, name)
from unissl.cli import main
main(sys.argv[1:])
"""


def test_without_calls_of_linux(here: Path) -> None:
    make_photos(here / "photos")
    for words in (
        (*TRAIN_DIGITS, "--out", "run"),
        ("predict", "run", "photos", "--out", "predictions.csv"),
        ("report", "run"),
    ):
        done = subprocess.run([sys.executable, "-c", WITHOUT, *words], capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
