"""A model is loaded and asked without any of the code that trains."""

from __future__ import annotations

import subprocess
import sys

TRAINING = (
    "unissl.training",
    "unissl.run.pipeline",
    "unissl.batches",
    "unissl.splits",
    "unissl.run.inputs",
    "unissl.run.results",
)


def test_inference_imports_no_training_code() -> None:
    program = (
        "import sys\n"
        "import unissl.inference.model, unissl.inference.prediction_table\n"
        f"print([name for name in sys.modules if name.startswith({TRAINING!r})])\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"
