"""``unissl bench``: a quick one of every kind, its files, and what it refuses."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from cli_helpers import Refuses, succeed

KINDS = ("startup", "augment", "gri", "step", "waiting", "memory", "growth", "methods")


@pytest.mark.parametrize("kind", KINDS)
def test_quick_benchmark_writes_its_numbers_and_a_picture(kind: str, here: Path) -> None:
    said = succeed("bench", kind, "--quick", "--threads", "1", "--out", "measured")
    assert {path.name for path in (here / "measured").iterdir()} == {"bench.json", f"{kind}.png", f"{kind}.svg"}
    tree = json.loads((here / "measured" / "bench.json").read_text(encoding="utf-8"))
    assert tree["machine"]["quick"] is True and tree["machine"]["threads"] == 1
    assert list(tree["benchmarks"]) == [kind]
    found = tree["benchmarks"][kind]
    pairs = [row["ratio"] for row in found["rows"] if "ratio" in row]
    assert pairs and all(pair["count"] >= 5 and 0 < pair["low"] <= pair["median"] <= pair["high"] for pair in pairs)
    assert found["title"] in said.out and "written to measured" in said.out
    if kind == "step":
        check_share_of_the_peak(found["rows"][0])


def check_share_of_the_peak(row: dict[str, Any]) -> None:
    facts = row["facts"]
    assert facts["share of peak"] == pytest.approx(facts["GFLOP/s"] / facts["GEMM GFLOP/s"])
    assert facts["images/s"] * row["ours"]["median"] == pytest.approx(4 + 2 * 12)


def test_refuses_what_it_cannot_do(refuses: Refuses, here: Path) -> None:
    refuses("bench", "nonsense", says=("nonsense",), code=2)
    refuses("bench", "gri", "--quick", "--threads", "0", says=("--threads", "at least 1"))
    (here / "taken").mkdir()
    (here / "taken" / "file").write_text("mine", encoding="utf-8")
    refuses("bench", "gri", "--quick", "--out", "taken", says=("taken is not empty", "--out"))
