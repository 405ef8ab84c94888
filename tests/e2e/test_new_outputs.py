"""A file that appears at --out while a command works is kept, whatever the verb."""

from __future__ import annotations

import importlib.util
import os
from pathlib import Path

import pytest
from cli_helpers import call

needs_onnx = pytest.mark.skipif(
    any(importlib.util.find_spec(name) is None for name in ("onnx", "onnxruntime", "onnxscript")),
    reason="needs the extra 'onnx'",
)
EXPORT = ("export", "RUN", "--out", "out.onnx")


@pytest.mark.parametrize(
    ("words", "appears"),
    [
        (("split", "--data", "digits", "--out", "out.json"), "out.json"),
        (("report", "RUN", "--out", "out.html"), "out.html"),
        (("paper", "table", "motivation", "--scale", "mini", "--out", "out.md"), "out.md"),
        (("paper", "figure", "pseudo-labels", "RUN", "--out", "out.svg"), "out.svg"),
        pytest.param(EXPORT, "out.onnx", marks=needs_onnx),
        pytest.param(EXPORT, "out.onnx.json", marks=needs_onnx),
    ],
)
def test_a_file_that_appears_meanwhile_is_kept(
    here: Path, finished_run: Path, monkeypatch: pytest.MonkeyPatch, words: tuple[str, ...], appears: str
) -> None:
    def appear(descriptor: int) -> None:
        """The new file is complete and about to be put in place."""
        (here / appears).write_text("theirs")

    monkeypatch.setattr(os, "fsync", appear)
    monkeypatch.setattr("unissl_paper.tables.make_tables", lambda *arguments: ())  # no run of the paper is needed
    monkeypatch.setattr("unissl_paper.tables.sheet.render", lambda *arguments: "a table")
    before = set(here.iterdir())
    outcome = call(*(str(finished_run) if word == "RUN" else word for word in words))
    assert outcome.code == 1 and f"{appears} has appeared meanwhile and is kept" in outcome.err, outcome.err
    assert (here / appears).read_text() == "theirs"
    assert set(here.iterdir()) - before == {here / appears}
