"""unissl train"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from unissl.cli.options import DataOptions, Overrides, given, said

if TYPE_CHECKING:
    from unissl.runs import Run


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
    resume: bool = False,
    reference: bool = True,
    quiet: bool = False,
) -> None:
    """Train a classifier and write a run folder.

    Labels-only training runs beside every semi-supervised method, so that the gain from the pool is known.

    Example: unissl train --data digits --method sage --seed 1 --out runs/first

    Parameters
    ----------
    method
        sage, fixmatch, labels-only, ... (see `unissl methods`).
    recipe
        Starting point of the settings: paper, short or digits; by default what suits the data.
    config
        TOML file with differences from the recipe.
    out
        Run folder; by default runs/DATA-METHOD-SEED.
    steps
        Training steps.
    minutes
        Time budget, turned into steps before the start.
    net
        Network, e.g. wrn-28-2.
    device
        cpu, cuda or mps.
    threads
        CPU threads.
    set_
        Any other setting as key=value, e.g. --set method.steps=3; may be repeated.
    resume
        Continue the run in --out, bit for bit.
    reference
        Also train labels-only, in OUT/labels-only.
    quiet
        Say nothing until the end.
    """
    flags = merge_flags(data or DataOptions(), method, steps, minutes, net, device, threads)
    tree = said(flags, config, set_)
    from unissl.cli.machine import prepare_process

    prepare_process()
    from unissl.methods.registry import get_method
    from unissl.recipes import with_recipe
    from unissl.record import RunFolder
    from unissl.run_config import build_config
    from unissl.runs import resume as resume_run
    from unissl.runs import run as start_run

    if resume:
        from unissl.errors import UserError

        if out is None:
            raise UserError("--resume needs --out with the folder of the run to continue.")
        if recipe is not None:
            raise UserError("--resume takes its settings from the run folder; leave out --recipe.")
        reference = reference and not (RunFolder(out).finished and not RunFolder(out / "labels-only").holds_run)
        finished = resume_run(out, tree, quiet=quiet)
    else:
        settings = build_config(with_recipe(tree, recipe))
        finished = start_run(settings, out, quiet=quiet)
    show(finished)
    learns_from_truth = "pool labels" in get_method(finished.config.method.name).needs
    if reference and finished.config.method.name != "labels-only" and not learns_from_truth:
        show_gain(finished, train_reference(finished, quiet))


def merge_flags(
    data: DataOptions,
    method: str | None,
    steps: int | None,
    minutes: float | None,
    net: str | None,
    device: str | None,
    threads: int | None,
) -> dict[str, object]:
    flags = data.tree()
    flags |= given(
        {
            "method": {"name": method},
            "train": {"steps": steps, "minutes": minutes},
            "net": {"name": net},
            "machine": {"device": device, "threads": threads},
        }
    )
    return flags


def train_reference(finished: Run, quiet: bool) -> Run:
    """Labels-only with everything else alike, inside the folder of the run it is compared with."""
    from unissl.config import merge, to_tree
    from unissl.record import RunFolder
    from unissl.run_config import build_config
    from unissl.runs import resume, run

    folder = RunFolder(finished.folder.path / "labels-only")
    if folder.holds_run:
        return resume(folder.path, {"machine": to_tree(finished.config.machine)}, quiet=quiet)
    tree = {key: value for key, value in to_tree(finished.config).items() if key != "method"}
    return run(build_config(merge(tree, {"method": {"name": "labels-only"}})), folder.path, quiet=quiet)


def show(finished: Run) -> None:
    from rich.console import Console

    console, summary = Console(highlight=False), finished.summary
    if "accuracy" in summary:
        ways = summary["accuracy"]
        console.print(
            f"{summary['method']}: accuracy {ways['last']:.4f} (last), {ways['mean_last_20']:.4f} (mean of the last "
            f"20 evaluations), {ways['best']:.4f} (best, chosen on the test images)"
        )
        if "auroc" in summary:
            console.print(
                f"{summary['unknowns']} test images are of none of the classes; the outlier score finds them with "
                f"AUROC {summary['auroc']:.4f}"
            )
    else:
        console.print(f"{summary['method']}: trained; without test images (--test or --holdout) there is no accuracy")
    if summary["skipped"]:
        console.print(f"{len(summary['skipped'])} files or folders were left out; summary.json says which and why")
    copies = [{copy["part"] for copy in group["copies"]} for group in summary.get("duplicates", [])]
    if copies:
        leaks = sum("test" in parts and len(parts) > 1 for parts in copies)
        learnt = f"; in {leaks} of them a test image is also learnt from, which flatters the accuracy" if leaks else ""
        console.print(f"{len(copies)} groups of images look like the same picture{learnt}; summary.json lists them")
    console.print(f"written to {finished.folder.path}", soft_wrap=True)


def show_gain(finished: Run, reference: Run) -> None:
    if "accuracy" not in finished.summary:
        return
    ours, floor = finished.summary["accuracy"]["last"], reference.summary["accuracy"]["last"]
    print(f"labels-only: accuracy {floor:.4f}; the pool was worth {100 * (ours - floor):+.1f} points")
