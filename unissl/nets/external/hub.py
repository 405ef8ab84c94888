"""Backbones from transformers: a folder with config.json, weights and preprocessor_config.json, or a name in its cache.

Nothing is downloaded, and no code that comes with a model is run. The feature is the pooled output of the model; where
the file lacks the weights of the pooler, it is the class token, or the mean of the tokens where there is none.
"""

from __future__ import annotations

import importlib
import inspect
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, cast

import torch
from torch import Tensor, nn

from unissl.errors import UserError, shortened
from unissl.nets.external.adapter import ExternalBackbone, wrap_module

NAMING_KEYS = ("backbone", "backbone_config", "attn_implementation", "experts_implementation", "name_or_path")
"""Settings that, as text, are names of other models on a server or of code that is downloaded."""
PRETRAINED_KEYS = ("use_pretrained_backbone",)
BUILT_IN_ATTENTION = ("eager", "sdpa")


class HubFeatures(nn.Module):
    """A model of transformers that maps images to features (n, D) or maps (n, D, h, w)."""

    def __init__(self, model: nn.Module, *, pooled: bool) -> None:
        super().__init__()
        self.model: nn.Module = cast(Any, model).vision_model if hasattr(model, "vision_model") else model
        if not pooled:
            cast(Any, self.model).pooler = None
        parameters = inspect.signature(self.model.forward).parameters
        self.arguments = {"interpolate_pos_encoding": True} if "interpolate_pos_encoding" in parameters else {}
        tokens = ("cls_token", "class_embedding")
        self.has_class_token = any(name.endswith(tokens) for name, _ in self.model.named_parameters())

    def forward(self, x: Tensor) -> Tensor:
        outputs = self.model(pixel_values=x, **self.arguments)
        pooled = getattr(outputs, "pooler_output", None)
        if pooled is not None:
            return cast(Tensor, pooled).flatten(1)
        hidden = cast(Tensor, outputs.last_hidden_state)
        if hidden.ndim != 3:
            return hidden
        return hidden[:, 0] if self.has_class_token else hidden.mean(1)


def load_hub(name: str, source: str, arch_config: Mapping[str, Any] | None) -> ExternalBackbone:
    """The model in the folder or of the name ``source``; with the ``arch_config`` of an earlier one, only its
    architecture, for which no file is needed."""
    library = _transformers()
    with _quiet(library), offline():
        if arch_config is not None:
            features = _from_arch_config(library, name, arch_config)
            images = arch_config
        else:
            folder = local_folder(source)
            images = _image_settings(library, folder, source)
            model, missing = _load(library, folder, source)
            features = HubFeatures(model, pooled=not missing)
            config = cast(Any, model).config.to_dict()
            config.pop("_name_or_path", None)  # a path of this machine does not belong into a shipped model
            arch_config = {**images, "pooled": not missing, "config": config}
    return wrap_module(name, features, images["mean"], images["std"], images["size"], arch_config)


def local_folder(source: str) -> str:
    """The folder ``source``, or that of the model of this name in the cache.

    Given the name, transformers would look for a preprocessor on the internet even with ``local_files_only``.
    """
    if os.path.isdir(source):
        return source
    _transformers()
    try:
        return str(importlib.import_module("huggingface_hub").snapshot_download(source, local_files_only=True))
    except Exception as error:  # not in the cache, or not a valid name
        raise UserError(
            f"The transformers model {shortened(source)} cannot be loaded: {_how_to_download(source)}"
        ) from error


def _from_arch_config(library: Any, name: str, arch_config: Mapping[str, Any]) -> HubFeatures:
    """A model of the architecture in a manifest, which may come from anywhere; settings that name code are left out."""
    try:
        settings = _without_code(arch_config["config"])
        if (key := _named_model(settings)) is not None:
            raise UserError(
                f"The network {shortened(name)} cannot be built from its manifest, whose setting {key!r} names another "
                "model; train with a model that holds all of its parts."
            )
        model = library.AutoModel.from_config(library.AutoConfig.for_model(**settings), trust_remote_code=False)
        return HubFeatures(model, pooled=arch_config["pooled"])
    except UserError:
        raise
    except Exception as error:  # the library raises nearly every type there is on settings that do not fit each other
        raise UserError(f"The network {name} cannot be built from its manifest; train again.") from error


def _without_code(settings: Any) -> Any:
    """The settings of a manifest at any depth, without those that name code."""
    if isinstance(settings, Mapping):
        kept = {key: value for key, value in settings.items() if key != "auto_map" and key[:1] != "_"}
        return {key: _without_code(value) for key, value in kept.items()}
    return [_without_code(value) for value in settings] if isinstance(settings, list) else settings


def _named_model(settings: Any) -> str | None:
    """The first setting, at any depth, by which the library would look for another model or for compiled code."""
    if isinstance(settings, list):
        return next(filter(None, map(_named_model, settings)), None)
    if not isinstance(settings, Mapping):
        return None
    for key, value in settings.items():
        named = key in NAMING_KEYS and isinstance(value, str) and value not in BUILT_IN_ATTENTION
        if named or (key in PRETRAINED_KEYS and value):
            return str(key)
        if (inner := _named_model(value)) is not None:
            return inner
    return None


@contextmanager
def offline() -> Iterator[None]:
    """Inside, the library of the hub sends no request, whatever a model asks for.

    It reads its environment variable only when it is imported, but this constant before each request.
    """
    try:
        constants: Any = importlib.import_module("huggingface_hub.constants")
    except ImportError:  # no library that could send one
        yield
        return
    before, constants.HF_HUB_OFFLINE = constants.HF_HUB_OFFLINE, True
    try:
        yield
    finally:
        constants.HF_HUB_OFFLINE = before


def _transformers() -> Any:
    try:
        return importlib.import_module("transformers")
    except ImportError:
        raise UserError(
            "Networks from transformers need that library; install it with: pip install 'transformers>=5'."
        ) from None


def _load(library: Any, folder: str, source: str) -> tuple[nn.Module, list[str]]:
    """The model in float32, and the missing weights of its pooler; any other missing weight is an error.

    ``source`` is the name that the user gave the folder.
    """
    try:
        model, info = library.AutoModel.from_pretrained(
            folder, local_files_only=True, trust_remote_code=False, output_loading_info=True, dtype=torch.float32
        )
    except Exception as error:
        raise UserError(f"The transformers model {source} cannot be loaded: {_how_to_download(source)}") from error
    missing = [key for key in sorted(info["missing_keys"]) if not key.startswith(("text_", "logit_"))]
    required = [key for key in missing if "pooler." not in key]
    if required:
        raise UserError(
            f"The transformers model {source} lacks the weight {required[0]!r} ({len(required)} in all); "
            "use a folder that was saved from the whole model."
        )
    return model, missing


def _image_settings(library: Any, folder: str, source: str) -> dict[str, Any]:
    """Mean, standard deviation and side of the images that the model was trained on, from its preprocessor."""
    try:
        settings, _ = library.ImageProcessingMixin.get_image_processor_dict(folder, local_files_only=True)
    except Exception as error:
        raise UserError(
            f"The preprocessor_config.json of the transformers model {source}, which holds its normalisation, cannot "
            f"be read: {_how_to_download(source)}"
        ) from error
    size = settings.get("crop_size") if settings.get("do_center_crop") else None
    size = size or settings.get("size") or {}
    side = size.get("height") or size.get("shortest_edge") if isinstance(size, Mapping) else size
    normalised = settings.get("do_normalize", True) and "image_mean" in settings
    mean, std = (settings["image_mean"], settings["image_std"]) if normalised else ([0.0] * 3, [1.0] * 3)
    return {"mean": list(mean), "std": list(std), "size": side or None}


def _how_to_download(source: str) -> str:
    if os.path.isdir(source):
        return "the folder must hold what save_pretrained writes for the model and for its image processor."
    return f"give a folder that exists, or download a model of that name with 'hf download {shortened(source)}'."


@contextmanager
def _quiet(library: Any) -> Iterator[None]:
    """Suppress progress bars and messages of the library."""
    logging = library.utils.logging
    verbosity, bars = logging.get_verbosity(), logging.is_progress_bar_enabled()
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        logging.set_verbosity(verbosity)
        if bars:
            logging.enable_progress_bar()
