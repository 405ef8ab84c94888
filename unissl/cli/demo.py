"""unissl demo"""

from __future__ import annotations

from pathlib import Path

METHODS = ("labels-only", "fixmatch", "sage")


def demo(*, out: Path = Path("runs/demo"), seed: int = 0, steps: int | None = None, threads: int | None = None) -> None:
    """Train labels-only, FixMatch and SAGE on handwritten digits with four labels per class, and compare them.

    Takes about a minute and a half on two cores. Runs that are finished in --out are shown again, cut-off ones are
    continued.

    Example: unissl demo --seed 1 --out runs/demo-1

    Parameters
    ----------
    out
        Folder for the three runs and the summary.
    seed
        Decides split, weights, order and views.
    steps
        Training steps of each method; by default the recipe's.
    threads
        CPU threads.
    """
    from rich.console import Console
    from rich.table import Table

    from unissl.cli.machine import prepare_process

    prepare_process()
    from unissl.cli.options import given
    from unissl.config import merge
    from unissl.recipes import with_recipe
    from unissl.record import RunFolder, write_json
    from unissl.report.charts import comparison, save
    from unissl.run_config import build_config
    from unissl.runs import resume, run

    top = RunFolder(out)
    if top.holds_run or not any(RunFolder(out / name).holds_run for name in METHODS):
        top.refuse_if_taken()
    console = Console(highlight=False)
    console.print("Digits: 1,797 images of 8 x 8; 4 labels per class, a pool of unknown mix, 500 test images.")
    said = given({"seed": seed, "train": {"steps": steps}, "machine": {"threads": threads}})
    results = {}
    for name in METHODS:
        folder = top.inside(name)
        tree = merge(said, {"method": {"name": name}})
        if folder.holds_run:
            results[name] = resume(folder.path, tree).summary
        else:
            results[name] = run(build_config(with_recipe(tree, "digits")), folder.path).summary
    table = Table("method", "test accuracy", "labels given to the pool that are right", "seconds")
    for name, summary in results.items():
        accuracy, pool = summary["accuracy"]["last"], summary["pool"]["accuracy"]
        table.add_row(name, f"{accuracy:.1%}", f"{pool:.1%}", f"{summary['seconds']:.0f}")
    console.print(table)
    gain = results["sage"]["accuracy"]["last"] - results["labels-only"]["accuracy"]["last"]
    console.print(f"The unlabelled pool was worth {100 * gain:+.1f} points to SAGE.")
    short = {name: {"last": s["accuracy"]["last"], "seconds": s["seconds"]} for name, s in results.items()}
    write_json(out / "summary.json", {"methods": short})
    save(comparison(results), out / "comparison")
    console.print(f"Summary: {out / 'summary.json'}; picture: {out / 'comparison.png'}", soft_wrap=True)
    for name in METHODS:
        folder = RunFolder(out / name)
        console.print(f"{name}: {folder.path}/ (model.safetensors, predictions.parquet, plots/)", soft_wrap=True)
