"""A grid of the paper that is killed again and again must end as one that was left alone, whatever the engine.

    python tests/stress/paper_grid.py --out runs/stress-grid
    python tests/stress/paper_grid.py --methods fully-supervised,sage --columns cifar10-a100 --out runs/stress-small

Runs table1 in miniature with one seed, 108 runs: with the local engine, killed twice at random moments with SIGKILL and
started again; then with Ray, where a worker is killed amid its run. Checks that no finished run was repeated and that
every summary is the same in all but its seconds, and says how long each took. Linux only: workers of Ray are found in
/proc.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any


def command(arguments: argparse.Namespace, out: Path, *more: str) -> list[str]:
    words = [sys.executable, "-m", "unissl", "paper", "run", arguments.experiment, "--scale", "mini", "--seeds", "0"]
    words += ["--jobs", str(arguments.jobs), "--out", str(out), *more]
    for flag in ("methods", "columns"):
        if getattr(arguments, flag):
            words += [f"--{flag}", getattr(arguments, flag)]
    return words


def finished(out: Path) -> dict[str, int]:
    """Runs that are done, with the moment at which their summary was written."""
    return {file.parent.name: file.stat().st_mtime_ns for file in out.glob("mini/*/summary.json")}


def open_runs(out: Path) -> list[str]:
    """Runs that have written a checkpoint and are not done."""
    begun = {file.parent.parent.name for file in out.glob("mini/*/checkpoints/*.safetensors")}
    return sorted(begun - set(finished(out)))


def summaries(out: Path) -> dict[str, dict[str, Any]]:
    found = {file.parent.name: json.loads(file.read_text()) for file in out.glob("mini/*/summary.json")}
    return {name: {key: value for key, value in one.items() if key != "seconds"} for name, one in found.items()}


def local_with_kills(arguments: argparse.Namespace, out: Path) -> None:
    """Kill the whole grid when it has got as far as drawn, and start it again."""
    done: dict[str, int] = {}
    total = count(arguments, out)
    for target in sorted(random.choices(range(total), k=arguments.kills)):
        grid = subprocess.Popen(command(arguments, out))
        while grid.poll() is None and not (open_runs(out) and len(finished(out)) >= target):
            time.sleep(0.2)
        time.sleep(random.uniform(0, 3))
        if grid.poll() is not None:
            raise SystemExit("FAILED: the grid ended before it could be killed; repeat with another --seed")
        grid.send_signal(signal.SIGKILL)
        grid.wait()
        require_kept(done, finished(out))
        done = finished(out)
        print(f"killed after {len(done)} of {total} runs", flush=True)
        time.sleep(1)
    subprocess.run(command(arguments, out), check=True)
    require_kept(done, finished(out))


def count(arguments: argparse.Namespace, out: Path) -> int:
    said = subprocess.run(command(arguments, out, "--dry-run"), check=True, capture_output=True, text=True).stdout
    return int(said.split(":", 1)[1].split()[0])


def require_kept(before: dict[str, int], after: dict[str, int]) -> None:
    repeated = [name for name, moment in before.items() if after.get(name) != moment]
    if repeated:
        raise SystemExit(f"FAILED: finished runs were touched again: {repeated}")


def ray_with_a_killed_worker(arguments: argparse.Namespace, out: Path) -> None:
    grid = subprocess.Popen(command(arguments, out, "--engine", "ray"))
    after, killed = random.randrange(max(1, count(arguments, out) // 2)), None
    while grid.poll() is None and killed is None:
        time.sleep(0.2)
        if len(finished(out)) >= after and (begun := open_runs(out)):
            killed = kill_worker(random.choice(begun))
    if grid.wait() != 0:
        raise SystemExit("FAILED: the grid did not end well under Ray")
    if killed is None:
        raise SystemExit("FAILED: no worker was killed, so nothing was shown; repeat")
    print(f"killed the worker of {killed}", flush=True)


def kill_worker(name: str) -> str | None:
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            title = (entry / "cmdline").read_text()
            if title.startswith("ray::") and name in title:
                os.kill(int(entry.name), signal.SIGKILL)
                return name
        except (FileNotFoundError, ProcessLookupError):
            continue
    return None


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--experiment", default="table1")
    parser.add_argument("--methods")
    parser.add_argument("--columns")
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--kills", type=int, default=2)
    parser.add_argument("--seed", type=int, default=0, help="of the moments")
    parser.add_argument("--out", type=Path, required=True)
    arguments = parser.parse_args()
    if arguments.out.exists():
        raise SystemExit(f"{arguments.out} exists; choose another --out")
    random.seed(arguments.seed)
    for name, stage in (("local", local_with_kills), ("ray", ray_with_a_killed_worker)):
        started = time.monotonic()
        stage(arguments, arguments.out / name)
        print(f"{name}: {time.monotonic() - started:.0f} s, {len(finished(arguments.out / name))} runs", flush=True)
    one, other = (summaries(arguments.out / name) for name in ("local", "ray"))
    differing = [name for name in one.keys() | other.keys() if one.get(name) != other.get(name)]
    if differing:
        raise SystemExit(f"FAILED: {len(differing)} of {len(one)} summaries differ: {differing[:5]}")
    print(f"all {len(one)} summaries are the same in all but their seconds")


if __name__ == "__main__":
    main()
