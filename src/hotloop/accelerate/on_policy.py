"""The mixin of the accelerated on-policy classes: one gradient step, and acting.

A subclass defines its loss in `_objective`, the settings that select the terms of this loss in
`_structure`, and the numbers that may change during training in `_hyper`. Its `train` passes over
the rollout buffer and records the values that the original records.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any, TypeAlias

import torch
from gymnasium import spaces
from stable_baselines3.common.buffers import RolloutBuffer
from stable_baselines3.common.utils import explained_variance
from torch import Tensor

from hotloop.accelerate.acceleration import AcceleratedModel, own_methods
from hotloop.accelerate.acting import ActingTwin, acting_twin, forget_distribution
from hotloop.accelerate.flat_parameters import FlatParameters, ModuleState
from hotloop.accelerate.model_update import ModelUpdate
from hotloop.accelerate.module_calls import (
    ModuleFunction,
    replaced_attribute,
    unchanged_generators,
)
from hotloop.accelerate.optimizer_rules import optimizer_settings
from hotloop.accelerate.rollout_shortcuts import rollout_shortcuts
from hotloop.learner import clip_grad_norm, value_and_grad

Minibatch: TypeAlias = tuple[Tensor, ...]
Terms: TypeAlias = tuple[Tensor, dict[str, Tensor], Tensor | None]
"""The loss, metrics, and whether the minibatch may change anything (bool, 0-d; None: it may)."""
Objective: TypeAlias = Callable[
    [Tensor, Tensor, Tensor | None, dict[str, Tensor], Any],
    Terms,
]
"""`objective(values, log_prob, entropy, fields of the minibatch, hyper)` returns `Terms`."""


class PolicyUpdate(ModelUpdate):
    """One gradient step of a policy.

    Attributes:
        policy: the policy.
        parameters: its parameters as one vector.
        eager_reason: the reason why the update can't be compiled, empty if it can.
    """

    eager_reason = ""

    def __init__(self, model: Any) -> None:
        self.policy = policy = model.policy
        self.parameters = FlatParameters(policy, policy.optimizer, keeps_gradient=True)
        super().__init__(model, model._minibatch_size(), [self.parameters], self.parameters.state)
        self._objective = model._objective()
        self._fields = model._fields  # of a minibatch after the observations
        self._evaluate = ModuleFunction(
            self.parameters, policy.evaluate_actions, getattr(policy, "action_dist", None)
        )
        self._is_discrete = isinstance(model.action_space, spaces.Discrete)
        self._step = self.bind(self.step, "update", model._expected_calls(), self.eager_reason)

    def __call__(self, samples: Any) -> dict[str, float]:
        """Make one gradient step with the samples of a rollout buffer, and return the metrics."""
        minibatch = self.minibatch(samples)
        # Compiled updates are for one size. A smaller last minibatch is not worth another one.
        if len(samples.actions) == self.batch_size:
            row = self._step(minibatch, None)[0]
            return dict(zip(self._step.names, row.tolist(), strict=True))
        metrics = self.step(self.parameters.state, minibatch, None, self.hyper)
        return {name: float(x) for name, x in metrics.items()}

    def minibatch(self, samples: Any) -> Minibatch:
        """Return the samples of a rollout buffer as a tuple of tensors, observations first."""
        observations = samples.observations
        if self._obs_keys is None:
            leaves = (observations,)
        else:
            leaves = tuple(observations[key] for key in self._obs_keys)
        return (*leaves, *(getattr(samples, name) for name in self._fields))

    def step(
        self, state: ModuleState, minibatch: Minibatch, noise: None, hyper: Any
    ) -> dict[str, Tensor]:
        """Make one gradient step in place, and return metrics. A pure function of tensors."""
        observations: Any = minibatch[0]
        if self._obs_keys is not None:
            observations = dict(zip(self._obs_keys, minibatch, strict=False))
        num_leaves = 1 if self._obs_keys is None else len(self._obs_keys)
        fields = dict(zip(self._fields, minibatch[num_leaves:], strict=True))
        actions = fields["actions"].long().flatten() if self._is_discrete else fields["actions"]

        def loss(params: Tensor) -> tuple[Tensor, Any]:
            values, log_prob, entropy = self.evaluate(
                params, state.constants, observations, actions, fields
            )
            total, metrics, active = self._objective(
                values.flatten(), log_prob, entropy, fields, hyper
            )
            metrics = {name: x.detach() for name, x in metrics.items()}
            return total, ({**metrics, "loss": total.detach()}, active)

        _, (metrics, active), grad = value_and_grad(loss, state.params)
        grad, _ = clip_grad_norm(grad, hyper.max_grad_norm)
        rule, steps = self.parameters.rule, state.steps
        assert rule is not None
        assert steps is not None
        assert state.grad is not None
        state.grad.copy_(grad if active is None else torch.where(active, grad, state.grad))
        rule.step(state.params, grad, state.moments, steps, hyper.learning_rate, active)
        return metrics

    def evaluate(
        self,
        params: Tensor,
        constants: dict[str, Tensor],
        observations: Any,
        actions: Tensor,
        fields: dict[str, Tensor],
    ) -> Any:
        """Return values, log-probabilities and entropies (or None), as the policy computes them.

        Args:
            params: the parameters, (P,).
            constants: see `ModuleState`.
            observations: the observations of B rows, a tensor or a dictionary of them.
            actions: the actions, (B, …).
            fields: the fields of the minibatch.
        """
        masks = {"action_masks": fields["action_masks"]} if "action_masks" in fields else {}
        return self._evaluate(params, constants, observations, actions, **masks)


class OnPolicyModel(AcceleratedModel):
    """The mixin of the accelerated on-policy classes."""

    _fields: tuple[str, ...] = ("actions", "old_values", "old_log_prob", "advantages", "returns")
    _update_class: type[PolicyUpdate] = PolicyUpdate

    def _objective(self) -> Objective:
        """Return the loss for the current structure."""
        raise NotImplementedError

    def _num_minibatches(self) -> int:
        """Return the number of gradient steps in one call of `train`."""
        raise NotImplementedError

    def _minibatch_size(self) -> int:
        """Return the rows of a minibatch."""
        raise NotImplementedError

    def _check_policy(self) -> None:
        """Raise Unsupported if the update can't use the policy."""

    def _minibatches(self, size: int) -> Iterator[Any]:
        """Yield the minibatches of one pass over the rollout, in a random order."""
        buffer = self.rollout_buffer
        methods = ("get", "_get_samples", "to_torch")
        is_plain = type(buffer) is RolloutBuffer and not own_methods(buffer, methods)
        if not is_plain or buffer.device.type != "cpu":
            yield from buffer.get(size)
            return
        # The original selects rows, which are new arrays, and copies them once more.
        with replaced_attribute(buffer, "to_torch", torch.from_numpy):
            yield from buffer.get(size)

    def _acting_twin(self) -> ActingTwin:
        """Return the policy's forward on NumPy, or raise Unsupported."""
        return acting_twin(self.policy)

    def prepared_update(self) -> PolicyUpdate | None:
        """Return the update for the current parameters and settings, or None to fall back."""
        policy, optimizer = self.policy, self.policy.optimizer
        size = self._minibatch_size()
        return self.current_update(
            (policy, optimizer, optimizer_settings(optimizer), size, self._structure()),
            self._prepare_update,
        )

    def _prepare_update(self) -> PolicyUpdate:
        self._check_policy()
        update = self._update_class(self)
        with unchanged_generators():  # for the order of the minibatches
            samples = next(iter(self._minibatches(update.batch_size)))
            update.try_out(update.minibatch(samples))
        return update

    def _expected_calls(self) -> int:
        steps = max(0, self._total_timesteps - self.num_timesteps)
        num_trains = 1 + math.ceil(steps / (self.n_steps * self.n_envs))
        num_trains += self.acceleration.num_trains
        return num_trains * self._num_minibatches()

    def collect_rollouts(self, *args: Any, **kwargs: Any) -> bool:
        """Collect a rollout with the original's loop, but compute the actions with NumPy."""
        policy = self.policy
        # The twin reads the layers that the policy has now, and calls no hooks. Prepare another one
        # when they change.
        hooks = [(*x._forward_hooks, *x._forward_pre_hooks) for x in policy.modules()]
        key = (*policy.modules(), hooks, vars(policy).get("forward"))
        twin = self.prepared("acting", key, self._acting_twin)
        if twin is None:
            return super().collect_rollouts(*args, **kwargs)  # pyright: ignore
        forget_distribution(policy.action_dist)
        twin.expire()
        replaced = replaced_attribute(policy, "forward", twin)
        with replaced, rollout_shortcuts(self.rollout_buffer):
            return super().collect_rollouts(*args, **kwargs)  # pyright: ignore


def normalized(advantages: Tensor) -> Tensor:
    """Return the advantages with mean 0 and standard deviation 1."""
    return (advantages - advantages.mean()) / (advantages.std() + 1e-8)


def entropy_loss(entropy: Tensor | None, log_prob: Tensor) -> Tensor:
    """Return −H, estimated by the log-probabilities if the distribution has no formula."""
    return log_prob.mean() if entropy is None else -entropy.mean()


def record_policy(model: Any) -> None:
    """Record the explained variance, the standard deviation and the number of updates."""
    buffer, record = model.rollout_buffer, model.logger.record
    variance = explained_variance(buffer.values.flatten(), buffer.returns.flatten())
    record("train/explained_variance", variance)
    if hasattr(model.policy, "log_std"):
        record("train/std", torch.exp(model.policy.log_std).mean().item())
    record("train/n_updates", model._n_updates, exclude="tensorboard")
