"""Backbones from transformers: a folder with config.json, weights and preprocessor_config.json, or a name in its cache.

Nothing is downloaded, and no code that comes with a model is run. The feature is the one the model itself pools, unless
the weights for that are not in the file: then it is the class token, or the mean of the tokens where there is none.
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
from unissl.nets.external.adapter import Backbone, around


class HubFeatures(nn.Module):
    """A model of transformers, made to map images to vectors (n, D) or maps (n, D, h, w)."""

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
        said = self.model(pixel_values=x, **self.arguments)
        pooled = getattr(said, "pooler_output", None)
        if pooled is not None:
            return cast(Tensor, pooled).flatten(1)
        hidden = cast(Tensor, said.last_hidden_state)
        if hidden.ndim != 3:
            return hidden
        return hidden[:, 0] if self.has_class_token else hidden.mean(1)


def load_hub(name: str, place: str, recipe: Mapping[str, Any] | None) -> Backbone:
    """The model in ``place``; with the ``recipe`` of an earlier one, only its shape, for which no file is needed."""
    library = _transformers()
    with _quiet(library):
        if recipe is not None:
            features = _from_recipe(library, name, recipe)
            return around(name, features, recipe["mean"], recipe["std"], recipe["size"], recipe)
        folder = place if os.path.isdir(place) else _in_cache(place)
        images = _image_settings(library, folder, place)
        model, missing = _load(library, folder, place)
    pooled = not missing
    features = HubFeatures(model, pooled=pooled)
    config = cast(Any, model).config.to_dict()
    config.pop("_name_or_path", None)  # where it was is nobody's business
    recipe = {**images, "pooled": pooled, "config": config}
    return around(name, features, images["mean"], images["std"], images["size"], recipe)


def _from_recipe(library: Any, name: str, recipe: Mapping[str, Any]) -> HubFeatures:
    """A model of the shape that a manifest tells, which may be anybody's; settings that name code are left out."""
    try:
        settings = {key: value for key, value in recipe["config"].items() if key != "auto_map" and key[:1] != "_"}
        model = library.AutoModel.from_config(library.AutoConfig.for_model(**settings), trust_remote_code=False)
        return HubFeatures(model, pooled=recipe["pooled"])
    except UserError:
        raise
    except Exception as error:  # the library raises nearly every type there is on settings that do not fit each other
        raise UserError(f"The network {name} cannot be built as its manifest says; train again.") from error


def _transformers() -> Any:
    try:
        return importlib.import_module("transformers")
    except ImportError:
        raise UserError(
            "Networks from transformers need that library; install unissl with the extra 'transformers'."
        ) from None


def _in_cache(name: str) -> str:
    """The folder of a model that was fetched before. Asked by name, the library would look for a preprocessor in the
    network, whatever it is told."""
    try:
        return str(importlib.import_module("huggingface_hub").snapshot_download(name, local_files_only=True))
    except Exception as error:  # not there, or no name at all
        raise UserError(f"The transformers model {shortened(name)} cannot be loaded: {_how_to_fetch(name)}") from error


def _load(library: Any, folder: str, place: str) -> tuple[nn.Module, list[str]]:
    """The model in float32, and which weights its pooler lacks; without any other weight it is refused.

    ``place`` is what the user called the folder.
    """
    try:
        model, info = library.AutoModel.from_pretrained(
            folder, local_files_only=True, trust_remote_code=False, output_loading_info=True, dtype=torch.float32
        )
    except Exception as error:
        raise UserError(f"The transformers model {place} cannot be loaded: {_how_to_fetch(place)}") from error
    of_images = [key for key in sorted(info["missing_keys"]) if not key.startswith(("text_", "logit_"))]
    lacking = [key for key in of_images if "pooler." not in key]
    if lacking:
        raise UserError(
            f"The transformers model {place} comes without the weight {lacking[0]!r} ({len(lacking)} in all); "
            "use a folder that was saved from the whole model."
        )
    return model, of_images


def _image_settings(library: Any, folder: str, place: str) -> dict[str, Any]:
    """Mean, deviation and side of the images that the model was trained on, from the settings of its preprocessor."""
    try:
        said, _ = library.ImageProcessingMixin.get_image_processor_dict(folder, local_files_only=True)
    except Exception as error:
        raise UserError(
            f"The preprocessor_config.json of the transformers model {place} cannot be read, and without it nobody "
            f"knows what images it expects: {_how_to_fetch(place)}"
        ) from error
    size = said.get("crop_size") if said.get("do_center_crop") else None
    size = size or said.get("size") or {}
    side = size.get("height") or size.get("shortest_edge") if isinstance(size, Mapping) else size
    normalised = said.get("do_normalize", True) and "image_mean" in said
    mean, std = (said["image_mean"], said["image_std"]) if normalised else ([0.0] * 3, [1.0] * 3)
    return {"mean": list(mean), "std": list(std), "size": side or None}


def _how_to_fetch(place: str) -> str:
    if os.path.isdir(place):
        return "the folder must hold what save_pretrained writes for the model and for its image processor."
    return f"give a folder that exists, or fetch a model of that name once with 'hf download {shortened(place)}'."


@contextmanager
def _quiet(library: Any) -> Iterator[None]:
    """No bars and reports of the library among ours; what matters of them is said in sentences."""
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
