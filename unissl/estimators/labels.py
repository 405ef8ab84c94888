"""What ``y`` says: the classes, and which rows have none.

Numbers: -1 is no label. Text: the number -1, None or NaN is no label, in a list or an array of objects; an array of
text has room for none of them. Whatever could be read in two ways is refused.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
from sklearn.utils import assert_all_finite, column_or_1d
from sklearn.utils.multiclass import check_classification_targets

from unissl.estimators.refusal import RefusedInput
from unissl.types import UNLABELLED

Values = npt.NDArray[Any]
Codes = npt.NDArray[np.int64]


def read_labels(y: Any) -> tuple[Values, Codes]:
    """The classes in ascending order and, for each row, the number of its class, or -1."""
    values, given = values_and_given(y)
    known = values[given]
    check_classification_targets(known)
    classes, numbers = np.unique(known, return_inverse=True)
    _refuse_ambiguous(classes, marked=not given.all())
    codes = np.full(len(values), UNLABELLED, dtype=np.int64)
    codes[given] = numbers
    return classes, codes


def values_and_given(y: Any) -> tuple[Values, npt.NDArray[np.bool_]]:
    """``y`` as an array, and which of its rows have a label."""
    array = np.asarray(y)
    if array.dtype.kind in "US" and not isinstance(y, np.ndarray):
        array = np.asarray(y, dtype=object)  # numpy has turned -1 into text beside text
    values: Values = column_or_1d(array, warn=True)
    if values.dtype.kind == "O":
        return _objects(values)
    if values.dtype.kind in "US":
        _refuse_unclear_text(values)
        return values, np.ones(len(values), dtype=np.bool_)
    if values.dtype.kind == "f" and np.isnan(values).any():
        raise RefusedInput("Input y contains NaN; give -1 to rows without a label.")
    assert_all_finite(values, input_name="y")
    return values, np.asarray(values != UNLABELLED, dtype=np.bool_)


def _objects(values: Values) -> tuple[Values, npt.NDArray[np.bool_]]:
    """Text stays as it is; numbers in the disguise of objects become an array of numbers."""
    given = np.array([not _is_missing(value) for value in values], dtype=np.bool_)
    known = values[given]
    if all(isinstance(value, str) for value in known):
        _refuse_unclear_text(known)
        return values, given
    if any(isinstance(value, str) for value in known):
        raise RefusedInput("y mixes text and numbers; make all labels text, with -1 or None for rows without one.")
    try:
        numbers = np.array(known.tolist())
    except ValueError:
        numbers = known
    if numbers.dtype.kind not in "iufb" or numbers.ndim != 1:
        raise RefusedInput("Unknown label type in y; give numbers or text, with -1 or None for rows without a label.")
    assert_all_finite(numbers, input_name="y")
    filled = np.full(len(values), UNLABELLED, dtype=np.result_type(numbers.dtype, np.int8))
    filled[given] = numbers
    return filled, given


def _is_missing(value: object) -> bool:
    if value is None:
        return True
    return isinstance(value, int | float | np.number) and bool(value == UNLABELLED or value != value)


def _refuse_unclear_text(values: Values) -> None:
    for text in ("-1", ""):
        if (values == text).any():
            raise RefusedInput(
                f"y holds the text {text!r}, which may be a class or a missing label; for missing labels give an array "
                "of dtype object with -1 or None in their place, else rename the class."
            )


def _refuse_ambiguous(classes: Values, marked: bool) -> None:
    """-1 cannot be told from a class where other labels are negative, or where it would leave a single class."""
    if not len(classes):
        raise RefusedInput("y has no label at all (-1 is none); label a few rows of each class.")
    numeric = classes.dtype.kind in "if"
    if numeric and marked and (classes < 0).any():
        raise RefusedInput(
            f"y holds -1, which means no label, beside the negative class {classes[0]}; number the classes from 0, "
            "for example with sklearn.preprocessing.LabelEncoder, before you mark rows with -1."
        )
    if len(classes) > 1:
        return
    if numeric and marked:
        raise RefusedInput(
            f"y holds only -1 and the class {classes[0]}, and -1 means no label; if -1 is the other one of two "
            "classes, give 0 instead of it, otherwise label rows of a second class."
        )
    raise RefusedInput(f"y has one class only, {classes[0]!r}; label rows of a second class.")
