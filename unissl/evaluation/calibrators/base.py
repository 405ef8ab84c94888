"""The interface of a calibrator: a map from logits to logits that is fitted on held-out labels."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, ClassVar, Self

import numpy as np
import numpy.typing as npt
from pydantic import BaseModel, ConfigDict
from scipy.special import log_softmax

if TYPE_CHECKING:
    from torch import Tensor

Floats = npt.NDArray[np.floating[Any]]
Labels = npt.NDArray[np.int64]


class Calibrator(BaseModel, ABC):
    """Maps logits (n, C) to logits whose softmax is better calibrated. Fields are its fitted parameters.

    Fields are validated when a manifest is read, so bound them: a manifest may come from anywhere.
    """

    model_config = ConfigDict(frozen=True, strict=True, extra="forbid")

    kind: ClassVar[str]
    """Name in the manifest."""

    @classmethod
    @abstractmethod
    def fit(cls, probs: Floats, labels: Labels) -> Self:
        """Fit to probabilities (n, C) and labels (n,) that no loss has seen."""

    @abstractmethod
    def apply(self, logits: Tensor) -> Tensor:
        """Calibrated logits (n, C), in the dtype of ``logits``. Must be exportable: torch operations only."""

    def apply_to_probs(self, probs: Floats) -> npt.NDArray[np.float64]:
        """Calibrated probabilities (n, C) from uncalibrated ones."""
        import torch  # plots need the metrics of calibration, not torch

        logits = self.apply(torch.from_numpy(log_probabilities(probs))).numpy()
        calibrated: npt.NDArray[np.float64] = np.exp(log_softmax(logits, axis=1))
        return calibrated

    def to_manifest(self) -> dict[str, Any]:
        return {"kind": self.kind, **self.model_dump()}

    @classmethod
    def from_manifest(cls, entry: Mapping[str, Any]) -> Self:
        """Inverse of :meth:`to_manifest`; raises ValueError if a parameter is missing, unknown or out of range."""
        return cls.model_validate({name: value for name, value in entry.items() if name != "kind"})


def log_probabilities(probs: Floats) -> npt.NDArray[np.float64]:
    """Logits, up to a constant per row, of probabilities (n, C); a probability of 0 counts as the smallest float32."""
    return np.log(np.maximum(np.asarray(probs, dtype=np.float64), np.finfo(np.float32).tiny))
