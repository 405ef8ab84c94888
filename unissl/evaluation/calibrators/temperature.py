"""Temperature scaling (Guo et al., 2017, https://arxiv.org/abs/1706.04599): all logits are divided by one number T,
which changes no predicted class and no outlier score."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, ClassVar, Self

import numpy as np
from pydantic import Field
from scipy.optimize import brentq
from scipy.special import log_softmax

from unissl.evaluation.calibrators.base import Calibrator, Floats, Labels, log_probabilities

if TYPE_CHECKING:
    from torch import Tensor

MIN_TEMPERATURE, MAX_TEMPERATURE = 0.1, 10.0


class TemperatureScaling(Calibrator):
    kind: ClassVar[str] = "temperature"

    temperature: Annotated[float, Field(gt=1e-6, le=1e6)]

    @classmethod
    def fit(cls, probs: Floats, labels: Labels) -> Self:
        return cls(temperature=fit_temperature(probs, labels))

    def apply(self, logits: Tensor) -> Tensor:
        return logits / self.temperature


def fit_temperature(probs: Floats, labels: Labels) -> float:
    """The temperature in [0.1, 10] with the least negative log-likelihood of labels (n,) under probs (n, C).

    The likelihood is convex in 1/T, so its slope changes sign once, and a bracketing root finder locates it. If every
    prediction is right, the likelihood improves as T goes to 0; such labels carry no information about errors, and T
    is 1.
    """
    logits = log_probabilities(probs)
    if (logits.argmax(1) == labels).all():
        return 1.0
    true_class_mean = logits[np.arange(len(labels)), labels].mean()

    def slope(inverse: float) -> float:
        weights = np.exp(log_softmax(inverse * logits, axis=1))
        return float((weights * logits).sum(1).mean() - true_class_mean)

    low, high = 1 / MAX_TEMPERATURE, 1 / MIN_TEMPERATURE
    if slope(low) >= 0:
        return MAX_TEMPERATURE
    if slope(high) <= 0:
        return MIN_TEMPERATURE
    return 1 / float(brentq(slope, low, high, xtol=1e-10))
