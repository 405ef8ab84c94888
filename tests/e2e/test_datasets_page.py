"""The page on data sets says what the catalogue and the published protocol say."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import numpy as np
import pytest

from unissl.cli.listings import datasets
from unissl.splits import SplitConfig, make_split

PAGE = (Path(__file__).parents[2] / "docs" / "datasets.md").read_text(encoding="utf-8")


def test_the_table_is_that_of_the_catalogue(capsys: pytest.CaptureFixture[str]) -> None:
    datasets(markdown=True)
    shown = PAGE.split("<!-- datasets:start -->\n")[1].split("<!-- datasets:end -->")[0]
    assert shown == capsys.readouterr().out, "put the output of 'unissl datasets --markdown' into docs/datasets.md"


@pytest.mark.parametrize(("name", "classes", "each"), [("cifar10", 10, 5000), ("cifar100", 100, 500),
                                                       ("svhn", 10, 5000), ("food101", 101, 750)])  # fmt: skip
def test_the_commands_give_the_totals_beside_them(name: str, classes: int, each: int) -> None:
    (found,) = re.findall(rf"`unissl split --data {name} ([^`]*)` \| ([\d,]+) \| ([\d,]+) \|", PAGE)
    flags, labels, pool = found
    words = shlex.split(flags)
    said = dict(zip(words[::2], words[1::2], strict=True))
    config = SplitConfig(gamma=float(said["--gamma"]), max_count=int(said["--max-count"]))
    made = make_split(np.repeat(np.arange(classes), each), classes, config, int(said["--seed"]))
    assert (f"{len(made.labelled):,}", f"{len(made.unlabelled):,}") == (labels, pool)
