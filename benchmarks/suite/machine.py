"""Facts about the machine and the versions that a measurement was made with."""

from __future__ import annotations

import datetime
import platform
from pathlib import Path

import torch

from suite.setup import Setup
from unissl import __version__
from unissl.utils.cpu import cpu_count


def facts(setup: Setup) -> dict[str, str | int | bool | None]:
    return {
        "unissl": __version__,
        "torch": torch.__version__,
        "python": platform.python_version(),
        "system": platform.system(),
        "libc": " ".join(platform.libc_ver()).strip(),
        "cpu": cpu_name(),
        "cores": cpu_count(),
        "threads": setup.threads or torch.get_num_threads(),
        "vector instructions": torch.backends.cpu.get_cpu_capability(),
        "quick": setup.quick,
        "date": datetime.date.today().isoformat(),
    }


def cpu_name() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
        return next(line.split(":")[1].strip() for line in lines if line.startswith("model name"))
    except (OSError, StopIteration):
        return platform.processor()
