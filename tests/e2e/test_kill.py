"""A run that is killed goes on as if nothing had happened. ``tests/stress/kill_resume.py`` does the same 20 times."""

from __future__ import annotations

from pathlib import Path

from kill_resume import stress


def test_killed_runs_end_bit_for_bit_the_same(tmp_path: Path) -> None:
    outcome = stress(3, tmp_path, seed=1)
    assert outcome.kills == 3
    assert outcome.different == ()
