"""Photos through a frozen backbone: every image becomes a few vectors, once, and training is on these.

The first vector of an image is that of the image as it is, the others are those of strongly augmented copies, made in
bfloat16 where the CPU is faster in it. They are kept in the cache folder under a hash of the pixels and of everything
else they depend on, so that a second run, its reference and a resumed one find them there. The network that is shipped
goes the whole way, from images to classes.

Where the last stages of the backbone are to be trained further (:mod:`unissl.distil`), the maps that enter them are
kept beside the vectors, since all stages before them stay as they are.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from unissl import __version__
from unissl.augment import AugmentConfig
from unissl.augment.image_views import ImageViews
from unissl.data.images.resized import ResizedImages
from unissl.nets import Network, build, channels_last
from unissl.nets.bf16 import cpu_supports_bf16, to_bf16
from unissl.nets.efficientnet_lite import EfficientNetLite, fold_batch_norm
from unissl.nets.external import check_input_size, load
from unissl.nets.pretrained import MEAN, STD, WEIGHTS
from unissl.utils.cache import cached
from unissl.utils.progress import Progress
from unissl.utils.row_writer import RowWriter

FEATURE_NORM = 4.0
"""Length that every vector is scaled to, after each of its entries was standardised."""
BATCH = 64
"""Images that pass the backbone at once. Fixed, since it may decide the last bits."""
VIEW_INDEPENDENT = {"cached_views", "feature_dropout", "labelled_feature_dropout"}
"""Settings of the views that do not change what a copy looks like."""

TRAINABLE_STAGES = ("stage6", "stage7", "map")
"""The part of an EfficientNet-Lite that can be trained further on its inner maps: most of its weights, and the smaller
part of its work."""

Features = npt.NDArray[np.float32]
FeatureMaps = npt.NDArray[np.float16]
Images = npt.NDArray[np.uint8] | ResizedImages


def load_backbone(
    name: str, channels: int, *, pretrained: bool = True, recipe: Mapping[str, Any] | None = None
) -> Network:
    """The network up to its feature, in the form that is fastest for inference; torch's generator is left alone."""
    with torch.random.fork_rng(devices=[]):
        net = build(name, 1, channels, pretrained=pretrained, recipe=recipe)
    if isinstance(net, EfficientNetLite):
        net = fold_batch_norm(net)
    net.head = nn.Identity()  # type: ignore[assignment]
    return channels_last(net).eval().requires_grad_(False)


def weights_hash(name: str) -> str:
    """Hash of what the vectors of a backbone depend on, beside the images."""
    return WEIGHTS[name].sha256 if name in WEIGHTS else load(name).identity


def preferred_size(name: str) -> int | None:
    """Side of the images that a backbone was trained on, where that is known."""
    return WEIGHTS[name].size if name in WEIGHTS else load(name).size


def normalisation(channels: int) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Mean and deviation per channel, for pixels in 0..1, with which every pretrained network is fed; one that expects
    others starts with the change to those."""
    return (MEAN,) * channels, (STD,) * channels


@dataclass(frozen=True)
class CachedFeatures:
    """What a backbone makes of N images in V = 1 + copies views each, memory-mapped: vectors (N, V, D) and, where they
    were asked for, the maps (N, V, h, w, c) that enter its last stages."""

    vectors: Features
    maps: FeatureMaps | None


def backbone_features(images: Images, name: str, augment: AugmentConfig, copies: int, device: torch.device) -> Features:
    """float32 (N, 1 + copies, D) of uint8 images (N, H, W, channels), memory-mapped."""
    return extract_features(images, name, augment, copies, device).vectors


def extract_features(
    images: Images, name: str, augment: AugmentConfig, copies: int, device: torch.device, *, maps: bool = False
) -> CachedFeatures:
    """Vectors of uint8 images (N, H, W, channels), and their inner maps if wanted, from the cache if they are there."""
    settings = {
        "pixels": pixel_hash(images),
        "shape": list(images.shape),
        "weights": weights_hash(name),
        "copies": copies,
        "augment": augment.model_dump(mode="json", exclude=VIEW_INDEPENDENT, exclude_none=True) if copies else None,
        "unissl": __version__,
    }
    settings |= {} if augment.crop is None else {"crop": augment.crop}
    settings |= {"maps": TRAINABLE_STAGES[0]} if maps else {}
    settings |= {"half": extracts_in_bf16(name, device)} if copies else {}
    views_each = 1 + copies

    def make(folder: Path) -> dict[str, Any]:
        channels = images.shape[3]
        net = load_backbone(name, channels).to(device)
        views = ImageViews(images, augment, *normalisation(channels), device)
        check_input_size(net, name, *views.shape)
        map_shape = feature_map_shape(net, views.shape) if maps else None
        with ExitStack() as files:
            writers = [
                files.enter_context(RowWriter(folder / "vectors.npy", (len(images), views_each * net.feat_dim * 4)))
            ]
            if map_shape is not None:
                row = views_each * int(np.prod(map_shape)) * 2
                writers.append(files.enter_context(RowWriter(folder / "maps.npy", (len(images), row))))
            _extract(net, views, copies, writers)
        return {"length": net.feat_dim, "map": map_shape}

    entry = cached("vectors", [], settings, make)
    vectors: Features = entry.arrays["vectors"].view(np.float32)
    vectors = vectors.reshape(len(images), views_each, entry.meta["length"])
    if not maps:
        return CachedFeatures(vectors, None)
    inner: FeatureMaps = entry.arrays["maps"].view(np.float16)
    return CachedFeatures(vectors, inner.reshape(len(images), views_each, *entry.meta["map"]))


def extracts_in_bf16(name: str, device: torch.device) -> bool:
    """Whether views that need not be exact are made in bfloat16."""
    return name in WEIGHTS and device.type == "cpu" and cpu_supports_bf16()


def frozen_stages(net: Network) -> nn.Sequential:
    """All stages that stay as they are when the last ones are trained further."""
    return nn.Sequential(*(stage for name, stage in net.stages.items() if name not in TRAINABLE_STAGES))


def trainable_stages_of(net: Network) -> nn.Sequential:
    return nn.Sequential(*(net.stages[name] for name in TRAINABLE_STAGES))


def feature_map_shape(net: Network, image_shape: tuple[int, ...]) -> tuple[int, int, int]:
    """Height, width and channels of the map that enters the last stages."""
    parameter = next(net.parameters())
    with torch.inference_mode():
        _, channels, height, width = frozen_stages(net)(torch.zeros(1, *image_shape).to(parameter)).shape
    return height, width, channels


def pixel_hash(images: Images) -> str:
    digest = hashlib.sha256()
    for start in range(0, len(images), BATCH):
        digest.update(np.ascontiguousarray(images[start : start + BATCH]).data)
    return digest.hexdigest()


def forward_features(net: Network, shown: Tensor, *, maps: bool) -> list[npt.NDArray[Any]]:
    """float32 vectors (n, D) of normalised images and, if wanted, the float16 maps (n, h, w, c) that enter the last
    stages, whatever the network computes in."""
    kind = next(net.parameters(), shown).dtype
    shown = shown.to(kind) if kind == torch.bfloat16 else shown
    if not maps:
        return [_numpy(net(shown).feat, torch.float32)]
    entering = frozen_stages(net)(shown)
    vectors = trainable_stages_of(net)(entering).mean(dim=(2, 3))
    return [_numpy(vectors, torch.float32), _numpy(entering.permute(0, 2, 3, 1), torch.float16)]


def _numpy(values: Tensor, kind: torch.dtype) -> npt.NDArray[Any]:
    return np.ascontiguousarray(values.to(kind).cpu().numpy())


def _extract(net: Network, views: ImageViews, copies: int, writers: list[RowWriter]) -> None:
    """Write, row by row, the bytes of the clean vector and of those of the copies, then those of the maps likewise."""
    quick = to_bf16(net) if copies else net
    nets = {"none": net} | dict.fromkeys((f"strong{copy}" for copy in range(copies)), quick)
    with torch.inference_mode(), Progress("features", len(views)) as progress:
        for start in range(0, len(views), BATCH):
            rows = np.arange(start, min(start + BATCH, len(views)))
            where = slice(start, start + len(rows))
            seen = [
                forward_features(own, views(kind, rows, stream="features", positions=where), maps=len(writers) > 1)
                for kind, own in nets.items()
            ]
            for writer, blocks in zip(writers, zip(*seen, strict=True), strict=True):
                write_rows(writer, start, blocks)
            progress.advance(len(rows))


def write_rows(writer: RowWriter, start: int, blocks: Sequence[npt.NDArray[Any]]) -> None:
    """Views (n, ...) of the rows from ``start`` on, side by side."""
    flat = np.stack(blocks, 1).reshape(len(blocks[0]), -1)
    writer.write(start, flat.view(np.uint8))


class FeatureScaler(nn.Module):
    """Entries standardised by the clean vectors of a table, then every vector (n, D) scaled to one length."""

    mean: Tensor
    std: Tensor

    def __init__(self, mean: Tensor, std: Tensor) -> None:
        super().__init__()
        self.register_buffer("mean", mean)
        self.register_buffer("std", std)

    @classmethod
    def of(cls, vectors: Features) -> FeatureScaler:
        """From vectors (N, V, D). An entry that is constant, but for rounding, is not blown up."""
        clean = np.asarray(vectors[:, 0], dtype=np.float64)
        mean, std = clean.mean(0), clean.std(0)
        std[std <= 1e-5 * np.abs(clean).max(0)] = 1.0
        return cls(torch.from_numpy(mean).float(), torch.from_numpy(std).float())

    def forward(self, vectors: Tensor) -> Tensor:
        scaled: Tensor = (vectors - self.mean) / self.std
        length: Tensor = scaled.norm(dim=-1, keepdim=True)
        return scaled * (FEATURE_NORM / length.clamp(min=1e-12))


class FrozenBackbone(nn.Module):
    """Normalised images (n, channels, H, W) to scaled vectors (n, D): what training was given ready-made."""

    def __init__(self, net: Network, scaling: FeatureScaler) -> None:
        super().__init__()
        self.net = net
        self.scaling = scaling

    @classmethod
    def empty(cls, name: str, channels: int, recipe: Mapping[str, Any] | None = None) -> FrozenBackbone:
        """With weights yet to be loaded; what the pretrained ones came from is not needed where there is a recipe."""
        net = load_backbone(name, channels, pretrained=False, recipe=recipe)
        return cls(net, FeatureScaler(torch.zeros(net.feat_dim), torch.ones(net.feat_dim)))

    def forward(self, x: Tensor) -> Tensor:
        scaled: Tensor = self.scaling(self.net(x).feat)
        return scaled


class WithBackbone(nn.Module):
    """A module that was trained on vectors, made to take images."""

    def __init__(self, front: FrozenBackbone, module: nn.Module) -> None:
        super().__init__()
        self.front = front
        self.module = module

    def forward(self, x: Tensor) -> object:
        return self.module(self.front(x))
