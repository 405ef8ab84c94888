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
import subprocess
import sys
import tempfile
import time
from pathlib import Path

HERE = Path(__file__).parent
MEMORY = 1536
"""Megabytes of address space that reading may take beyond what the process has before."""
SECONDS = 10.0
"""Of the process's own time for one case."""
PATIENCE = 900.0
"""Wall-clock seconds after which a process that does not move is stopped from outside."""


def main() -> int:
    from readers import NAMES

    parser = argparse.ArgumentParser()
    parser.add_argument("--reader", nargs="*", default=list(NAMES), choices=list(NAMES), metavar="NAME")
    parser.add_argument("--count", type=int, default=10_000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, default=Path("fuzz-results"))
    parser.add_argument("--list", action="store_true")
    parser.add_argument("--worker", nargs=2, help=argparse.SUPPRESS)
    parser.add_argument("--atheris", action="store_true")
    given = parser.parse_args()
    if given.list:
        print("\n".join(NAMES))
        return 0
    if given.worker:
        from worker import work

        home, start = given.worker
        work(given.reader[0], Path(home), int(start), given.count, given.seed, given.out, given.atheris)
        return 0
    given.out.mkdir(parents=True, exist_ok=True)
    print("| reader | cases | read | refused | failed | slowest (s) | memory (MB) |\n|---|---|---|---|---|---|---|")
    failed = 0
    for name in given.reader:
        found = fuzz(name, given.count, given.seed, given.out, given.atheris)
        (given.out / f"{name}.json").write_text(json.dumps(found))
        print(row(name, found), flush=True)
        failed += found["failed"]
    return 1 if failed else 0


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
    """The state that a process left, and whether it came to its end."""
    state = home.with_name(home.name + ".state")
    state.write_text(json.dumps({"next": start}))
    words = ["--reader", name, "--count", str(count), "--seed", str(seed), "--out", str(out.resolve())]
    words += ["--atheris"] if atheris else []
    command = [sys.executable, str(HERE / "run.py"), *words, "--worker", str(home), str(start)]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=(out / f"{name}.log").open("w"))
    moved, seen = time.monotonic(), ""
    try:
        while process.poll() is None:
            time.sleep(0.5)
            now = state.read_text()
            if now != seen:
                moved, seen = time.monotonic(), now
            if time.monotonic() - moved > PATIENCE:
                process.kill()
                process.wait()
        found = json.loads(state.read_text())
        return found, process.returncode == 0 or found["next"] >= count
    finally:
        process.kill()
        state.unlink(missing_ok=True)


if __name__ == "__main__":
    sys.path.insert(0, str(HERE))
    sys.exit(main())
