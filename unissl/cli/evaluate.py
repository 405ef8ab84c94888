"""unissl evaluate"""

from __future__ import annotations

from pathlib import Path


def evaluate(run: Path, /, *, test: Path | None = None) -> None:
    """Measure the model of a run folder on its test images, or on others.

    Example: unissl evaluate runs/first

    Parameters
    ----------
    run
        Run folder.
    test
        Other test images: a folder with one subfolder per class, or a parquet file.
    """
    from rich.console import Console
    from rich.table import Table

    from unissl.cli.process import prepare_process

    prepare_process()
    from unissl.config import read_toml
    from unissl.data import load_test
    from unissl.errors import UserError
    from unissl.evaluation.metrics import evaluate_predictions
    from unissl.inference.model import load_model
    from unissl.run.config import build_config
    from unissl.run_folder import RunFolder
    from unissl.splits.open_set import load_data
    from unissl.types import ImageTable

    folder = RunFolder(run)
    model = load_model(folder)
    if test is not None:
        images: ImageTable | None = load_test(test, model.class_names, model.size[0], model.channels)
    else:
        config = build_config(read_toml(folder.config))
        images = load_data(config.data, config.split).test
    if images is None:
        raise UserError("The run has no test images; name some with --test.")
    scores = evaluate_predictions(images.labels, model.predict(images.images), len(model.class_names))
    unknowns = scores.get("ood_test_images", 0)
    print(f"{len(images) - unknowns} images: accuracy {scores['accuracy']:.4f}, ", end="")
    print(f"balanced {scores['balanced_accuracy']:.4f}")
    if unknowns:
        print(f"{unknowns} images of none of the classes: found by the outlier score with AUROC {scores['auroc']:.4f}")
    table = Table("class", "recall")
    for name, recall in zip(model.class_names, scores["per_class_recall"], strict=True):
        table.add_row(name, "-" if recall is None else f"{recall:.3f}")
    Console().print(table)
