"""Every equation that the methods and operations name has a test in this folder.

A file of the package that mentions ``Eq. (n)`` needs a test file here that imports it and mentions ``Eq. (n)`` too.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import unissl

HERE = Path(__file__)
PACKAGE = Path(unissl.__file__).parent
SOURCES = sorted([*PACKAGE.glob("methods/*.py"), *PACKAGE.glob("ops/*.py")])
MENTION = re.compile(r"Eq\. \(\d+\)(?:(?:, | and |, and )\(\d+\))*")


def equations(text: str) -> set[int]:
    """Numbers in "Eq. (3)", "Eq. (1), (2)" and "Eq. (7) and (8)"."""
    return {int(number) for mention in MENTION.findall(text) for number in re.findall(r"\d+", mention)}


def untested(module: str, source: str, tests: list[str]) -> list[int]:
    """Equations of a module's text that no test text which imports the module mentions."""
    importing = [text for text in tests if re.search(rf"^(from|import) {re.escape(module)}\b", text, re.MULTILINE)]
    return sorted(equations(source) - {number for text in importing for number in equations(text)})


def texts_of_tests() -> list[str]:
    return [path.read_text(encoding="utf-8") for path in HERE.parent.glob("test_*.py") if path != HERE]


@pytest.mark.parametrize("path", SOURCES, ids=[f"{path.parent.name}.{path.stem}" for path in SOURCES])
def test_every_equation_is_tested(path: Path) -> None:
    module = f"unissl.{path.parent.name}.{path.stem}"
    missing = untested(module, path.read_text(encoding="utf-8"), texts_of_tests())
    assert not missing, f"write tests/equations/test_*.py that imports {module} and mentions Eq. {missing}"


def test_sage_and_fixmatch_name_all_their_equations() -> None:
    """Guards the search itself: if the way equations are written changed, it would find nothing and pass."""
    assert equations((PACKAGE / "methods" / "sage.py").read_text(encoding="utf-8")) == set(range(1, 11))
    assert equations((PACKAGE / "methods" / "fixmatch.py").read_text(encoding="utf-8")) == {3, 4}


def test_an_untested_equation_is_found() -> None:
    source = "loss = a + b  # Eq. (3), (4)\nand more, Eq. (12)"
    other = '"""Eq. (12)"""\nfrom unissl.methods.other import Other'
    own = '"""Eq. (3) and (4)"""\nfrom unissl.methods.made_up import MadeUp'
    assert untested("unissl.methods.made_up", source, [other]) == [3, 4, 12]
    assert untested("unissl.methods.made_up", source, [other, own]) == [12]
    assert untested("unissl.methods.made_up", source, [own, own + "\n# Eq. (12)"]) == []
