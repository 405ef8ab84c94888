"""Accuracy against one hyper-parameter that the runs differ in: lambda, beta, K, gamma, or any other number."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from unissl.errors import UserError
from unissl.inference.model import load_model
from unissl_paper.figures.series import SYMBOLS, FinishedRun, Series, differing, flatten
from unissl_paper.figures.style import COLUMN, HUES, PAGE, CaptionedFigure, label_panels, panels

STYLES: dict[str, dict[str, Any]] = {
    "last": {"color": HUES[1], "marker": "s", "markersize": 5, "markerfacecolor": "white", "linestyle": (0, (4, 2))},
    "best": {"color": HUES[0], "marker": "o", "linestyle": "-"},
}


def draw(series: Sequence[Series]) -> CaptionedFigure:
    """A panel for each hyper-parameter; the runs with the default values belong to all panels."""
    swept = swept_parameters(series)
    figure, axes = panels(1, len(swept), COLUMN if len(swept) == 1 else PAGE, 2.3, share_y=True)
    for ax, (key, members) in zip(axes, swept.items(), strict=True):
        ordered = sorted(members, key=lambda one: value_of(one.first, key))
        x = [value_of(one.first, key) for one in ordered]
        for metric, style in STYLES.items():
            runs = [[100 * run.summary["accuracy"][metric] for run in one.runs] for one in ordered]
            means = [float(np.mean(values)) for values in runs]
            error = [
                [mean - min(values) for mean, values in zip(means, runs, strict=True)],
                [max(values) - mean for mean, values in zip(means, runs, strict=True)],
            ]
            ax.errorbar(x, means, yerr=error, capsize=2, elinewidth=0.7, label=metric, **style)
        ax.set_xticks(x, [f"{value:g}" for value in x])
        ax.set_xlabel(SYMBOLS.get(key, key))
        ax.margins(x=0.08)
    axes[0].set_ylabel("test accuracy, %")
    if len(axes) > 1:
        label_panels(axes)
    figure.legend(*axes[0].get_legend_handles_labels(), loc="outside upper right", ncols=2)
    return CaptionedFigure(
        figure,
        "Test accuracy against one hyper-parameter at a time, all others equal. best: of all evaluations, chosen on "
        "the test images (what the paper prints); last: after the last step. Dot: mean over seeds; whisker: lowest to "
        "highest seed.",
    )


def swept_parameters(series: Sequence[Series]) -> dict[str, list[Series]]:
    """Hyper-parameters that are varied one at a time around a common base, each with its series and the base."""
    keys = differing([one.first for one in series])
    numeric = [key for key in keys if all(_is_number(flatten(one.first.config).get(key)) for one in series)]
    if not keys or len(numeric) < len(keys):
        problem = f"they differ in {', '.join(set(keys) - set(numeric))}" if keys else "they differ in the seed alone"
        raise UserError(f"A sensitivity curve needs runs that differ in one number, and {problem}; give other runs.")
    if len(keys) == 1:
        return {keys[0]: list(series)}

    for base in series:
        changes = [differing([one.first, base.first]) for one in series]
        if all(len(changed) <= 1 for changed in changes):
            return {
                key: [one for one, changed in zip(series, changes, strict=True) if changed in ([], [key])]
                for key in keys
            }
    raise UserError(
        f"The runs differ in {', '.join(keys)} at once; give runs that differ from one of them in one number."
    )


def value_of(run: FinishedRun, key: str) -> float:
    """The value of a hyper-parameter; of the default number of anchors, K = d + 1."""
    value = flatten(run.config).get(key)
    if value is None and key == "method.num_anchors":
        weights = load_model(run.folder).module.state_dict()  # a temperature or a backbone may wrap the network
        return next(float(w.shape[1] + 1) for name, w in weights.items() if f".{name}".endswith(".head.weight"))
    if value is None:
        raise UserError(f"{run.folder.path} does not record {key}; train it with --set {key}=VALUE.")
    return float(value)


def _is_number(value: object) -> bool:
    return value is None or (isinstance(value, int | float) and not isinstance(value, bool))
