"""Train several methods over several seeds under one recipe and print the table of docs/results.md.

    python benchmarks/compare.py --recipe digits --seeds 0-4 --out runs/compare-digits
    python benchmarks/compare.py --data cifar10 --root DATA --seeds 0-2 --minutes 4 --out runs/compare-cifar10
    python benchmarks/compare.py --recipe digits --methods all --pool-distributions uniform,arbitrary --out runs/mixes

With one class distribution the table has a column per seed, and paired differences to the first method and of the last
method to each. With several it has a column per distribution, mean (standard deviation). Finished runs in --out are not
repeated, interrupted ones are resumed. With --jobs 2 two runs train in parallel, one thread each. The accuracies are
those of the last checkpoint; no checkpoint is chosen on the test images.
"""

from __future__ import annotations

import argparse
import datetime
import itertools
import logging
import multiprocessing
import os
import platform
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
from scipy import stats

from unissl.config import ConfigTree, merge, parse_overrides, without_none
from unissl.run_folder import RunFolder
from unissl.utils.progress import silenced


def one_run(tree: ConfigTree, out: Path) -> dict[str, Any]:
    """Start, resume or read one run."""
    from unissl.utils.process import prepare_process

    prepare_process()
    from unissl.run.config import build_config
    from unissl.run.pipeline import resume, run

    with silenced(logging.ERROR):
        return (resume(out) if RunFolder(out).holds_run else run(build_config(tree), out)).summary


def chosen_methods(text: str) -> list[str]:
    """Comma-separated names, or ``all`` for every closed-set method."""
    if text != "all":
        return text.split(",")
    from unissl.methods.registry import all_methods

    return [name for name, method in all_methods().items() if method.family != "open-set"]


def method_settings(text: str) -> ConfigTree:
    """``sage``, or with a form, ``sage:default``."""
    name, _, form = text.partition(":")
    return without_none({"name": name, "form": form or None})


def seeds(text: str) -> list[int]:
    """``0-4`` or ``0,2,5``."""
    if "-" in text:
        first, last = text.split("-")
        return list(range(int(first), int(last) + 1))
    return [int(part) for part in text.split(",")]


def interval(values: np.ndarray[Any, Any]) -> str:
    """Mean and 95 % interval by Student's t; one value has no interval."""
    mean = values.mean()
    if len(values) < 2:
        return f"{mean:+.1f}"
    half = stats.t.ppf(0.975, len(values) - 1) * values.std(ddof=1) / np.sqrt(len(values))
    return f"{mean:+.1f} ({mean - half:+.1f} to {mean + half:+.1f})"


def print_table(results: dict[str, dict[int, dict[str, Any]]], seeds: list[int]) -> None:
    accuracies = {
        method: np.array([100 * by_seed[seed]["accuracy"]["last"] for seed in seeds])
        for method, by_seed in results.items()
    }
    open_set = all("auroc" in summary for by_seed in results.values() for summary in by_seed.values())
    head = ["method", *(f"seed {seed}" for seed in seeds), "mean", "sd", *["AUROC (sd)"] * open_set, "steps", "seconds"]
    print("| " + " | ".join(head) + " |")
    print("|---" * len(head) + "|")
    for method, values in accuracies.items():
        cells = " | ".join(f"{value:.1f}" for value in values)
        by_seed = results[method].values()
        steps = sorted({summary["steps"] for summary in by_seed})
        steps_text = f"{steps[0]}" if len(steps) == 1 else f"{steps[0]}-{steps[-1]}"
        seconds = np.mean([summary["seconds"] for summary in by_seed])
        spread = f"{values.std(ddof=1):.1f}" if len(values) > 1 else "-"
        auroc = f"{mean_and_sd([100 * summary['auroc'] for summary in by_seed])} | " if open_set else ""
        print(f"| {method} | {cells} | {values.mean():.1f} | {spread} | {auroc}{steps_text} | {seconds:.0f} |")
    print()
    first, *others = accuracies
    pairs = [(other, first) for other in others] + [(other, middle) for other in others[-1:] for middle in others[:-1]]
    for one, other in pairs:
        print(f"- {one} minus {other}, paired over seeds: {interval(accuracies[one] - accuracies[other])} points")


def print_distributions(
    results: dict[str, dict[str, dict[int, dict[str, Any]]]], distributions: list[str], methods: list[str]
) -> None:
    """A row per method, a column per class distribution: mean (sd) of the last checkpoint."""
    print("| method | " + " | ".join(distributions) + " | seconds |")
    print("|---" * (len(distributions) + 2) + "|")
    for method in methods:
        columns = [list(results[one][method].values()) for one in distributions]
        cells = [mean_and_sd([100 * summary["accuracy"]["last"] for summary in summaries]) for summaries in columns]
        seconds = np.mean([summary["seconds"] for summaries in columns for summary in summaries])
        print(f"| {method} | " + " | ".join(cells) + f" | {seconds:.0f} |")


def mean_and_sd(values: list[float]) -> str:
    return f"{np.mean(values):.1f} ({np.std(values, ddof=1):.1f})" if len(values) > 1 else f"{values[0]:.1f}"


def cpu_name() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        return next(line.split(":")[1].strip() for line in lines if line.startswith("model name"))
    except (OSError, StopIteration):
        return platform.processor()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--recipe")
    parser.add_argument("--data")
    parser.add_argument("--root", type=Path)
    parser.add_argument("--methods", default="labels-only,fixmatch,sage")
    parser.add_argument(
        "--pool-distributions", default="", help="class distributions of the pool; by default the recipe's"
    )
    parser.add_argument("--seeds", type=seeds, default=[0, 1, 2])
    parser.add_argument("--minutes", type=float)
    parser.add_argument("--set", action="append", default=[])
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--out", type=Path, required=True)
    arguments = parser.parse_args()

    from unissl.autoconfig.recipes import with_recipe

    data = {"name": arguments.data, "root": arguments.root and arguments.root.resolve()}
    overrides = without_none({"data": data, "train": {"minutes": arguments.minutes}, "machine": {"threads": 1}})
    overrides = merge(overrides, parse_overrides(arguments.set))
    methods = chosen_methods(arguments.methods)
    distributions = arguments.pool_distributions.split(",") if arguments.pool_distributions else [""]
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(arguments.jobs, mp_context=context, max_tasks_per_child=1) as pool:
        futures = {}
        for seed, distribution, method in itertools.product(arguments.seeds, distributions, methods):
            split = {"pool_distribution": distribution or None}
            tree = merge(overrides, without_none({"method": method_settings(method), "seed": seed, "split": split}))
            name = "-".join(part for part in (method.replace(":", "-"), distribution, str(seed)) if part)
            task = pool.submit(one_run, with_recipe(tree, arguments.recipe), arguments.out / name)
            futures[distribution, method, seed] = task
        results = {
            one: {method: {seed: futures[one, method, seed].result() for seed in arguments.seeds} for method in methods}
            for one in distributions
        }
    if len(distributions) == 1:
        print_table(results[distributions[0]], arguments.seeds)
    else:
        print_distributions(results, distributions, methods)
    print(f"\n{cpu_name()}, {os.cpu_count()} cores, {datetime.date.today().isoformat()}")


if __name__ == "__main__":
    main()
