"""The benchmark suite: a quick run of every kind, its files, and its errors."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from suite.__main__ import BENCHMARKS, main


@pytest.mark.parametrize("kind", BENCHMARKS)
def test_quick_benchmark_writes_its_numbers_and_a_chart(
    kind: str, here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    main([kind, "--quick", "--threads", "1", "--out", "measured"])
    out = capsys.readouterr().out
    assert {path.name for path in (here / "measured").iterdir()} == {"bench.json", f"{kind}.png", f"{kind}.svg"}
    tree = json.loads((here / "measured" / "bench.json").read_text(encoding="utf-8"))
    assert tree["machine"]["quick"] is True and tree["machine"]["threads"] == 1
    assert list(tree["benchmarks"]) == [kind]
    result = tree["benchmarks"][kind]
    pairs = [row["ratio"] for row in result["rows"] if "ratio" in row]
    assert pairs and all(pair["count"] >= 5 and 0 < pair["low"] <= pair["median"] <= pair["high"] for pair in pairs)
    assert result["title"] in out and "written to measured" in out
    if kind == "step":
        check_share_of_the_peak(result["rows"][0])


def check_share_of_the_peak(row: dict[str, Any]) -> None:
    facts = row["facts"]
    assert facts["share of peak"] == pytest.approx(facts["GFLOP/s"] / facts["GEMM GFLOP/s"])
    assert facts["images/s"] * row["ours"]["median"] == pytest.approx(4 + 2 * 12)


@pytest.mark.parametrize(
    ("words", "code", "message"),
    [
        (["nonsense"], 2, "nonsense"),
        (["gri", "--quick", "--threads", "0"], "error: --threads takes a number of at least 1, not 0.", ""),
        (["gri", "--quick", "--out", "taken"], "error: taken is not empty; choose another --out.", ""),
    ],
)
def test_bad_input_is_one_sentence(
    words: list[str], code: int | str, message: str, here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (here / "taken").mkdir()
    (here / "taken" / "file").write_text("mine", encoding="utf-8")
    with pytest.raises(SystemExit) as end:
        main(words)
    assert end.value.code == code and message in capsys.readouterr().err
