"""Backbones from transformers, with small random models that were saved to disk."""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from hub_models import save_convnext, save_vit

from unissl.errors import UserError
from unissl.features import FrozenBackbone, load_backbone, weights_hash
from unissl.nets import INPUT_MEAN, INPUT_STD, build, preferred_image_size
from unissl.nets.external import arch_config_of, load


def loaded(folder: Path) -> Any:
    from transformers import AutoModel

    return AutoModel.from_pretrained(folder).eval()


def expected_by(folder: Path, pixels: torch.Tensor) -> torch.Tensor:
    settings = json.loads((folder / "preprocessor_config.json").read_text())
    mean, std = (torch.tensor(settings[key]).view(3, 1, 1) for key in ("image_mean", "image_std"))
    return (pixels - mean) / std


@pytest.mark.parametrize("save", [save_vit, save_convnext])
def test_features_are_those_that_the_library_pools(save: Any, tmp_path: Path) -> None:
    folder = save(tmp_path / "model")
    pixels = torch.rand(2, 3, 32, 32)
    with torch.no_grad():
        wanted = loaded(folder)(expected_by(folder, pixels)).pooler_output
        net = build(f"hf:{folder}", 4).eval()
        outputs = net((pixels - INPUT_MEAN) / INPUT_STD)
    torch.testing.assert_close(outputs.feat, wanted, rtol=1e-4, atol=1e-5)
    assert outputs.logits.shape == (2, 4) and net.feat_dim == wanted.shape[1]
    assert preferred_image_size(f"hf:{folder}") == 32


def test_a_pooler_without_weights_is_not_used(tmp_path: Path) -> None:
    """Its random numbers would be the feature; the class token is taken instead."""
    folder = save_vit(tmp_path / "model", pooler=False)
    pixels = torch.rand(2, 3, 32, 32)
    with torch.no_grad():
        wanted = loaded(folder)(expected_by(folder, pixels)).last_hidden_state[:, 0]
        net = build(f"hf:{folder}", 4).eval()
        torch.testing.assert_close(net((pixels - INPUT_MEAN) / INPUT_STD).feat, wanted, rtol=1e-4, atol=1e-5)
    assert not any("pooler" in name for name in net.state_dict())


def test_other_sizes_and_grey_images(tmp_path: Path) -> None:
    name = f"hf:{save_vit(tmp_path / 'model')}"
    net = load_backbone(name, 1)
    assert not net.training and not any(parameter.requires_grad for parameter in net.parameters())
    assert net(torch.randn(2, 1, 48, 40)).feat.shape == (2, 16)


@pytest.mark.parametrize("save", [save_vit, save_convnext])
@pytest.mark.parametrize("channels", [1, 3])
def test_front_is_rebuilt_without_the_folder(save: Any, channels: int, tmp_path: Path) -> None:
    folder = save(tmp_path / "model")
    name = f"hf:{folder}"
    front = FrozenBackbone(load_backbone(name, channels), FrozenBackbone.empty(name, channels).scaling)
    arch_config = json.loads(json.dumps(arch_config_of(front.net)))
    assert str(tmp_path) not in json.dumps(arch_config)
    shutil.rmtree(folder)
    again = FrozenBackbone.empty(name, channels, arch_config)
    again.load_state_dict(front.state_dict(), strict=True)
    x = torch.randn(2, channels, 32, 32)
    assert torch.equal(again.eval()(x), front.eval()(x))
    with pytest.raises(UserError, match="give a folder that exists"):
        FrozenBackbone.empty(name, channels)


def test_identity_follows_weights_and_preprocessor(tmp_path: Path) -> None:
    name = f"hf:{save_vit(tmp_path / 'model')}"
    first = weights_hash(name)
    assert weights_hash(name) == first
    moved = shutil.copytree(tmp_path / "model", tmp_path / "moved")
    assert weights_hash(f"hf:{moved}") == first
    settings = json.loads((moved / "preprocessor_config.json").read_text())
    (moved / "preprocessor_config.json").write_text(json.dumps(settings | {"image_mean": [0.5, 0.5, 0.5]}))
    save_vit(tmp_path / "model", seed=1)
    assert len({first, weights_hash(name), weights_hash(f"hf:{moved}")}) == 3


def test_loading_leaves_the_generator_and_the_library_as_they_were(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    logging = pytest.importorskip("transformers").utils.logging
    folder = save_vit(tmp_path / "model", pooler=False)
    before, verbosity = torch.get_rng_state(), logging.get_verbosity()
    capfd.readouterr()
    load(f"hf:{folder}")
    assert torch.equal(torch.get_rng_state(), before) and logging.get_verbosity() == verbosity
    assert logging.is_progress_bar_enabled()
    assert capfd.readouterr() == ("", "")


def test_a_model_in_the_cache_is_found_by_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("transformers")
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path))
    commit, model = "0" * 40, tmp_path / "models--owner--some-model"
    folder = save_vit(model / "snapshots" / commit)
    (model / "refs").mkdir()
    (model / "refs" / "main").write_text(commit)
    by_name, by_folder = (load(f"hf:{source}") for source in ("owner/some-model", folder))
    assert by_name.arch_config == by_folder.arch_config
    for preprocessor in model.rglob("preprocessor_config.json"):
        preprocessor.unlink()
    with pytest.raises(
        UserError,
        match="transformers model owner/some-model, which holds its normalisation, cannot be read.*hf download",
    ):
        load("hf:owner/some-model")


# refusals -----------------------------------------------------------------------------------------------------------


def test_models_that_are_not_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("transformers")
    requests: list[object] = []
    monkeypatch.setattr("socket.getaddrinfo", lambda *address, **more: requests.append(address))
    for source in (str(tmp_path / "nowhere"), "owner/such-a-model", "vit", "\x00", "x" * 5000):
        with pytest.raises(
            UserError, match="cannot be loaded.*give a folder that exists, or download.*hf download"
        ) as error:
            load(f"hf:{source}")
        assert len(str(error.value)) < 500
    assert not requests, "the internet was used"


def test_folders_that_lack_something(tmp_path: Path) -> None:
    folder = save_vit(tmp_path / "model")
    (folder / "preprocessor_config.json").rename(tmp_path / "kept.json")
    with pytest.raises(
        UserError, match="which holds its normalisation, cannot be read.*must hold what save_pretrained writes"
    ):
        load(f"hf:{folder}")
    (tmp_path / "kept.json").rename(folder / "preprocessor_config.json")
    (folder / "model.safetensors").rename(tmp_path / "kept.safetensors")
    with pytest.raises(UserError, match="cannot be loaded.*must hold what save_pretrained writes"):
        load(f"hf:{folder}")


def test_a_model_without_some_of_its_weights(tmp_path: Path) -> None:
    from safetensors.torch import load_file, save_file

    file = save_vit(tmp_path / "model") / "model.safetensors"
    state = load_file(file)
    del state[next(name for name in state if name.endswith("cls_token"))]
    save_file(state, file, metadata={"format": "pt"})
    with pytest.raises(UserError, match="lacks the weight '.*cls_token'"):
        load(f"hf:{file.parent}")


def test_a_library_that_is_not_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "transformers", None)
    with pytest.raises(UserError, match="pip install 'transformers>=5'"):
        load("hf:any")


@pytest.fixture
def no_network(monkeypatch: pytest.MonkeyPatch) -> list[object]:
    """Addresses that were asked for; each fails."""
    asked: list[object] = []

    def refuse(*address: object, **more: object) -> None:
        asked.append(address)
        raise OSError("the network was used")

    monkeypatch.setattr("socket.getaddrinfo", refuse)
    monkeypatch.setattr("socket.socket.connect", refuse)
    return asked


IMAGES = {"mean": [0.5] * 3, "std": [0.5] * 3, "size": 32, "pooled": True}
SMALL = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 16}


@pytest.mark.parametrize(
    ("key", "config"),
    [
        ("backbone", {"model_type": "detr", "backbone": "owner/model", "use_timm_backbone": False}),
        ("use_pretrained_backbone", {"model_type": "detr", "use_pretrained_backbone": True, "backbone": "resnet18"}),
        ("backbone", {"model_type": "dpt", "backbone": "owner/model", **SMALL}),
        ("backbone", {"model_type": "mask2former", "backbone": "owner/model", "use_pretrained_backbone": True}),
        ("backbone_config", {"model_type": "mask2former", "backbone_config": "owner/model"}),
        ("backbone", {"model_type": "dpt", "backbone_config": {"model_type": "timm_backbone", "backbone": "o/m"}}),
        ("attn_implementation", {"model_type": "vit", "attn_implementation": "owner/kernel", **SMALL}),
    ],
)
def test_a_manifest_that_names_another_model(key: str, config: dict[str, Any], no_network: list[object]) -> None:
    pytest.importorskip("transformers")
    with pytest.raises(UserError, match=f"setting '{key}' names another model; train with"):
        load("hf:any", {**IMAGES, "config": config})
    assert not no_network


def test_nothing_is_asked_for_by_a_key_that_is_not_known(
    no_network: list[object], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The hub is offline while a model is rebuilt, and as before after that."""
    pytest.importorskip("transformers")
    from huggingface_hub import constants

    before = constants.HF_HUB_OFFLINE
    monkeypatch.setattr("unissl.nets.external.hub._named_model", lambda settings: None)
    for config in ({"model_type": "dpt", "backbone": "owner/model"}, {"model_type": "upernet", "backbone": "o/m"}):
        with pytest.raises(UserError, match="cannot be built from its manifest"):
            load("hf:any", {**IMAGES, "config": config})
    assert not no_network and before == constants.HF_HUB_OFFLINE


def test_a_folder_whose_model_names_another(tmp_path: Path, no_network: list[object]) -> None:
    folder = save_vit(tmp_path / "model")
    (folder / "config.json").write_text(json.dumps({"model_type": "dpt", "backbone": "owner/model"}))
    with pytest.raises(UserError, match="cannot be loaded"):
        load(f"hf:{folder}")
    assert not no_network


def test_a_stored_model_of_timm_names_no_other_place() -> None:
    with pytest.raises(UserError, match="names another place; train with"):
        load("timm:hf-hub:owner/model", {})
