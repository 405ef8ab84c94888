"""Charts inside a page: text as text, ids of their own, names of any kind, many classes."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest
from page_checks import assert_loads_nothing, parsed

from unissl.evaluation.calibration import Bin
from unissl.plots import charts, curves
from unissl.plots.embedding import embedding_map
from unissl.plots.output import inline_svg

HOSTILE = [
    "<script>alert(1)</script>",
    "$a$b$",
    "_hidden",
    "犬 & 貓",
    "line\nbreak",
    "odd\x01\udce4",
    'id="x"',
    "x" * 300,
]


def page(*drawings: str) -> str:
    return f'<!DOCTYPE html><html lang="en"><head><title>x</title></head><body>{"".join(drawings)}</body></html>'


def pool_of(counts: list[int], truth: bool = False) -> dict[str, Any]:
    known = {"true_positives": counts, "truth": counts, "accuracy": 1.0} if truth else {}
    return {"predicted": counts, "truth_known": truth, **known}


def all_drawings(names: list[str]) -> dict[str, str]:
    n, rng = len(names), np.random.default_rng(0)
    summary = {"class_names": names, "confusion_matrix": rng.integers(0, 9, (n, n)).tolist()}
    points, given = rng.normal(size=(3 * n, 2)).astype(np.float32), np.arange(3 * n) < n
    figures = {
        "distribution": charts.class_distribution(pool_of(list(range(n))), names),
        "truth": charts.class_distribution(pool_of(list(range(n)), truth=True), names),
        "confusion": charts.confusion(summary, title=False),
        "map": embedding_map(points, np.arange(3 * n) % n, given, names),
    }
    return {name: inline_svg(figure, name, f"about {name}") for name, figure in figures.items()}


@pytest.mark.parametrize("names", [["a", "b"], HOSTILE, [f"class {i}" for i in range(1000)]])
def test_drawings_are_valid_inside_a_page(names: list[str]) -> None:
    drawn = all_drawings(names)
    assert_loads_nothing(page(*drawn.values()))
    ids = re.findall(r' id="([^"]+)"', "".join(drawn.values()))
    assert len(ids) == len(set(ids)) and ids
    for reference in re.findall(r'(?:href="#|url\(#)([^")]+)', "".join(drawn.values())):
        assert reference in ids
    assert sum(map(len, drawn.values())) < 1_000_000


def test_names_are_text_and_nothing_else() -> None:
    drawn = all_drawings(HOSTILE)["confusion"]
    texts = {"".join(e.itertext()).strip() for e in parsed(page(drawn)).iter() if str(e.tag).endswith("text")}
    assert {"<script>alert(1)</s…", "$a$b$", "_hidden", "犬 & 貓", "line break", "odd\ufffd\ufffd", 'id="x"'} <= texts


def test_colours_are_those_of_the_page() -> None:
    drawn = all_drawings(["a", "b"])["distribution"]
    assert "currentColor" in drawn and "var(--blue" in drawn and "font-family" not in drawn
    assert 'role="img"' in drawn and 'aria-label="about distribution"' in drawn and "http" not in drawn


def test_every_class_of_the_map_is_in_the_legend() -> None:
    drawn = all_drawings(["_one", "two", "three"])["map"]
    assert all(f">{name}<" in drawn for name in ("_one", "two", "three"))
    assert ">(others)<" in all_drawings([str(i) for i in range(30)])["map"]


def test_condensed_matrix_keeps_every_image() -> None:
    rng = np.random.default_rng(0)
    matrix = rng.integers(0, 5, (50, 50))
    matrix[7, 9] = 1000
    small, names = charts.condense(matrix, [str(i) for i in range(50)])
    assert small.shape == (20, 20) and small.sum() == matrix.sum() and names[-1] == "(others)"
    row, column = names.index("7"), names.index("9")
    assert small[row, column] == 1000
    assert small[row].sum() == matrix[7].sum() and small[:, column].sum() == matrix[:, 9].sum()
    same, all_names = charts.condense(matrix[:5, :5], list("abcde"))
    assert np.array_equal(same, matrix[:5, :5]) and all_names == list("abcde")


def test_curves_of_a_run_and_its_baseline() -> None:
    metrics = [{"kind": "eval", "step": s, "accuracy": s / 10} for s in range(5)]
    figure = curves.panel(curves.draw_accuracy, {"SAGE": metrics, "labels-only baseline": metrics})
    drawn = inline_svg(figure, "a", "a")
    assert ">SAGE<" in drawn and ">labels-only baseline<" in drawn
    assert curves.selected_by_step(metrics) == []
    assert "<svg" in inline_svg(curves.panel(curves.draw_losses, []), "l", "l")
    assert "<svg" in inline_svg(charts.reliability_diagram([Bin(0.9, 0.8, 10)]), "r", "r")
