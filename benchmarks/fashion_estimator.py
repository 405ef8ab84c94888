"""SAGEClassifier against scikit-learn on Fashion-MNIST: the table of docs/results.md.

    python benchmarks/fashion_estimator.py --seeds 0,1,2

40 labels and the 12,395 unlabelled images of the arbitrary distribution with gamma 100; accuracy on the 10,000 test
images. scikit-learn's classifiers learn from the same images as pixels in 0..1, and logistic regression also from the
features of the frozen backbone that SAGEClassifier uses.
"""

from __future__ import annotations

import argparse
import time
from typing import Any

from unissl.utils.process import prepare_process

prepare_process()  # before the first tensor

import numpy as np  # noqa: E402
import torch  # noqa: E402
from sklearn.linear_model import LogisticRegression  # noqa: E402
from sklearn.semi_supervised import LabelSpreading, SelfTrainingClassifier  # noqa: E402

from unissl import SAGEClassifier  # noqa: E402
from unissl.augment import AugmentConfig  # noqa: E402
from unissl.data import DataConfig, Dataset, load  # noqa: E402
from unissl.data.images.resize import scale_arrays  # noqa: E402
from unissl.features import FeatureScaler, extract_features  # noqa: E402
from unissl.nets import DEFAULT_BACKBONE  # noqa: E402
from unissl.run.budget import DEFAULT_PHOTO_SIZE_PX  # noqa: E402
from unissl.splits import SplitConfig, make_split  # noqa: E402


def one_seed(dataset: Dataset, seed: int) -> dict[str, float]:
    """Accuracy in per cent of each classifier, and the seconds of SAGE's fit."""
    assert dataset.test is not None
    config = SplitConfig(pool_distribution="arbitrary", gamma=100.0, max_count=4996)
    split = make_split(dataset.train.labels, 10, config, seed, dataset.train.class_names)
    rows = np.concatenate([split.labelled, split.unlabelled])
    images, test_images, truth = np.asarray(dataset.train.images[rows]), dataset.test.images, dataset.test.labels
    y = np.concatenate([split.labels, np.full(len(split.unlabelled), -1)])
    labelled = y >= 0

    start = time.perf_counter()
    sage = SAGEClassifier(random_state=seed).fit(images, y)
    seconds = time.perf_counter() - start
    scores: dict[str, Any] = {"sage": sage.score(test_images, truth)}
    train_features, scaler = features(images)
    test_features, _ = features(test_images, scaler)
    regression = LogisticRegression(max_iter=1000).fit(train_features[labelled], y[labelled])
    scores["logistic regression, features"] = regression.score(test_features, truth)
    pixels, test_pixels = (np.asarray(table).reshape(len(table), -1) / 255 for table in (images, test_images))
    regression = LogisticRegression(max_iter=1000)
    scores["logistic regression, pixels"] = regression.fit(pixels[labelled], y[labelled]).score(test_pixels, truth)
    spreading = LabelSpreading(kernel="knn", n_neighbors=10)
    scores["label spreading, pixels"] = spreading.fit(pixels, y).score(test_pixels, truth)
    self_training = SelfTrainingClassifier(LogisticRegression(max_iter=1000))
    scores["self-training, pixels"] = self_training.fit(pixels, y).score(test_pixels, truth)
    return {name: 100 * value for name, value in scores.items()} | {"seconds of sage": seconds}


def features(
    images: np.ndarray[Any, Any], scaler: FeatureScaler | None = None
) -> tuple[np.ndarray[Any, Any], FeatureScaler]:
    """Scaled features (n, D) of the frozen backbone that the fit starts from, and their scaler: that of the training
    images, or fitted to these."""
    pixels = scale_arrays(np.asarray(images), DEFAULT_PHOTO_SIZE_PX)
    cached = extract_features(pixels, DEFAULT_BACKBONE, AugmentConfig(cached_views=0), torch.device("cpu"))
    scaler = scaler or cached.scaler
    return scaler(torch.from_numpy(np.array(cached.features[:, 0]))).numpy(), scaler


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", default="0,1,2")
    seeds = [int(seed) for seed in parser.parse_args().seeds.split(",")]
    dataset = load(DataConfig(name="fashion-mnist"))
    rows = []
    for seed in seeds:
        rows.append(one_seed(dataset, seed))
        print(f"seed {seed}: " + ", ".join(f"{name} {value:.1f}" for name, value in rows[-1].items()), flush=True)
    print("| | " + " | ".join(f"seed {seed}" for seed in seeds) + " | mean |")
    print("|---" * (len(seeds) + 2) + "|")
    for name in rows[0]:
        values = [result[name] for result in rows]
        print(f"| {name} | " + " | ".join(f"{value:.1f}" for value in values) + f" | {np.mean(values):.1f} |")


if __name__ == "__main__":
    main()
