"""The example on texts runs and compares what it claims to."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

PATH = Path(__file__).parents[2] / "examples" / "text_embeddings.py"


@pytest.fixture(scope="module")
def example() -> ModuleType:
    spec = importlib.util.spec_from_file_location("text_embeddings_example", PATH)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_texts_are_those_of_their_modules(example: ModuleType, tmp_path: Path) -> None:
    (tmp_path / "code.py").write_text(
        '"""The docstring of a module does not count, however long."""\n'
        "def one():\n"
        '    """This says in some more words what one is for."""\n'
        "async def two():\n"
        '    """Too short."""\n'
        "class Three:\n"
        '    """This says in some more words what three is for."""\n'
        "    def again(self):\n"
        '        """This says in some more words what one is for."""\n'
    )
    wanted = [f"This says in some more words what {name} is for." for name in ("one", "three")]
    assert example.docstrings(tmp_path) == example.docstrings(tmp_path / "code.py") == wanted


def test_labels_are_not_in_the_texts(example: ModuleType) -> None:
    texts, truth = example.read_texts(["tarfile", "ipaddress"])
    assert len(texts) == len(truth) > 100 and set(truth) == {"tarfile", "ipaddress"}
    assert not any(name in text.lower() for text in texts for name in ("tarfile", "ipaddress"))
    assert any("archive" in texts[row] for row in np.flatnonzero(truth == "tarfile"))


@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
def test_example_with_small_numbers(example: ModuleType, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["--modules", "tarfile", "ipaddress", "--seeds", "1", "--steps", "30", "--length", "8"]
    mean = example.main(words)
    assert mean["logistic regression"] > 0.7 and mean["SAGE"] > 0.7
    printed = capsys.readouterr().out
    assert "2 modules, 4 labels each" in printed and f"SAGE {100 * mean['SAGE']:.1f} %" in printed
