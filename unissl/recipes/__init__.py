"""Named starting points: differences from the defaults that suit a situation. Config file, flags and ``--set`` go on top.

A recipe is a function that returns a nested dictionary. Its docstring gives the command, the time and the number to
expect.
"""

from __future__ import annotations

from collections.abc import Callable

from unissl.config import Tree, merge
from unissl.errors import UserError, did_you_mean


def paper() -> Tree:
    """The protocol of the paper: WRN-28-2, 64 + 448 images a step, 2^18 steps, evaluation every 1,024.

    ``unissl train --data cifar10 --recipe paper --method sage --set split.max_count=4996``: about a day on one large
    GPU, weeks on a CPU. Published for 40 labels, arbitrary mix, gamma 100: 65.99 +- 3.72 as the best of 256 looks at
    the test set; the authors' log of seed 2 ends at 64.77 with a best of 66.83.
    """
    return {"train": {"steps": 2**18, "epochs": 256, "log_every": 256, "checkpoint_every": 1024}}


def short() -> Tree:
    """Minutes on a CPU: a small network and small batches, which buy the most accuracy per minute there.

    The paper's EMA decay 0.999 and BatchNorm momentum 0.001 look back a thousand steps and are made for 2^18 of them;
    in a run of some hundred steps they would still show the random start, so both are shortened here, and with them
    the memory of DRP's statistics.
    """
    return {
        "net": {"name": "wrn-10-1", "bn_momentum": 0.1},
        "batch": {"labelled": 16, "unlabelled": 112},
        "optim": {"ema": 0.99},
        "train": {"steps": 1000},
    }


def digits() -> Tree:
    """scikit-learn's digits, 4 labels per class, arbitrary mix: the demo."""
    return merge(
        short(),
        {
            "data": {"name": "digits", "size": 16, "holdout": 500},
            "split": {"profile": "arbitrary", "max_count": 110, "gamma": 10.0},
            "augment": {"pad": 2},
            "train": {"steps": 400},
        },
    )


RECIPES: dict[str, Callable[[], Tree]] = {"paper": paper, "short": short, "digits": digits}


def get_recipe(name: str) -> Tree:
    if name not in RECIPES:
        raise UserError(f"There is no recipe {name!r}.{did_you_mean(name, list(RECIPES))}")
    return RECIPES[name]()


def default_recipe(data: str) -> str:
    """The recipe a data set gets when none is named."""
    return data if data in RECIPES else "short"
