"""Every promise about untrusted input names its test, and every file of attacks is named."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
TEXT = (ROOT / "docs" / "untrusted_input.md").read_text()
ROWS = re.findall(r"^\| (.+) \| (`tests/.+`) \|$", TEXT[TEXT.index("| promise | test |") :], re.MULTILINE)


@pytest.mark.parametrize(("promise", "tests"), ROWS, ids=[promise for promise, _ in ROWS])
def test_the_tests_of_a_promise_exist(promise: str, tests: str) -> None:
    for name in re.findall(r"`([^`]+)`", tests):
        file, _, function = name.partition("::")
        source = (ROOT / file).read_text()
        assert f"def {function or 'test_'}" in source, name


def test_every_file_of_attacks_is_named() -> None:
    attacks = (ROOT / "tests" / "stress" / "adversary").glob("test_*.py")
    assert not [path.name for path in attacks if f"tests/stress/adversary/{path.name}" not in TEXT]
    assert len(ROWS) >= 15
