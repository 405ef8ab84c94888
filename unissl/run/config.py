"""The configuration of a run: all components' settings, their check, their fit to the data, their identity."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal, Self

from pydantic import Field, SerializeAsAny, model_validator

from unissl.augment import AugmentConfig
from unissl.batches import BatchConfig
from unissl.config import ConfigTree, Settings, check, fingerprint, merge, read_toml, to_tree
from unissl.data import DataConfig, Dataset
from unissl.distil import DistilConfig
from unissl.errors import UserError
from unissl.methods.base import MethodConfig
from unissl.methods.registry import get_method
from unissl.nets import NetConfig
from unissl.nets.pretrained import WEIGHTS
from unissl.run_folder import RunFolder
from unissl.splits import SplitConfig
from unissl.training.optim import OptimConfig
from unissl.training.trainer import TrainConfig
from unissl.types import UNLABELLED

DEFAULT_STEPS = 2**18
OPEN_SET_SETTINGS = {
    "calibration_fraction",
    "ood_classes",
    "ood_data",
    "ood_root",
    "ood_data_classes",
    "ood_count",
}
"""Settings of a split that go with any class mix, a given one included."""


class MachineConfig(Settings):
    """Where a run happens. Not part of its identity, but for the last bits of floating point."""

    device: str = "cpu"
    """cpu, cuda, cuda:1, mps, ..."""
    threads: int | None = Field(default=None, ge=1)
    """CPU threads; by default what torch finds."""
    shards: int = Field(default=0, ge=0)
    """Parts that the network's batch is cut into, whatever the number of processes, which must divide it: results are
    then the same to the last bit on any of them. By default one part per process, with last bits of its own."""
    tune_threads: bool = False
    """Before the start, time some steps with all threads, half of them and so on, and keep the fastest number."""
    compile: Literal["off", "on", "auto"] = "off"
    """Train the network through torch.compile; auto only where the budget repays it and it turns out faster."""
    prefetch: bool | None = None
    """Make the next batch in the background while a step runs; it changes no number. By default where a core is free
    for it: on a GPU, or with fewer threads than cores."""


class RunConfig(Settings):
    """Everything that decides a run."""

    seed: int = Field(default=0, ge=0, lt=2**32)
    """Decides the split, the initial weights, the order of images and their views."""
    data: DataConfig = DataConfig()
    split: SplitConfig = SplitConfig()
    augment: AugmentConfig = AugmentConfig()
    net: NetConfig = NetConfig()
    method: SerializeAsAny[MethodConfig]
    batch: BatchConfig = BatchConfig()
    optim: OptimConfig = OptimConfig()
    train: TrainConfig = TrainConfig()
    distil: DistilConfig = DistilConfig()
    machine: MachineConfig = MachineConfig()

    @model_validator(mode="after")
    def _last_stages_exist(self) -> Self:
        if self.distil.epochs and not (self.net.freeze_backbone and self.net.name in WEIGHTS):
            raise ValueError(
                f"distil.epochs is about the last stages of a frozen {' or '.join(WEIGHTS)}; leave it out, or set "
                "net.freeze_backbone and net.name"
            )
        return self


def build_config(tree: Mapping[str, Any]) -> RunConfig:
    """Check a nested dictionary of differences from the defaults; the method's part by the method's own model."""
    require_groups(tree)
    method = dict(tree.get("method", {}))
    chosen = get_method(str(method.setdefault("name", "sage")))
    return check(RunConfig, {**tree, "method": check(chosen.Config, method, where="method")})


def require_groups(tree: Mapping[str, Any]) -> None:
    for key, value in tree.items():
        if key != "seed" and key in RunConfig.model_fields and not isinstance(value, Mapping):
            raise UserError(f"Setting '{key}' is a group of settings; give one of them, as in --set {key}.NAME=VALUE.")


def config_hash(config: RunConfig) -> str:
    """Hash of all that decides the numbers of a run."""
    return fingerprint({key: value for key, value in to_tree(config).items() if key != "machine"})


def fit_to_data(config: RunConfig, dataset: Dataset) -> RunConfig:
    """Fill in what depends on the data: settings by number of classes, whether mirror images make sense, where views
    are cut, the usual split of a benchmark, and that a user's folder, or any other table with images of unknown class,
    is split as it is."""
    update: dict[str, Any] = {"method": config.method.for_data(dataset.train.num_classes)}
    truth_missing = bool((dataset.train.labels == UNLABELLED).any())
    nothing_said = config.split.model_fields_set <= OPEN_SET_SETTINGS
    split = dict(dataset.split) if nothing_said else {}
    if "pool labels" in get_method(config.method.name).needs:
        if truth_missing:
            raise UserError(
                f"{config.method.name} learns from the true labels of the pool, and {dataset.name} has images without; "
                "use --method labels-only."
            )
        split["reveal_pool_labels"] = True
    elif nothing_said and not split and (truth_missing or config.data.name == "folder"):
        split["kind"] = "given"
    update["split"] = config.split.model_copy(update=split)
    views = {"flip": dataset.flip} | ({} if dataset.crop is None else {"crop": dataset.crop, "pad": 0})
    unsaid = {key: value for key, value in views.items() if key not in config.augment.model_fields_set}
    update["augment"] = config.augment.model_copy(update=unsaid)
    if config.train.steps is None and config.train.minutes is None:
        update["train"] = config.train.model_copy(update={"steps": DEFAULT_STEPS})
    return config.model_copy(update=update)


def baseline_config(config: RunConfig) -> RunConfig:
    """Labels-only with everything else alike, for a run to be compared with."""
    tree = {key: value for key, value in to_tree(config).items() if key != "method"}
    return build_config(merge(tree, {"method": {"name": "labels-only"}}))


def stored_config(folder: RunFolder, said: ConfigTree) -> RunConfig:
    """The configuration a run folder was started with; what is said beside it must not change it."""
    if not folder.holds_run:
        raise UserError(f"{folder.path} holds no run to resume; leave out --resume to start one there.")
    require_groups(said)
    stored = build_config(read_toml(folder.config))
    method = said.get("method", {}).get("name", stored.method.name)
    changed = [f"method.name: {stored.method.name} -> {method}"] if method != stored.method.name else []
    again = stored if changed else build_config(merge(to_tree(stored), said))
    changed += differences(to_tree(stored), to_tree(again.model_copy(update={"machine": stored.machine})))
    if changed:
        raise UserError(
            f"{folder.path} was started with another configuration ({changed[0]}); resume without changing it, "
            "or choose another --out."
        )
    return again


def differences(stored: Mapping[str, Any], given: Mapping[str, Any], where: str = "") -> list[str]:
    """Where two trees differ, as ``key: old -> new``."""
    found: list[str] = []
    for key in sorted({*stored, *given}):
        old, value = stored.get(key), given.get(key)
        if isinstance(value, Mapping):
            found += differences(old if isinstance(old, Mapping) else {}, value, f"{where}{key}.")
        elif old != value:
            found.append(f"{where}{key}: {old} -> {value}")
    return found


def config_summary(config: RunConfig) -> dict[str, Any]:
    """What the summary repeats of the configuration."""
    return {
        "method": config.method.name,
        "data": config.data.name,
        "net": config.net.name,
        "seed": config.seed,
        "steps": config.train.steps,
        "config": config_hash(config),
    } | ({} if config.augment.crop is None else {"crop": config.augment.crop})
