"""TQC and QR-DQN of sb3-contrib with hotloop's updates and acting."""

from __future__ import annotations

from typing import Any

import sb3_contrib
import torch
from sb3_contrib.common.utils import quantile_huber_loss
from sb3_contrib.qrdqn.policies import QuantileNetwork
from sb3_contrib.tqc.policies import Actor
from torch import Tensor

from hotloop.accelerate.acting_off_policy import greedy_twin
from hotloop.accelerate.dqn import ActionValueModel, DqnUpdate
from hotloop.accelerate.off_policy import Transitions
from hotloop.accelerate.sac import EntropyModel, SacUpdate


class TqcUpdate(SacUpdate):
    """A gradient step of TQC. Kuznetsov et al. 2020, arXiv:2005.04269.

    The critics return quantiles, (B, critics, quantiles).
    """

    def __init__(self, model: Any, batch_size: int) -> None:
        critic = model.critic
        self._num_targets = critic.quantiles_total
        self._num_targets -= model.top_quantiles_to_drop_per_net * critic.n_critics
        super().__init__(model, batch_size)

    def target(self, values: Tensor, entropy_cost: Tensor, rows: Transitions) -> Tensor:
        """Return the lowest quantiles of all critics as targets, (B, 1, targets)."""
        lowest = torch.sort(values.flatten(1))[0][:, : self._num_targets]
        return (rows.rewards + rows.discounts * (lowest - entropy_cost)).unsqueeze(1)

    def critic_loss(self, values: Tensor, target: Tensor) -> Tensor:
        """Return the mean quantile Huber loss."""
        return quantile_huber_loss(values, target, sum_over_quantiles=False)

    def actor_value(self, values: Tensor) -> Tensor:
        """Return the mean of all quantiles, (B, 1)."""
        return values.mean(2).mean(1, keepdim=True)


class TQC(EntropyModel, sb3_contrib.TQC):  # pyright: ignore
    """`sb3_contrib.TQC` with hotloop's update and acting."""

    _update_class = TqcUpdate
    _actor_class = Actor

    def _structure(self) -> tuple[Any, ...]:
        return (*super()._structure(), self.top_quantiles_to_drop_per_net)


class QrDqnUpdate(DqnUpdate):
    """A gradient step of QR-DQN. Dabney et al. 2018, arXiv:1710.10044.

    The networks return quantiles, (B, quantiles, A).
    """

    def target(self, values: Tensor, rows: Transitions) -> Tensor:
        """Return the quantiles of the best next actions as targets, (B, quantiles)."""
        best = values.mean(1, keepdim=True).argmax(2, keepdim=True)
        next_values = values.gather(2, best.expand(-1, values.shape[1], 1)).squeeze(2)
        return rows.rewards + rows.discounts * next_values

    def loss(self, values: Tensor, target: Tensor, actions: Tensor) -> Tensor:
        """Return the quantile Huber loss, summed over quantiles."""
        chosen = actions.unsqueeze(2).expand(-1, values.shape[1], 1)
        return quantile_huber_loss(values.gather(2, chosen).squeeze(2), target)


class QRDQN(ActionValueModel, sb3_contrib.QRDQN):  # pyright: ignore
    """`sb3_contrib.QRDQN` with hotloop's update and acting."""

    _acting_network = "quantile_net"
    _update_class = QrDqnUpdate

    def _networks(self) -> tuple[Any, Any]:
        return self.quantile_net, self.quantile_net_target

    def _prepare_twin(self) -> Any:
        network: Any = self.policy.quantile_net
        return greedy_twin(self, network, QuantileNetwork, network.quantile_net)
