"""Class distributions of the four settings of the paper, from splits of a data set; or of the splits of runs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from unissl.data import DataConfig, load
from unissl.run.config import build_config
from unissl.splits import SplitConfig, make_split, read_split
from unissl.splits.open_set import load_data
from unissl_paper.figures.series import Series, titles
from unissl_paper.figures.style import HUES, PAGE, CaptionedFigure, label_panels, panels

SEED = 0
MAX_COLUMNS = 4


@dataclass(frozen=True)
class ClassCounts:
    """Images of each class: labelled and in the pool; None if the pool's true classes are unknown."""

    title: str
    labelled: npt.NDArray[np.int64]
    pool: npt.NDArray[np.int64] | None


def of_data(data: DataConfig) -> CaptionedFigure:
    """The four settings on one data set. The distributions are the paper's, the numbers of images ours."""
    labels, names = (table := load(data).train).labels, table.class_names
    smallest = int(np.bincount(labels[labels >= 0], minlength=len(names)).min())
    many = max(8, smallest // 4)
    pool = smallest - many
    tail = {
        "labelled_distribution": "long-tailed",
        "gamma_l": 10.0,
        "labels_per_class": many,
        "max_count": pool,
        "gamma": 20.0,
    }
    kinds = {
        "SSL": {"labels_per_class": many, "pool_distribution": "uniform", "max_count": pool, "gamma": 1.0},
        "LTSSL": {**tail, "pool_distribution": "long-tailed"},
        "ReaLTSSL": {**tail, "pool_distribution": "arbitrary"},
        "UniSSL": {"labels_per_class": 4, "pool_distribution": "arbitrary", "max_count": pool, "gamma": 20.0},
    }
    counts = []
    for title, settings in kinds.items():
        split = make_split(labels, len(names), SplitConfig.model_validate(settings), SEED, names)
        in_pool = np.bincount(labels[split.unlabelled], minlength=len(names))
        counts.append(ClassCounts(title, np.array(split.labelled_counts), in_pool))
    return CaptionedFigure(
        _draw(counts),
        f"Class distribution of labelled images and pool in four settings, split from {data.name} with seed {SEED}. "
        "SSL: both uniform; LTSSL: both long-tailed; ReaLTSSL: long-tailed labels, arbitrary pool; UniSSL: 4 labels "
        "per class, arbitrary pool. Numbers of images are chosen to fit the data set.",
    )


def of_runs(series: Sequence[Series]) -> CaptionedFigure:
    """The splits that runs were trained on."""
    counts = []
    for one, title in zip(series, titles(series), strict=True):
        config = build_config(one.first.config)
        table = load_data(config.data, config.split).train
        split = read_split(one.first.folder.split, len(table))
        truth = table.labels[split.unlabelled]
        known = None if (truth == -1).any() else np.bincount(truth[truth >= 0], minlength=split.num_classes)
        counts.append(ClassCounts(title, np.array(split.labelled_counts), known))
    return CaptionedFigure(
        _draw(counts), "Class distribution of labelled images and of the pool in the splits of the runs."
    )


def _draw(counts: Sequence[ClassCounts]) -> Figure:
    columns = min(MAX_COLUMNS, len(counts))
    blocks = -(-len(counts) // columns)
    figure, axes = panels(2 * blocks, columns, PAGE, 2.5 * blocks)
    tops: list[Axes] = []
    for number, one in enumerate(counts):
        block, column = divmod(number, columns)
        top, bottom = axes[2 * block * columns + column], axes[(2 * block + 1) * columns + column]
        _bars(top, one.labelled, HUES[1])
        top.set_title(one.title)
        tops.append(top)
        if one.pool is None:
            bottom.text(0.5, 0.5, "unknown", transform=bottom.transAxes, ha="center", va="center")
            bottom.set(xticks=[], yticks=[])
        else:
            _bars(bottom, one.pool, HUES[0])
        bottom.set_xlabel("class")
        if column == 0:
            top.set_ylabel("labelled")
            bottom.set_ylabel("pool")
    for number in range(len(counts), blocks * columns):
        block, column = divmod(number, columns)
        axes[2 * block * columns + column].set_axis_off()
        axes[(2 * block + 1) * columns + column].set_axis_off()
    label_panels(tops)
    return figure


def _bars(ax: Axes, counts: npt.NDArray[np.int64], colour: str) -> None:
    ax.bar(np.arange(len(counts)), counts, 0.8, color=colour)
    ax.set_xticks([])
    ax.set_xlim(-0.7, len(counts) - 0.3)
    ax.set_ylim(0, max(1, int(counts.max())) * 1.08)
