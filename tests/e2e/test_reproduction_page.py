"""docs/reproduction.md has the output of the commands: the significance table, and the costs of the experiments."""

from __future__ import annotations

from pathlib import Path

from cli_helpers import succeed

from unissl_paper.experiments import EXPERIMENTS
from unissl_paper.figures.registry import FIGURES
from unissl_paper.grid.status import FULL_HOURS

PAGE = (Path(__file__).parents[2] / "docs" / "reproduction.md").read_text(encoding="utf-8")


def between(name: str) -> str:
    return PAGE.split(f"<!-- {name}:start -->\n")[1].split(f"<!-- {name}:end -->")[0]


def cells(table: str) -> list[list[str]]:
    lines = [line for line in table.splitlines() if line.startswith("|")]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines[2:]]


def test_the_significance_table_is_what_the_command_prints(tmp_path: Path) -> None:
    printed = succeed("paper", "table", "significance", "--runs", tmp_path).out
    assert between("significance") == printed, "put the output of 'unissl paper table significance' into the page"


def test_the_costs_are_those_of_the_catalogue() -> None:
    expected = [
        [
            one.name,
            str(one.runs),
            f"{sum(FULL_HOURS.get(v.method, 18.5) for v in one.variants) * len(one.columns) * len(one.seeds):.0f}",
            f"`unissl paper run {one.name} --scale mini`",
        ]
        for one in EXPERIMENTS.values()
        if one.runs
    ]
    assert cells(between("costs")) == expected


def test_every_figure_is_on_the_page() -> None:
    table = PAGE.split("### Figures")[1].split("**Correction ratio")[0]
    assert {name for row in cells(table) for name in row[0].split(", ")} == set(FIGURES)
