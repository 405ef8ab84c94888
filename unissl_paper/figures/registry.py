"""Every figure by name, with its function and the experiments whose runs it shows."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from unissl.data import DataConfig
from unissl.errors import UserError, did_you_mean
from unissl_paper.experiments import get_experiment
from unissl_paper.experiments.experiment import Scale
from unissl_paper.figures import (
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
from unissl_paper.figures.series import FinishedRun, Series, group, read_run
from unissl_paper.figures.style import CaptionedFigure
from unissl_paper.grid.plan import Selection, runs_to_show, seeds_note
from unissl_paper.grid.storage import is_url


@dataclass(frozen=True)
class Source:
    """Runs of an experiment: of the named variants and columns, or all."""

    experiment: str
    methods: tuple[str, ...] | None = None
    columns: tuple[str, ...] | None = None


@dataclass(frozen=True)
class FigureKind:
    draw: Callable[[Sequence[Series]], CaptionedFigure]
    shows: str
    sources: tuple[Source, ...] = ()


_MOTIVATION = (Source("motivation"),)
FIGURES: dict[str, FigureKind] = {
    "settings": FigureKind(settings.of_runs, "class distributions of labelled images and pool"),
    "pseudo-labels": FigureKind(pseudo_labels.draw, "histograms of right and wrong pseudo-labels", _MOTIVATION),
    "tsne": FigureKind(tsne.draw, "t-SNE of test features", _MOTIVATION),
    "silhouette": FigureKind(silhouette.draw, "silhouette coefficient of test features", _MOTIVATION),
    "similarity": FigureKind(similarity.draw, "cosine similarity between and within classes", _MOTIVATION),
    "stability": FigureKind(correction.draw, "correction ratio over training", (Source("motivation", ("sage",)),)),
    "ablation-pseudo-labels": FigureKind(
        pseudo_label_curves.draw,
        "accuracy and macro-F1 of pseudo-labels over training",
        (Source("table4", columns=("cifar10-a100",)),),
    ),
    "ablation": FigureKind(components.draw, "accuracy with and without parts", (Source("table4"),)),
    "gri-losses": FigureKind(components.draw, "accuracy with and without L_con, L_sim", (Source("gri-losses"),)),
    "lambda": FigureKind(sensitivity.draw, "accuracy against lambda", (Source("lambda"),)),
    "beta": FigureKind(sensitivity.draw, "accuracy against beta", (Source("beta"),)),
    "anchors-k": FigureKind(sensitivity.draw, "accuracy against the number of anchors", (Source("anchors-k"),)),
    "failure-boundary": FigureKind(failure.draw, "mass of G on the largest class", (Source("failure-boundary"),)),
    "overhead": FigureKind(runtime.draw, "time of a step", (Source("table3", columns=("svhn-a150",)),)),
}


def get_figure(name: str) -> FigureKind:
    if name not in FIGURES:
        raise UserError(f"There is no figure {name!r}.{did_you_mean(name, list(FIGURES))}")
    return FIGURES[name]


def draw_runs(name: str, folders: Sequence[Path | str]) -> CaptionedFigure:
    """Draw a figure of any finished runs; ``NAME=FOLDER`` names one."""
    kind = get_figure(name)
    named = [_name_and_folder(str(folder)) for folder in folders]
    series = group(read_run(Path(folder)) for _, folder in named)
    names = {Path(folder): name for name, folder in named if name is not None}
    return kind.draw([replace(one, row=names.get(one.first.folder.path, one.row)) for one in series])


def _name_and_folder(text: str) -> tuple[str | None, str]:
    name, equals, folder = text.partition("=")
    return (name, folder) if equals and not Path(text).exists() else (None, text)


def draw_experiment(name: str, scale: Scale, root: str, data_root: str | None = None) -> CaptionedFigure:
    """Draw a figure of the finished runs of its experiment; the caption states the seeds if they are not as planned."""
    kind = get_figure(name)
    if name == "settings":
        data = "cifar10" if scale == "full" else "digits"
        return settings.of_data(DataConfig(name=data, root=data_root))
    if is_url(root):
        raise UserError(
            f"Figures are drawn from folders; copy the runs in {root} here and give that folder with --runs."
        )
    series: list[Series] = []
    notes: list[str] = []
    for source in kind.sources:
        members = experiment_series(source, scale, Path(root))
        seeds, planned = {run.seed for one in members for run in one.runs}, get_experiment(source.experiment).seeds
        if members and seeds != set(planned):
            notes.append(f" {seeds_note(seeds, planned)}")
        series += members
    if not series:
        commands = " and ".join(f"'unissl paper run {source.experiment} --scale {scale}'" for source in kind.sources)
        raise UserError(
            f"No run of this figure is finished in {root}; start them with {commands}, or name run folders."
        )
    drawn = kind.draw(series)
    return replace(drawn, caption=drawn.caption + "".join(notes))


def experiment_series(source: Source, scale: Scale, root: Path) -> list[Series]:
    """Finished runs, named after the rows and columns of the experiment."""
    groups: dict[tuple[str, str], list[FinishedRun]] = {}
    selection = Selection(source.methods, source.columns)
    for run, status in runs_to_show(get_experiment(source.experiment), scale, root, selection):
        if status.state == "done":
            groups.setdefault((run.variant.title, run.column.title), []).append(read_run(run.folder(root)))
    return [Series(*titles, tuple(runs)) for titles, runs in groups.items()]
