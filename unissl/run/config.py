"""The configuration of a run: all components' settings, their validation, their adaptation to the data, their hash."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal, Self

from pydantic import Field, SerializeAsAny, model_validator

from unissl.augment import AugmentConfig
from unissl.batches import BatchConfig
from unissl.config import ConfigTree, Settings, check, fingerprint, merge, read_toml, to_tree
from unissl.data import DataConfig, Dataset
from unissl.distil import DistilConfig
from unissl.errors import UserError, did_you_mean
from unissl.methods.base import MethodConfig, Needs
from unissl.methods.registry import get_method
from unissl.nets import NetConfig, list_backbones, supports_distillation
from unissl.run_folder import RunFolder
from unissl.splits import SplitConfig
from unissl.training.optim import OptimConfig
from unissl.training.trainer import TrainConfig
from unissl.types import UNLABELLED

DEFAULT_STEPS = 2**18
NOT_HASHED = {"machine", "output"}
FEATURE_VIEW_KEYS = ("cached_views", "feature_dropout", "labelled_feature_dropout", "second_view_dropout")
"""Settings of views that apply to features only."""
OPEN_SET_SETTINGS = {
    "calibration_fraction",
    "ood_classes",
    "ood_data",
    "ood_root",
    "ood_data_classes",
    "ood_count",
}
"""Settings of a split that apply to a given split as well as to a simulated one."""


class MachineConfig(Settings):
    """Where a run happens. Not part of its identity, but for the last bits of floating point."""

    device: str = "cpu"
    """cpu, cuda, cuda:1, mps, ..."""
    threads: int | None = Field(default=None, ge=1, le=1024)
    """CPU threads; by default what torch finds."""
    tune_threads: bool = False
    """Before the start, time some steps with all threads, half of them and so on, and keep the fastest number."""
    compile: Literal["off", "on", "auto"] = "off"
    """Train the network through torch.compile; auto only where the budget repays it and it turns out faster, decided
    once, before the run starts."""
    bf16: bool | None = None
    """Compute augmented views, further crops and distillation on a frozen backbone in bfloat16. By default where the
    CPU is faster in it; decided once, before the run starts, so that a resumed run computes the same."""
    prefetch: bool | None = None
    """Make the next batch in the background while a step runs; it changes no number. By default where a core is free
    for it: on a GPU, or with fewer threads than cores."""


class OutputConfig(Settings):
    """What a run produces besides its own results. Not part of the configuration's hash."""

    baseline: bool = False
    """Also train a labels-only baseline, in the folder baseline/, so that the gain from unlabelled images is known."""
    simple_baselines: bool = False
    """Fit the simple baselines, one of which may be shipped, even without ``baseline``, which includes them."""
    report: bool = False
    """Write report.html when the run is finished."""


class RunConfig(Settings):
    """Everything that decides a run."""

    seed: int = Field(default=0, ge=0, lt=2**32)
    """Random seed for split, initialisation, batch order and augmentation."""
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
    output: OutputConfig = OutputConfig()

    @property
    def compares_baselines(self) -> bool:
        """Whether simple baselines are fitted to the features of a frozen backbone, and the better classifier ships."""
        wanted = self.output.baseline or self.output.simple_baselines
        return self.net.freeze_backbone and wanted and self.method.name != "labels-only"

    @model_validator(mode="after")
    def _last_stages_exist(self) -> Self:
        backbones = [backbone.name for backbone in list_backbones() if supports_distillation(backbone.name)]
        if self.distil.epochs and not (self.net.freeze_backbone and supports_distillation(self.net.name)):
            raise ValueError(
                f"distil.epochs needs net.freeze_backbone and a backbone with a trainable tail "
                f"({', '.join(backbones)}); leave it out, or set net.name"
            )
        teacher, known = self.distil.teacher_backbone, [backbone.name for backbone in list_backbones()]
        if teacher is not None and teacher not in known:
            raise ValueError(
                f"distil.teacher_backbone: there is no backbone {teacher!r}.{did_you_mean(teacher, known)}"
            )
        return self

    @model_validator(mode="after")
    def _head_can_be_refitted(self) -> Self:
        if self.method.readout == "head":
            return self
        if not get_method(self.method.name).uses_network_head():
            raise ValueError(f"{self.method.name} predicts with heads of its own; leave out method.readout")
        if self.distil.epochs:
            raise ValueError("distillation replaces the classifier; set method.readout=head, or distil.epochs=0")
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
    """Hash of everything that decides the numbers of a run."""
    return fingerprint({key: value for key, value in effective_tree(config).items() if key not in NOT_HASHED})


def effective_tree(config: RunConfig) -> ConfigTree:
    """The settings that have an effect on this run: what config.toml records."""
    tree = to_tree(config)
    if not config.net.freeze_backbone:
        for key in FEATURE_VIEW_KEYS:
            tree["augment"].pop(key)
    if Needs.HELDOUT_LABELS not in get_method(config.method.name).needs:
        tree["split"].pop("calibration_fraction")
    if not config.data.follow_links:
        tree["data"].pop("follow_links")
    if not config.split.ood_classes:
        tree["split"].pop("ood_classes")
    if not config.net.pretrained:
        tree["optim"].pop("backbone_lr_scale")
    if not config.optim.tail_average:
        tree["optim"].pop("tail_average")
    if not config.distil.epochs:
        tree.pop("distil")
    for key in ("readout", "pseudo_labels"):
        rest = {name: value for name, value in tree["method"].items() if name != key}
        if tree["method"].get(key) == "head" == getattr(type(config.method)(**rest), key):  # the form implies it
            tree["method"] = rest
    return tree


def fit_to_data(config: RunConfig, dataset: Dataset) -> RunConfig:
    """Fill in what depends on the data: settings by number of classes, flips, crops, the published split of a
    benchmark; a folder of the user's, or any table with unlabelled images, gets a given split."""
    update: dict[str, Any] = {"method": config.method.for_data(dataset.train.num_classes)}
    truth_missing = bool((dataset.train.labels == UNLABELLED).any())
    no_split_settings = config.split.model_fields_set <= OPEN_SET_SETTINGS
    split = dict(dataset.split) if no_split_settings else {}
    if Needs.POOL_LABELS in get_method(config.method.name).needs:
        if truth_missing:
            raise UserError(
                f"{config.method.name} learns from the true labels of the pool, and {dataset.name} has images without; "
                "use --method labels-only."
            )
        split["reveal_pool_labels"] = True
    elif no_split_settings and not split and (truth_missing or config.data.name == "folder"):
        split["kind"] = "given"
    update["split"] = config.split.model_copy(update=split)
    views = {"flip": dataset.flip} | ({} if dataset.crop is None else {"crop": dataset.crop, "pad": 0})
    not_given = {key: value for key, value in views.items() if key not in config.augment.model_fields_set}
    update["augment"] = config.augment.model_copy(update=not_given)
    # Cross-validation is for lack of a test set, and for the choice of the classifier to ship.
    train: dict[str, Any] = {} if dataset.test is None or config.compares_baselines else {"cv_folds": 0}
    if config.train.steps is None and config.train.minutes is None:
        train["steps"] = DEFAULT_STEPS
    update["train"] = config.train.model_copy(update=train)
    return config.model_copy(update=update)


def baseline_config(config: RunConfig) -> RunConfig:
    """Labels-only with everything else alike."""
    tree = {key: value for key, value in to_tree(config).items() if key not in ("method", "output")}
    return build_config(merge(tree, {"method": {"name": "labels-only"}}))


def stored_config(folder: RunFolder, overrides: ConfigTree) -> RunConfig:
    """The configuration that a run was started with; overrides must not change it, except ``machine``."""
    if not folder.holds_run:
        raise UserError(f"{folder.path} holds no run to resume; leave out --resume to start one there.")
    require_groups(overrides)
    overrides = {key: value for key, value in overrides.items() if key != "output"}
    stored = build_config(read_toml(folder.config))
    machine = overrides.get("machine", {})
    if machine.get("compile") == "auto":  # decided when the run started
        overrides["machine"] = {**machine, "compile": stored.machine.compile}
    method = overrides.get("method", {}).get("name", stored.method.name)
    changed = [f"method.name: {stored.method.name} -> {method}"] if method != stored.method.name else []
    again, given = stored, merge(to_tree(stored), overrides)
    try:
        again = stored if changed else build_config(given)
    except UserError:  # what is given may contradict what is stored
        changed = [change for change in differences(to_tree(stored), given) if not change.startswith("machine.")]
        if not changed:
            raise
    changed += differences(to_tree(stored), to_tree(again.model_copy(update={"machine": stored.machine})))
    if changed:
        raise UserError(
            f"{folder.path} was started with another configuration ({changed[0]}); resume without changing it, "
            "or choose another --out."
        )
    return again


def differences(stored: Mapping[str, Any], given: Mapping[str, Any], where: str = "") -> list[str]:
    """Settings that differ between two configurations, as ``key: old -> new``."""
    changes: list[str] = []
    for key in sorted({*stored, *given}):
        old, value = stored.get(key), given.get(key)
        if isinstance(value, Mapping):
            changes += differences(old if isinstance(old, Mapping) else {}, value, f"{where}{key}.")
        elif old != value:
            changes.append(f"{where}{key}: {old} -> {value}")
    return changes


def config_summary(config: RunConfig) -> dict[str, Any]:
    """Settings that the summary repeats."""
    return {
        "method": config.method.name,
        "data": config.data.name,
        "net": config.net.name,
        "seed": config.seed,
        "steps": config.train.steps,
        "config": config_hash(config),
    } | ({} if config.augment.crop is None else {"crop": config.augment.crop})
