"""Standard output or error that nobody reads, that is closed or full: the work goes on to its end, and is told of.

Commands run in processes that have torch in memory already, with streams as Python makes them at its start. What only
a fresh interpreter shows, its end included, is in the tests with a shell.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import shlex
import shutil
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
from cli_helpers import QUICK, Outcome, picture

from unissl.cli import main
from unissl.utils.streams import OUTPUT_LOST

pytestmark = pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
CONTEXT = multiprocessing.get_context("forkserver")
TRAIN = ("train", "--data", "digits", "--method", "fixmatch", *QUICK)
CASES = {
    "reader left": ("left", "left", 0),
    "stdout full": ("/dev/full", "err", OUTPUT_LOST),
    "stdout closed": (None, "err", OUTPUT_LOST),
    "stderr closed": ("out", None, 0),
    "stderr full": ("out", "/dev/full", 0),
    "both closed": (None, None, OUTPUT_LOST),
}
"""Where standard output and error lead (None: closed, left: a pipe that nobody reads), and the exit code after that."""
every_case = pytest.mark.parametrize("case", CASES)
Command = Callable[..., Outcome]


def redirect(descriptor: int, target: str | None) -> None:
    """What a shell does before it starts a command, and Python when it starts."""
    name = ("stdin", "stdout", "stderr")[descriptor]
    if target is None:
        os.close(descriptor)
        setattr(sys, name, None)
        return
    if target == "left":
        reader, there = os.pipe()
        os.close(reader)
    else:
        there = os.open(target, os.O_WRONLY | os.O_CREAT, 0o600)
    os.dup2(there, descriptor)
    os.close(there)
    errors = "strict" if descriptor == 1 else "backslashreplace"
    setattr(sys, name, open(descriptor, "w", encoding="utf-8", errors=errors, closefd=False))  # noqa: SIM115


def command(words: Sequence[str], out: str | None, err: str | None, cache: str) -> None:
    os.environ["UNISSL_CACHE"] = cache
    redirect(1, out)
    redirect(2, err)
    code: object = None
    try:
        main(list(words))
    except SystemExit as end:
        code = end.code
    except BaseException:
        code = 99
    for stream in (sys.stdout, sys.stderr):
        if stream is not None:
            try:
                stream.flush()
            except OSError:
                code = 120  # as Python's own when it ends
    os._exit(code if isinstance(code, int) else 98)


@pytest.fixture
def unissl(here: Path) -> Command:
    """``unissl WORDS`` with the streams of a case."""

    def run(case: str, *words: str | Path) -> Outcome:
        CONTEXT.set_forkserver_preload(["torch", "unissl.run.pipeline", "unissl.report.html"])
        out, err, _ = CASES[case]
        for name in ("out", "err"):
            (here / name).write_text("")
        arguments = ([str(word) for word in words], out, err, os.environ["UNISSL_CACHE"])
        process = CONTEXT.Process(target=command, args=arguments)
        process.start()
        process.join()
        return Outcome(process.exitcode, (here / "out").read_text(), (here / "err").read_text())

    return run


def assert_told(case: str, outcome: Outcome) -> None:
    """The exit code is right, and a loss is one line on standard error, after whatever else is there."""
    out, err, code = CASES[case]
    assert outcome.code == code, outcome.err
    assert "Traceback" not in outcome.err
    if code and err == "err":
        *_, last = outcome.err.splitlines()
        assert last.startswith("error: The output is lost, since standard output cannot be written (")
        assert ("closed" if out is None else "No space left on device") in last
    else:
        assert "error" not in outcome.err


@every_case
def test_training_ends_with_all_results(case: str, unissl: Command, here: Path) -> None:
    more = () if case == "reader left" else ("--no-baseline",)
    outcome = unissl(case, *TRAIN, *more, "--set", "train.checkpoint_every=1", "--out", "run")
    assert_told(case, outcome)
    for folder in (here / "run",) if more else (here / "run", here / "run" / "baseline"):
        assert json.loads((folder / "summary.json").read_text())["steps"] == 2
        assert (folder / "model.safetensors").stat().st_size > 1000
    if CASES[case][0] == "out":
        assert "run folder: run" in outcome.out and "step 2" not in outcome.out


@every_case
def test_verbs_that_write_files_write_them(case: str, unissl: Command, here: Path, finished_run: Path) -> None:
    shutil.copytree(finished_run, here / "run")
    (here / "new").mkdir()
    picture(100, seed=1).save(here / "new" / "a.png")
    written = {
        "p.csv": ("predict", "run", "new", "--out", "p.csv"),
        "r.html": ("report", "run", "--out", "r.html"),
        "s.json": ("split", "--data", "digits", "--out", "s.json"),
        "f.svg": ("paper", "figure", "pseudo-labels", "run", "--out", "f.svg"),
    }
    for name, words in written.items():
        assert_told(case, unissl(case, *words))
        assert (here / name).stat().st_size > 50, words


def test_the_demo_ends_with_all_results(unissl: Command, here: Path) -> None:
    assert_told("reader left", unissl("reader left", "demo", "--steps", "1", "--threads", "1", "--out", "demo"))
    summary = json.loads((here / "demo" / "summary.json").read_text())
    assert list(summary["methods"]) == ["labels-only", "fixmatch", "sage"]
    assert (here / "demo" / "comparison.png").exists()


@pytest.mark.parametrize("case", ["reader left", "stdout full", "stdout closed", "both closed"])
def test_verbs_that_only_print(case: str, unissl: Command, finished_run: Path) -> None:
    verbs = ("methods", "methods --markdown", "datasets", "split --data digits", "paper list", "--help", "--version")
    more = ("paper list --format csv", "paper run table1 --dry-run")
    for words in verbs + more:
        assert_told(case, unissl(case, *words.split()))
    assert_told(case, unissl(case, "evaluate", finished_run))


def test_what_belongs_to_standard_error_never_gets_into_the_output(unissl: Command, here: Path) -> None:
    """``print(..., file=None)`` prints to standard output, and None is what Python makes of a closed stream."""
    outcome = unissl("stderr closed", "evaluate", "nowhere")
    assert (outcome.code, outcome.out) == (1, "")


@every_case
def test_predictions_that_are_printed(case: str, unissl: Command, here: Path, finished_run: Path) -> None:
    """Here standard output is the result: without a reader there is nothing more to do."""
    (here / "new").mkdir()
    (here / "new" / "broken.png").write_bytes(b"no image")
    picture(100, seed=1).save(here / "new" / "a.png")
    outcome = unissl(case, "predict", finished_run, "new")
    assert_told(case, outcome)
    if CASES[case][0] == "out":
        lines = outcome.out.splitlines()
        assert lines[0].startswith("file,class,") and len(lines) == 3  # and not a remark about the broken file


def in_shell(line: str, seconds: int = 120) -> Outcome:
    """A line of a shell in which ``unissl`` is the command."""
    start = f'set -o pipefail; unissl() {{ {shlex.quote(sys.executable)} -m unissl "$@"; }}; '
    done = subprocess.run(["bash", "-c", start + line], capture_output=True, text=True, timeout=seconds)
    return Outcome(done.returncode, done.stdout, done.stderr)


def test_training_into_head_in_a_shell(here: Path) -> None:
    """The first line is out long before the end of training."""
    outcome = in_shell(f"unissl {' '.join(TRAIN)} --set train.evaluations=2 --no-baseline --out run 2>&1 | head -1")
    assert (outcome.code, outcome.err) == (0, "")
    assert outcome.out.count("\n") == 1
    assert (here / "run" / "summary.json").exists()


@pytest.mark.parametrize(
    ("line", "code", "lines"),
    [
        ("paper list --format csv > /dev/full", OUTPUT_LOST, 1),
        ("paper list >&-", OUTPUT_LOST, 1),
        ("paper list <&- >&- 2>&-", OUTPUT_LOST, 0),
        ("--help | true", 0, 0),
    ],
)
def test_the_end_of_the_interpreter_says_nothing_more(line: str, code: int, lines: int) -> None:
    outcome = in_shell(f"unissl {line}")
    assert (outcome.code, outcome.err.count("\n")) == (code, lines), outcome.err


def test_a_grid_goes_on_without_its_reader(here: Path) -> None:
    """Also in its processes, which have standard streams of their own and say that they wait."""
    (here / "grid.py").write_text(GRID)
    (here / "talk.py").write_text(TALK)
    words = "paper run table1 --scale mini --columns cifar10-a100 --methods fully-supervised --seeds 0 --out runs"
    python = shlex.quote(sys.executable)
    outcome = in_shell(f"{python} grid.py {words} 2>&1 | true")
    assert (outcome.code, outcome.err) == (0, "")
    summaries = list((here / "runs" / "mini").glob("*/summary.json"))
    assert len(summaries) == 1 and (here / "talked").exists()


TALK = """
import sys, time
from pathlib import Path
from unissl.utils.process import prepare_process
def prepare():
    prepare_process()
    for _ in range(3):
        print("a remark", file=sys.stderr, flush=True)
    Path("talked").touch()
"""
GRID = """
import sys
import talk, unissl.utils.process
from unissl_paper.grid import scales
scales.MINI_BUDGET.update(steps=2, evaluations=1)
unissl.utils.process.prepare_process = talk.prepare
if __name__ == "__main__":
    from unissl.cli import main
    main()
"""
