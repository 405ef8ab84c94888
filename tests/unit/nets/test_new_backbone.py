"""The example of docs/extend/backbone.md: one file makes a backbone that can be frozen, fine-tuned and distilled."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest
import torch

from unissl.augment import AugmentConfig
from unissl.distil import DistilConfig, DistilSet, train_student
from unissl.features import FrozenBackbone, extract_features, load_backbone
from unissl.nets import (
    IMAGENET_MEAN,
    IMAGENET_STD,
    INPUT_MEAN,
    INPUT_STD,
    NetConfig,
    build,
    list_backbones,
    list_networks,
    preferred_image_size,
    supports_distillation,
)
from unissl.nets.backbones.registry import all_backbones
from unissl.nets.bf16 import to_bf16
from unissl.run.config import build_config

PAGE = Path(__file__).parents[3] / "docs" / "extend" / "backbone.md"
CPU = torch.device("cpu")


@pytest.fixture(autouse=True)
def tiny(monkeypatch: pytest.MonkeyPatch) -> dict[str, object]:
    """The names that the code of the page defines, with its backbone registered as its file would be."""
    (code,) = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)
    namespace: dict[str, object] = {"__name__": "tiny"}
    exec(compile(code, str(PAGE), "exec"), namespace)
    for backbone in namespace["BACKBONES"]:  # type: ignore[attr-defined]
        monkeypatch.setitem(all_backbones(), backbone.name, backbone)
    return namespace


def test_it_is_listed_with_its_facts() -> None:
    (listed,) = [backbone for backbone in list_backbones() if backbone.name == "tiny"]
    assert (listed.installed, listed.image_size, listed.feat_dim) == (True, 64, 16)
    assert "tiny" in list_networks() and preferred_image_size("tiny") == 64 and supports_distillation("tiny")


def test_its_name_is_pretrained_and_frozen() -> None:
    assert NetConfig(name="tiny").freeze_backbone
    assert build_config({"net": {"name": "tiny"}, "distil": {"epochs": 1.0}}).distil.epochs == 1


@pytest.mark.parametrize("channels", [1, 3])
def test_it_sees_its_own_normalisation(channels: int, tiny: dict[str, object]) -> None:
    net = build("tiny", 2, channels, pretrained=True).eval()
    torch.manual_seed(0)
    plain = tiny["Tiny"](1, 3).eval()  # type: ignore[operator]
    pixels = torch.rand(2, channels, 32, 32)
    mean, std = (torch.tensor(values).view(3, 1, 1) for values in (IMAGENET_MEAN, IMAGENET_STD))
    expected = plain((pixels - mean) / std).feat
    torch.testing.assert_close(net((pixels - INPUT_MEAN) / INPUT_STD).feat, expected, rtol=1e-4, atol=1e-5)


def test_it_is_extracted_and_distilled() -> None:
    images = np.random.default_rng(0).integers(0, 256, (12, 32, 32, 3)).astype(np.uint8)
    cached = extract_features(images, "tiny", AugmentConfig(pad=2, cached_views=1), CPU, maps=True)
    assert cached.features.shape == (12, 2, 16) and cached.maps is not None and cached.maps.shape == (12, 2, 8, 8, 8)
    front = FrozenBackbone(load_backbone("tiny", 3), cached.scaler)
    assert to_bf16(front.net) is front.net, "it is not declared safe in bfloat16"
    labels = torch.eye(3)[torch.arange(12) % 3]
    features = cached.scaler(torch.from_numpy(np.array(cached.features[:, 0])))
    data = DistilSet(np.arange(12), np.arange(12) < 6, labels, features)
    student = train_student(DistilConfig(epochs=2.0, batch=4, lr=1e-2), front, cached.maps, data, seed=0)
    for name, parameter in student.front.net.named_parameters():
        moved = not torch.equal(parameter, front.net.state_dict()[name])
        assert moved == name.startswith("stages.map"), name
