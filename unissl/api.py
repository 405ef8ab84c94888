"""The front door: train, load, resume, evaluate, export. The command line is a thin layer over these functions.

Training and reports are imported by the functions that need them, so that ``load`` and ``predict`` start at once.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from unissl.config import ConfigTree, check, merge, without_none
from unissl.distributed.collectives import broadcast_from_main
from unissl.errors import UserError
from unissl.inference.model import Model, load_model
from unissl.run_folder import RunFolder
from unissl.utils.progress import log

if TYPE_CHECKING:
    from unissl.evaluation.metrics import Evaluation
    from unissl.nets.backbones.base import Backbone
    from unissl.run.pipeline import Run

__all__ = ["evaluate", "export", "list_backbones", "list_methods", "load", "resume", "train"]

Paths = str | Path


def train(
    images: Any = None,
    labels: Paths | Sequence[Any] | None = None,
    *,
    groups: Literal["folder"] | Sequence[Any] | None = None,
    test: Paths | None = None,
    holdout: int | None = None,
    minutes: float | None = None,
    steps: int | None = None,
    method: str | None = None,
    seed: int | None = None,
    config: Mapping[str, Any] | None = None,
    recipe: str | None = None,
    out: Paths | None = None,
    baseline: bool = True,
    report: bool | None = None,
    resume: bool | Literal["auto"] = False,
    fast: bool = False,
) -> Run:
    """Train a classifier from a few labelled and many unlabelled images; all results are in a run folder.

    Args:
        images: A folder of images, a Parquet file, or the name of a data set (see ``unissl datasets``); or the images
            themselves: a list of paths, a pandas DataFrame with the columns file and label, or a uint8 array
            (n, H, W, C) or (n, H, W).
        labels: For a folder, a CSV file with the columns file and label; without it, subfolders are the classes. For
            a list or an array, one label per image, None for unlabelled.
        groups: Images of one series, patient or burst, which folds and hold-outs keep together. For a folder "folder":
            the folder of an image is its group; or give a column group in the label file. For a list of paths one
            group per image, None for an image by itself.
        test: Test images: a folder with one subfolder per class, or a Parquet file.
        holdout: Number of labelled images to set aside for testing.
        minutes: Total time budget, including baseline and report. By default the data decides the length.
        steps: Training steps, in place of ``minutes``.
        method: By default "sage"; :func:`list_methods` has all.
        seed: Random seed for split, initialisation, batch order and augmentation; by default 0.
        config: Further settings as a nested dictionary, for example ``{"data": {"image_size": 192}}``.
        recipe: Starting point of the configuration; by default the one that suits the data.
        out: Run folder; by default runs/DATA-METHOD-SEED.
        baseline: Also train a labels-only baseline, so that the gain from unlabelled images is known.
        report: Write report.html; by default for images of your own.
        resume: True continues the run in ``out``; "auto" starts it where there is none yet.
        fast: For images of your own: no augmented views and no fine-tuning, for a first look in a third of the time.

    Returns:
        The finished run: ``run.accuracy``, ``run.interval``, ``run.report``, ``run.predictions``, ``run.baseline``.

    Example:
        >>> import unissl
        >>> run = unissl.train("photos/", labels="labels.csv", out="runs/first")  # doctest: +SKIP
        >>> run.accuracy, run.interval  # doctest: +SKIP
        (0.883, Interval(value=0.883, low=0.85, high=0.91))
    """
    started = time.monotonic()
    from unissl.autoconfig.recipes import with_recipe
    from unissl.run.config import require_groups

    if steps is not None and minutes is not None:
        raise UserError("Give either steps or minutes, not both.")
    if config is not None and not isinstance(config, Mapping):
        raise UserError(f"The config is given as {type(config).__name__}; give a dictionary of settings.")
    if resume not in (True, False, "auto"):
        raise UserError(f"resume={resume!r} is not known; give True, False or 'auto'.")
    require_groups(config or {})
    given: ConfigTree = {
        "data": {"test": test, "test_holdout": holdout},
        "train": {"steps": steps, "minutes": minutes},
        "method": {"name": method},
        "seed": seed,
    }
    if images is not None:
        given["data"] |= _data_of(images, labels, groups, out)
    else:
        given["data"] |= {"labels": labels, "groups": groups}
    overrides = merge(config or {}, without_none(given))
    if resume:
        if out is None:
            raise UserError("To resume a run, name its folder: --out on the command line, out= in Python.")
        if resume is True and recipe is not None:
            raise UserError("A resumed run takes its configuration from its folder; leave out the recipe.")
        if resume is True or broadcast_from_main(lambda: RunFolder(out).holds_run):
            return _resume(out, overrides if recipe is None else with_recipe(overrides, recipe))
    if fast and recipe is not None:
        raise UserError("A fast run has its own configuration; leave out the recipe.")
    return _start(overrides, recipe, out, {"baseline": baseline, "report": report}, fast, started)


def resume(out: Paths) -> Run:
    """Continue the run in the folder ``out``, bit for bit; a finished run is read from the folder.

    Example:
        >>> unissl.resume("runs/first")  # doctest: +SKIP
    """
    return _resume(out, {})


def load(run: Paths) -> Model:
    """The trained classifier of a run folder.

    Example:
        >>> model = unissl.load("runs/first")  # doctest: +SKIP
        >>> model.predict(["a.jpg", "b.jpg"]).to_pandas()  # doctest: +SKIP
    """
    return load_model(run)


def evaluate(model: Model | Paths, images: Any, labels: Sequence[Any] | None = None) -> Evaluation:
    """Accuracy, balanced accuracy, recalls and confusion matrix on labelled images that the model was not trained on.

    Args:
        model: A model, or the run folder of one.
        images: A folder with one subfolder per class; or images as for ``Model.predict``, with ``labels``.
        labels: One class name per image.

    Example:
        >>> unissl.evaluate(unissl.load("runs/first"), "test/").accuracy  # doctest: +SKIP
    """
    from unissl.inference.evaluate import evaluate_model

    return evaluate_model(model if isinstance(model, Model) else load_model(model), images, labels)


def export(run: Paths, out: Paths | None = None, format: str = "onnx") -> Path:
    """Write the classifier of a run in another format; by default ONNX, as model.onnx in the run folder.

    Example:
        >>> unissl.export("runs/first", "model.onnx")  # doctest: +SKIP
    """
    from unissl.inference.exporters import export_model

    return export_model(run, out, format).path


def list_methods() -> list[str]:
    """Names of all methods.

    Example:
        >>> "sage" in list_methods()
        True
    """
    from unissl.methods.registry import all_methods

    return sorted(all_methods())


def list_backbones() -> list[Backbone]:
    """Pretrained backbones for photos, with name, installed, image_size, feat_dim, source and licence.

    Example:
        >>> [backbone.name for backbone in list_backbones() if backbone.default]  # doctest: +ELLIPSIS
        ['...']
    """
    from unissl import nets

    return nets.list_backbones()


def _data_of(images: Any, labels: Any, groups: Any, out: Paths | None) -> ConfigTree:
    """Data settings for what was given as images."""
    from unissl.data import names
    from unissl.run.given_images import store_images

    if isinstance(images, str | Path):
        if groups not in (None, "folder"):
            raise UserError('Of a folder, groups are "folder" or a column group in the label file; leave out the list.')
        if images in names():
            return {"name": images, "groups": groups}
        name = "parquet" if Path(images).suffix == ".parquet" else "folder"
        return {"name": name, "root": images, "labels": labels, "groups": groups}
    if out is None:
        raise UserError("Images from Python need a run folder; name it with out=.")
    return store_images(images, labels, RunFolder(out), groups)


def _start(
    overrides: ConfigTree,
    recipe: str | None,
    out: Paths | None,
    output: dict[str, bool | None],
    fast: bool,
    started: float,
) -> Run:
    from unissl.data import OWN_DATA, DataConfig, scan_folder
    from unissl.nets.bf16 import start_trial

    if overrides.get("data", {}).get("name") in OWN_DATA:
        start_trial()  # beside the imports
    from unissl.autoconfig.recipes import with_recipe
    from unissl.autoconfig.suggest import suggest_config
    from unissl.distributed.group import current
    from unissl.run import pipeline
    from unissl.run.config import build_config

    index = None
    if recipe is None:
        data = overrides.get("data", {})
        if data.get("name") == "folder" and current().is_main:
            known = {key: data[key] for key in data if key in DataConfig.model_fields}
            index = scan_folder(check(DataConfig, known, where="data"))
        suggestion = broadcast_from_main(lambda: suggest_config(overrides, index, fast=fast))
        overrides, recipe = suggestion.settings, suggestion.recipe
        for reason in suggestion.reasons:
            log.info(reason)
    tree = with_recipe(overrides, recipe)
    if output["report"] is None:
        output = output | {"report": tree.get("data", {}).get("name") in OWN_DATA}
    config = build_config(merge({"output": output}, tree))
    return _with_report(pipeline.run(config, out, index=index, started=started))


def _resume(out: Paths, overrides: ConfigTree) -> Run:
    from unissl.run import pipeline
    from unissl.run.config import stored_config

    folder = RunFolder(out)
    broadcast_from_main(lambda: stored_config(folder, overrides))  # fails before anything is announced
    log.info("%s is finished already" if broadcast_from_main(lambda: folder.finished) else "resuming %s", out)
    return _with_report(pipeline.resume(out, overrides))


def _with_report(run: Run) -> Run:
    """Write the report if it is configured and missing."""
    from unissl.report.html import write_report
    from unissl.run.lock import locked

    if run.config.output.report and not broadcast_from_main(lambda: run.folder.report.exists()):
        with locked(run.folder):
            broadcast_from_main(run.folder.remove_partial_files)
            broadcast_from_main(lambda: write_report(run.folder, inputs=run.inputs) and None)
    return run
