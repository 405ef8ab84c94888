"""unissl demo"""

from __future__ import annotations

from pathlib import Path

METHODS = ("labels-only", "fixmatch", "sage")


def demo(*, out: Path = Path("runs/demo"), seed: int = 0, steps: int | None = None, threads: int | None = None) -> None:
    """Train labels-only, FixMatch and SAGE on handwritten digits with four labels per class, and compare them.

    Takes about a minute and a half on two cores. Finished runs in --out are shown again, interrupted ones are
    resumed.

    Example: unissl demo --seed 1 --out runs/demo-1

    Parameters
    ----------
    out
        Folder for the three runs and the summary.
    seed
        Random seed for split, initialisation, batch order and augmentation.
    steps
        Training steps of each method; by default those of the recipe.
    threads
        CPU threads.
    """
    from rich.table import Table

    from unissl.cli.printing import plain_console
    from unissl.cli.process import prepare_process

    prepare_process()
    from unissl.autoconfig.recipes import with_recipe
    from unissl.config import merge, without_none
    from unissl.plots.charts import comparison, save
    from unissl.run.config import build_config
    from unissl.run.pipeline import resume, run
    from unissl.run_folder import RunFolder
    from unissl.training.signals import stop_hint
    from unissl.utils.atomic import write_json

    top = RunFolder(out)
    if top.holds_run or not any(RunFolder(out / name).holds_run for name in METHODS):
        top.check_unused()
    console = plain_console(highlight=False)
    console.print("Digits: 1,797 images of 8 x 8; 4 labels per class, an unlabelled pool, 500 test images.")
    overrides = without_none({"seed": seed, "train": {"steps": steps}, "machine": {"threads": threads}})
    results = {}
    with stop_hint(f"finished runs and checkpoints are kept in {out}", "repeat the command to continue"):
        for name in METHODS:
            folder = top.inside(name)
            tree = merge(overrides, {"method": {"name": name}})
            if folder.holds_run:
                results[name] = resume(folder.path, tree).summary
            else:
                results[name] = run(build_config(with_recipe(tree, "digits")), folder.path).summary
    table = Table("method", "test accuracy", "pseudo-label accuracy", "seconds")
    for name, summary in results.items():
        accuracy, pool = summary["accuracy"]["last"], summary["pool"]["accuracy"]
        table.add_row(name, f"{accuracy:.1%}", f"{pool:.1%}", f"{summary['seconds']:.0f}")
    console.print(table)
    gain = results["sage"]["accuracy"]["last"] - results["labels-only"]["accuracy"]["last"]
    console.print(f"Gain of SAGE over the labels-only baseline: {100 * gain:+.1f} points.")
    short = {name: {"last": s["accuracy"]["last"], "seconds": s["seconds"]} for name, s in results.items()}
    write_json(out / "summary.json", {"methods": short})
    save(comparison(results), out / "comparison")
    console.print(f"Summary: {out / 'summary.json'}; chart: {out / 'comparison.png'}", soft_wrap=True)
    for name in METHODS:
        folder = RunFolder(out / name)
        console.print(f"{name}: {folder.path}/ (model.safetensors, predictions.parquet, plots/)", soft_wrap=True)
