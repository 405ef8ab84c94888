"""Photos through a frozen backbone: every image becomes a few vectors, once, and training is on these.

The first vector of an image is that of the image as it is, the others are those of strongly augmented copies. They are
kept in the cache folder under a hash of the pixels and of everything else they depend on, so that a second run, its
reference and a resumed one find them there. The network that is shipped goes the whole way, from images to classes.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from unissl import __version__
from unissl.augment import AugmentConfig
from unissl.augment.image_views import ImageViews
from unissl.data.cache import RowWriter, cached
from unissl.data.progress import Progress
from unissl.nets import Network, build, channels_last
from unissl.nets.efficientnet_lite import EfficientNetLite, fold_batch_norm
from unissl.nets.foreign import load, refuse_unreadable_size
from unissl.nets.pretrained import MEAN, STD, WEIGHTS

LENGTH = 4.0
"""Length that every vector is scaled to, after each of its entries was standardised."""
BATCH = 64
"""Images that pass the backbone at once. Fixed, since it may decide the last bits."""
OF_TRAINING = {"copies", "dropout", "label_dropout"}
"""Settings of the views that do not change what a copy looks like."""

Vectors = npt.NDArray[np.float32]
Images = npt.NDArray[np.uint8]


def backbone(name: str, channels: int, *, pretrained: bool = True, recipe: Mapping[str, Any] | None = None) -> Network:
    """The network up to its feature, in the form that is fastest for inference; torch's generator is left alone."""
    with torch.random.fork_rng(devices=[]):
        net = build(name, 1, channels, pretrained=pretrained, recipe=recipe)
    if isinstance(net, EfficientNetLite):
        net = fold_batch_norm(net)
    net.head = nn.Identity()  # type: ignore[assignment]
    return channels_last(net).eval().requires_grad_(False)


def identity(name: str) -> str:
    """Hash of what the vectors of a backbone depend on, beside the images."""
    return WEIGHTS[name].sha256 if name in WEIGHTS else load(name).identity


def preferred_size(name: str) -> int | None:
    """Side of the images that a backbone was trained on, where that is known."""
    return WEIGHTS[name].size if name in WEIGHTS else load(name).size


def normalisation(channels: int) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Mean and deviation per channel, for pixels in 0..1, with which every pretrained network is fed; one that expects
    others starts with the change to those."""
    return (MEAN,) * channels, (STD,) * channels


def backbone_vectors(images: Images, name: str, augment: AugmentConfig, copies: int, device: torch.device) -> Vectors:
    """float32 (N, 1 + copies, D) of uint8 images (N, H, W, channels), memory-mapped."""
    settings = {
        "pixels": _pixel_hash(images),
        "shape": list(images.shape),
        "weights": identity(name),
        "copies": copies,
        "augment": augment.model_dump(mode="json", exclude=OF_TRAINING) if copies else None,
        "unissl": __version__,
    } | ({} if augment.crop is None else {"crop": augment.crop})

    def make(folder: Path) -> dict[str, int]:
        channels = images.shape[3]
        net = backbone(name, channels).to(device)
        views = ImageViews(images, augment, *normalisation(channels), device)
        refuse_unreadable_size(net, name, *views.shape)
        with RowWriter(folder / "vectors.npy", (len(images), (1 + copies) * net.feat_dim * 4)) as writer:
            _extract(net, views, copies, writer)
        return {"length": net.feat_dim}

    entry = cached("vectors", [], settings, make)
    vectors: Vectors = entry.arrays["vectors"].view(np.float32)
    return vectors.reshape(len(images), 1 + copies, entry.meta["length"])


def _pixel_hash(images: Images) -> str:
    digest = hashlib.sha256()
    for start in range(0, len(images), BATCH):
        digest.update(np.ascontiguousarray(images[start : start + BATCH]).data)
    return digest.hexdigest()


def _extract(net: Network, views: ImageViews, copies: int, writer: RowWriter) -> None:
    """Write, row by row, the bytes of the clean vector and of those of the copies."""
    kinds = ["none", *(f"strong{copy}" for copy in range(copies))]
    with torch.inference_mode(), Progress("features", len(views)) as progress:
        for start in range(0, len(views), BATCH):
            rows = np.arange(start, min(start + BATCH, len(views)))
            where = slice(start, start + len(rows))
            made = [net(views(kind, rows, stream="features", positions=where)).feat for kind in kinds]
            block: Vectors = torch.cat(made, 1).cpu().to(torch.float32).numpy()
            writer.write(start, np.ascontiguousarray(block).view(np.uint8))
            progress.advance(len(rows))


class Scaling(nn.Module):
    """Entries standardised by the clean vectors of a table, then every vector (n, D) scaled to one length."""

    mean: Tensor
    std: Tensor

    def __init__(self, mean: Tensor, std: Tensor) -> None:
        super().__init__()
        self.register_buffer("mean", mean)
        self.register_buffer("std", std)

    @classmethod
    def of(cls, vectors: Vectors) -> Scaling:
        """From vectors (N, V, D). An entry that is constant, but for rounding, is not blown up."""
        clean = np.asarray(vectors[:, 0], dtype=np.float64)
        mean, std = clean.mean(0), clean.std(0)
        std[std <= 1e-5 * np.abs(clean).max(0)] = 1.0
        return cls(torch.from_numpy(mean).float(), torch.from_numpy(std).float())

    def forward(self, vectors: Tensor) -> Tensor:
        scaled: Tensor = (vectors - self.mean) / self.std
        length: Tensor = scaled.norm(dim=-1, keepdim=True)
        return scaled * (LENGTH / length.clamp(min=1e-12))


class Front(nn.Module):
    """Normalised images (n, channels, H, W) to scaled vectors (n, D): what training was given ready-made."""

    def __init__(self, net: Network, scaling: Scaling) -> None:
        super().__init__()
        self.net = net
        self.scaling = scaling

    @classmethod
    def empty(cls, name: str, channels: int, recipe: Mapping[str, Any] | None = None) -> Front:
        """With weights yet to be loaded; what the pretrained ones came from is not needed where there is a recipe."""
        net = backbone(name, channels, pretrained=False, recipe=recipe)
        return cls(net, Scaling(torch.zeros(net.feat_dim), torch.ones(net.feat_dim)))

    def forward(self, x: Tensor) -> Tensor:
        scaled: Tensor = self.scaling(self.net(x).feat)
        return scaled


class BehindFront(nn.Module):
    """A module that was trained on vectors, made to take images."""

    def __init__(self, front: Front, module: nn.Module) -> None:
        super().__init__()
        self.front = front
        self.module = module

    def forward(self, x: Tensor) -> object:
        return self.module(self.front(x))
