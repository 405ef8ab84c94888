"""Images per class: the three class distributions of the protocol, from one geometric decay."""

from __future__ import annotations

import math
import random
from fractions import Fraction
from typing import Literal, get_args

from unissl.errors import UserError, did_you_mean

Distribution = Literal["uniform", "long-tailed", "arbitrary"]


def class_counts(distribution: str, num_classes: int, max_count: int, gamma: float, seed: int = 0) -> list[int]:
    """Images per class for a distribution whose largest class has ``max_count`` images, ``gamma`` times the smallest.

    All three start from n_c = floor(max_count * gamma^(-c / (C - 1))), c = 0 .. C-1.
    ``long-tailed`` is that list; ``arbitrary`` is the list shuffled by ``random.Random(seed)``, position = class;
    ``uniform`` gives every class floor(sum n_c / C), so there ``gamma`` only sets the total.

    Example:
        >>> class_counts("long-tailed", 10, 4996, 100)
        [4996, 2995, 1795, 1076, 645, 386, 231, 139, 83, 49]
    """
    distributions = list(get_args(Distribution))
    if distribution not in distributions:
        raise UserError(f"Unknown class distribution {distribution!r}.{did_you_mean(distribution, distributions)}")
    if num_classes < 2:
        raise UserError(f"A classifier needs at least two classes, not {num_classes}; add a class.")
    if not 1 <= gamma < math.inf:
        raise UserError(f"The imbalance ratio gamma is largest class / smallest class: give 1 or more, not {gamma}.")
    if max_count < 1:
        raise UserError(f"The largest class must have at least one image, not {max_count}; raise max_count.")
    counts = [_decayed(max_count, gamma, c, num_classes - 1) for c in range(num_classes)]
    if distribution == "uniform":
        return [sum(counts) // num_classes] * num_classes
    if distribution == "arbitrary":
        random.Random(seed).shuffle(counts)
    return counts


def _decayed(max_count: int, gamma: float, step: int, steps: int) -> int:
    """floor(max_count * gamma^(-step / steps)), exact.

    A float just below a whole number would lose an image (49 * 49^-1 comes out below 1), so it is only a first guess:
    n <= max_count * gamma^(-step/steps) is decided as n^steps * gamma^step <= max_count^steps in whole numbers.
    ``gamma`` is read as the decimal that was written: 1.1 is 11/10.
    """
    ratio = Fraction(str(float(gamma)))
    bound = max_count**steps * ratio.denominator**step
    count = int(max_count * gamma ** (-step / steps)) + 1
    while count**steps * ratio.numerator**step > bound:
        count -= 1
    return count
