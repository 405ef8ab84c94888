"""Features of images from a frozen pretrained backbone, extracted once and cached."""

from unissl.features.backbone import (
    FrozenBackbone,
    WithBackbone,
    forward_features,
    load_backbone,
    normalisation,
    tail_stages,
    weights_hash,
)
from unissl.features.extract import BATCH, CachedFeatures, FeatureMaps, Images, extract_features
from unissl.features.inner import inner_features
from unissl.features.multi_crop import multi_crop_features
from unissl.features.scaler import FEATURE_NORM, Features, FeatureScaler

__all__ = [
    "BATCH",
    "FEATURE_NORM",
    "CachedFeatures",
    "FeatureMaps",
    "FeatureScaler",
    "Features",
    "FrozenBackbone",
    "Images",
    "WithBackbone",
    "extract_features",
    "forward_features",
    "inner_features",
    "load_backbone",
    "multi_crop_features",
    "normalisation",
    "tail_stages",
    "weights_hash",
]
