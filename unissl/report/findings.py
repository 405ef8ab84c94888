"""What a finished run shows, in numbers with intervals and in plain sentences that say what to do.

Nothing here looks at the truth of the pool: what is said about it follows from the model and the given labels.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import numpy as np
import numpy.typing as npt

Bools = npt.NDArray[np.bool_]
Floats = npt.NDArray[np.float32]
Labels = npt.NDArray[np.int64]
Duplicates = Mapping[str, Any]
"""Images that show the same: kind "exact" or "near", and copies, each with part (test, labelled, pool), row, label."""

DRAWS = 10_000
"""Resamples of the test images behind an interval."""
BINS = 10
"""Equal intervals of confidence in the reliability diagram."""
NEIGHBOURS = 10
"""Images of the pool that are asked about a label."""
CLEARLY = 0.3
"""Lead of another class over the given one that makes a label doubtful."""
LONELY = 0.05
"""Share of an even mix below which the pool seems not to contain a class."""
NONE_OF_THESE = 0.5
"""Outlier score above which an image is more likely than not of none of the classes."""
UNSURE = 0.2
"""Share of the pool above which so many low scores speak against the model and not against the images."""
FEW_TEST_IMAGES = 100
MISCALIBRATED = 0.1
"""Expected calibration error above which probabilities should not be taken at their word."""
RISING = 0.01
"""Rise of accuracy over the last fifth of a run that says it was too short."""


class Interval(NamedTuple):
    """A value with its 95 % interval."""

    value: float
    low: float
    high: float


class Bin(NamedTuple):
    """Images of similar confidence: their mean confidence, the share that is right, their number."""

    confidence: float
    accuracy: float
    images: int


@dataclass(frozen=True)
class Finding:
    """Something to know about the run and what to do about it."""

    level: Literal["problem", "notice"]
    title: str
    text: str
    action: str


def accuracy_interval(right: int, total: int) -> Interval:
    """Share of right answers with Wilson's interval, which behaves near 0 and 1 and for few images."""
    share, z2 = right / total, 1.959964**2
    middle = (share + z2 / (2 * total)) / (1 + z2 / total)
    half = np.sqrt(z2 * share * (1 - share) / total + z2**2 / (4 * total**2)) / (1 + z2 / total)
    return Interval(share, max(0.0, float(middle - half)), min(1.0, float(middle + half)))


def paired_gain(ours: Bools, theirs: Bools) -> Interval:
    """Difference of two accuracies on the same images, with a bootstrap interval over those images.

    An image counts +1, 0 or -1, so resampling images is drawing the three counts from a multinomial distribution.
    """
    total = len(ours)
    better, worse = int((ours & ~theirs).sum()), int((theirs & ~ours).sum())
    shares = np.array([better, worse, total - better - worse]) / total
    drawn = np.random.default_rng(0).multinomial(total, shares, size=DRAWS)
    low, high = np.quantile((drawn[:, 0] - drawn[:, 1]) / total, [0.025, 0.975])
    return Interval((better - worse) / total, float(low), float(high))


def reliability(confidence: Floats, right: Bools) -> list[Bin]:
    """Images grouped by confidence in equal intervals (low, high]; empty ones are left out."""
    place = np.clip(np.ceil(confidence * BINS).astype(int) - 1, 0, BINS - 1)
    groups = [place == b for b in range(BINS)]
    return [Bin(float(confidence[g].mean()), float(right[g].mean()), int(g.sum())) for g in groups if g.any()]


def calibration_error(bins: Sequence[Bin]) -> float:
    """Expected calibration error: the mean gap between confidence and accuracy, each group by its size."""
    return sum(b.images * abs(b.accuracy - b.confidence) for b in bins) / sum(b.images for b in bins)


def neighbour_votes(features: Floats, pool_features: Floats, pool_probs: Floats) -> Floats:
    """For each image the mean probabilities of the images of the pool that are nearest by angle, (n, C)."""
    angles = _unit(features) @ _unit(pool_features).T
    count = min(NEIGHBOURS, len(pool_features))
    nearest = np.argpartition(-angles, count - 1, axis=1)[:, :count]
    return np.asarray(pool_probs[nearest].mean(1), dtype=np.float32)


def _unit(rows: Floats) -> Floats:
    return np.asarray(rows / np.maximum(np.linalg.norm(rows, axis=1, keepdims=True), 1e-12), dtype=np.float32)


def doubts(labels: Labels, own: Floats, votes: Floats | None, absent: Sequence[int]) -> tuple[Labels, Floats]:
    """For each given label its strongest rival, and the rival's lead by the model or by the neighbours in the pool.

    Where the pool seems not to contain a class, its images have no neighbours of their kind, and these are not asked.
    """
    rival, lead = _lead(labels, own)
    if votes is not None:
        other, other_lead = _lead(labels, votes)
        better = (other_lead > lead) & ~np.isin(labels, list(absent))
        rival, lead = np.where(better, other, rival), np.where(better, other_lead, lead)
    return rival, lead


def _lead(labels: Labels, probs: Floats) -> tuple[Labels, Floats]:
    rows, rest = np.arange(len(labels)), probs.copy()
    rest[rows, labels] = -np.inf
    rival = np.asarray(rest.argmax(1), dtype=np.int64)
    return rival, np.asarray(rest[rows, rival] - probs[rows, labels], dtype=np.float32)


def health(
    names: Sequence[str],
    *,
    predicted: Sequence[int] | None = None,
    outlier: Floats | None = None,
    doubtful: int = 0,
    labelled: int = 0,
    curve: Sequence[float] = (),
    gain: float | None = None,
    gain_interval: Interval | None = None,
    bins: Sequence[Bin] = (),
    test_images: int = 0,
    skipped: int = 0,
    duplicates: Sequence[Duplicates] = (),
) -> list[Finding]:
    """Everything there is to say about a run, problems first. What is not known is left out."""
    fallen = collapse(predicted, names) if predicted else None
    found = [
        fallen,
        leaked_tests(sum(leaks_test(group) for group in duplicates)),
        two_labels(sum(labels_disagree(group) for group in duplicates)),
        None if gain is None else worth_of_pool(gain, gain_interval),
        doubtful_labels(doubtful, labelled),
        None if fallen or not predicted else missing_from_pool(absent_classes(predicted), predicted, names),
        None if outlier is None else unlike_the_rest(outlier),
        too_short(curve),
        miscalibrated(bins),
        few_test_images(test_images),
        left_out(skipped),
    ]
    return sorted((f for f in found if f is not None), key=lambda f: f.level == "notice")


def absent_classes(predicted: Sequence[int]) -> list[int]:
    """Classes that (nearly) no image of the pool was given, if the pool is large enough for that to mean something."""
    pool, classes = sum(predicted), len(predicted)
    if pool < 5 * classes:
        return []
    return [c for c, count in enumerate(predicted) if count < LONELY * pool / classes]


def collapse(predicted: Sequence[int], names: Sequence[str]) -> Finding | None:
    """Nearly everything in one class, or most classes never given."""
    pool, used = sum(predicted), sum(count > 0 for count in predicted)
    top = int(np.argmax(predicted))
    share = predicted[top] / pool
    if pool < 2 * len(names) or (used > max(1, len(names) // 3) and share < 0.9):
        return None
    return Finding(
        "problem",
        "The model has collapsed",
        f"{percent(share, 0)} of the pool is called “{names[top]}”, and {used} of {len(names)} classes occur.",
        "Do not use these labels unless the pool really is that one-sided. Label a few more images of every class, and "
        "train longer; a lower optim.lr or a milder augment.geometry also helps.",
    )


def missing_from_pool(absent: Sequence[int], predicted: Sequence[int], names: Sequence[str]) -> Finding | None:
    if not absent:
        return None
    found = sum(predicted[c] for c in absent)
    one = len(absent) == 1
    return Finding(
        "notice",
        f"The pool seems not to contain {_listing([names[c] for c in absent])}",
        f"{found or 'None'} of {sum(predicted):,} unlabelled images {'was' if found == 1 else 'were'} given "
        f"{'this class' if one else 'these classes'}.",
        f"If you know that there are such images, label some more of {'it' if one else 'them'}; if not, all is well.",
    )


def doubtful_labels(count: int, total: int) -> Finding | None:
    if not count:
        return None
    return Finding(
        "problem" if count > 0.1 * total else "notice",
        f"{count} of {total} given labels disagree with their neighbours",
        "The model, or the unlabelled images that look most alike to it, say another class than the given label.",
        "Look at them under “Labels to check”; correct the wrong ones and train again.",
    )


def too_short(curve: Sequence[float]) -> Finding | None:
    """Accuracy that still rose at the end: the last fifth of the evaluations against the fifth before."""
    part = len(curve) // 5
    if not part:
        return None
    rise = float(np.mean(curve[-part:]) - np.mean(curve[-2 * part : -part]))
    if rise <= RISING:
        return None
    return Finding(
        "notice",
        "The run was too short",
        f"Accuracy was still rising when it ended: {signed(rise)} points over the last fifth of the training.",
        "Train again with more --steps or --minutes.",
    )


def worth_of_pool(gain: float, interval: Interval | None) -> Finding | None:
    """Labels-only doing better, or no gain beyond chance."""
    if gain < 0 and (interval is None or interval.high < 0):
        return Finding(
            "problem",
            "Labels-only does better",
            f"With the unlabelled pool the accuracy changes by {signed(gain)} points.",
            "Use the model in the folder labels-only for now. A longer run, milder augmentation (augment.geometry) "
            "or a pool with fewer images of other things may turn this round.",
        )
    if interval is not None and interval.low <= 0:
        return Finding(
            "notice",
            "The gain from the pool may be chance",
            f"Between {signed(interval.low)} and {signed(interval.high)} points are possible with these test images.",
            "Use more test images to know, or train longer to gain more.",
        )
    return None


def miscalibrated(bins: Sequence[Bin]) -> Finding | None:
    if not bins or calibration_error(bins) <= MISCALIBRATED:
        return None
    total = sum(b.images for b in bins)
    too_sure = sum(b.images * (b.confidence - b.accuracy) for b in bins) / total
    return Finding(
        "notice",
        f"The model is too {'sure of itself' if too_sure > 0 else 'modest'}",
        f"On average its confidence is {100 * calibration_error(bins):.0f} points away from how often it is right.",
        "Read its confidence as a ranking, not as a chance, or choose a threshold on images whose class you know.",
    )


def few_test_images(count: int) -> Finding | None:
    if not 0 < count < FEW_TEST_IMAGES:
        return None
    return Finding(
        "notice",
        f"Only {count} test images",
        "Accuracies and gains on so few images vary a lot, and their intervals are rough.",
        f"Test on {FEW_TEST_IMAGES} images or more with --test before you rely on the numbers.",
    )


def unlike_the_rest(outlier: Floats) -> Finding | None:
    count = int((outlier > NONE_OF_THESE).sum())
    if count < max(2, 0.01 * len(outlier)):
        return None
    if count > UNSURE * len(outlier):
        return Finding(
            "notice",
            f"The model is unsure about {percent(count / len(outlier), 0)} of the pool",
            "It gives these images no class with any conviction, so it has learnt too little, or much of the pool is "
            "something else.",
            "Train longer and label a few more images; see “Perhaps none of these” for the worst.",
        )
    return Finding(
        "notice",
        f"{count:,} unlabelled images may be none of the classes",
        f"These {percent(count / len(outlier), 0)} of the pool fit no class well: other things, or hard cases.",
        "Look at them under “Perhaps none of these”. If many show one and the same thing, it may deserve a class.",
    )


def leaks_test(group: Duplicates) -> bool:
    """Whether a test image is also learnt from."""
    parts = {copy["part"] for copy in group["copies"]}
    return "test" in parts and len(parts) > 1


def labels_disagree(group: Duplicates) -> bool:
    return len({copy["label"] for copy in group["copies"] if copy.get("label") is not None}) > 1


def leaked_tests(groups: int) -> Finding | None:
    if not groups:
        return None
    return Finding(
        "problem",
        f"Test images are learnt from in {groups:,} {'case' if groups == 1 else 'cases'}",
        "They are, or are nearly, the same as labelled or unlabelled images, so the accuracy is flattered.",
        "Take the copies listed under “Files” out of one side and train again.",
    )


def two_labels(groups: int) -> Finding | None:
    if not groups:
        return None
    return Finding(
        "problem",
        f"The same image has different labels in {groups:,} {'case' if groups == 1 else 'cases'}",
        "At most one of the labels can be right.",
        "See “Files”; correct or remove the wrong ones and train again.",
    )


def left_out(skipped: int) -> Finding | None:
    if not skipped:
        return None
    return Finding(
        "notice",
        f"{skipped:,} {'file' if skipped == 1 else 'files'} could not be read",
        f"The run went on without {'it' if skipped == 1 else 'them'}.",
        "See the reason under “Files”; repair or remove what is listed there.",
    )


def percent(share: float, digits: int = 1) -> str:
    return f"{100 * share:.{digits}f} %"


def signed(difference: float) -> str:
    """A difference of shares in points."""
    return f"{100 * difference:+.1f}".replace("-", "−")


def _listing(names: Sequence[str], most: int = 5) -> str:
    """“a”, “b” and 3 more."""
    quoted = [f"“{name}”" for name in names[:most]]
    if len(names) > most:
        return f"{', '.join(quoted)} and {len(names) - most} more"
    return " and ".join([", ".join(quoted[:-1]), quoted[-1]]) if len(quoted) > 1 else quoted[0]
