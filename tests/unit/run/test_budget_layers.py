"""Steps and minutes are two ways to say one thing: the later word counts, two at once are refused."""

from __future__ import annotations

from pathlib import Path

import pytest

from unissl.autoconfig.recipes import with_recipe
from unissl.cli.options import combine_overrides
from unissl.errors import UserError


def test_minutes_on_the_command_line_replace_steps_of_the_file(tmp_path: Path) -> None:
    file = tmp_path / "settings.toml"
    file.write_text("[train]\nsteps = 3\nevaluations = 2\n")
    assert combine_overrides({"train": {"minutes": 5.0}}, file, ())["train"] == {"minutes": 5.0, "evaluations": 2}
    file.write_text("[train]\nminutes = 3\n")
    assert combine_overrides({"train": {"steps": 7}}, file, ())["train"] == {"steps": 7}
    assert combine_overrides({"train": {"steps": 7}}, file, ("train.minutes=2",))["train"] == {"minutes": 2}


def test_both_at_once() -> None:
    with pytest.raises(UserError, match="either --steps or --minutes"):
        combine_overrides({"train": {"steps": 7, "minutes": 1.0}}, None, ())


def test_minutes_replace_the_recipe() -> None:
    assert "steps" not in with_recipe({"train": {"minutes": 1.0}}, "digits")["train"]
    assert with_recipe({"train": {"steps": 5}}, "digits")["train"]["steps"] == 5
