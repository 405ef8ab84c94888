"""Labels ``y``: the classes, and which rows are unlabelled.

Numbers: -1 is unlabelled. Text: the number -1, None or NaN is unlabelled, in a list or an array of objects; an array of
text cannot hold any of them. Ambiguous labels are an error, among them the texts ``nan`` and ``None``, which numpy and
pandas make of missing values.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import numpy.typing as npt
from sklearn.utils import assert_all_finite, column_or_1d
from sklearn.utils.multiclass import check_classification_targets

from unissl.errors import UserError
from unissl.types import MISSING_WORDS, UNLABELLED, Bools, Labels, is_unlabelled

Values = npt.NDArray[Any]


class InvalidInput(UserError, ValueError):
    """A UserError that is a ValueError too, which scikit-learn expects for bad input."""


@contextmanager
def as_value_errors() -> Iterator[None]:
    """Raise every UserError of the package as :class:`InvalidInput`."""
    try:
        yield
    except InvalidInput:
        raise
    except UserError as error:
        raise InvalidInput(str(error)) from error


def read_labels(y: Any) -> tuple[Values, Labels]:
    """The classes (C,) in ascending order and, for each row, the index of its class, or -1 (n,)."""
    values, is_labelled = read_values(y)
    labels = values[is_labelled]
    check_classification_targets(labels)
    classes, indices = np.unique(labels, return_inverse=True)
    _check_classes(classes, some_unlabelled=not is_labelled.all())
    codes = np.full(len(values), UNLABELLED, dtype=np.int64)
    codes[is_labelled] = indices
    return classes, codes


def read_values(y: Any) -> tuple[Values, Bools]:
    """``y`` as an array (n,), and which of its rows are labelled (n,)."""
    array = np.asarray(y)
    if array.dtype.kind in "US" and not isinstance(y, np.ndarray):
        array = np.asarray(y, dtype=object)  # numpy converted -1 to text
    values: Values = column_or_1d(array, warn=True)
    if values.dtype.kind == "O":
        return _read_objects(values)
    if values.dtype.kind in "US":
        _check_text(values)
        return values, np.ones(len(values), dtype=np.bool_)
    if values.dtype.kind == "f" and np.isnan(values).any():
        raise InvalidInput("Input y contains NaN; give -1 to rows without a label.")
    assert_all_finite(values, input_name="y")
    return values, np.asarray(values != UNLABELLED, dtype=np.bool_)


def _read_objects(values: Values) -> tuple[Values, Bools]:
    """Text stays as it is; numbers that are stored as objects become an array of numbers."""
    is_labelled = np.array([not is_unlabelled(value) for value in values], dtype=np.bool_)
    labels = values[is_labelled]
    if all(isinstance(value, str) for value in labels):
        _check_text(labels)
        return values, is_labelled
    if any(isinstance(value, str) for value in labels):
        raise InvalidInput("y mixes text and numbers; make all labels text, with -1 or None for rows without one.")
    try:
        numbers = np.array(labels.tolist())
    except ValueError:
        numbers = labels
    if numbers.dtype.kind not in "iufb" or numbers.ndim != 1:
        raise InvalidInput("Unknown label type in y; give numbers or text, with -1 or None for rows without a label.")
    assert_all_finite(numbers, input_name="y")
    filled = np.full(len(values), UNLABELLED, dtype=np.result_type(numbers.dtype, np.int8))
    filled[is_labelled] = numbers
    return filled, is_labelled


def _check_text(values: Values) -> None:
    unclear = sorted({"-1", "", *MISSING_WORDS} & set(values.tolist()))
    if unclear:
        raise InvalidInput(
            f"y holds the text {unclear[0]!r}, which may be a class or a missing label; for missing labels give an "
            "array of dtype object with -1 or None instead, otherwise rename the class."
        )


def _check_classes(classes: Values, some_unlabelled: bool) -> None:
    """-1 is ambiguous if other labels are negative, or if it leaves a single class."""
    if not len(classes):
        raise InvalidInput("y has no label at all (-1 is none); label a few rows of each class.")
    numeric = classes.dtype.kind in "if"
    if numeric and some_unlabelled and (classes < 0).any():
        raise InvalidInput(
            f"y holds -1, which means no label, and the negative class {classes[0]}; number the classes from 0, "
            "for example with sklearn.preprocessing.LabelEncoder, before you mark rows with -1."
        )
    if len(classes) > 1:
        return
    if numeric and some_unlabelled:
        raise InvalidInput(
            f"y holds only -1 and the class {classes[0]}, and -1 means no label; if -1 is the second class, give 0 "
            "instead of it, otherwise label rows of a second class."
        )
    raise InvalidInput(f"y has one class only, {classes[0]!r}; label rows of a second class.")
