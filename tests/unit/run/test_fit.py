"""What the pipeline passes to the trainer."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from test_inputs import carried_out, needs_weights, photos, settings


class Seen(Exception):
    """Raised with the arguments of the trainer."""


@needs_weights
def test_warnings_know_the_names_of_the_classes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("UNISSL_CACHE", str(tmp_path / "cache"))

    def trainer(**given: Any) -> None:
        raise Seen(given["class_names"])

    monkeypatch.setattr("unissl.run.fit.Trainer", trainer)
    with pytest.raises(Seen) as seen:
        carried_out(settings(), tmp_path / "run")
    assert seen.value.args == (photos().train.class_names,)
