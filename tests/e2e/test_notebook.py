"""The example notebook: its code cells run, its outputs are stored, and figures of the user stay the user's."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import unissl
from unissl import api
from unissl.config import merge

NOTEBOOK = Path(__file__).parents[2] / "examples" / "photos.ipynb"
CELLS = [cell for cell in json.loads(NOTEBOOK.read_text(encoding="utf-8"))["cells"] if cell["cell_type"] == "code"]
SHORT = {"train": {"evaluations": 2}, "data": {"image_size": 32}, "batch": {"labelled": 8, "unlabelled": 8}}


def test_code_cells_run_in_order(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def train(*words: Any, **options: Any) -> Any:
        return api.train(*words, **options | {"steps": 2, "config": merge(options["config"], SHORT)})

    monkeypatch.setattr(unissl, "train", train, raising=False)
    monkeypatch.setattr("tempfile.mkdtemp", lambda: str(here))
    names: dict[str, Any] = {}
    for cell in CELLS:
        exec(compile("".join(cell["source"]), NOTEBOOK.name, "exec", dont_inherit=True), names)
    assert len(names["table"]) == len(list((here / "test").rglob("*.png"))) and names["run"].report.exists()
    names["plt"].close("all")


def test_outputs_are_stored_and_free_of_errors_and_paths() -> None:
    outputs = [output for cell in CELLS for output in cell["outputs"]]
    assert all(cell["execution_count"] for cell in CELLS)
    assert {output["output_type"] for output in outputs} <= {"stream", "display_data", "execute_result"}
    assert any("image/png" in output.get("data", {}) for output in outputs)
    assert "/tmp" not in json.dumps([output.get("text", "") for output in outputs])
    assert NOTEBOOK.stat().st_size < 200_000


def test_charts_leave_the_backend_of_matplotlib_as_it_is() -> None:
    """In a notebook the backend shows figures; a library that selects another one hides them."""
    program = (
        "import matplotlib\n"
        "matplotlib.use('svg')\n"
        "import unissl.plots.charts, unissl.plots.curves, unissl.report.html\n"
        "assert matplotlib.get_backend() == 'svg', matplotlib.get_backend()\n"
    )
    subprocess.run([sys.executable, "-c", program], check=True, timeout=120)
