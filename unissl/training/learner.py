"""One module that holds everything trainable, built before the optimiser so that nothing can be left out of it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import cast

import torch
from torch import Tensor, nn

from unissl.distributed.data_parallel import data_parallel
from unissl.methods.base import Method, Network
from unissl.training.compile import CompiledNet
from unissl.types import Batch, Losses, Prediction, Step


class Learner(nn.Module):
    """Network and method. Called with a batch and a step it returns the losses, with images a prediction."""

    def __init__(self, net: nn.Module, method: Method) -> None:
        super().__init__()
        self.net = net
        self.method = method
        self.compiled: CompiledNet | None = None
        """The network as losses call it, if not the plain one."""

    def forward(self, batch: Batch | Tensor, step: Step | None = None) -> Losses | Prediction:
        if isinstance(batch, Tensor):
            return self.method.predict(cast(Network, self.net), batch)
        assert step is not None
        return self.method.losses(cast(Network, data_parallel(self.compiled or self.net)), batch, step)

    def losses(self, batch: Batch, step: Step) -> Losses:
        return cast(Losses, self(batch, step))

    @torch.no_grad()
    def predict(self, images: Tensor, shadow: Mapping[str, Tensor] | None = None) -> Prediction:
        """Predict in eval mode, with the tensors of ``shadow`` if given.

        What it does not hold is live. Under the paper's protocol that is every buffer, BatchNorm statistics among them;
        with ``optim.tail_average`` the shadow has these statistics as well.
        """
        was_training = self.training
        self.eval()
        try:
            return cast(Prediction, torch.func.functional_call(self, dict(shadow or {}), (images,)))
        finally:
            self.train(was_training)

    def untrained_parameters(self) -> frozenset[str]:
        """Names of frozen parameters, and of those that no loss reaches, as the network and the method declare them."""
        frozen = frozenset(name for name, parameter in self.named_parameters() if not parameter.requires_grad)
        of_net: frozenset[str] = getattr(self.net, "untrained_parameters", frozenset)()
        of_method = self.method.untrained_parameters()
        return frozen | frozenset(f"net.{n}" for n in of_net) | frozenset(f"method.{n}" for n in of_method)
