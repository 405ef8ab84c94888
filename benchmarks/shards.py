"""What a fixed number of shards costs: a step of SAGE on one process, cut into shards and not, by turns.

    python benchmarks/shards.py --shards 4

Prints the median time of both, and the median and range of their ratio over the pairs. One thread, digits, WRN-10-1.
"""

from __future__ import annotations

import argparse
import time

import numpy as np
import torch

from unissl.distributed.group import fixed_shards
from unissl.run.budget import StepTimer
from unissl.run.config import build_config, fit_to_data
from unissl.run.pipeline import build_split
from unissl.run.setup import build_training
from unissl.splits.open_set import load_data

PAIRS, WARM_UP = 21, 3
CASES = {(16, 64): 16, (64, 128): 32}
"""Labelled and unlabelled images of a step: side of the images."""


def seconds(sides: dict[int, StepTimer]) -> dict[int, list[float]]:
    """Times of steps by number of shards; who begins changes from pair to pair."""
    found: dict[int, list[float]] = {shards: [] for shards in sides}
    for number in range(WARM_UP + PAIRS):
        for shards in sorted(sides, reverse=number % 2 == 1):
            with fixed_shards(shards):
                start = time.perf_counter()
                sides[shards].step(number)
                took = time.perf_counter() - start
            if number >= WARM_UP:
                found[shards].append(took)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shards", type=int, default=4)
    shards = parser.parse_args().shards
    torch.set_num_threads(1)
    for (labelled, unlabelled), side in CASES.items():
        tree = {"data": {"name": "digits", "image_size": side}, "net": {"name": "wrn-10-1"}, "train": {"steps": 100}}
        config = build_config({**tree, "batch": {"labelled": labelled, "unlabelled": unlabelled}})
        dataset = load_data(config.data, config.split)
        config = fit_to_data(config, dataset)
        split, sides = build_split(config, dataset), {}
        for count in (0, shards):
            with fixed_shards(count):
                sides[count] = StepTimer(config, *build_training(config, dataset, split, torch.device("cpu")))
        found = {count: np.array(times) for count, times in seconds(sides).items()}
        ratios = found[shards] / found[0]
        print(
            f"{labelled} + {unlabelled} images of {side} x {side}: {1e3 * np.median(found[0]):.0f} ms, "
            f"with {shards} shards {1e3 * np.median(found[shards]):.0f} ms; "
            f"ratio {np.median(ratios):.2f} ({ratios.min():.2f} to {ratios.max():.2f})"
        )


if __name__ == "__main__":
    main()
