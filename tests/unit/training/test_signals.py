"""Being asked to stop, inside a process and from outside."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from unissl.run_folder import RunFolder
from unissl.training.checkpoint import list_checkpoints
from unissl.training.signals import Interrupted, defer_signals, exit_on_signal, interrupt_message, resume_hint

CAUGHT = (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1)
STEPS = 250
COMMAND = [sys.executable, "-m", "unissl", "train", "--data", "digits", "--method", "labels-only", "--quiet"]
TINY = ["net.name=small", "data.image_size=8", "batch.labelled=2", "train.log_every=1", "train.evaluations=1"]


@pytest.mark.parametrize("number", CAUGHT)
def test_a_signal_is_noted_and_the_old_handlers_come_back(number: int) -> None:
    before = [signal.getsignal(n) for n in CAUGHT]
    with defer_signals() as stop:
        assert not stop
        os.kill(os.getpid(), number)
        assert stop and stop.signal == number
    assert [signal.getsignal(n) for n in CAUGHT] == before


def test_a_second_signal_acts_as_usual() -> None:
    # A process that a script starts in the background ignores SIGINT; the usual handler is what is tested.
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        with pytest.raises(KeyboardInterrupt), defer_signals():
            os.kill(os.getpid(), signal.SIGINT)
            os.kill(os.getpid(), signal.SIGINT)
    finally:
        signal.signal(signal.SIGINT, before)


def test_other_threads_train_without_listening() -> None:
    found: list[bool] = []

    def train() -> None:
        with defer_signals() as stop:
            found.append(bool(stop))

    thread = threading.Thread(target=train)
    thread.start()
    thread.join()
    assert found == [False]


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGUSR1])
def test_schedulers_may_repeat_themselves(number: int) -> None:
    with defer_signals() as stop:
        os.kill(os.getpid(), number)
        os.kill(os.getpid(), number)
    assert stop.signal == number


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGUSR1])
def test_outside_training_a_command_leaves_at_once(number: int) -> None:
    before = signal.getsignal(number)
    with (
        pytest.raises(Interrupted, match="stopped by .*; finished work is kept; repeat the command to continue"),
        exit_on_signal(),
    ):
        os.kill(os.getpid(), number)
    assert signal.getsignal(number) == before


def test_exit_codes() -> None:
    """The shell's for Ctrl-C; one of its own where a restart is invited, unlike that of a process that just died."""
    assert Interrupted(signal.SIGINT, 5).exit_code == 130
    assert {Interrupted(number).exit_code for number in (signal.SIGTERM, signal.SIGUSR1)} == {75}


def test_a_stopped_run_names_the_command_that_continues_it() -> None:
    command = "continue with: unissl train --resume --out 'my run'"
    with resume_hint("my run"), resume_hint("my run/baseline"):  # the outer folder is the one to resume
        assert str(Interrupted(signal.SIGTERM, 5)) == f"stopped by SIGTERM after step 5; the state is saved; {command}"
        assert str(Interrupted(signal.SIGTERM)) == f"stopped by SIGTERM; finished stages are saved in my run; {command}"
    assert str(Interrupted(signal.SIGINT)) == "stopped by SIGINT; finished work is kept; repeat the command to continue"
    with pytest.raises(KeyboardInterrupt) as caught, resume_hint("my run"):
        raise KeyboardInterrupt
    assert interrupt_message(caught.value) == f"stopped by Ctrl-C; finished stages are saved in my run; {command}"
    assert interrupt_message(KeyboardInterrupt()).endswith("repeat the command to continue")


@pytest.mark.parametrize("number", [signal.SIGUSR1, signal.SIGTERM, signal.SIGINT])
def test_a_signal_before_the_command_line_is_imported(number: int) -> None:
    """The signal arrives on the first line of the first module that the command imports, far below 0.2 s."""
    script = (
        "import os, signal, sys\n"
        "signal.signal(signal.SIGINT, signal.default_int_handler)\n"
        "class Finder:\n"
        "    def find_spec(self, name, path=None, target=None):\n"
        "        if name == 'cyclopts': sys.meta_path.remove(finder); os.kill(os.getpid(), int(sys.argv[1]))\n"
        "finder = Finder()\n"
        "sys.meta_path.insert(0, finder)\n"
        "from unissl.__main__ import main\n"
        "main()\n"
    )
    done = subprocess.run([sys.executable, "-c", script, str(int(number))], capture_output=True, text=True, timeout=60)
    assert done.returncode == (130 if number == signal.SIGINT else 75), done.stderr
    assert done.stderr.startswith("stopped by ") and "Traceback" not in done.stderr
    assert done.stderr.endswith("finished work is kept; repeat the command to continue\n")


def test_a_preempted_run_saves_its_state_and_resumes_to_the_end(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path / "run")
    overrides = [word for setting in TINY for word in ("--set", setting)]
    command = [*COMMAND, "--steps", str(STEPS), "--out", str(folder.path), *overrides]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    with subprocess.Popen(command, env=environment, stderr=subprocess.PIPE, text=True) as process:
        deadline = time.monotonic() + 120
        while not folder.metrics.exists():
            assert process.poll() is None and time.monotonic() < deadline
            time.sleep(0.01)
        process.send_signal(signal.SIGUSR1)
        _, message = process.communicate(timeout=120)
    assert process.returncode == 75
    assert "stopped by SIGUSR1" in message and "Traceback" not in message
    assert message.endswith(f"the state is saved; continue with: unissl train --resume --out {folder.path}\n")
    (saved,) = list_checkpoints(folder.checkpoints)
    stopped_at = int(saved.stem.removeprefix("step-"))
    assert 0 < stopped_at < STEPS
    assert not folder.finished

    resumed = subprocess.run(
        [*COMMAND, "--out", str(folder.path), "--resume"], env=environment, capture_output=True, text=True, timeout=300
    )
    assert resumed.returncode == 0, resumed.stderr
    assert folder.finished
    assert [line["step"] for line in folder.read_metrics() if line["kind"] == "train"] == list(range(1, STEPS + 1))
