"""Checks of a run while it trains, in plain language."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

NOTHING_SELECTED = 0.001
"""Mean fraction of pseudo-labels in use below which the unlabelled pool teaches nothing."""
ONE_SIDED = 0.95
"""Fraction of one class above which a model seems to predict no other."""
GRACE = 0.25
"""Fraction of the budget before which a run is too young for a warning."""


def is_collapsed(counts: Sequence[int]) -> bool:
    """Whether at most a third of the classes (or one of two) is ever predicted, or nearly always the same one, by the
    number of predictions of each class (C,)."""
    used = int(np.count_nonzero(counts))
    return used <= max(1, len(counts) // 3) or max(counts) / sum(counts) >= ONE_SIDED


def collapse(predicted: npt.NDArray[np.int64], class_names: Sequence[str]) -> str | None:
    """A warning if the predicted classes (n,) have collapsed."""
    num_classes = len(class_names)
    counts = np.bincount(predicted, minlength=num_classes)
    if not is_collapsed(counts.tolist()):
        return None
    used, top = np.count_nonzero(counts), int(counts.argmax())
    few = used if used == num_classes else f"Only {used}"
    return (
        f"{few} of {num_classes} classes are predicted, {counts[top] / len(predicted):.0%} of the images as class "
        f"{class_names[top]!r}: unless they really are that one-sided, the model is collapsing. More labels per class, "
        "a lower optim.lr or a milder augment.geometry_scale usually help."
    )


def nothing_selected(mean_selected: float | None) -> str | None:
    """A warning if practically no pseudo-label was used since the last evaluation."""
    if mean_selected is None or mean_selected >= NOTHING_SELECTED:
        return None
    return (
        f"Only {mean_selected:.2%} of the pseudo-labels are in use: the unlabelled pool teaches next to nothing. "
        "A lower method.threshold, or method sage, which has none, lets it in."
    )
