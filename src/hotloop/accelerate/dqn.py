"""DQN of Stable-Baselines3 with hotloop's update and acting."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import stable_baselines3
import torch
from stable_baselines3.dqn.policies import QNetwork
from torch import Tensor
from torch.nn.functional import smooth_l1_loss

from hotloop.accelerate.acting_off_policy import greedy_twin
from hotloop.accelerate.flat_parameters import FlatParameters, ModuleState
from hotloop.accelerate.module_calls import ModuleFunction
from hotloop.accelerate.off_policy import OffPolicyModel, OffPolicyUpdate, Transitions, means
from hotloop.learner import Scalar, clip_grad_norm, value_and_grad


class Hyper(NamedTuple):
    """Hyper-parameters that may change during training."""

    learning_rate: Scalar
    max_grad_norm: Scalar
    gamma: Scalar


@dataclass(slots=True)
class State:
    """The tensors of a gradient step. It changes those of `network` in place."""

    network: ModuleState
    target: ModuleState


class DqnUpdate(OffPolicyUpdate):
    """A gradient step of a network of action values.

    Mnih et al. 2015, "Human-level control through deep reinforcement learning", Nature 518. The
    original's `_on_step` updates the target network.
    """

    def __init__(self, model: Any, batch_size: int) -> None:
        network, target = model._networks()
        self._network = FlatParameters(network, model.policy.optimizer)
        target_network = FlatParameters(target)
        networks = [self._network, target_network]
        super().__init__(model, batch_size, networks, State(*(x.state for x in networks)))
        self._has_norm_limit = model.max_grad_norm is not None
        self._values = ModuleFunction(self._network, network.forward)
        self._target_values = ModuleFunction(target_network, target.forward)
        self._step = self.bind(self.step, "update", model._expected_calls())

    def run(self, model: Any, gradient_steps: int, hyper: Hyper) -> dict[str, float]:
        rows = [self._step(self.next_batch(model), None)[0] for _ in range(gradient_steps)]
        model._n_updates += gradient_steps
        return means(self._step, rows)

    def step(
        self, state: State, batch: tuple[Any, ...], noise: None, hyper: Hyper
    ) -> dict[str, Tensor]:
        """Make one gradient step in place, and return metrics. A pure function of tensors."""
        rows = self.unpack(batch, hyper.gamma)
        with torch.no_grad():
            values = self._target_values(state.target.params, state.target.constants, rows.next_obs)
            target = self.target(values, rows)

        def loss(params: Tensor) -> tuple[Tensor, tuple[()]]:
            values = self._values(params, state.network.constants, rows.obs)
            return self.loss(values, target, rows.actions.long()), ()

        total, _, grad = value_and_grad(loss, state.network.params)
        if self._has_norm_limit:
            grad, _ = clip_grad_norm(grad, hyper.max_grad_norm)
        self.optimize(self._network, state.network, grad, hyper.learning_rate)
        return {"loss": total}

    def target(self, values: Tensor, rows: Transitions) -> Tensor:
        """Return y = r + γ max_a Q'(s', a), (B, 1)."""
        return rows.rewards + rows.discounts * values.amax(1, keepdim=True)

    def loss(self, values: Tensor, target: Tensor, actions: Tensor) -> Tensor:
        """Return the mean Huber loss of the chosen actions' values."""
        return smooth_l1_loss(values.gather(1, actions), target)


class ActionValueModel(OffPolicyModel):
    """The mixin of DQN and its relatives."""

    _acting_network = "q_net"
    _update_class = DqnUpdate

    def _networks(self) -> tuple[Any, Any]:
        """Return the network of action values, and its target network."""
        raise NotImplementedError

    def _optimizers(self) -> list[Any]:
        return [self.policy.optimizer]

    def _structure(self) -> tuple[Any, ...]:
        return (self.max_grad_norm is None,)

    def _hyper(self) -> Hyper:
        return Hyper(
            learning_rate=float(self.policy.optimizer.param_groups[0]["lr"]),
            max_grad_norm=0.0 if self.max_grad_norm is None else float(self.max_grad_norm),
            gamma=float(self.gamma),
        )

    def _record(self, means: dict[str, float]) -> None:
        self.logger.record("train/loss", means["loss"])


class DQN(ActionValueModel, stable_baselines3.DQN):  # pyright: ignore
    """`stable_baselines3.DQN` with hotloop's update and acting."""

    def _networks(self) -> tuple[Any, Any]:
        return self.q_net, self.q_net_target

    def _prepare_twin(self) -> Any:
        network: Any = self.policy.q_net
        return greedy_twin(self, network, QNetwork, network.q_net)
