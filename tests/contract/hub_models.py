"""Small random models of transformers on disk, as somebody would have downloaded them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

PREPROCESSOR = {
    "do_normalize": True,
    "image_mean": [0.4, 0.5, 0.6],
    "image_std": [0.2, 0.3, 0.4],
    "image_processor_type": "ViTImageProcessor",
    "size": {"height": 32, "width": 32},
}


def save_vit(folder: Path, *, pooler: bool = True, seed: int = 0) -> Path:
    transformers = pytest.importorskip("transformers")
    sizes = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 32}
    config = transformers.ViTConfig(**sizes, image_size=32, patch_size=8)
    torch.manual_seed(seed)
    return _save(transformers.ViTModel(config, add_pooling_layer=pooler), folder)


def save_convnext(folder: Path, *, seed: int = 0) -> Path:
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(seed)
    config = transformers.ConvNextConfig(hidden_sizes=[8, 16], depths=[1, 1], num_stages=2)
    return _save(transformers.ConvNextModel(config), folder)


def _save(model: torch.nn.Module, folder: Path) -> Path:
    model.save_pretrained(folder)  # type: ignore[operator]
    (folder / "preprocessor_config.json").write_text(json.dumps(PREPROCESSOR))
    return folder
