"""Features of images from a frozen backbone, extracted once and cached; training reads these in place of images.

The first view of an image is the image itself, the others are strongly augmented copies, computed in bfloat16 where the
CPU is faster in it. The cache key is a hash of the pixels and of everything else the features depend on, so a second
run, its baseline and a resumed run find them. Photos of other tables are found too
(:mod:`unissl.features.known_rows`), so augmentation is random by the pixels of an image, not by its row. An extraction
that was stopped continues after its last batch. For distillation (:mod:`unissl.distil`) the maps that enter the
trainable tail of the backbone are cached too, since all stages before them stay frozen.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from unissl import __version__
from unissl.augment import AugmentConfig
from unissl.augment.image_views import ImageViews
from unissl.features.backbone import (
    extracts_in_bf16,
    feature_map_shape,
    forward_features,
    load_backbone,
    normalisation,
    weights_hash,
)
from unissl.features.known_rows import KnownRows, digest_keys, row_digests, write_rows
from unissl.features.scaler import Features, FeatureScaler
from unissl.nets.bf16 import to_bf16
from unissl.nets.external import check_input_size
from unissl.types import ImageTable, Rows
from unissl.utils.cache import cached
from unissl.utils.mmap_rows import row_blocks

BATCH = 64
"""Images that pass the backbone at once. Fixed, since it may change the last bits."""
VIEW_INDEPENDENT = {"cached_views", "feature_dropout", "labelled_feature_dropout", "second_view_dropout"}
"""Settings of the augmentation that do not change the augmented images."""

FeatureMaps = npt.NDArray[np.float16]
Images = npt.NDArray[np.uint8]


@dataclass(frozen=True)
class CachedFeatures:
    """Features (N, V, D) of N images in V = 1 + copies views, memory-mapped, and, where requested, the maps
    (N, V, h, w, c) that enter the trainable tail of the backbone."""

    features: Features
    maps: FeatureMaps | None
    rows: Rows | None = None
    """The rows that were extracted; None: all of them."""

    @cached_property
    def scaler(self) -> FeatureScaler:
        """Fitted to the clean views."""
        return FeatureScaler.of(self.features, self.rows)


def extract_features(
    images: Images | ImageTable,
    name: str,
    augment: AugmentConfig,
    device: torch.device,
    *,
    maps: bool = False,
    bf16: bool | None = None,
    rows: Rows | None = None,
) -> CachedFeatures:
    """Features of uint8 images (N, H, W, channels) and of ``augment.cached_views`` augmented copies of each, and their
    inner maps if requested, from the cache where possible.

    A table is found in the cache by its ``content``, the hash that was computed when its images were decoded; arrays,
    and tables without it, are hashed. ``bf16`` is the decision of a run (``machine.bf16``); without one, the CPU is
    asked. With ``rows``, in ascending order, only their features are extracted, and all others are zero.
    """
    copies = augment.cached_views
    content = images.content if isinstance(images, ImageTable) else None
    pixels = images.images if isinstance(images, ImageTable) else images
    settings = {
        "pixels": content or pixel_hash(pixels),
        "shape": list(pixels.shape),
        "weights": weights_hash(name),
        "copies": copies,
        "augment": augment.model_dump(mode="json", exclude=VIEW_INDEPENDENT, exclude_none=True) if copies else None,
        "maps": maps,
        "unissl": __version__,
    }
    settings |= {} if rows is None else {"rows": rows_hash(rows)}
    settings |= {} if augment.crop is None else {"crop": augment.crop}
    settings |= {"bf16": extracts_in_bf16(name, device, bf16)} if copies else {}
    num_views = 1 + copies

    def build(folder: Path) -> dict[str, Any]:
        channels = pixels.shape[3]
        net = load_backbone(name, channels).to(device)
        views = ImageViews(pixels, augment, *normalisation(channels), device)
        check_input_size(net, name, *views.shape)
        map_shape = feature_map_shape(net, views.shape) if maps else None
        row_bytes = {"features": num_views * net.feat_dim * 4}
        if map_shape is not None:
            row_bytes["maps"] = num_views * int(np.prod(map_shape)) * 2
        digests = row_digests(pixels)
        strong = [f"strong{copy}" for copy in range(copies)]
        nets = {"none": net} | dict.fromkeys(strong, to_bf16(net, bf16) if copies else net)

        @torch.inference_mode()
        def compute(missing: Rows) -> Iterator[list[npt.NDArray[Any]]]:
            for batch in (missing[start : start + BATCH] for start in range(0, len(missing), BATCH)):
                keys = digest_keys(digests[batch])
                outputs = [
                    forward_features(view_net, views.keyed(view, batch, keys), maps=maps)
                    for view, view_net in nets.items()
                ]
                yield [np.stack(blocks, 1) for blocks in zip(*outputs, strict=True)]

        known = KnownRows("features", settings, digests, rows)
        write_rows(folder, known, row_bytes, compute, BATCH, "features")
        return {"feat_dim": net.feat_dim, "map": map_shape}

    entry = cached("features", [], settings, build)
    features: Features = entry.arrays["features"].view(np.float32)
    features = features.reshape(len(pixels), num_views, entry.meta["feat_dim"])
    if not maps:
        return CachedFeatures(features, None, rows)
    inner: FeatureMaps = entry.arrays["maps"].view(np.float16)
    return CachedFeatures(features, inner.reshape(len(pixels), num_views, *entry.meta["map"]), rows)


def pixel_hash(images: Images) -> str:
    digest = hashlib.sha256()
    for block in row_blocks(images, BATCH):
        digest.update(np.ascontiguousarray(block).data)
    return digest.hexdigest()


def rows_hash(rows: Rows) -> str:
    return hashlib.sha256(np.ascontiguousarray(rows).data).hexdigest()
