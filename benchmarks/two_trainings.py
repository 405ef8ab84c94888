"""Two trainings that share the cores, against one alone: the cost of waiting threads.

    python benchmarks/two_trainings.py

SAGE on random features, with as many threads as there are cores, alone and two at once, with threads that sleep while
they wait (as `unissl train` sets it) and with libgomp's default. Prints the time of a step and the ratio of two to one;
2.0 is the cost of sharing.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys

from unissl import SPINS

DEFAULT_SPINS = 300_000
"""libgomp's default."""
TRAINING = """
import sys, time
from unissl.utils.process import prepare_process
prepare_process()
import numpy as np
from unissl import SAGEClassifier
generator = np.random.default_rng(0)
x, y = generator.normal(size=(2000, 1280)).astype(np.float32), np.full(2000, -1)
y[:400] = np.arange(400) % 100
def seconds(steps):
    start = time.perf_counter()
    SAGEClassifier(steps=steps, random_state=0).fit(x, y)
    return time.perf_counter() - start
seconds(1)
steps = int(sys.argv[1])
print(seconds(steps) / steps)
"""


def step(spins: int, steps: int, trainings: int) -> float:
    """Milliseconds of a step, mean over trainings that start together."""
    command, env = [sys.executable, "-c", TRAINING, str(steps)], os.environ | {"GOMP_SPINCOUNT": str(spins)}
    running = [subprocess.Popen(command, env=env, stdout=subprocess.PIPE, text=True) for _ in range(trainings)]
    outputs = [process.communicate()[0] for process in running]
    if any(process.returncode for process in running):
        raise SystemExit("A training has failed.")
    return 1000 * sum(map(float, outputs)) / trainings


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=40)
    steps = parser.parse_args().steps
    print("| threads wait | ms a step, alone | two at once | ratio |\n|---|---|---|---|")
    for name, spins in (("asleep", SPINS), ("by libgomp's default", DEFAULT_SPINS)) * 2:
        alone, both = (step(spins, steps, trainings) for trainings in (1, 2))
        print(f"| {name} | {alone:.0f} | {both:.0f} | {both / alone:.1f} |", flush=True)


if __name__ == "__main__":
    main()
