"""unissl evaluate"""

from __future__ import annotations

from pathlib import Path

from unissl.utils.printing import echo


def evaluate(run: Path, /, *, test: Path | None = None) -> None:
    """Evaluate a trained model on the test images of its run, or on others.

    Example: unissl evaluate runs/first

    Args:
        run: Run folder.
        test: Other test images: a folder with one subfolder per class, or a parquet file.
    """
    from rich.table import Table

    from unissl.config import read_toml
    from unissl.errors import UserError
    from unissl.inference.evaluate import evaluate_model
    from unissl.inference.model import load_model
    from unissl.run.config import build_config
    from unissl.run_folder import RunFolder
    from unissl.splits.open_set import announce_data, load_data
    from unissl.types import ImageTable
    from unissl.utils.printing import show

    folder = RunFolder(run)
    model = load_model(folder)
    images: Path | ImageTable | None = test
    if test is None:
        config = build_config(read_toml(folder.config))
        announce_data(config.data, config.split)
        images = load_data(config.data, config.split).test
    if images is None:
        raise UserError("The run has no test images; name some with --test.")
    evaluation = evaluate_model(model, images)
    echo(evaluation)
    if evaluation.ood_images:
        echo(f"{evaluation.ood_images} out-of-distribution images: AUROC of the outlier score {evaluation.auroc:.4f}")
    table = Table("class", "recall")
    for name, recall in evaluation.per_class_recall.items():
        table.add_row(name, "-" if recall is None else f"{recall:.3f}")
    show(table)
