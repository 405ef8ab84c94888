"""Settings that cannot be: one sentence that names the fix, a code, and nothing written."""

from __future__ import annotations

from pathlib import Path

import pytest
from cli_helpers import TRAIN_DIGITS, Refuses

from unissl.cli import main
from unissl.errors import UserError


@pytest.mark.parametrize(
    ("extra", "says"),
    [
        (("--gamma", "0.5"), ("'split.gamma'", "greater than or equal to 1", "0.5")),
        (("--method", "sagee"), ("no method 'sagee'", "Did you mean 'sage'?")),
        (("--set", "net.name=wrn-28x2"), ("Unknown network 'wrn-28x2'", "Did you mean 'wrn-28-2'?")),
        (("--set", "net.name=wrn-27-2"), ("6n + 4", "'wrn-22-2' and 'wrn-28-2'")),
        (("--recipe", "papr"), ("no recipe 'papr'", "Did you mean 'paper'?")),
        (("--seed", "-1"), ("'seed'", "greater than or equal to 0", "-1")),
        (("--seed", "4294967296"), ("'seed'", "less than 4294967296")),
        (("--device", "cuda:99"), ("no device 'cuda:99'", "use --device cpu")),
        (("--device", "toaster"), ("no device 'toaster'", "use --device cpu")),
        (("--device", "meta"), ("no device 'meta'", "use --device cpu")),
        (("--threads", "0"), ("'machine.threads'", "greater than or equal to 1")),
        (("--threads", "1000000"), ("'machine.threads'", "less than or equal to 1024")),
        (("--set", "batch.labelled=1000000000000"), ("'batch.labelled'", "less than or equal to 1048576")),
        (("--set", "train.evaluations=1000000000"), ("'train.evaluations'", "less than or equal to 1000000")),
        (("--set", "train.minutes=inf"), ("'train.minutes'", "less than or equal to 1000000")),
        (("--set", "train.stepz=3"), ("Unknown setting 'train.stepz'", "Did you mean 'steps'?")),
        (("--set", "method.tempreature=1"), ("Unknown setting 'method.tempreature'",)),
        (("--set", "trane.steps=3"), ("Unknown setting 'trane'", "Did you mean 'train'?")),
        (("--set", "batch.labelled=many"), ("'batch.labelled'", "valid integer", "'many'")),
        (("--set", "batch.labelled=0"), ("'batch.labelled'", "greater than or equal to 1")),
        (("--set", "method=fixmatch"), ("'method' is a group", "--set method.NAME=VALUE")),
        (("--set", "data=digits"), ("'data' is a group", "--set data.NAME=VALUE")),
        (("--set", "train.steps"), ("--set takes key=value", "method.walk_steps=3")),
        (("--set", "augment.pad=8"), ("'augment.pad' is 8", "set it below", "8 pixels")),
        (("--labels-per-class", "1000"), ("Class '0' has 136 labelled images", "needs 1000", "lower labels_per_class")),
        (("--max-count", "1000"), ("Class '0' has 136 images", "lower max_count")),
        (("--holdout", "1797"), ("--holdout 1797", "choose a smaller number")),
        (("--set", "split.labelled_counts=[1,1,1,1,1,1,1,1,1,0]"), ("Class '9'", "at least one label")),
        (("--root", "x"), ("data.root has no effect on 'digits'", "leave it out")),
        (("--set", "train.precision=bfloat16"), ("for GPUs", "leave out train.precision")),
        (("--method", "meta-expert"), ("inner map 'stem'", "--net wrn-10-1")),
        (
            ("--recipe", "short", "--set", "split.kind=given"),
            ("no unlabelled image for sage", "use --method labels-only"),
        ),
    ],
)
def test_wrong_setting(refuses: Refuses, extra: tuple[str, ...], says: tuple[str, ...]) -> None:
    refuses(*TRAIN_DIGITS, "--out", "run", *extra, says=says)


def test_unknown_network(refuses: Refuses) -> None:
    says = ("Unknown network 'wrn-28'", "wrn-<depth>-<width>")
    refuses("train", "--data", "digits", "--net", "wrn-28", "--out", "run", says=says)


@pytest.mark.parametrize("name", ["digitz", "cifar10"])
def test_data_set_that_is_not_here(refuses: Refuses, name: str) -> None:
    says = {"digitz": ("Unknown data set 'digitz'", "Did you mean 'digits'?"), "cifar10": ("cifar10", "--root")}
    refuses("train", "--data", name, "--out", "run", says=says[name])


@pytest.mark.parametrize("verb", ["train", "split"])
def test_data_and_images_at_once(refuses: Refuses, verb: str) -> None:
    refuses(verb, "--data", "digits", "--images", "photos", says=("either --data or --images",))


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("seed = = 3", ("settings.toml is not valid TOML", "line 1", "correct that line")),
        ("[train]\nstepz = 3", ("Unknown setting 'train.stepz'", "Did you mean 'steps'?")),
        ("method = 'sage'", ("'method' is a group",)),
        (None, ("no config file settings.toml", "check the path given with --config")),
    ],
)
def test_config_file(refuses: Refuses, here: Path, text: str | None, says: tuple[str, ...]) -> None:
    if text is not None:
        (here / "settings.toml").write_text(text)
    refuses("train", "--config", "settings.toml", "--out", "run", says=says)


def test_config_that_is_a_folder(refuses: Refuses, here: Path) -> None:
    refuses("train", "--config", here, "--out", "run", says=("is a folder", "TOML file"))


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("train", "--stepz", "3"), ("--stepz", "--steps")),
        (("train", "--steps", "many"), ("--steps", "many")),
        (("trian",), ("trian", "train")),
        (("predict", "run"), ("IMAGES",)),
        (("evaluate",), ("RUN",)),
    ],
)
def test_wrong_command_line(refuses: Refuses, words: tuple[str, ...], says: tuple[str, ...]) -> None:
    refuses(*words, says=says, code=2)


def test_debug_shows_the_traceback() -> None:
    with pytest.raises(UserError, match="no recipe"):
        main(["train", "--recipe", "papr", "--debug"])
