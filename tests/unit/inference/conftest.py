"""A trained model without training: a run folder with random weights."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from unissl.inference.manifest import Manifest
from unissl.inference.model import build_from_manifest, save_model
from unissl.run_folder import RunFolder


@pytest.fixture
def make_run(tmp_path: Path) -> Callable[..., Path]:
    """Writes the model of a run with three classes; keyword arguments override the manifest."""

    def make(**overrides: Any) -> Path:
        channels = overrides.get("channels", 3)
        fields: dict[str, Any] = {
            "unissl": "0",
            "net": "small",
            "method": {"name": "labels-only"},
            "labelled_counts": [1, 1, 1],
            "pool_images": 5,
            "class_names": ["ant", "bee", "cat"],
            "height": 12,
            "width": 12,
            "channels": channels,
            "mean": [0.5] * channels,
            "std": [0.25] * channels,
        }
        manifest = Manifest(**(fields | overrides))
        torch.manual_seed(0)
        module = build_from_manifest(manifest)
        folder = RunFolder(tmp_path / "run")
        folder.path.mkdir(exist_ok=True)
        save_model(folder, module.state_dict(), manifest)
        return folder.path

    return make
