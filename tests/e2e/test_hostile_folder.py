"""In a folder that a stranger has filled with modules and settings, commands run and obey none of them."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import types
from collections.abc import Callable
from pathlib import Path

import pytest

from unissl.nets.bf16 import survives
from unissl.nets.external.factory import load_factory
from unissl.utils.current_folder import LOOP_SETTINGS, NEUTRAL, SAFE_PATH, ignore_current_folder
from unissl_paper.engines.ray import RayEngine

Marks = Callable[[], list[str]]

pytestmark = pytest.mark.skipif(os.name != "posix", reason="the modules leave their marks by calls of POSIX")
MODULES = ("torch", "numpy", "cyclopts", "selectors", "socket", "json", "typing", "pickle", "signal", "multiprocessing")
TESTS = Path(__file__).parents[1]
PROCESSES = """
from pathlib import Path
from tiny_grid import nothing, tiny_task
from unissl_paper.engines.local import LocalEngine

if __name__ == "__main__":
    print(*(report.state for report in LocalEngine(1, nothing).run([tiny_task(Path("../results").resolve())])))
"""
SETTINGS = """
import os
from unissl.utils.current_folder import ignore_current_folder

with ignore_current_folder():
    import matplotlib
    import numba
    numba.core.config.reload_config()  # as every compilation does
    print(matplotlib.rcParams["axes.facecolor"], numba.core.config.CACHE_DIR == "", os.getcwd())
"""


@pytest.fixture
def hostile(tmp_path: Path) -> Path:
    folder = tmp_path / "hostile"
    folder.mkdir()
    return folder


@pytest.fixture
def marks(hostile: Path, tmp_path: Path) -> Marks:
    """Fill the folder with modules that leave a mark when they are run, and settings; the call lists the marks."""
    left = tmp_path / "marks"
    left.mkdir()
    for name in MODULES:
        code = f"import posix\nposix.close(posix.open({str(left / name)!r}, posix.O_CREAT | posix.O_WRONLY))\n"
        (hostile / f"{name}.py").write_text(code)
    (hostile / "matplotlibrc").write_text("axes.facecolor: 12fe34\ntext.color: 12fe34\nxtick.color: 12fe34\n")
    (hostile / LOOP_SETTINGS).write_text("cache_dir: code_of_a_stranger\n")
    return lambda: sorted(os.listdir(left))


def run_in(folder: Path, *arguments: str | Path) -> str:
    """Python in that folder, as users have it: without a path or a safe one in the environment."""
    surroundings = {name: value for name, value in os.environ.items() if name not in {SAFE_PATH, "PYTHONPATH"}}
    done = subprocess.run([sys.executable, *arguments], cwd=folder, env=surroundings, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout


def script(folder: Path, code: str) -> Path:
    """A program outside of the hostile folder, beside which Python looks for modules first."""
    folder.mkdir()
    shutil.copy(TESTS / "unit" / "paper" / "tiny_grid.py", folder)
    (folder / "program.py").write_text(code)
    return folder / "program.py"


def test_report_of_a_run_that_was_handed_over(finished_run: Path, hostile: Path, marks: Marks) -> None:
    shutil.copytree(finished_run, hostile, dirs_exist_ok=True)
    command = Path(sys.executable).with_name("unissl")
    run_in(hostile, command, "report", ".", "--out", "page.html")
    assert marks() == []
    page = (hostile / "page.html").read_text()
    assert "<svg" in page and "12fe34" not in page
    assert not (hostile / "code_of_a_stranger").exists()


def test_python_m_leaves_its_folder_out(hostile: Path, marks: Marks) -> None:
    """As far as it can: what Python imports before it comes to us is told of in docs/untrusted_input.md."""
    run_in(hostile, "-m", "unissl", "--help")
    assert marks() == []


@pytest.mark.parametrize("path", [None, "", "."])
def test_trial_of_the_processor(path: str | None, hostile: Path, marks: Marks, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(hostile)
    monkeypatch.delenv(SAFE_PATH, raising=False)
    if path is not None:
        monkeypatch.setenv("PYTHONPATH", os.pathsep.join([path, str(TESTS)]))
    assert survives.__wrapped__("import importlib.util, json, socket\nassert importlib.util.find_spec('torch')")
    assert marks() == []


def test_processes_of_a_grid(hostile: Path, marks: Marks, tmp_path: Path) -> None:
    assert run_in(hostile, script(tmp_path / "program", PROCESSES)) == "done\n"
    assert marks() == []


def test_settings_of_libraries(hostile: Path, marks: Marks, tmp_path: Path) -> None:
    """matplotlib draws in white on settings of its own, and numba keeps compiled code where it always does."""
    said = run_in(hostile, script(tmp_path / "program", SETTINGS)).split()
    assert said == ["white", "True", str(hostile)]


def test_workers_of_ray_start_elsewhere(hostile: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ray has its workers look for modules in the folder in which ``init`` is called."""
    seen: list[tuple[str, str | None]] = []

    def init(**settings: object) -> None:
        seen.append((os.getcwd(), os.environ.get(SAFE_PATH)))

    fake = types.SimpleNamespace(is_initialized=lambda: False, init=init, shutdown=lambda: None)
    monkeypatch.setitem(sys.modules, "ray", fake)
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    monkeypatch.setenv("RAY_worker_niceness", "0")
    monkeypatch.delenv(SAFE_PATH, raising=False)
    monkeypatch.chdir(hostile)
    fake.remote = lambda **options: lambda function: function
    assert list(RayEngine(lambda: None, 1).run([])) == []
    assert seen == [(os.path.realpath(NEUTRAL), "1")]
    assert os.getcwd() == str(hostile) and SAFE_PATH not in os.environ


def test_an_installed_factory_is_not_replaced(hostile: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    installed = tmp_path / "site-packages"
    installed.mkdir()
    (installed / "nets_of_mine.py").write_text("from torch import nn\ndef make():\n    return nn.Conv2d(3, 5, 3)\n")
    (hostile / "nets_of_mine.py").write_text("raise SystemExit('run')\n")
    monkeypatch.setattr(sys, "path", [*sys.path, str(installed)])
    monkeypatch.chdir(hostile)
    try:
        assert load_factory("nets_of_mine:make", "nets_of_mine", "make").feat_dim == 5
    finally:
        sys.modules.pop("nets_of_mine", None)


def test_the_environment_is_left_as_it_was(monkeypatch: pytest.MonkeyPatch) -> None:
    for before in (None, "", "1"):
        monkeypatch.delenv(SAFE_PATH, raising=False) if before is None else monkeypatch.setenv(SAFE_PATH, before)
        with ignore_current_folder():
            assert os.environ[SAFE_PATH] == "1"
        assert os.environ.get(SAFE_PATH) == before
