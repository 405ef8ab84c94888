"""The demo, cut short."""

from __future__ import annotations

import json
from pathlib import Path

from cli_helpers import call, snapshot, succeed


def test_demo_compares_three_methods_and_shows_them_again(here: Path) -> None:
    first = succeed("demo", "--steps", "4")
    summary = json.loads((here / "runs" / "demo" / "summary.json").read_text())
    assert list(summary) == ["methods"] and list(summary["methods"]) == ["labels-only", "fixmatch", "sage"]
    for name, numbers in summary["methods"].items():
        assert set(numbers) == {"last", "seconds"}
        assert 0 <= numbers["last"] <= 1 and numbers["seconds"] > 0
        assert f"{numbers['last']:.1%}" in first.out and name in first.out
    for name, title in (("labels-only", "the labels-only baseline"), ("fixmatch", "FixMatch")):
        gain = summary["methods"]["sage"]["last"] - summary["methods"][name]["last"]
        assert f"Gain of SAGE over {title}: {100 * gain:+.1f} points" in first.out
    for name in summary["methods"]:
        one = json.loads((here / "runs" / "demo" / name / "summary.json").read_text())
        assert one["labelled"] == [1] * 10 and one["pool"]["images"] == 446
    drawn = (here / "runs" / "demo" / "comparison.svg").read_text()
    assert drawn.count("<image") == 10  # the labelled images
    assert "Summary: runs/demo/summary.json" in first.out

    before = snapshot(here)
    assert succeed("demo", "--steps", "4").out == first.out
    assert snapshot(here) == before

    changed = call("demo", "--steps", "5")
    assert changed.code == 1 and "train.steps: 4 -> 5" in changed.err and "choose another --out" in changed.err
    assert snapshot(here) == before
