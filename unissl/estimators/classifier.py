"""The estimators: input is validated, trained on in one call, and the fitted state stored as plain arrays."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Mapping
from contextlib import nullcontext
from dataclasses import replace
from typing import Any, Self

import numpy as np
import numpy.typing as npt
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.exceptions import ConvergenceWarning
from sklearn.metrics import accuracy_score
from sklearn.utils import Tags, check_consistent_length
from sklearn.utils.validation import check_is_fitted, validate_data

from unissl.estimators.config import config_of_fit, on_frozen_backbone, settings_of_fit
from unissl.estimators.inputs import is_images, read_images, read_images_of_shape
from unissl.estimators.labels import InvalidInput, Values, as_value_errors, read_labels, read_values
from unissl.estimators.photos import train_photos
from unissl.estimators.training import train
from unissl.methods.base import Needs
from unissl.methods.registry import get_method
from unissl.run.config import RunConfig
from unissl.splits import make_split
from unissl.types import Floats, Labels, Split
from unissl.utils.progress import silenced

FLOATS = [np.float64, np.float32]
"""Types of features that are kept; others are converted to the first."""


class SemiSupervisedClassifier(ClassifierMixin, BaseEstimator):  # type: ignore[misc]
    """Trains any method of unissl on a few labelled and many unlabelled rows.

    ``X`` is images, uint8 (n, h, w) or (n, h, w, 1 or 3), or features (n, d). ``y`` is -1 for unlabelled rows; with
    text labels an unlabelled row is the number -1, None or NaN, in a list or an array of objects. A ``y`` whose -1 may
    be a class is an error. If all rows are labelled, they are the pool too, and the unlabelled losses regularise.

    Parameters:
        method: ``unissl methods`` lists them. Methods that need images or inner maps cannot train on features.
        steps: training steps, by default 1,000: seconds on features, about a minute on tiny images; 250 on a frozen
            backbone.
        minutes: time budget, in place of steps. The number of steps then depends on the machine.
        net: network that is trained on the images from scratch, for example "wrn-16-2". By default images with a
            shorter side of at least 20 pixels are trained on as in ``unissl.train``: on a frozen backbone pretrained
            on ImageNet, with simple baselines and distillation, if its weights are installed (extra photos) and the
            method supports features. Other images are learnt with wrn-10-1, and features with an MLP.
        config: any other setting, as in a TOML file, for example {"method": {"threshold": 0.9}}; overrides the rest.
        device: "cpu", "cuda", ... of the training. On a frozen backbone, and after unpickling, predictions are
            computed on the CPU.
        random_state: seed of initial weights, batch order and views. Equal data and random_state give equal results.
        verbose: show progress on stderr.
        fast: on a frozen backbone, no augmented views and no fine-tuning: a third of the time, for grid searches. Other
            training is as fast without it.

    Attributes after ``fit``: ``classes_``; ``transduction_``, a label for each row of ``X``, given labels kept;
    ``n_iter_``, training steps; ``history_``, the lines of metrics.jsonl; ``n_features_in_``, with features.

    ``score`` leaves out unlabelled rows, so ``GridSearchCV`` works as it is. Other scorers do not know -1; give them
    folds that hold out labelled rows only::

        labelled = np.flatnonzero(y != -1)
        folds = StratifiedKFold(3).split(labelled, y[labelled])
        cv = [(np.delete(np.arange(len(y)), labelled[held]), labelled[held]) for _, held in folds]
        GridSearchCV(SAGEClassifier(), grid, cv=cv, scoring="balanced_accuracy").fit(X, y)
    """

    def __init__(
        self,
        method: str = "sage",
        *,
        steps: int | None = None,
        minutes: float | None = None,
        net: str | None = None,
        config: Mapping[str, Any] | None = None,
        device: str = "cpu",
        random_state: int | np.random.RandomState | None = 0,
        verbose: bool = False,
        fast: bool = False,
    ) -> None:
        self.method = method
        self.steps = steps
        self.minutes = minutes
        self.net = net
        self.config = config
        self.device = device
        self.random_state = random_state
        self.verbose = verbose
        self.fast = fast

    def fit(self, X: Any, y: Any) -> Self:
        if y is None:
            raise InvalidInput(
                f"{type(self).__name__} requires y to be passed, but the target y is None; give -1 for unlabelled rows."
            )
        rows = read_images(X) if is_images(X) else validate_data(self, X, dtype=FLOATS)
        check_consistent_length(rows, y)
        classes, codes = read_labels(y)
        names = [str(name) for name in classes]
        # Warnings of training are raised below.
        with as_value_errors(), nullcontext() if self.verbose else silenced(logging.ERROR):
            settings = settings_of_fit(self, rows)
            if on_frozen_backbone(settings, rows):
                fit = train_photos(settings, rows, codes, names, fast=self.fast)
            else:
                config = config_of_fit(settings, rows, len(names))
                fit = train(config, rows, _split(config, codes, names))
        if is_images(X):  # attributes of an earlier fit to features
            self.__dict__.pop("n_features_in_", None)
            self.__dict__.pop("feature_names_in_", None)
        self._fitted, self.history_, self.n_iter_, self.classes_ = fit.fitted, fit.metrics, fit.steps, classes
        self.transduction_ = classes[np.where(codes >= 0, codes, fit.classes)]
        for line in self.history_:
            if line["kind"] == "warning":
                warnings.warn(line["message"], ConvergenceWarning, stacklevel=2)
        return self

    def predict_proba(self, X: Any) -> Floats:
        """Probability of each class (n, C), in the order of ``classes_``, float32."""
        check_is_fitted(self)
        fitted = self._fitted
        if fitted.image_shape is not None:
            return fitted.predict_proba(read_images_of_shape(X, fitted.image_shape))
        if is_images(X):
            raise InvalidInput("X holds images, but the classifier was fitted to features; give features (n, d).")
        return fitted.predict_proba(validate_data(self, X, dtype=FLOATS, reset=False))

    def predict(self, X: Any) -> Values:
        """The most likely class of each row."""
        probs = self.predict_proba(X)
        return np.asarray(self.classes_[probs.argmax(1)])

    def score(self, X: Any, y: Any, sample_weight: npt.ArrayLike | None = None) -> float:
        """Accuracy on the labelled rows."""
        values, is_labelled = read_values(y)
        if not is_labelled.any():
            raise InvalidInput("y has no label to score by; give rows with labels, or folds that hold some out.")
        weight = None if sample_weight is None else np.asarray(sample_weight)[is_labelled]
        predicted = self.predict(X)
        check_consistent_length(predicted, values)
        return float(accuracy_score(values[is_labelled], predicted[is_labelled], sample_weight=weight))

    def __sklearn_tags__(self) -> Tags:
        tags = super().__sklearn_tags__()
        tags.input_tags.three_d_array = True
        return tags


class SAGEClassifier(SemiSupervisedClassifier):
    """:class:`SemiSupervisedClassifier` with SAGE.

    Example:
        >>> from sklearn.datasets import load_iris
        >>> X, truth = load_iris(return_X_y=True)
        >>> y = np.where(np.arange(150) % 10, -1, truth)  # five labels for each of three classes
        >>> classifier = SAGEClassifier(steps=100).fit(X, y)
        >>> bool(classifier.score(X, truth) > 0.8)
        True
    """

    def __init__(
        self,
        *,
        steps: int | None = None,
        minutes: float | None = None,
        net: str | None = None,
        config: Mapping[str, Any] | None = None,
        device: str = "cpu",
        random_state: int | np.random.RandomState | None = 0,
        verbose: bool = False,
        fast: bool = False,
    ) -> None:
        super().__init__(
            "sage",
            steps=steps,
            minutes=minutes,
            net=net,
            config=config,
            device=device,
            random_state=random_state,
            verbose=verbose,
            fast=fast,
        )


def _split(config: RunConfig, codes: Labels, names: list[str]) -> Split:
    hold_out = Needs.HELDOUT_LABELS in get_method(config.method.name).needs
    split = make_split(codes, len(names), config.split, config.seed, names, hold_out=hold_out)
    return split if len(split.unlabelled) else replace(split, unlabelled=split.labelled)
