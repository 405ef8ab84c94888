"""The shape of the code base: few doors, few parameters, no package that shadows a front-door function."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from pathlib import Path

import pytest

import unissl

PACKAGE = Path(unissl.__file__).parent
MAX_MODULES, MAX_PARAMETERS = 6, 7
CONTRACT = {"contrast_loss", "class_counts"}
"""Functions whose arguments are part of the public contract."""
FRONT_DOOR = ("train", "load", "resume", "evaluate", "export", "list_methods", "list_backbones")


def parameters(function: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    arguments = function.args
    names = [a.arg for a in (*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs)]
    return len([name for name in names if name not in ("self", "cls")])


def too_many(path: Path) -> list[str]:
    found = []
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            exempt = node.name == "__init__" or node.name in CONTRACT
            if not exempt and parameters(node) > MAX_PARAMETERS:
                found.append(f"{path.name}:{node.lineno} {node.name} ({parameters(node)})")
    return found


def test_the_top_level_has_few_modules() -> None:
    modules = {path.stem for path in PACKAGE.glob("*.py")} - {"__init__", "__main__"}
    assert len(modules) <= MAX_MODULES, sorted(modules)


def test_internal_functions_have_few_parameters() -> None:
    modules = [path for name in ("", "_paper", "_kernels") for path in PACKAGE.with_name(f"unissl{name}").rglob("*.py")]
    own = [path for path in modules if path.parent.name != "cli" and path.name not in ("api.py", "cli.py")]
    assert [line for path in sorted(own) for line in too_many(path)] == []


def test_the_count_sees_a_function_with_too_many(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys.modules[__name__], "PACKAGE", tmp_path)
    file = tmp_path / "long.py"
    file.write_text("def f(a, b, c, d, e, f, g, h): ...\nclass C:\n    def m(self, a, b, c, d, e, f, g): ...\n")
    assert too_many(file) == ["long.py:1 f (8)"]


def test_messages_name_packages_that_can_be_installed() -> None:
    """The extras are those of a release; a clone has ``make install`` and the names of the packages themselves."""
    names = ("unissl", "unissl_paper", "unissl_kernels")
    sources = [path for name in names for path in (PACKAGE.parent / name).rglob("*.py")]
    found = {path.name for path in sources if re.search(r"unissl\[|with the extra", path.read_text(encoding="utf-8"))}
    assert found == set() and len(sources) > 100


@pytest.mark.parametrize("backwards", [False, True])
def test_front_door_calls_survive_the_import_of_every_submodule(backwards: bool) -> None:
    """A package that is called like a function would replace it as an attribute of ``unissl`` when it is imported."""
    program = f"""
import importlib, pkgutil, unissl
names = [m.name for m in pkgutil.walk_packages(unissl.__path__, "unissl.") if not m.name.endswith("__main__")]
for name in sorted(names, reverse={backwards}):
    importlib.import_module(name)
for name in {FRONT_DOOR!r}:
    assert callable(getattr(unissl, name)) and not hasattr(getattr(unissl, name), "__path__"), name
"""
    subprocess.run([sys.executable, "-c", program], check=True, timeout=120)
