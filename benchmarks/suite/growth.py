"""(g) Step time and memory as batches, the pool and the number of classes grow, compared with the smallest."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from statistics import median

import numpy as np

from suite.cases import SHORT, TINY, StepCase, random_images
from suite.measure import Report, Result, Row, peak_megabytes, seconds_of
from suite.ours import OurStep
from suite.setup import Setup
from suite.step import images_of
from unissl.errors import UserError

BLOCK = 10_000
"""Images that are generated; a larger pool repeats them."""


def growth(setup: Setup) -> Result:
    base = TINY if setup.quick else SHORT
    factors = (1, 2) if setup.quick else (1, 2, 4, 8, 16)
    pools = (1000, 2000) if setup.quick else (10_000, 100_000, 1_000_000)
    classes = (10, 20) if setup.quick else (10, 100, 1000)
    rows = _rows(
        setup,
        {
            f"batch {base.labelled * k} + {base.unlabelled * k}": replace(
                base, labelled=base.labelled * k, unlabelled=base.unlabelled * k
            )
            for k in factors
        },
    )
    with tempfile.TemporaryDirectory(prefix="unissl-bench-") as folder:
        path = write_pool(Path(folder), max(pools), base.size)
        rows += _rows(setup, {f"pool {n:,}": replace(base, pool=n, pool_file=path) for n in pools})
    pool = max(base.pool, 10 * max(classes))
    rows += _rows(setup, {f"classes {n}": replace(base, classes=n, pool=pool) for n in classes})
    title = f"Growth of a step of {base.net} at {base.size} px"
    return Result("growth", title, rows, ("smallest", "this"), "times as long")


def _rows(setup: Setup, cases: Mapping[str, StepCase]) -> list[Row]:
    """All sizes take turns in one run; every row is compared with the first."""
    what = next(iter(cases)).split()[0]
    sides = {label: setup.ours(OurStep(case)) for label, case in cases.items()}
    reports = setup.measure(f"growth: {what}", sides, warm_up=2)
    smallest = next(iter(reports.values()))
    return [_row(label, cases[label], smallest, some) for label, some in reports.items()]


def _row(label: str, case: StepCase, smallest: Sequence[Report], some: Sequence[Report]) -> Row:
    facts = {
        "images/s": images_of(case) / median(seconds_of(some)),
        "peak MB": peak_megabytes(some),
        "MB without the pool": max(report.after.anonymous for report in some) / 2**20,
        "more than the smallest MB": (some[-1].after.anonymous - smallest[-1].after.anonymous) / 2**20,
    }
    return Row(label, seconds_of(smallest), seconds_of(some), facts)


def write_pool(folder: Path, count: int, size: int) -> Path:
    """A .npy file with ``count`` images, written block by block."""
    needed = count * size * size * 3
    if shutil.disk_usage(folder).free < 1.1 * needed:
        raise UserError(
            f"The pool takes {needed / 1e9:.1f} GB of temporary space, and {folder.parent} has less; "
            "name a folder on a larger disk with TMPDIR."
        )
    path = folder / "pool.npy"
    images = np.lib.format.open_memmap(path, mode="w+", dtype=np.uint8, shape=(count, size, size, 3))
    block = random_images(min(BLOCK, count), size)
    for start in range(0, count, BLOCK):
        images[start : start + BLOCK] = block[: count - start]
    images.flush()
    return path
