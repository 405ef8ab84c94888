"""Every figure by name: how it is drawn, and which runs of which experiments it is drawn from."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from unissl.data import DataConfig
from unissl.errors import UserError, did_you_mean
from unissl.paper.experiments.registry import get_experiment
from unissl.paper.figures import (
    components,
    correction,
    failure,
    pseudo_label_curves,
    pseudo_labels,
    runtime,
    sensitivity,
    settings,
    silhouette,
    similarity,
    tsne,
)
from unissl.paper.figures.series import FinishedRun, Series, group, read_run
from unissl.paper.figures.style import Drawn
from unissl.paper.grid.plan import Part, Scale, plan, read_outcome
from unissl.paper.grid.storage import is_url


@dataclass(frozen=True)
class Source:
    """Runs of an experiment: of the variants in ``only``, in the ``settings`` named, or all."""

    experiment: str
    only: tuple[str, ...] | None = None
    settings: tuple[str, ...] | None = None


@dataclass(frozen=True)
class FigureKind:
    draw: Callable[[Sequence[Series]], Drawn]
    shows: str
    sources: tuple[Source, ...] = ()


_MOTIVATION = (Source("motivation"),)
FIGURES: dict[str, FigureKind] = {
    "settings": FigureKind(settings.of_runs, "class mixes of labelled images and pool"),
    "pseudo-labels": FigureKind(pseudo_labels.draw, "histograms of right and wrong pseudo-labels", _MOTIVATION),
    "tsne": FigureKind(tsne.draw, "t-SNE of test features", _MOTIVATION),
    "silhouette": FigureKind(silhouette.draw, "silhouette coefficient of test features", _MOTIVATION),
    "similarity": FigureKind(similarity.draw, "cosine similarity between and within classes", _MOTIVATION),
    "stability": FigureKind(correction.draw, "correction ratio over training", (Source("motivation", ("sage",)),)),
    "ablation-pseudo-labels": FigureKind(
        pseudo_label_curves.draw,
        "accuracy and macro-F1 of pseudo-labels over training",
        (Source("table4", settings=("cifar10-a100",)),),
    ),
    "ablation": FigureKind(components.draw, "accuracy with and without parts", (Source("table4"),)),
    "gri-losses": FigureKind(components.draw, "accuracy with and without L_con, L_sim", (Source("gri-losses"),)),
    "lambda": FigureKind(sensitivity.draw, "accuracy against lambda", (Source("lambda"),)),
    "beta": FigureKind(sensitivity.draw, "accuracy against beta", (Source("beta"),)),
    "anchors-k": FigureKind(sensitivity.draw, "accuracy against the number of anchors", (Source("anchors-k"),)),
    "failure-boundary": FigureKind(failure.draw, "mass of G on the largest class", (Source("failure-boundary"),)),
    "overhead": FigureKind(runtime.draw, "time of a step", (Source("table3", settings=("svhn-a150",)),)),
}


def get_figure(name: str) -> FigureKind:
    if name not in FIGURES:
        raise UserError(f"There is no figure {name!r}.{did_you_mean(name, list(FIGURES))}")
    return FIGURES[name]


def draw_runs(name: str, folders: Sequence[Path | str]) -> Drawn:
    """The figure of any finished runs; ``NAME=FOLDER`` names one."""
    kind = get_figure(name)
    named = [_name_and_folder(str(folder)) for folder in folders]
    series = group(read_run(Path(folder)) for _, folder in named)
    names = {Path(folder): name for name, folder in named if name is not None}
    return kind.draw([replace(one, row=names.get(one.first.folder.path, one.row)) for one in series])


def _name_and_folder(text: str) -> tuple[str | None, str]:
    name, equals, folder = text.partition("=")
    return (name, folder) if equals and not Path(text).exists() else (None, text)


def draw_experiment(name: str, scale: Scale, root: str, data_root: str | None = None) -> Drawn:
    """The figure of the experiment's own runs, as many as are finished."""
    kind = get_figure(name)
    if name == "settings":
        data = "cifar10" if scale == "full" else "digits"
        return settings.of_data(DataConfig(name=data, root=data_root))
    if is_url(root):
        raise UserError(
            f"Figures are drawn from folders; copy the runs in {root} here and give that folder with --runs."
        )
    found = [one for source in kind.sources for one in experiment_series(source, scale, Path(root))]
    if not found:
        commands = " and ".join(f"'unissl paper run {source.experiment} --scale {scale}'" for source in kind.sources)
        raise UserError(
            f"No run of this figure is finished in {root}; start them with {commands}, or name run folders."
        )
    return kind.draw(found)


def experiment_series(source: Source, scale: Scale, root: Path) -> list[Series]:
    """Finished runs, named as the experiment names its rows and columns."""
    together: dict[tuple[str, str], list[FinishedRun]] = {}
    for planned in plan(get_experiment(source.experiment), scale, Part(source.only, source.settings)):
        if read_outcome(planned, root).state == "done":
            place = (planned.variant.title, planned.setting.title)
            together.setdefault(place, []).append(read_run(planned.folder(root)))
    return [Series(*place, tuple(runs)) for place, runs in together.items()]
