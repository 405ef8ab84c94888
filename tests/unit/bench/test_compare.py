"""benchmarks/compare.py: one run of its table, started once and read afterwards."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import unissl
from unissl.autoconfig.recipes import with_recipe

SCRIPT = Path(unissl.__file__).parents[1] / "benchmarks" / "compare.py"


def test_one_run_and_the_same_again(tmp_path: Path) -> None:
    spec = importlib.util.spec_from_file_location("compare", SCRIPT)
    assert spec is not None and spec.loader is not None
    compare = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(compare)
    tree = {"method": {"name": "labels-only"}, "split": {"labels_per_class": 1}, "train": {"steps": 1}}
    first = compare.one_run(with_recipe(tree, "digits"), tmp_path / "run")
    assert first["steps"] == 1 and first["labelled"] == [1] * 10
    written = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*") if path.is_file()}
    assert compare.one_run(with_recipe(tree, "digits"), tmp_path / "run") == first
    assert {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*") if path.is_file()} == written
