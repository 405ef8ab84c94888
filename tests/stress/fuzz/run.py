"""Malformed files for every reader, each in a process that is watched.

    python tests/stress/fuzz/run.py [--reader NAME ...] [--count 10000] [--seed 0] [--out FOLDER]

A case passes if the file is read or refused with a ``UserError`` of one sentence. Anything else is a failure: another
exception, a crash, a hang, a write outside the sandbox, a program or module that is started, or a MemoryError at the
address-space limit. Failures are saved with their number; a case is made again from seed, reader and number alone.
With ``--atheris``, the coverage-guided fuzzer of that name (not a dependency) makes the cases of the readers in Python.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import signal
import sys
import tempfile
import time
import traceback
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path

HERE = Path(__file__).parent
PATIENCE = 900.0
"""Wall-clock seconds after which a process that does not move is stopped from outside."""


def main() -> int:
    from readers import NAMES, load

    parser = argparse.ArgumentParser()
    parser.add_argument("--reader", nargs="*", default=list(NAMES), choices=list(NAMES), metavar="NAME")
    parser.add_argument("--count", type=int, default=10_000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, default=Path("fuzz-results"))
    parser.add_argument("--list", action="store_true")
    parser.add_argument("--atheris", action="store_true")
    given = parser.parse_args()
    if given.list:
        print("\n".join(NAMES))
        return 0
    given.out.mkdir(parents=True, exist_ok=True)
    print("| reader | cases | read | refused | failed | slowest (s) | memory (MB) |\n|---|---|---|---|---|---|---|")
    failed = 0
    with instrumented() if given.atheris else nullcontext():
        load(given.reader)
    for name in given.reader:
        kept = given.out / f"{name}-{given.seed}-{given.count}.json"
        if kept.exists():  # from an earlier call that was stopped
            found = json.loads(kept.read_text())
        else:
            found = fuzz(name, given.count, given.seed, given.out, given.atheris)
            kept.write_text(json.dumps(found))
        print(row(name, found), flush=True)
        failed += found["failed"]
    return 1 if failed else 0


def instrumented() -> AbstractContextManager[None]:
    """Our code and the parsers in Python that it calls, so that atheris sees which branches a case reaches."""
    import atheris

    watched: AbstractContextManager[None] = atheris.instrument_imports(
        include=["unissl", "pickletools", "tomllib", "json", "csv", "tarfile"], enable_loader_override=False
    )
    return watched


def row(name: str, found: dict[str, float]) -> str:
    cells = [found["cases"], found["read"], found["refused"], found["failed"]]
    numbers = " | ".join(f"{int(cell):,}" for cell in cells)
    return f"| {name} | {numbers} | {found['slowest']:.2f} | {found['megabytes']:.0f} |"


def fuzz(name: str, count: int, seed: int, out: Path, atheris: bool = False) -> dict[str, float]:
    """All cases of one reader, in as many processes as crashes make necessary."""
    total = {"cases": 0.0, "read": 0.0, "refused": 0.0, "failed": 0.0, "slowest": 0.0, "megabytes": 0.0}
    start = 0
    while start < count:
        base = "/dev/shm" if os.path.isdir("/dev/shm") else None
        home = Path(tempfile.mkdtemp(prefix=f"fuzz-{name}-", dir=base))
        try:
            state, ended = run_worker(name, home, start, count, seed, out, atheris)
        finally:
            shutil.rmtree(home, ignore_errors=True)
        for key in ("read", "refused", "failed"):
            total[key] += state.get(key, 0)
        for key in ("slowest", "megabytes"):
            total[key] = max(total[key], state.get(key, 0.0))
        start = int(state["next"])
        if atheris:
            break
        if not ended:
            print(f"{name}: case {start} ended its process", file=sys.stderr)
            (out / f"{name}-{seed}-{start}.txt").write_text("the process ended or hung\n")
            total["failed"] += 1
            start += 1
    total["cases"] = total["read"] + total["refused"] + total["failed"]
    return total


def run_worker(
    name: str, home: Path, start: int, count: int, seed: int, out: Path, atheris: bool
) -> tuple[dict[str, float], bool]:
    """The state that a process left, and whether it came to its end. It is a fork, to import torch only once."""
    from worker import work

    state = home.with_name(home.name + ".state")
    state.write_text(json.dumps({"next": start}))
    child = os.fork()
    if child == 0:
        try:
            log = os.open(out / f"{name}.log", os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
            os.dup2(log, 1)
            os.dup2(log, 2)
            work(name, home, start, count, seed, out.resolve(), atheris)
            os._exit(0)
        except BaseException:
            traceback.print_exc()
            sys.stderr.flush()
            os._exit(1)
    moved, seen, code = time.monotonic(), "", None
    while code is None:
        time.sleep(0.2)
        found, status = os.waitpid(child, os.WNOHANG)
        code = os.waitstatus_to_exitcode(status) if found else None
        now = state.read_text()
        if now != seen:
            moved, seen = time.monotonic(), now
        if code is None and time.monotonic() - moved > PATIENCE:
            os.kill(child, signal.SIGKILL)
    said = json.loads(state.read_text())
    state.unlink()
    return said, code == 0 or said["next"] >= count


if __name__ == "__main__":
    sys.path.insert(0, str(HERE))
    sys.exit(main())
