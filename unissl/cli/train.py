"""unissl train"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from unissl.cli.options import DataOptions, Overrides, given, said
from unissl.cli.start import has_reference, start_or_resume

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
    resume: bool | Literal["auto"] = False,
    reference: bool = True,
    report: bool | None = None,
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
        Starting point of the settings: paper, short, photos or digits; by default what suits the data.
    config
        TOML file with differences from the recipe.
    out
        Run folder; by default runs/DATA-METHOD-SEED.
    steps
        Training steps.
    minutes
        Time for everything, labels-only and the report included; turned into steps before the start.
    net
        Network, e.g. wrn-28-2.
    device
        cpu, cuda or mps.
    threads
        CPU threads.
    set_
        Any other setting as key=value, e.g. --set method.steps=3; may be repeated.
    resume
        Continue the run in --out, bit for bit; with auto, start it where there is none yet, so that torchrun or a
        scheduler may repeat the command.
    reference
        Also train labels-only, in OUT/labels-only.
    report
        Write OUT/report.html at the end; by default for images of your own.
    quiet
        Say nothing until the end.
    """
    from unissl.cli.machine import prepare_process

    prepare_process()
    flags = merge_flags(data or DataOptions(), method, steps, minutes, net, device, threads)
    tree = said(flags, config, set_)
    from unissl.distributed.agreement import from_first

    finished, reference = start_or_resume(tree, recipe, out, resume, reference, quiet)
    show(finished)
    if reference and has_reference(finished.config.method.name):
        show_gain(finished, train_reference(finished, quiet))
    from unissl.results import OWN_DATA

    if report or (report is None and finished.config.data.name in OWN_DATA):
        from_first(lambda: show_report(finished))


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
    from unissl.config import to_tree
    from unissl.distributed.agreement import from_first
    from unissl.record import REFERENCE
    from unissl.run_config import reference_config
    from unissl.runs import resume, run

    folder = from_first(lambda: finished.folder.inside(REFERENCE))
    if from_first(lambda: folder.holds_run):
        return resume(folder.path, {"machine": to_tree(finished.config.machine)}, quiet=quiet)
    return run(reference_config(finished.config), folder.path, quiet=quiet)


def show(finished: Run) -> None:
    from rich.console import Console

    from unissl.report.findings_labels import count_contradicted
    from unissl.report.words import counted

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
    elif "estimate" in summary:
        found = summary["estimate"]
        console.print(
            f"{summary['method']}: accuracy {found['accuracy']:.3f} ({found['low']:.3f} to {found['high']:.3f}), "
            f"estimated by leaving out each of {found['labels']} labels once; test images (--test) would tell more"
        )
    else:
        console.print(f"{summary['method']}: trained; without test images (--test or --holdout) there is no accuracy")
    if summary["skipped"]:
        console.print(f"{len(summary['skipped'])} files or folders were left out; summary.json says which and why")
    if clashes := count_contradicted(summary.get("remarks", [])):
        who = counted(clashes, "image with several labels was", "images with several labels were")
        console.print(f"{who} used without one; summary.json lists them")
    copies = [{copy["part"] for copy in group["copies"]} for group in summary.get("duplicates", [])]
    if copies:
        leaks = sum("test" in parts and len(parts) > 1 for parts in copies)
        learnt = f"; in {leaks} of them a test image is also learnt from, which flatters the accuracy" if leaks else ""
        console.print(f"{len(copies)} groups of images look like the same picture{learnt}; summary.json lists them")
    console.print(f"written to {finished.folder.path}", soft_wrap=True)


def show_gain(finished: Run, reference: Run) -> None:
    """The same figure of both runs, and the difference."""
    ours, floor = (_headline(run.summary) for run in (finished, reference))
    if ours is not None and floor is not None:
        print(f"labels-only: accuracy {floor:.4f}; the pool was worth {100 * (ours - floor):+.1f} points")


def _headline(summary: Mapping[str, Any]) -> float | None:
    if "accuracy" in summary:
        return float(summary["accuracy"]["last"])
    return float(summary["estimate"]["accuracy"]) if "estimate" in summary else None


def show_report(finished: Run) -> None:
    from unissl.open_set import load_data
    from unissl.report.html import write_report

    dataset = load_data(finished.config.data, finished.config.split)
    written = write_report(finished.folder, dataset=dataset)
    print(f"report: {written.path}")
