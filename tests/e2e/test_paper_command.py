"""unissl paper: listed, refused, run, and run again."""

from __future__ import annotations

from pathlib import Path

import pytest
from cli_helpers import Refuses, call, succeed

from unissl.errors import UserError
from unissl_paper.grid import scales
from unissl_paper.grid.worker import Report
from unissl_paper.run import summarise

TWO_RUNS = (
    "paper",
    "run",
    "table1",
    "--scale",
    "mini",
    "--columns",
    "cifar10-a100",
    "--methods",
    "fully-supervised,fixmatch",
)


def test_list_names_every_table() -> None:
    out = succeed("paper", "list").out
    assert all(name in out for name in ("table1", "table4", "open-set", "significance", "ports"))


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("tabel1",), "Did you mean 'table1'"),
        (("significance",), "reads the runs of table1, table2, table3"),
        (("table1", "--methods", "saeg"), "Did you mean 'sage'"),
        (("table1", "--columns", "cifar11-a100"), "Did you mean"),
        (("table1", "--seeds", "one"), "--seeds takes numbers"),
        (("table1", "--jobs", "0"), "--jobs"),
        (("table1", "--out", "s3://bucket/x"), "--engine ray"),
        (("table1", "--root", "/no/such/place"), "no folder /no/such/place"),
        (("table1", "--gpus", "-1"), "--gpus"),
        (("table1", "--scale", "mid"), "table1 has no scale mid; use --scale full or --scale mini"),
    ],
)
def test_bad_input_is_one_sentence(refuses: Refuses, words: tuple[str, ...], said: str) -> None:
    refuses("paper", "run", *words, says=(said,))


def test_dry_run_counts_and_leaves_nothing(tmp_path: Path) -> None:
    out = succeed("paper", "run", "table1", "--dry-run", "--seeds", "0", "--out", tmp_path / "x").out
    assert "108 runs, 0 done already" in out and "stated rate" in out
    assert not (tmp_path / "x").exists()
    out = succeed("paper", "run", "claim", "--scale", "mid", "--dry-run", "--out", tmp_path / "x").out
    assert "claim, mid: 6 runs, 0 done already" in out


def test_reasons_that_are_sentences_end_in_one_full_stop() -> None:
    failed = Report(None, "failed", reason="Nothing was found.")  # type: ignore[arg-type]
    with pytest.raises(UserError, match=r"1 x Nothing was found\. Repeat the command"):
        summarise([failed], 1, "runs")


def test_runs_are_done_once_and_holes_are_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(scales.MINI_BUDGET, "steps", 2)
    monkeypatch.setitem(scales.MINI_BUDGET, "evaluations", 1)
    words = (*TWO_RUNS, "--seeds", "0", "--out", str(tmp_path))
    first = succeed(*words)
    assert "2 runs, 0 done already" in first.out and "2 of 2 runs finished" in first.out
    folders = [folder for folder in (tmp_path / "mini").iterdir() if not folder.name.startswith(".")]
    assert len(folders) == 2
    assert "2 runs, 2 done already" in succeed(*words).out
    broken = folders[0] / "summary.json"
    broken.write_text("{")
    again = call(*words)
    assert again.code == 1 and "1 of 1 runs did not finish" in again.err and "delete it" in again.err
    assert broken.read_text() == "{"
