"""A method: a module that owns its heads and state, names its batches and returns named losses.

Heads are submodules and state is buffers, so that optimiser, EMA, checkpoint and resume need no code in the
method. A method sees typed batches and a network; it never sees data sets, files or true labels of the pool.
"""

from __future__ import annotations

from collections.abc import Iterator
from enum import StrEnum
from typing import Any, ClassVar, Literal, Protocol, Self, cast

import torch
from torch import Tensor, nn

from unissl.config import ConfigTree, Settings
from unissl.types import Batch, DataInfo, Losses, Outputs, Prediction, Source, Step, Stream, StreamBatch

FAMILIES = ("universal", "closed-set", "long-tailed", "open-set", "supervised")


class Network(Protocol):
    """The part of a backbone that methods rely on."""

    feat_dim: int
    head: nn.Linear

    def __call__(self, x: Tensor) -> Outputs: ...


class MethodConfig(Settings):
    """Base of every method's settings; ``name`` is the method's. The class variables are what recipes ask for."""

    short_run: ClassVar[ConfigTree] = {}
    """Settings of the method in runs of a thousand steps or so, such as momenta that look back a hundred of them."""
    feature_run: ClassVar[ConfigTree] = {}
    """Settings of the method in such runs on features of a frozen backbone, in place of those of ``short_run``."""
    paper_run: ClassVar[ConfigTree] = {}
    """Groups of settings (``batch``, ``method``) in which the published experiments differ from the common protocol."""
    own_optim: ClassVar[ConfigTree] = {}
    """The optimiser that the method was published with, if it is not the common one; it replaces that of any recipe."""

    name: str
    readout: Literal["head", "consensus"] = "head"
    """Which classifier is shipped: the trained head, or one that is refitted to the consensus of the whole pool, unless
    the labels favour the head (``unissl.evaluation.readout``)."""

    def for_data(self, num_classes: int) -> Self:
        """Fill in what depends on the data; the result is what the run folder records."""
        return self


class Needs(StrEnum):
    """What a method cannot do without; the value is the word in the table of methods."""

    IMAGES = "images"
    """Pixels: feature vectors of a frozen backbone are not enough."""
    TAPS = "taps"
    """Inner feature maps of the network (``Method.taps``)."""
    HELDOUT_LABELS = "heldout"
    """Labels that no loss sees (``split.calibration_fraction``)."""
    POOL_LABELS = "pool labels"
    """The true labels of the pool (``split.reveal_pool_labels``)."""


class Context(Protocol):
    """What the trainer offers to the hooks of a method."""

    step: Step

    def scan(
        self, source: Source, weights: Literal["ema", "live"] = "ema", view: str = "weak"
    ) -> Iterator[tuple[StreamBatch, Prediction]]:
        """Every image of a source once, without gradient, in eval mode and without touching training's randomness."""
        ...


class Method(nn.Module):
    """Base class. A subclass sets the class variables and writes ``losses``; the rest has working defaults."""

    Config: ClassVar[type[MethodConfig]]
    name: ClassVar[str]
    """That of ``Config``."""
    title: ClassVar[str]
    venue: ClassVar[str]
    family: ClassVar[str]
    """One of ``FAMILIES``."""
    idea: ClassVar[str]
    """Half a line for the table of the README."""
    link: ClassVar[str]
    needs: ClassVar[frozenset[Needs]] = frozenset()
    taps: ClassVar[tuple[str, ...]] = ()
    """Inner feature maps that the network returns for the method."""

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        if "Config" in vars(cls):
            cls.name = cls.Config.model_fields["name"].default

    def __init__(self, cfg: Any, info: DataInfo) -> None:
        super().__init__()
        self.cfg = cfg
        self.info = info

    @classmethod
    def supports_features(cls) -> bool:
        """Whether the method can train on feature vectors in place of images."""
        return not cls.taps and Needs.IMAGES not in cls.needs

    @classmethod
    def learns_from_pool(cls, cfg: Any) -> bool:
        """Whether any of its batches is of unlabelled images."""
        return any(stream.source == "unlabelled" for stream in cls.streams(cfg).values())

    @classmethod
    def uses_network_head(cls) -> bool:
        """Whether the network's head alone predicts, so that distillation can replace the network."""
        return cls.predict is Method.predict and cls.inference_module is Method.inference_module

    @classmethod
    def streams(cls, cfg: Any) -> dict[str, Stream]:
        """The batches of one step by name."""
        return {"labelled": Stream("labelled", ("weak",)), "unlabelled": Stream("unlabelled", ("weak", "strong"))}

    def losses(self, net: Network, batch: Batch, step: Step) -> Losses:
        raise NotImplementedError

    def on_period_start(self, ctx: Context) -> None:
        """Called before the first step of every period (``train.method_periods``)."""

    def after_step(self, ctx: Context) -> None:
        """Called after the optimiser and EMA have moved."""

    def predict(self, net: Network, x: Tensor) -> Prediction:
        """Predictions for images at test; the default is the network's head."""
        out = net(x)
        return Prediction(out.logits, out.feat)

    def inference_module(self, net: nn.Module) -> nn.Module:
        """The module whose weights are shipped: images in, something with the ``logits`` of ``predict`` out.

        The default is the network alone, which drops every head of the method.
        """
        return net

    def promoted(self) -> tuple[Tensor, Tensor] | None:
        """Pseudo-labelled images promoted to the labelled set: positions in the pool (k,) and soft targets (k, C).

        Batches are drawn from it at every step, so a method keeps the selection in its buffers and nowhere else.
        """
        return None

    def untrained_parameters(self) -> frozenset[str]:
        """Names of the method's parameters that never receive a gradient."""
        return frozenset(name for name, parameter in self.named_parameters() if not parameter.requires_grad)


class InferenceModel(nn.Module):
    """Network and the heads that prediction needs, as one module: images in, prediction out.

    The heads have a method ``predict(net, x)``, as :class:`Method` has.
    """

    def __init__(self, net: nn.Module, heads: nn.Module) -> None:
        super().__init__()
        self.net = net
        self.heads = heads

    def forward(self, x: Tensor) -> Prediction:
        return cast(Method, self.heads).predict(cast(Network, self.net), x)


class HeadsMethod(Method):
    """A method that predicts with ``heads`` of its own, a module with a method ``predict``, which are shipped with the
    network. The network's head is removed, so that no untrained one is saved."""

    heads: Any

    def predict(self, net: Network, x: Tensor) -> Prediction:
        prediction: Prediction = self.heads.predict(net, x)
        return prediction

    def inference_module(self, net: nn.Module) -> nn.Module:
        return InferenceModel(net, self.heads)


def attach_method(net: nn.Module, method: type[Method]) -> None:
    """Make the network return the inner maps that a method reads, and remove a head that the method replaces."""
    cast(Any, net).wanted_taps = method.taps
    if issubclass(method, HeadsMethod):
        cast(Any, net).head = nn.Identity()


def forward_concat(net: Network, *views: Tensor) -> list[Outputs]:
    """Run several groups of images through the network as one batch, so that they share BatchNorm statistics."""
    return net(torch.cat(views)).split([len(view) for view in views])


def xavier_linear(in_features: int, out_features: int) -> nn.Linear:
    """A linear layer with the protocol's initialisation: Xavier normal weights, zero bias."""
    layer = nn.Linear(in_features, out_features)
    nn.init.xavier_normal_(layer.weight)
    nn.init.zeros_(layer.bias)
    return layer
