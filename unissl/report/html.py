"""One page about a finished run that opens anywhere: no script, no network, everything inside the file.

The page is made from the run folder alone. The images are loaded again for the galleries, the map and whatever needs a
prediction for each image; where they are gone, the page says so and does without.
"""

from __future__ import annotations

import platform
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from importlib.resources import files
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow.parquet as pq
import torch
from jinja2 import Environment, StrictUndefined
from markupsafe import Markup
from sklearn.decomposition import PCA
from sklearn.manifold import TSNE
from torch import Tensor

from unissl.config import Tree, check, read_toml
from unissl.data import DataConfig, Dataset
from unissl.data.progress import Progress
from unissl.errors import UserError
from unissl.evaluate.inference import Model, load_model
from unissl.evaluate.predict import Predictions, predict_images
from unissl.methods.registry import all_methods
from unissl.open_set import load_data
from unissl.record import RunFolder, read_json, write_text
from unissl.report import charts, findings, galleries
from unissl.report.findings import Bin
from unissl.splits import SplitConfig, read_split
from unissl.types import Outputs, Prediction, Split

Bools = npt.NDArray[np.bool_]
Floats = npt.NDArray[np.float32]
Rows = npt.NDArray[np.int64]

MAP_IMAGES = 2_000
"""Points of the map, labelled images among them."""
MOST_LABELLED = 4_000
"""Given labels that are checked."""
MOST_ROWS = 40
"""Lines of a table."""


@dataclass(frozen=True)
class Record:
    """What the run folder says, with that of the labels-only run beside it."""

    folder: RunFolder
    config: Tree
    summary: Mapping[str, Any]
    metrics: charts.Metrics
    pool: Mapping[str, npt.NDArray[Any]] | None
    reference: Record | None = None

    @property
    def names(self) -> Sequence[str]:
        return list(self.summary["class_names"])

    @property
    def title(self) -> str:
        method = all_methods().get(self.summary["method"])
        return str(self.summary["method"]) if method is None else method.title


@dataclass(frozen=True)
class Seen:
    """What the model says about images that are at hand: labelled ones, a part of the pool, the test images."""

    album: galleries.Album
    labelled: Rows
    labels: Rows
    said: Predictions
    features: Floats
    pool_said: Predictions | None
    pool_features: Floats
    confidence: Floats
    right: Bools
    reference_right: Bools | None


class Written(NamedTuple):
    """Where the page is, and why it is without images if it is."""

    path: Path
    reason: str


def write_report(folder: RunFolder, out: Path | None = None, dataset: Dataset | None = None) -> Written:
    """Write the page, by default as report.html into the run folder. ``dataset`` saves loading it again."""
    if not folder.finished:
        raise UserError(f"{folder.path} holds no finished run; train one, or finish it with `unissl train --resume`.")
    record = read_record(folder)
    seen, reason = None, ""
    try:
        seen = look(record, dataset)
    except UserError as error:
        reason = str(error)
    target = out or folder.path / "report.html"
    write_text(target, render(record, seen, reason))
    return Written(target, reason)


def read_record(folder: RunFolder, reference: bool = True) -> Record:
    beside = RunFolder(folder.path / "labels-only")
    columns = None
    if folder.predictions.exists():
        table = pq.read_table(folder.predictions, columns=["row", "class_index", "confidence", "outlier"])
        columns = {name: table[name].to_numpy() for name in table.column_names}
    return Record(
        folder,
        read_toml(folder.config),
        read_json(folder.summary),
        folder.read_metrics(),
        columns,
        read_record(beside, reference=False) if reference and beside.finished else None,
    )


def look(record: Record, dataset: Dataset | None) -> Seen:
    """Load the images and ask the model; refuses where they are gone or no longer those of the run."""
    data = check(DataConfig, record.config.get("data", {}), where="data")
    if dataset is None:
        dataset = load_data(data, check(SplitConfig, record.config.get("split", {}), where="split"))
    split = read_split(record.folder.split, len(dataset.train))
    if not is_same_data(record, dataset, split):
        raise UserError("The images have changed since the run; train again to see them here.")
    model = load_model(record.folder)
    labelled, labels, pool = sample(split)
    known = np.flatnonzero(dataset.test.labels >= 0) if dataset.test is not None else np.zeros(0, dtype=np.int64)
    twice = 2 if record.reference is not None else 1
    with Progress("looking at images for the report", len(labelled) + len(pool) + twice * len(known)) as progress:
        said, features = ask(model, dataset.train.images, labelled, progress)
        pool_said, pool_features = None, features[:0]
        if len(pool):
            pool_said, pool_features = ask(model, dataset.train.images, pool, progress)
        right, reference_right, confidence = np.zeros(0, dtype=bool), None, np.zeros(0, dtype=np.float32)
        if dataset.test is not None and len(known):
            answers, _ = ask(model, dataset.test.images, known, progress)
            right, confidence = answers.classes == dataset.test.labels[known], answers.confidence
            if record.reference is not None:
                theirs, _ = ask(load_model(record.reference.folder), dataset.test.images, known, progress)
                reference_right = theirs.classes == dataset.test.labels[known]
    album = galleries.Album(dataset.train, data.root if data.name == "folder" else None)
    return Seen(album, labelled, labels, said, features, pool_said, pool_features, confidence, right, reference_right)


def is_same_data(record: Record, dataset: Dataset, split: Split) -> bool:
    """Whether tables and split are those that the folder tells of."""
    tested = 0 if dataset.test is None else len(dataset.test)
    same = tuple(record.names) == dataset.train.class_names and tested == record.summary["test_images"]
    if same and record.pool is not None:
        same = np.array_equal(record.pool["row"], split.unlabelled)
        if same and dataset.train.files is not None:
            stored = pq.read_table(record.folder.predictions).to_pydict().get("file")
            same = stored is None or stored == [dataset.train.files[row] for row in split.unlabelled]
    return same


def sample(split: Split) -> tuple[Rows, Rows, Rows]:
    """Labelled rows with their labels, and rows of the pool that fill the map up; always the same ones."""
    rng = np.random.default_rng(0)
    some = np.sort(rng.permutation(len(split.labelled))[:MOST_LABELLED])
    room = MAP_IMAGES - min(len(some), MAP_IMAGES // 2)
    return split.labelled[some], split.labels[some], np.sort(rng.permutation(split.unlabelled)[:room])


def ask(model: Model, images: npt.NDArray[np.uint8], rows: Rows, progress: Progress) -> tuple[Predictions, Floats]:
    """Predictions and features of some rows."""
    features: list[Tensor] = []

    def answer(x: Tensor) -> Outputs | Prediction:
        said: Outputs | Prediction = model.module(x)
        features.append(said.feat if isinstance(said, Outputs) else said.features)
        progress.advance(len(x))
        return said

    said = predict_images(answer, images, model.mean, model.std, rows=rows, batch_size=model.batch)
    return said, torch.cat(features).to(torch.float32).numpy()


def flatten(features: Floats) -> Floats:
    """Features as points of a plane that keep their neighbours: t-SNE after PCA, or PCA alone for a few points."""
    if len(features) < 3 or float(features.std(0).max()) < 1e-9:
        return np.zeros((len(features), 2), dtype=np.float32)
    reduced = PCA(min(30, *features.shape), random_state=0).fit_transform(features.astype(np.float64))
    if len(features) < 20 or reduced.shape[1] < 3:
        return np.asarray(np.pad(reduced, ((0, 0), (0, 2)))[:, :2], dtype=np.float32)
    perplexity = min(30.0, (len(features) - 1) / 3)
    return np.asarray(TSNE(perplexity=perplexity, random_state=0).fit_transform(reduced), dtype=np.float32)


def render(record: Record, seen: Seen | None, reason: str) -> str:
    """The page as text. ``reason`` says why there are no images, if there are none."""
    environment = Environment(
        autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True, finalize=presentable
    )
    environment.filters |= {"percent": findings.percent, "signed": findings.signed}
    template = environment.from_string(files("unissl.report").joinpath("page.html.jinja").read_text(encoding="utf-8"))
    summary, names = record.summary, record.names
    predicted = summary["pool"]["predicted"] if "pool" in summary else None
    bins = findings.reliability(seen.confidence, seen.right) if seen is not None and len(seen.right) else []
    rivals, leads = doubts(seen, findings.absent_classes(predicted) if predicted else [])
    head = headline(record, seen)
    return template.render(
        record=record,
        reason=reason,
        head=head,
        findings=findings.health(
            names,
            predicted=predicted,
            outlier=None if record.pool is None else record.pool["outlier"],
            doubtful=int((leads > findings.CLEARLY).sum()),
            labelled=len(leads),
            curve=[line["accuracy"] for line in record.metrics if line["kind"] == "eval" and "accuracy" in line],
            gain=head["gain"],
            gain_interval=head["gain_interval"],
            bins=bins,
            test_images=head["tested"],
            skipped=len(summary.get("skipped", [])),
            duplicates=summary.get("duplicates", []),
        ),
        classes=class_rows(record),
        confusions=frequent_confusions(record),
        calibration_error=findings.calibration_error(bins) if bins else None,
        charts=draw(record, seen, bins),
        doubtful=[]
        if seen is None
        else galleries.doubtful_labels(seen.album, seen.labelled, seen.labels, rivals, leads, names),
        outliers=galleries.outliers(seen.album, record.pool, names) if seen and record.pool else [],
        class_galleries=galleries.class_galleries(seen.album, record.pool, names) if seen and record.pool else [],
        duplicates=duplicate_rows(record),
        none_of_these=0 if record.pool is None else int((record.pool["outlier"] > findings.NONE_OF_THESE).sum()),
        threshold=findings.NONE_OF_THESE,
        pixelated=seen is not None and seen.album.is_coarse,
        source=source(record),
        card=reproducibility(record),
        most_rows=MOST_ROWS,
    )


def presentable(value: Any) -> Any:
    return charts.printable(value) if isinstance(value, str) and not isinstance(value, Markup) else value


def source(record: Record) -> str:
    """What the images are called: the name of the data set, or of the folder or file they came from."""
    root = record.config.get("data", {}).get("root")
    name = str(record.summary["data"])
    return (Path(root).name or name) if root and name in ("folder", "parquet") else name


def doubts(seen: Seen | None, absent: Sequence[int]) -> tuple[Rows, Floats]:
    """For each labelled image the class it may really be of, and how strongly that is felt."""
    if seen is None:
        return np.zeros(0, dtype=np.int64), np.zeros(0, dtype=np.float32)
    votes = None
    if seen.pool_said is not None:
        votes = findings.neighbour_votes(seen.features, seen.pool_features, seen.pool_said.probs)
    return findings.doubts(seen.labels, seen.said.probs, votes, absent)


def headline(record: Record, seen: Seen | None) -> dict[str, Any]:
    """Accuracies side by side, the gain, and intervals where the test images are at hand."""
    summary, reference = record.summary, record.reference
    head: dict[str, Any] = dict.fromkeys(("accuracy", "accuracy_interval", "floor", "gain", "gain_interval"))
    head["tested"] = summary["test_images"] - summary.get("unknowns", 0)
    if "accuracy" in summary:
        head["accuracy"] = summary["accuracy"]["last"]
        right = round(head["accuracy"] * head["tested"])
        head["accuracy_interval"] = findings.accuracy_interval(right, head["tested"])
        if reference is not None and "accuracy" in reference.summary:
            head["floor"] = reference.summary["accuracy"]["last"]
            head["gain"] = head["accuracy"] - head["floor"]
        if seen is not None and seen.reference_right is not None:
            head["gain_interval"] = findings.paired_gain(seen.right, seen.reference_right)
    return head


def class_rows(record: Record) -> list[dict[str, Any]]:
    """Each class in numbers; of many classes those with the most uncertain images."""
    summary, names, pool = record.summary, record.names, record.pool
    shown: Sequence[int] = range(len(names))
    if len(names) > MOST_ROWS and pool is not None:
        shown = galleries.most_uncertain_classes(pool["class_index"], pool["confidence"], len(names), MOST_ROWS)
    predicted = summary["pool"]["predicted"] if "pool" in summary else None
    recalls = summary.get("per_class_recall")
    return [
        {
            "name": names[c],
            "labels": summary["labelled"][c],
            "pool": None if predicted is None else predicted[c],
            "share": None if predicted is None else predicted[c] / max(1, sum(predicted)),
            "recall": None if recalls is None else recalls[c],
        }
        for c in shown[:MOST_ROWS]
    ]


def frequent_confusions(record: Record) -> list[dict[str, Any]]:
    """The pairs of classes that are mistaken most often."""
    if "confusion_matrix" not in record.summary:
        return []
    matrix, names = np.array(record.summary["confusion_matrix"]), record.names
    wrong = matrix.copy()
    np.fill_diagonal(wrong, 0)
    pairs = [np.unravel_index(place, wrong.shape) for place in np.argsort(-wrong, axis=None, kind="stable")[:8]]
    return [
        {"true": names[t], "given": names[g], "count": int(wrong[t, g]), "share": wrong[t, g] / matrix[t].sum()}
        for t, g in pairs
        if wrong[t, g]
    ]


def duplicate_rows(record: Record) -> list[dict[str, str]]:
    """Groups of copies as lines of a table, as far as the summary lists them."""
    rows = []
    for group in record.summary.get("duplicates", []):
        names = []
        for copy in group["copies"]:
            label = "" if copy.get("label") is None else f" = {record.names[copy['label']]}"
            names.append(f"{copy.get('file') or 'row ' + str(copy['row'])} ({copy['part']}{label})")
        remarks = ["test image learnt from"] if findings.leaks_test(group) else []
        remarks += ["labels disagree"] if findings.labels_disagree(group) else []
        rows.append({"kind": group["kind"], "images": ", ".join(names), "remark": "; ".join(remarks)})
    return rows


def draw(record: Record, seen: Seen | None, bins: Sequence[Bin]) -> dict[str, Markup]:
    """The pictures that there are data for, by name."""
    summary, names = record.summary, record.names
    drawn: dict[str, tuple[Any, str]] = {}
    if "pool" in summary:
        drawn["mix"] = (charts.class_mix(summary["pool"], names), "Bars: images of the pool by predicted class")
    if "accuracy" in summary:
        runs = {record.title: record.metrics}
        if record.reference is not None:
            runs["labels only"] = record.reference.metrics
        drawn["accuracy"] = (charts.accuracy_curves(runs), "Line: test accuracy by training step")
        drawn["confusion"] = (charts.confusion(summary, title=False), "Matrix: true classes against predicted ones")
    drawn["losses"] = (charts.loss_curves(record.metrics), "Lines: loss terms by training step")
    selected = charts.selected_curve(record.metrics)
    if selected is not None:
        drawn["selected"] = (selected, "Line: share of pseudo-labels in use by training step")
    if bins:
        drawn["reliability"] = (charts.reliability_diagram(bins), "Points: share of right answers by confidence")
    if seen is not None:
        labelled = min(len(seen.features), MAP_IMAGES // 2)
        features = np.concatenate([seen.features[:labelled], seen.pool_features])
        said = [seen.said.classes[:labelled], *([] if seen.pool_said is None else [seen.pool_said.classes])]
        given = np.arange(len(features)) < labelled
        figure = charts.feature_map(flatten(features), np.concatenate(said), given, names)
        drawn["map"] = (figure, "Points: images, near each other where the model sees them alike")
    return {name: Markup(charts.inline_svg(figure, name, alt)) for name, (figure, alt) in drawn.items()}


def reproducibility(record: Record) -> dict[str, Any]:
    """What somebody needs to make the run again."""
    summary, manifest = record.summary, read_json(record.folder.manifest)
    return {
        "command": "unissl train --config config.toml --out again",
        "config": record.folder.config.read_text(encoding="utf-8"),
        "facts": {
            "method": summary["method"],
            "network": f"{summary['net']}, {summary['parameters']:,} parameters",
            "data": summary["data"],
            "classes": f"{len(record.names):,}",
            "labelled images": f"{sum(summary['labelled']):,}",
            "held-out labels": f"{summary.get('heldout', 0):,}",
            "unlabelled images": f"{summary.get('pool', {}).get('images', 0):,}",
            "test images": f"{summary['test_images']:,}",
            "image size": f"{manifest['width']} × {manifest['height']}, {manifest['channels']} channel(s)",
            "seed": summary["seed"],
            "steps": f"{summary['steps']:,}",
            "time": f"{summary['seconds']:,.0f} s",
            "configuration": summary["config"],
        },
        "versions": summary.get("versions")
        or {"unissl": manifest["unissl"], **{name: version(name) for name in ("torch", "numpy", "scikit-learn")}}
        | {"python": platform.python_version()},
    }
