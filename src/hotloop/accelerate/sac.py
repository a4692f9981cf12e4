"""SAC of Stable-Baselines3 with hotloop's update and acting."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import reduce
from typing import Any, NamedTuple

import stable_baselines3
import torch
from stable_baselines3.common.distributions import (
    SquashedDiagGaussianDistribution,
    StateDependentNoiseDistribution,
)
from stable_baselines3.sac.policies import Actor
from torch import Tensor, nn
from torch.nn.functional import mse_loss

from hotloop.accelerate.acceleration import Unsupported, own_methods
from hotloop.accelerate.acting_off_policy import squashed_gaussian_twin
from hotloop.accelerate.flat_parameters import FlatParameters, ModuleState
from hotloop.accelerate.module_calls import ModuleFunction
from hotloop.accelerate.off_policy import OffPolicyModel, OffPolicyUpdate, Transitions, means
from hotloop.learner import Scalar, move_towards, value_and_grad

_LOG_SQRT_2PI = 0.5 * math.log(2.0 * math.pi)
_SHARED = "features_extractor."


class Hyper(NamedTuple):
    """Hyper-parameters that may change during training.

    Attributes:
        ent_coef: the temperature, unused if it is learned.
        tau: step size of the target critics, 0 in steps that do not move them.
    """

    actor_rate: Scalar
    critic_rate: Scalar
    temperature_rate: Scalar
    ent_coef: Scalar
    target_entropy: Scalar
    gamma: Scalar
    tau: Scalar


@dataclass(slots=True)
class State:
    """The tensors that a gradient step changes in place. A fixed temperature has no state."""

    actor: ModuleState
    critic: ModuleState
    target: ModuleState
    temperature: ModuleState | None


class SacUpdate(OffPolicyUpdate):
    """A gradient step of the critics, the actor and the temperature.

    Haarnoja et al. 2018, arXiv:1812.05905, as Stable-Baselines3 computes it: the actor's step uses
    the critics after their step, and the temperature before its step.
    """

    def __init__(self, model: Any, batch_size: int) -> None:
        actor, critic, target = model.actor, model.critic, model.critic_target
        if own_methods(actor, ["action_log_prob"]):
            raise Unsupported(f"its {type(actor).__name__} has its own action_log_prob")
        kinds = SquashedDiagGaussianDistribution, StateDependentNoiseDistribution
        if type(actor.action_dist) not in kinds:
            raise Unsupported(f"its actions follow a {type(actor.action_dist).__name__}")
        self._actor = FlatParameters(actor, actor.optimizer)
        self._critic = FlatParameters(critic, critic.optimizer)
        self._target = FlatParameters(target)
        networks = [self._actor, self._critic, self._target]
        temperature = None
        if model.ent_coef_optimizer is not None:
            holder = nn.Module()
            holder._parameters["log_ent_coef"] = model.log_ent_coef
            self._temperature = FlatParameters(holder, model.ent_coef_optimizer)
            networks.append(self._temperature)
            temperature = self._temperature.state
        # Only the actor's loss trains a shared features extractor. So it is no constant of the
        # critics.
        constants = self._critic.state.constants
        self._is_shared = critic.features_extractor is actor.features_extractor
        if self._is_shared:
            for name in [x for x in constants if x.startswith(_SHARED)]:
                del constants[name]
        state = State(self._actor.state, self._critic.state, self._target.state, temperature)
        super().__init__(model, batch_size, networks, state)

        self._epsilon = actor.action_dist.epsilon
        self._actor_module = actor
        # State-dependent noise has a matrix, (L, A), where L is the size of the last hidden layer.
        self._matrix_shape: tuple[int, ...] = ()
        if actor.use_sde:
            self._matrix_shape = actor.action_dist.exploration_mat.shape
        self._distribution = ModuleFunction(self._actor, actor.get_action_dist_params)
        self._noisy_actions = ModuleFunction(self._actor, self._act_noisily, actor.action_dist)
        self._critic_values = ModuleFunction(self._critic, critic.forward)
        self._target_values = ModuleFunction(self._target, target.forward)
        self._step = self.bind(self.step, "update", model._expected_calls())

    def draw_noise(self, actions: Tensor) -> Tensor:
        """Return standard normal numbers for the observations and the next ones, (2, B, A).

        For state-dependent noise, (2, L, A): a matrix for all observations, and one that the
        original draws for acting.
        """
        noise = torch.empty((2, *(self._matrix_shape or actions.shape)))
        noise[0].normal_()
        noise[1].normal_()
        return noise

    def run(self, model: Any, gradient_steps: int, hyper: Hyper) -> dict[str, float]:
        rows: list[Tensor] = []
        for k in range(gradient_steps):
            batch = self.next_batch(model)
            moves_targets = k % model.target_update_interval == 0
            self.set_hyper(hyper if moves_targets else hyper._replace(tau=0.0))
            noise = self.draw_noise(batch[0])
            if self._matrix_shape and k == gradient_steps - 1:  # the next actions use it
                self._set_exploration(noise)
            rows.append(self._step(batch, noise)[0])
        model._n_updates += gradient_steps
        return means(self._step, rows)

    def step(
        self, state: State, batch: tuple[Any, ...], noise: Tensor, hyper: Hyper
    ) -> dict[str, Tensor]:
        """Make one gradient step in place, and return metrics. A pure function of tensors."""
        rows = self.unpack(batch, hyper.gamma)
        learned = state.temperature
        alpha = hyper.ent_coef.expand(1) if learned is None else learned.params.exp()
        with torch.enable_grad():
            actor_params = state.actor.params.detach().requires_grad_()
            action, log_prob = self._sample(actor_params, state, rows.obs, noise[0])

        # The critics.
        with torch.no_grad():
            next_noise = noise[0] if self._matrix_shape else noise[1]
            next_action, next_log_prob = self._sample(
                state.actor.params, state, rows.next_obs, next_noise
            )
            values = self._target_values(
                state.target.params, state.target.constants, rows.next_obs, next_action
            )
            target = self.target(values, alpha * next_log_prob, rows)

        def critic_loss(params: Tensor) -> tuple[Tensor, tuple[()]]:
            values = self._critic_values(
                params, self._critic_constants(state), rows.obs, rows.actions
            )
            return self.critic_loss(values, target), ()

        critic_total, _, grad = value_and_grad(critic_loss, state.critic.params)
        self.optimize(self._critic, state.critic, grad, hyper.critic_rate)

        # The actor, by the new critics.
        with torch.enable_grad():
            values = self._critic_values(
                state.critic.params,
                self._critic_constants(state, actor_params),
                rows.obs,
                action,
            )
            actor_total = (alpha * log_prob - self.actor_value(values)).mean()
            (grad,) = torch.autograd.grad(actor_total, actor_params)
        self.optimize(self._actor, state.actor, grad, hyper.actor_rate)

        # The temperature: its loss is −log α (log π + H̄), so its gradient does not contain α.
        difference = (log_prob.detach() + hyper.target_entropy).mean()
        metrics = {
            "critic_loss": critic_total,
            "actor_loss": actor_total.detach(),
            "ent_coef": alpha[0],
        }
        if learned is not None:
            metrics["ent_coef_loss"] = -(learned.params * difference)[0]
            self.optimize(self._temperature, learned, -difference.expand(1), hyper.temperature_rate)
        self._move_target(state, hyper)
        return metrics

    def target(self, values: Any, entropy_cost: Tensor, rows: Transitions) -> Tensor:
        """Return y = r + γ (min_k Q'_k − α log π), (B, 1)."""
        return rows.rewards + rows.discounts * (reduce(torch.minimum, values) - entropy_cost)

    def critic_loss(self, values: Any, target: Tensor) -> Tensor:
        """Return half the sum of the critics' mean squared errors."""
        return 0.5 * torch.stack([mse_loss(value, target) for value in values]).sum()

    def actor_value(self, values: Any) -> Tensor:
        """Return the value that the actor maximizes, (B, 1)."""
        return reduce(torch.minimum, values)

    def _sample(self, params: Tensor, state: State, obs: Any, noise: Tensor) -> Any:
        """Return actions in [−1, 1], (B, A), and their log-probabilities, (B, 1)."""
        if self._matrix_shape:
            return self._noisy_actions(params, state.actor.constants, obs, noise)
        mean, log_std, _ = self._distribution(params, state.actor.constants, obs)
        action = torch.tanh(mean + log_std.exp() * noise)
        log_prob = -0.5 * noise.square() - log_std - _LOG_SQRT_2PI
        log_prob = log_prob - torch.log(1.0 - action.square() + self._epsilon)
        return action, log_prob.sum(1, keepdim=True)

    def _act_noisily(self, obs: Any, noise: Tensor) -> tuple[Tensor, Tensor]:
        """Return the same as `_sample`, by the original's code, from normal numbers, (L, A)."""
        actor = self._actor_module
        self._set_exploration(noise.unsqueeze(0).expand(2, -1, -1), actor.log_std)
        action, log_prob = actor.action_log_prob(obs)
        return action, log_prob.unsqueeze(1)

    def _set_exploration(self, noise: Tensor, log_std: Tensor | None = None) -> None:
        """Set the matrices of state-dependent noise from normal numbers, (2, L, A)."""
        actor = self._actor_module
        std = actor.action_dist.get_std(actor.log_std.detach() if log_std is None else log_std)
        actor.action_dist.exploration_mat = std * noise[0]
        actor.action_dist.exploration_matrices = (std * noise[1]).unsqueeze(0)

    def _critic_constants(
        self, state: State, actor_params: Tensor | None = None
    ) -> dict[str, Tensor]:
        """Return the tensors that the critics read but do not learn.

        These include a features extractor that the critics share with the actor.
        """
        if not self._is_shared:
            return state.critic.constants
        params = state.actor.params if actor_params is None else actor_params
        shared = {**state.actor.constants, **self._actor.split(params)}
        shared = {name: x for name, x in shared.items() if name.startswith(_SHARED)}
        return {**state.critic.constants, **shared}

    def _move_target(self, state: State, hyper: Hyper) -> None:
        """Make a soft update of the target critics, with copies of their running statistics."""
        sources = {**self._critic_constants(state), **self._critic.split(state.critic.params)}
        source = state.critic.params
        if self._is_shared:
            source = torch.cat([sources[name].flatten() for name in self._target.names])
        move_towards(state.target.params, source, hyper.tau)
        for name, value in state.target.constants.items():
            if "running_" in name:
                value.copy_(torch.where(hyper.tau > 0, sources[name], value))


class EntropyModel(OffPolicyModel):
    """The mixin of SAC and its relatives."""

    _update_class = SacUpdate
    _actor_class: type = Actor

    def train(self, gradient_steps: int, batch_size: int = 64) -> None:
        """Make gradient steps on batches of the replay buffer."""
        super().train(gradient_steps, batch_size)

    def _optimizers(self) -> list[Any]:
        optimizers = [self.actor.optimizer, self.critic.optimizer]
        if self.ent_coef_optimizer is not None:
            optimizers.append(self.ent_coef_optimizer)
        return optimizers

    def _structure(self) -> tuple[Any, ...]:
        return (self.log_ent_coef, bool(self.use_sde))

    def _hyper(self) -> Hyper:
        rates = [float(x.param_groups[0]["lr"]) for x in self._optimizers()]
        is_learned = self.ent_coef_optimizer is not None
        return Hyper(
            actor_rate=rates[0],
            critic_rate=rates[1],
            temperature_rate=rates[2] if is_learned else 0.0,
            ent_coef=0.0 if is_learned else float(self.ent_coef_tensor),
            target_entropy=float(self.target_entropy),
            gamma=float(self.gamma),
            tau=float(self.tau),
        )

    def _record(self, means: dict[str, float]) -> None:
        for name in ("ent_coef", "actor_loss", "critic_loss", "ent_coef_loss"):
            if name in means:
                self.logger.record(f"train/{name}", means[name])

    def _prepare_twin(self) -> Any:
        return squashed_gaussian_twin(self, self._actor_class)


class SAC(EntropyModel, stable_baselines3.SAC):  # pyright: ignore
    """`stable_baselines3.SAC` with hotloop's update and acting."""
