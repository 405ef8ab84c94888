"""unissl demo"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from unissl.run.pipeline import Run

METHODS = ("labels-only", "fixmatch", "sage")
LABELS_PER_CLASS = 1


def demo(*, out: Path = Path("runs/demo"), seed: int = 0, steps: int | None = None, threads: int | None = None) -> None:
    """Train labels-only, FixMatch and SAGE on handwritten digits with one label per class, and compare them.

    Takes about a minute and a half on two cores. Finished runs in --out are shown again, interrupted ones are
    resumed.

    Example: unissl demo --seed 1 --out runs/demo-1

    Args:
        out: Folder for the three runs and the summary.
        seed: Random seed for split, initialisation, batch order and augmentation.
        steps: Training steps of each method; by default those of the recipe.
        threads: CPU threads.
    """
    from rich.table import Table

    from unissl.autoconfig.recipes import with_recipe
    from unissl.config import merge, without_none
    from unissl.plots.charts import save
    from unissl.run.config import build_config
    from unissl.run.pipeline import resume, run
    from unissl.run_folder import RunFolder
    from unissl.training.signals import stop_hint
    from unissl.utils.atomic import write_json
    from unissl.utils.printing import plain_console

    top = RunFolder(out)
    if top.holds_run or not any(RunFolder(out / name).holds_run for name in METHODS):
        top.check_unused()
    console = plain_console(highlight=False)
    console.print("Digits: one labelled image per class, a pool of unlabelled images, 500 test images.")
    common = {"split": {"labels_per_class": LABELS_PER_CLASS}, "train": {"steps": steps}}
    overrides = without_none({"seed": seed, "machine": {"threads": threads}, **common})
    runs: dict[str, Run] = {}
    with stop_hint(f"finished runs and checkpoints are kept in {out}", "repeat the command to continue"):
        for name in METHODS:
            folder = top.inside(name)
            tree = merge(overrides, {"method": {"name": name}})
            if folder.holds_run:
                runs[name] = resume(folder.path, tree)
            else:
                runs[name] = run(build_config(with_recipe(tree, "digits")), folder.path)
    results = {name: one.summary for name, one in runs.items()}
    table = Table("method", "test accuracy", "pseudo-label accuracy", "seconds")
    for name, summary in results.items():
        accuracy, pool = summary["accuracy"]["last"], summary["pool"]["accuracy"]
        table.add_row(name, f"{accuracy:.1%}", f"{pool:.1%}", f"{summary['seconds']:.0f}")
    console.print(table)
    for name, title in (("labels-only", "the labels-only baseline"), ("fixmatch", "FixMatch")):
        gain = results["sage"]["accuracy"]["last"] - results[name]["accuracy"]["last"]
        console.print(f"Gain of SAGE over {title}: {100 * gain:+.1f} points.")
    short = {name: {"last": s["accuracy"]["last"], "seconds": s["seconds"]} for name, s in results.items()}
    write_json(out / "summary.json", {"methods": short})
    save(_chart(results, runs["sage"]), out / "comparison")
    console.print(f"Summary: {out / 'summary.json'}; chart: {out / 'comparison.png'}", soft_wrap=True)
    for name in METHODS:
        console.print(f"{name}: {out / name}/ (model.safetensors, predictions.parquet, plots/)", soft_wrap=True)


def _chart(results: dict[str, dict[str, Any]], run: Run) -> Figure:
    from unissl.plots.demo_chart import demo_chart
    from unissl.run.inputs import build_split
    from unissl.splits.open_set import load_data

    dataset = load_data(run.config.data, run.config.split)
    split = build_split(run.config, dataset)
    order = split.labels.argsort(kind="stable")
    names = [dataset.train.class_names[label] for label in split.labels[order]]
    return demo_chart(results, dataset.train.images[split.labelled[order]], names)
