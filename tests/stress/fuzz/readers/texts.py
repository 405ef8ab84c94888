"""What people write by hand: config files and ``--set``."""

from __future__ import annotations

import datetime
from pathlib import Path
from random import Random

import tomli_w
from case import Make, Reader
from mutate import hostile_tree

from unissl.autoconfig.recipes import with_recipe
from unissl.cli.options import combine_overrides
from unissl.config import read_toml, to_toml, to_tree
from unissl.run.config import build_config, config_hash

SMALL = b'seed = 3\n[data]\nname = "digits"\n[method]\nname = "fixmatch"\nthreshold = 0.9\n[train]\nsteps = 10\n'
SETTINGS = (
    b"method.walk_steps=3",
    b"net.name=wrn-10-1",
    b"data.root='a b'",
    b"optim.lr = 0.1",
    b"augment.flip=false",
    b"seed=5",
)


def config_reader(home: Path) -> Reader:
    path = home / "config.toml"
    whole = to_toml(build_config({"train": {"steps": 5}})).encode()

    def read(content: bytes) -> None:
        path.write_bytes(content)
        config = build_config(with_recipe(combine_overrides({}, path, ()), None))
        config_hash(config)
        path.write_text(to_toml(config), encoding="utf-8")
        assert to_tree(build_config(read_toml(path))) == to_tree(config), "written and read again it differs"

    def hostile(rng: Random) -> bytes:
        tree = hostile_tree(rng, to_tree(build_config({})))
        if rng.random() < 0.05:
            tree = {"seed": datetime.datetime(2000, 1, 1)}
        try:
            return tomli_w.dumps(tree).encode() if isinstance(tree, dict) else b"a = 1"
        except (TypeError, ValueError):
            return rng.choice(
                (b"a." * 5000 + b"b = 1", b"a = " + b"[" * 5000, b"a = {b = " * 2000, b"[a." + b"b." * 3000 + b"c]")
            )

    return Reader([whole, SMALL], read, hostile, text=True)


def set_reader(home: Path) -> Reader:
    """Several ``--set`` of one command line, one per line of the case."""

    def read(content: bytes) -> None:
        words = tuple(content.decode("utf-8", "surrogateescape").split("\n"))
        config = build_config(with_recipe(combine_overrides({}, None, words), None))
        config_hash(config)
        to_toml(config)

    def hostile(rng: Random) -> bytes:
        keys = (
            "method.name",
            "seed",
            "net.name",
            "data.image_size",
            "a.b.c",
            "a." * 3000 + "b",
            "",
            "method",
            "train",
            "split.pool_distribution",
        )
        values = (
            "[" * 5000,
            "9" * 5000,
            "{a=1}",
            "nan",
            "'x",
            "sage",
            "",
            "1\nb=2",
            "2000-01-01",
            "\ud800",
            "-1",
            "[1,2",
            "true",
        )
        words = [f"{rng.choice(keys)}={rng.choice(values)}" for _ in range(rng.randrange(1, 4))]
        return "\n".join(words).encode("utf-8", "surrogatepass")

    return Reader([b"\n".join(SETTINGS[:1]), *SETTINGS], read, hostile, text=True)


READERS: dict[str, Make] = {"config-toml": config_reader, "set": set_reader}
