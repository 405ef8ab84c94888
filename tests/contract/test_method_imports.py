"""A method imports types, ops, its base, torch and pydantic. Nothing else of the package, above all no other method."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

import unissl.methods

FOLDER = Path(unissl.methods.__path__[0])
FILES = [path for path in sorted(FOLDER.glob("*.py")) if path.stem not in {"__init__", "base", "registry"}]
ALLOWED = ("unissl.types", "unissl.ops", "unissl.methods.base", "torch", "pydantic")
STANDARD = {"__future__", "math", "typing", "collections", "dataclasses", "functools"}


def imported(path: Path) -> list[str]:
    names: list[str] = []
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            names += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            names.append(node.module or "")
    return names


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_imports(path: Path) -> None:
    others = [name for name in imported(path) if name.split(".")[0] not in STANDARD and not name.startswith(ALLOWED)]
    assert others == []
