"""Twenty steps of every method and form give the stored losses, which ``regenerate.py`` writes."""

from __future__ import annotations

import pytest
from curves import CASES, STEPS, curve, path_of, read


@pytest.mark.parametrize("case", CASES)
def test_curve_is_the_stored_one(case: str) -> None:
    assert path_of(case).exists(), f"{case} has no golden curve yet: run 'make method-files'"
    stored, now = read(case), curve(case)
    assert list(now) == list(stored)
    for name, values in now.items():
        assert len(values) == STEPS
        assert values == pytest.approx(stored[name], rel=1e-6, abs=1e-12), name


def test_stored_curves_say_something() -> None:
    """No case is a constant or a zero, and no two cases are the same, so that a change in one can be seen."""
    curves = {case: read(case) for case in CASES}
    for case, columns in curves.items():
        for name, values in columns.items():
            assert len(set(values)) > 5, f"{case}: {name} hardly moves"
    # supervised has the loss of labels-only on another split
    totals = [tuple(columns["total"]) for case, columns in curves.items() if case != "fully-supervised"]
    assert len(set(totals)) == len(totals)
