"""Time and memory of the consensus readout for a large pool.

    python benchmarks/readout_pool.py --pool 100000

Features are synthetic: ten clusters of unit noise in 64 dimensions, four labels per class. The peak is that of the
process beyond what it held before the readout.
"""

from __future__ import annotations

import argparse
import resource
import time

import numpy as np
import torch

from unissl.evaluation.readout import choose_readout
from unissl.ops.linear import LinearClassifier

CLASSES, WIDTH, LABELS = 10, 64, 4


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pool", type=int, default=100_000)
    parser.add_argument("--threads", type=int)
    arguments = parser.parse_args()
    if arguments.threads is not None:
        torch.set_num_threads(arguments.threads)
    draws = torch.Generator().manual_seed(0)
    centres = 3 * torch.randn(CLASSES, WIDTH, generator=draws) / WIDTH**0.5
    truth = torch.randint(CLASSES, (arguments.pool,), generator=draws)
    pool = centres[truth] + torch.randn(arguments.pool, WIDTH, generator=draws) / 4
    labels = np.repeat(np.arange(CLASSES), LABELS)
    labelled = centres[torch.from_numpy(labels)] + torch.randn(len(labels), WIDTH, generator=draws) / 4
    head = LinearClassifier(torch.zeros(CLASSES, WIDTH), torch.zeros(CLASSES))
    before, started = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, time.monotonic()
    classifier, _ = choose_readout(head, labelled, labels, pool)
    seconds = time.monotonic() - started
    more = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024
    cpu = resource.getrusage(resource.RUSAGE_SELF).ru_utime
    right = (classifier.classes(pool) == truth.numpy()).mean()
    took = f"{seconds:.1f} s ({cpu:.0f} s of CPU in all), {more:.0f} MiB more"
    print(f"pool of {arguments.pool:,}: {took}, {right:.1%} right")


if __name__ == "__main__":
    main()
