"""The experiments: their number of runs and the numbers of the paper, as section 23 of the facts has them."""

from __future__ import annotations

import json

import pytest

from unissl.errors import UserError
from unissl_paper.experiments import EXPERIMENTS, get_experiment
from unissl_paper.experiments.experiment import Printed
from unissl_paper.experiments.listing import format_listing, listing

RUNS = {
    "table1": 324, "table2": 324, "table3": 105, "table4": 32, "gri-losses": 9, "lambda": 5, "beta": 8, "anchors-k": 4,
    "n10": 12, "imagenet127": 18, "open-set": 12, "resnet50": 12, "significance": 0, "overhead": 0, "motivation": 3,
    "stability": 0, "ablation-pseudo-labels": 0, "failure-boundary": 4, "settings": 0,
    "forms": 9, "exact": 6, "anchors": 18, "ports": 36, "claim": 6,
}  # fmt: skip

AVERAGES = {
    "table1": {
        "fully-supervised": 83.34, "logit-adjust": 87.40, "fixmatch": 53.21, "freematch": 56.94, "softmatch": 55.66,
        "cgmatch": 58.38, "acr": 52.08, "simpro": 16.29, "cdmad": 51.29, "meta-expert": 42.22, "cpg": 54.95,
        "sage": 69.10,
    },
    "table2": {
        "fully-supervised": 66.37, "logit-adjust": 67.60, "fixmatch": 34.78, "freematch": 29.72, "softmatch": 29.99,
        "cgmatch": 32.96, "acr": 35.19, "simpro": 18.46, "cdmad": 23.39, "meta-expert": 25.12, "cpg": 35.28,
        "sage": 37.59,
    },
    "table3": {"fixmatch": 39.00, "cgmatch": 31.98, "meta-expert": 31.65, "cpg": 34.06, "sage": 52.67},
    "table4": {"v1": 45.56, "v2": 49.58, "v3": 55.01, "sage": 57.89},
}  # fmt: skip
"""The last column of each table."""


def test_every_experiment_is_there_with_its_number_of_runs() -> None:
    assert {name: one.runs for name, one in EXPERIMENTS.items()} == RUNS


@pytest.mark.parametrize("table", AVERAGES)
def test_printed_numbers_of_a_table_are_complete_and_have_its_averages(table: str) -> None:
    experiment = get_experiment(table)
    cells = {(variant.name, column.name) for variant in experiment.variants for column in experiment.columns}
    assert set(experiment.printed) == cells
    for row, average in AVERAGES[table].items():
        means = [experiment.printed[row, column.name].mean for column in experiment.columns]
        assert sum(means) / len(means) == pytest.approx(average, abs=0.006)  # the paper averages before it rounds
    with_sd = [number for number in experiment.printed.values() if number.sd is not None]
    assert len(with_sd) == (0 if table == "table4" else len(cells))


def test_single_numbers_stand_where_they_were_printed() -> None:
    assert get_experiment("table1").printed["sage", "cifar10-a100"] == Printed(65.99, 3.72)
    assert get_experiment("table1").printed["fixmatch", "cifar10-lt150"] == Printed(45.25, 4.65)
    assert get_experiment("table2").printed["sage", "cifar100-u15"] == Printed(37.82, 1.31)
    assert get_experiment("table3").printed["meta-expert", "svhn-a150"] == Printed(50.47, 24.94)
    assert get_experiment("table3").printed["cpg", "food101-lt15"] == Printed(11.32, 0.16)
    assert get_experiment("table4").printed["v3", "cifar10-a100"] == Printed(64.26)
    assert get_experiment("n10").printed["cgmatch", "cifar10-n10-a100"] == Printed(37.31)
    assert get_experiment("anchors-k").printed["k-200", "cifar10-a100"] == Printed(63.87)


def test_what_is_printed_belongs_to_a_cell_and_what_is_read_exists() -> None:
    for one in EXPERIMENTS.values():
        rows, columns = {variant.name for variant in one.variants}, {column.name for column in one.columns}
        assert all(row in rows and column in columns for row, column in one.printed), one.name
        assert len(rows) == len(one.variants) and len(columns) == len(one.columns), one.name
        assert all(name in EXPERIMENTS for name in one.reads), one.name
        assert one.runs or one.note, one.name


def test_a_name_that_is_nearly_right_is_corrected() -> None:
    with pytest.raises(UserError, match="Did you mean 'table1'"):
        get_experiment("tabel1")


def test_listing_says_the_same_in_every_format() -> None:
    rows = listing()
    assert [row.name for row in rows] == list(EXPERIMENTS)
    assert {entry["name"]: entry["runs"] for entry in json.loads(format_listing(rows, "json"))} == RUNS
    assert format_listing(rows, "csv").splitlines()[1].startswith('table1,"Table 1: CIFAR-10, N = 40",324,324,108,')
    assert (
        format_listing(rows, "md")
        .splitlines()[2]
        .startswith("| table1 | Table 1: CIFAR-10, N = 40 | 324 | 324 | 108 |")
    )
