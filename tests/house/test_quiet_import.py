"""Importing the package, every module of it, starts no process and opens no socket."""

from __future__ import annotations

import subprocess
import sys

import pytest

PROGRAM = """
import importlib, pkgutil, sys

def watch(event, arguments):
    if event in {"subprocess.Popen", "os.system", "os.exec", "os.fork", "os.forkpty", "os.posix_spawn", "os.spawn",
                 "socket.__new__", "socket.connect", "socket.bind", "socket.getaddrinfo", "socket.sendto"}:
        seen.append((event, module, str(arguments)[:200]))

seen, module = [], ""
sys.addaudithook(watch)
import unissl, unissl_kernels, unissl_paper
for package in (unissl, unissl_kernels, unissl_paper):
    for found in pkgutil.walk_packages(package.__path__, package.__name__ + "."):
        if not found.name.endswith("__main__"):
            module = found.name
            importlib.import_module(module)
print(seen)
"""


@pytest.mark.adversary
def test_importing_every_module_starts_nothing() -> None:
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0 and done.stdout == "[]\n", done.stdout + done.stderr
