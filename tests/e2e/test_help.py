"""``--help`` answers quickly, since it imports little, and always with an example."""

from __future__ import annotations

import subprocess
import sys

import pytest
from cli_helpers import call, succeed

VERBS = ("demo", "train", "evaluate", "predict", "split", "datasets", "methods", "report", "export", "cache", "paper")
SLOW = ("torch", "numpy", "sklearn", "matplotlib", "pyarrow", "pydantic", "PIL", "rich.markdown")


@pytest.mark.parametrize("words", [("--help",), *((verb, "--help") for verb in VERBS)])
def test_help_imports_nothing_slow(words: tuple[str, ...]) -> None:
    """A count of imports, not of seconds, so that a busy machine does not fail it."""
    program = (
        "import sys\n"
        "from unissl.cli import main\n"
        "try:\n"
        f"    main({list(words)!r})\n"
        "except SystemExit as end:\n"
        f"    print('code', end.code, 'slow', sorted(set({SLOW!r}) & set(sys.modules)))\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "code 0 slow []"


@pytest.mark.parametrize("verb", [*VERBS, "cache clear", "paper list", "paper run", "paper table", "paper figure"])
def test_every_verb_shows_an_example(verb: str) -> None:
    assert f"Example: unissl {verb}" in succeed(*verb.split(), "--help").out


def test_there_is_no_verb_for_benchmarks() -> None:
    assert call("bench").code == 2


def test_overview_names_every_verb() -> None:
    overview = succeed("--help").out
    assert all(f" {verb} " in overview for verb in VERBS) and "unissl demo" in overview
