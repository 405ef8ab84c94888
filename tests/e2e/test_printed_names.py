"""Class names and paths are printed letter by letter, whatever rich would read in them."""

from __future__ import annotations

from pathlib import Path

import pytest
from cli_helpers import QUICK, call, make_photos, succeed
from rich.table import Table

from unissl.utils import progress
from unissl.utils.printing import show
from unissl_paper.grid.worker import Report, Task
from unissl_paper.run import show_progress

NAMES = ("cat [tabby]", "[/b]:cat:")


@pytest.fixture
def photos(here: Path) -> tuple[str, ...]:
    make_photos(here / "photos [x]")
    lines = [f"{name}/{i}.png,{label}" for name, label in zip(("cat", "dog"), NAMES, strict=True) for i in range(4)]
    (here / "labels.csv").write_text("\n".join(["file,label", *lines]))
    return ("--images", "photos [x]", "--labels", "labels.csv")


def test_every_verb_prints_names_as_they_are(photos: tuple[str, ...], here: Path) -> None:
    shown = succeed("split", *photos, "--out", "split [x].json").out
    assert all(name in shown for name in NAMES) and "written to split [x].json" in shown
    trained = succeed("train", *photos, "--holdout", "4", "--no-baseline", *QUICK, "--out", "run [x]")
    assert "run folder: run [x]\n" in trained.out and "report: run [x]/report.html" in trained.out
    recalls = succeed("evaluate", "run [x]").out
    assert all(f"{name} " in recalls for name in NAMES)
    table = succeed("predict", "run [x]", "photos [x]").out
    assert "photos [x]/cat/0.png" in table and any(f",{name}," in table for name in NAMES)
    assert (
        "1 files in table [x].csv"
        in succeed("predict", "run [x]", "photos [x]/cat/0.png", "--out", "table [x].csv").out
    )


def test_the_demo_prints_its_folder_as_it_is(here: Path) -> None:
    shown = succeed("demo", "--steps", "2", "--out", "demo [x] :cat:").out
    assert "Summary: demo [x] :cat:/summary.json" in shown and "sage: demo [x] :cat:/sage/" in shown


def test_a_grid_prints_its_folder_and_its_reasons_as_they_are(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ("paper", "run", "table1", "--scale", "mini", "--methods", "fixmatch", "--seeds", "0", "--out", "grid [x]")
    (here / "grid [x]").write_text("mine")
    outcome = call(*words)
    assert outcome.code == 1 and "grid [x]" in outcome.err

    task = Task("name", "key", "mini", {}, "out", "scratch", None, {"column": "c", "variant": "v", "seed": 0})
    show_progress([Report(task, "failed", reason="no [x] :cat:")], 1, "table1")
    assert "c v seed 0: failed (no [x] :cat:)" in capsys.readouterr().err


def test_tables_and_messages_above_a_bar(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    table = Table("class", title="[b]title")
    table.add_row(NAMES[1])
    show(table)
    shown = capsys.readouterr().out
    assert "[b]title" in shown and NAMES[1] in shown
    bar, _ = progress._TerminalBar(0.0).open(progress.Progress("[b]work", 3))
    bar.stop()
    with bar.console.capture() as capture:
        bar.console.print(NAMES[1])
    assert NAMES[1] in capture.get()
