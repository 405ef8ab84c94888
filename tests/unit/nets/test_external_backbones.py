"""External pretrained networks: their notation, their features, their hash, and errors."""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from unissl.errors import UserError
from unissl.features import FrozenBackbone, weights_hash
from unissl.nets import (
    IMAGENET_MEAN,
    IMAGENET_STD,
    INPUT_MEAN,
    INPUT_STD,
    NetConfig,
    build,
    is_pretrained_name,
    preferred_image_size,
)
from unissl.nets.backbones.base import InputAdapter
from unissl.nets.external import NetworkName, arch_config_of, check_input_size, describe, load, parse
from unissl.run.config import build_config


def house(pixels: Tensor) -> Tensor:
    """Pixels in 0..1 as every pretrained network is fed."""
    return (pixels - INPUT_MEAN) / INPUT_STD


# notation -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "text, parts",
    [
        ("wrn-28-2", None),
        ("hf:owner/model", NetworkName("hf", "owner/model", None)),
        ("hf:/a/b@2:c", NetworkName("hf", "/a/b@2:c", None)),
        ("wrn-10-1@/a@b/w.safetensors", NetworkName("", "wrn-10-1", "/a@b/w.safetensors")),
        ("small@C:\\w.safetensors", NetworkName("", "small", "C:\\w.safetensors")),
        ("my.nets:make@w.safetensors", NetworkName("my.nets", "make", "w.safetensors")),
        ("timm:resnet50.a1_in1k", NetworkName("timm", "resnet50.a1_in1k", None)),
    ],
)
def test_names_and_their_parts(text: str, parts: NetworkName | None) -> None:
    assert parse(text) == parts


@pytest.mark.parametrize("text", ["hf:", "a-b:make", ":make", "my..nets:make", "C:\\folder:x"])
def test_names_that_cannot_be_read(text: str) -> None:
    with pytest.raises(UserError, match="not a valid name"):
        parse(text)
    with pytest.raises(UserError, match="^Setting 'net'.*package.module:factory"):
        build_config({"net": {"name": text, "freeze_backbone": True}})


@pytest.mark.parametrize(
    "settings, message",
    [
        ({"name": "timm:x", "freeze_backbone": False}, "set net.freeze_backbone or net.pretrained"),
        ({"name": "timm:x", "freeze_backbone": True, "pretrained": True}, "leave out net.pretrained"),
        ({"name": "small", "pretrained": True}, "no pretrained weights for 'small'"),
        ({"name": "efficientnet-lite0", "unfreeze_last": 1}, "set net.pretrained too"),
        ({"name": "efficientnet-lite0", "freeze_backbone": True, "unfreeze_last": 1}, "set net.pretrained too"),
    ],
)
def test_settings_that_contradict_each_other(settings: dict[str, object], message: str) -> None:
    with pytest.raises(UserError, match=message):
        build_config({"net": settings})


@pytest.mark.parametrize(
    "settings, frozen, pretrained",
    [
        ({"name": "efficientnet-lite2"}, True, False),
        ({"name": "hf:owner/model"}, True, False),
        ({"name": "small@w.safetensors"}, True, False),
        ({"name": "efficientnet-lite2", "pretrained": True}, False, True),
        ({"name": "timm:x", "pretrained": True}, False, True),
        ({"name": "efficientnet-lite2", "pretrained": False, "freeze_backbone": False}, False, False),
        ({"name": "wrn-28-2"}, False, False),
        ({}, False, False),
    ],
)
def test_a_pretrained_name_means_frozen_unless_set_otherwise(
    settings: dict[str, object], frozen: bool, pretrained: bool
) -> None:
    config = NetConfig(**settings)  # type: ignore[arg-type]
    assert (config.freeze_backbone, config.pretrained) == (frozen, pretrained)
    assert NetConfig(**config.model_dump()) == config, "a stored configuration is read as it was"
    assert is_pretrained_name(config.name) == (config.name not in ("wrn-28-2", "small"))


# the entrance -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("channels", [1, 3])
def test_entrance_against_plain_arithmetic(channels: int) -> None:
    mean, std = (0.1, 0.5, 0.7), (0.2, 0.3, 1.5)
    pixels = torch.rand(2, channels, 3, 4)
    made = InputAdapter(mean, std)(house(pixels))
    assert made.shape == (2, 3, 3, 4)
    for colour in range(3):
        wanted = (pixels[:, colour % channels] - mean[colour]) / std[colour]
        torch.testing.assert_close(made[:, colour], wanted)


# one of ours with the weights of a file -----------------------------------------------------------------------------


def saved_wrn(folder: Path, channels: int = 3) -> Path:
    torch.manual_seed(3)
    file = folder / f"wrn{channels}.safetensors"
    save_file(build("wrn-10-1", 4, channels).state_dict(), file)
    return file


def test_own_network_with_the_weights_of_a_file(tmp_path: Path) -> None:
    file = saved_wrn(tmp_path)
    torch.manual_seed(3)
    source = build("wrn-10-1", 4, 3).eval()
    before = torch.get_rng_state()
    backbone = load(f"wrn-10-1@{file}")
    assert torch.equal(torch.get_rng_state(), before)
    assert backbone.feat_dim == 64 and backbone.mean == IMAGENET_MEAN and backbone.image_size is None
    net = build(f"wrn-10-1@{file}", 7, 3).eval()
    pixels = torch.rand(2, 3, 16, 16)
    mean, std = (torch.tensor(values).view(3, 1, 1) for values in (IMAGENET_MEAN, IMAGENET_STD))
    outputs = net(house(pixels))
    torch.testing.assert_close(outputs.feat, source((pixels - mean) / std).feat, rtol=1e-4, atol=1e-5)
    assert outputs.logits.shape == (2, 7) and net.untrained_parameters() == source.untrained_parameters() != frozenset()
    net.wanted_taps = ("stage2",)
    assert net(house(pixels)).taps["stage2"].shape[1] == net.tap_dims["stage2"]


def test_grey_images_are_those_of_three_equal_channels(tmp_path: Path) -> None:
    name = f"wrn-10-1@{saved_wrn(tmp_path)}"
    grey, rgb = build(name, 2, 1).eval(), build(name, 2, 3).eval()
    x = torch.randn(2, 1, 16, 16)
    torch.testing.assert_close(grey(x).feat, rgb(x.expand(-1, 3, -1, -1)).feat)


def test_channels_that_do_not_fit(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="reads grey or RGB images, not images of 4 channels"):
        build(f"wrn-10-1@{saved_wrn(tmp_path)}", 2, 4)
    grey = f"wrn-10-1@{saved_wrn(tmp_path, 1)}"
    assert build(grey, 2, 1)(torch.randn(1, 1, 16, 16)).feat.shape == (1, 64)
    with pytest.raises(UserError, match="reads grey images, not images of 3 channels"):
        build(grey, 2, 3)


def test_manifest_beside_the_weights_says_the_normalisation(tmp_path: Path) -> None:
    file = saved_wrn(tmp_path)
    (tmp_path / "manifest.json").write_text(json.dumps({"mean": [0.1] * 3, "std": [0.3] * 3, "height": 24}))
    backbone = load(f"wrn-10-1@{file}")
    assert backbone.mean == (0.1,) * 3 and backbone.std == (0.3,) * 3 and backbone.image_size == 24
    assert preferred_image_size(f"wrn-10-1@{file}") == 24


def test_weights_that_cannot_be_used(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="cannot be read.*give a safetensors file"):
        load(f"wrn-10-1@{tmp_path / 'none.safetensors'}")
    (tmp_path / "text.safetensors").write_text("no tensors")
    with pytest.raises(UserError, match="cannot be read"):
        load(f"wrn-10-1@{tmp_path / 'text.safetensors'}")
    file = saved_wrn(tmp_path)
    with pytest.raises(UserError, match="lack 'stage1.0.weight'.*another architecture"):
        load(f"small@{file}")
    with pytest.raises(UserError, match="where the named architecture has"):
        load(f"wrn-10-2@{file}")
    with pytest.raises(UserError, match="Unknown network 'wrong'"):
        load(f"wrong@{file}")


def test_identity_follows_the_weights(tmp_path: Path) -> None:
    file = saved_wrn(tmp_path)
    name = f"wrn-10-1@{file}"
    first = weights_hash(name)
    assert weights_hash(name) == first
    state = load_file(file)
    state["stages.map.0.running_mean"][5] += 1e-3
    save_file(state, file)
    assert weights_hash(name) != first
    (tmp_path / "manifest.json").write_text(json.dumps({"mean": [0.1] * 3, "std": [0.3] * 3, "height": 24}))
    assert len({first, weights_hash(name), weights_hash("efficientnet-lite0")}) == 3


def test_own_front_is_rebuilt_without_the_file(tmp_path: Path) -> None:
    name = f"wrn-10-1@{saved_wrn(tmp_path, 1)}"
    front = FrozenBackbone(build(name, 1, 1), FrozenBackbone.empty(name, 1).scaling).eval()
    front.net.head = nn.Identity()  # type: ignore[assignment]
    arch_config = json.loads(json.dumps(arch_config_of(front.net)))
    shutil.rmtree(tmp_path)
    again = FrozenBackbone.empty(name, 1, arch_config)
    again.load_state_dict(front.state_dict(), strict=True)
    x = torch.randn(2, 1, 16, 16)
    torch.testing.assert_close(again(x), front(x))


def test_files_are_loaded_again_only_after_a_change(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = saved_wrn(tmp_path)
    name = f"wrn-10-1@{file}"
    first = describe(name)
    copied = load(name)
    assert describe(name) is first and copied.stages["map"] is not first.stages["map"]
    save_file(build("wrn-10-1", 4).state_dict(), file)
    assert describe(name) is not first and describe(name).weights_hash != first.weights_hash


# a factory ----------------------------------------------------------------------------------------------------------

CODE = """
import torch
from torch import nn

class Net(nn.Module):
    mean, std, size = (0.5, 0.4, 0.3), (0.25, 0.2, 0.1), 20

    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(3, 5, 3)

    def forward(self, x):
        return self.conv(x)

class Fussy(Net):
    def forward(self, x):
        if x.shape[-1] != 20:
            raise ValueError("I want 20 pixels.")
        return self.conv(x).mean((2, 3))

class Dreaming(Net):
    def forward(self, x):
        return torch.rand(len(x), 5)

class Classifier(Net):
    def forward(self, x):
        return {"logits": self.conv(x)}

class Wrong(Net):
    mean = 0.5

def nothing():
    return 3
"""


@pytest.fixture
def nets_here(here: Path) -> object:
    """A module in the current folder, forgotten afterwards."""
    (here / "nets_of_a_user.py").write_text(CODE)
    yield here / "nets_of_a_user.py"
    sys.modules.pop("nets_of_a_user", None)


def test_factory_in_the_current_folder(nets_here: Path) -> None:
    before = list(sys.path)
    name = "nets_of_a_user:Net"
    backbone = load(name)
    assert sys.path == before
    assert (backbone.feat_dim, backbone.image_size, backbone.mean) == (5, 20, (0.5, 0.4, 0.3))
    pixels = torch.rand(2, 3, 12, 12)
    module = backbone.stages["map"]
    mean, std = (torch.tensor(values).view(3, 1, 1) for values in (backbone.mean, backbone.std))
    wanted = module((pixels - mean) / std).mean((2, 3))
    torch.testing.assert_close(build(name, 2)(house(pixels)).feat, wanted, rtol=1e-4, atol=1e-5)


def test_factory_with_random_weights_is_the_same_at_every_call(nets_here: Path) -> None:
    first = weights_hash("nets_of_a_user:Net")
    torch.manual_seed(99)
    assert weights_hash("nets_of_a_user:Net") == first


def test_identity_follows_the_code(nets_here: Path) -> None:
    first = weights_hash("nets_of_a_user:Net")
    nets_here.write_text(CODE + "\nMORE = 1\n")
    assert weights_hash("nets_of_a_user:Net") != first


def test_factory_with_weights_of_a_file(nets_here: Path, tmp_path: Path) -> None:
    weights = {"conv.weight": torch.ones(5, 3, 3, 3), "conv.bias": torch.zeros(5), "fc.weight": torch.ones(2, 5)}
    save_file(weights, tmp_path / "w.safetensors")
    backbone = load(f"nets_of_a_user:Net@{tmp_path / 'w.safetensors'}")
    assert torch.equal(backbone.stages["map"].state_dict()["conv.weight"], weights["conv.weight"])


@pytest.mark.parametrize(
    "name, message",
    [
        ("nets_of_a_user:Missing", "cannot be imported.*run the command in the folder of nets_of_a_user"),
        ("no_such_module_of_a_user:Net", "cannot be imported.*No module named"),
        ("nets_of_a_user:nothing", "returns int; it must return a torch.nn.Module"),
        ("nets_of_a_user:Classifier", "returns dict for one image.*leave out its classifier"),
        ("nets_of_a_user:Dreaming", "different features for the same image"),
        ("nets_of_a_user:Wrong", "'mean' that is not three numbers"),
    ],
)
def test_factories_that_are_refused(name: str, message: str, nets_here: Path) -> None:
    with pytest.raises(UserError, match=message):
        load(name)


def test_images_of_a_size_that_a_network_cannot_read(nets_here: Path) -> None:
    net = build("nets_of_a_user:Fussy", 2)
    check_input_size(net, "fussy", 3, 20, 20)
    assert net.training
    with pytest.raises(
        UserError, match="cannot read images of 32 x 32 pixels.*I want 20 pixels.*set data.image_size to 20"
    ):
        check_input_size(net, "fussy", 3, 32, 32)


def test_timm_that_is_not_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "timm", None)
    with pytest.raises(UserError, match="needs timm, which cannot be imported here; run 'pip install timm'"):
        load("timm:resnet50")


def test_timm_is_asked_for_features_and_for_its_normalisation(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A stand-in for the library; the library itself is not tested."""
    asked = []

    def create_model(name: str, **how: object) -> nn.Module:
        asked.append((name, how))
        if name == "wrong":
            raise RuntimeError("Unknown model (wrong)")
        return nn.Conv2d(3, 6, 3)

    outputs = {"mean": (0.1, 0.2, 0.3), "std": (0.4, 0.5, 0.6), "input_size": (3, 24, 24)}
    data = SimpleNamespace(resolve_model_data_config=lambda model: outputs)
    monkeypatch.setitem(sys.modules, "timm", SimpleNamespace(create_model=create_model, data=data, __version__="1"))
    backbone = load("timm:some_net")
    assert (backbone.feat_dim, backbone.image_size, backbone.mean) == (6, 24, (0.1, 0.2, 0.3))
    save_file(nn.Conv2d(3, 6, 3).state_dict(), tmp_path / "w.safetensors")
    load(f"timm:some_net@{tmp_path / 'w.safetensors'}")
    load("timm:some_net", backbone.arch_config)
    assert [how["pretrained"] for _, how in asked] == [True, False, False]
    with pytest.raises(UserError, match="timm cannot create 'wrong'"):
        load("timm:wrong")
