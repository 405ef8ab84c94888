"""unissl train"""

from __future__ import annotations

from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from unissl.cli.options import DataOptions, Overrides, combine_overrides
from unissl.utils.printing import echo

if TYPE_CHECKING:
    from unissl.run.pipeline import Run


def train(
    *,
    data: DataOptions | None = None,
    method: str | None = None,
    recipe: str | None = None,
    config: Path | None = None,
    out: Path | None = None,
    steps: int | None = None,
    minutes: float | None = None,
    net: str | None = None,
    device: str | None = None,
    threads: int | None = None,
    set_: Overrides = (),
    resume: bool | Literal["auto"] = False,
    baseline: bool = True,
    report: bool | None = None,
    fast: bool = False,
    quiet: bool = False,
) -> None:
    """Train a classifier and write a run folder.

    Also trains a labels-only baseline, so the gain from unlabelled images can be reported.

    Example: unissl train --images photos/ --labels labels.csv --out runs/first

    Args:
        method: sage, fixmatch, labels-only, ... (see `unissl methods`).
        recipe: Starting point of the configuration: paper, short, photos or digits; by default one that suits the data.
        config: TOML file with differences from the recipe.
        out: Run folder; by default runs/DATA-METHOD-SEED.
        steps: Training steps.
        minutes: Total time budget, including baseline and report; converted to a step count before training.
        net: Network: wrn-28-2, a pretrained backbone, timm:NAME, hf:OWNER/NAME, NAME@FILE or module:factory.
        device: cpu, cuda or mps.
        threads: CPU threads.
        set_: Any other setting as key=value, e.g. --set method.walk_steps=3; may be repeated.
        resume: Resume the run in --out, bit for bit; with auto, start it if there is none yet, so that torchrun or
            a scheduler can repeat the command.
        baseline: Train the labels-only baseline, in OUT/baseline.
        report: Write OUT/report.html at the end; by default for images of your own.
        fast: For images of your own: no augmented views and no fine-tuning, for a first look in a third of the time.
        quiet: Print only warnings and the result.
    """
    from unissl import api
    from unissl.config import without_none
    from unissl.utils.progress import log_to_stderr, silenced

    log_to_stderr()
    flags = (data or DataOptions()).tree()
    flags |= without_none(
        {
            "method": {"name": method},
            "train": {"steps": steps, "minutes": minutes},
            "net": {"name": net},
            "machine": {"device": device, "threads": threads},
        }
    )
    overrides = combine_overrides(flags, config, set_)
    with silenced() if quiet else nullcontext():
        run = api.train(
            config=overrides, recipe=recipe, out=out, resume=resume, baseline=baseline, report=report, fast=fast
        )
    print_result(run)


def print_result(run: Run) -> None:
    """The accuracy, the gain over the baseline, what to look at, and where everything is."""
    from unissl.run.schema import conflicting_files, duplicate_groups

    summary = run.summary
    interval = run.interval
    method = summary.get("shipped", {}).get("classifier", summary["method"])
    if interval is None:
        echo(f"{method}: trained; without test images (--test or --holdout) there is no accuracy")
    else:
        how = f"on {summary['test_images'] - summary.get('ood_test_images', 0):,} test images"
        if "accuracy" not in summary:
            labels = summary["cross_validation"]["labels"]
            how = f"estimated by cross-validation over {labels} labels; --test would be more precise"
        echo(
            f"{method}: accuracy {interval.value:.4f} (95 % interval {interval.low:.3f} to {interval.high:.3f}), {how}"
        )
    print_baselines(run)
    if "auroc" in summary:
        number = summary["ood_test_images"]
        echo(f"outlier score: AUROC {summary['auroc']:.4f} on {number:,} out-of-distribution test images")
    if summary["skipped"]:
        echo(f"{len(summary['skipped'])} files or folders were skipped; summary.json lists them with the reason")
    if conflicts := conflicting_files(summary):
        echo(f"{conflicts} images with conflicting labels were treated as unlabelled; summary.json lists them")
    groups = duplicate_groups(summary)
    if groups:
        leaks = sum(group.leaks_test for group in groups)
        leak = (
            f"; in {leaks} of them a test image is also a training image, so the accuracy is too high" if leaks else ""
        )
        echo(f"{len(groups)} groups of duplicate images{leak}; summary.json lists them")
    echo(f"run folder: {run.folder.path}")
    if run.report is not None:
        echo(f"report: {run.report}")


def print_baselines(run: Run) -> None:
    """Accuracy of every baseline, the gain over the best of them, and which classifier is shipped, and why."""
    from unissl.run.schema import BaselineScore, baseline_scores, best_baseline, compared_accuracy

    scores, ours = baseline_scores(run.summary), compared_accuracy(run.summary)
    labels_only = None if run.baseline is None else compared_accuracy(run.baseline.summary)
    if run.baseline is not None and ours is not None and labels_only is not None:
        scores = [BaselineScore(run.baseline.config.method.name, labels_only, ours - labels_only), *scores]
    best = best_baseline(scores)
    if best is not None:
        where = ""
        if "accuracy" not in run.summary:
            where = f"on the folds, which have fewer labels and no fine-tuning, it reaches {ours:.4f}; "
        echo(f"{where}baselines: " + ", ".join(f"{score.name} {score.accuracy:.4f}" for score in scores))
        low_high = best.interval
        interval = (
            "" if low_high is None else f" (95 % interval {100 * low_high.low:+.1f} to {100 * low_high.high:+.1f})"
        )
        echo(f"gain over the best baseline, {best.name}: {100 * best.gain:+.1f} points{interval}")
    if "shipped" in run.summary:
        echo(f"shipped classifier: {run.summary['shipped']['classifier']}; {run.summary['shipped']['reason']}")
