"""The mixin of accelerated off-policy classes: gradient steps on replayed batches, and acting."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import torch
from gymnasium import spaces
from torch import Tensor

from hotloop.accelerate.acceleration import SETTINGS, AcceleratedModel, few_threads
from hotloop.accelerate.flat_parameters import FlatParameters, ModuleContents, ModuleState
from hotloop.accelerate.model_update import ModelUpdate
from hotloop.accelerate.module_calls import TrainingMode, unchanged_generators
from hotloop.accelerate.optimizer_rules import optimizer_settings
from hotloop.accelerate.precision import products_in
from hotloop.accelerate.rollout_shortcuts import FAST_COPIES
from hotloop.accelerate.sampling import sample
from hotloop.learner import Scalar
from hotloop.learner.updates import BoundUpdate

# Steps of an episode, if `train_freq` counts episodes, for the expected number of gradient steps.
_EPISODE_STEPS = 200
_FIELDS = ("actions", "rewards", "dones", "discounts")


class Transitions(NamedTuple):
    """A batch of B transitions.

    Attributes:
        obs, next_obs: tensors (B, …), or dictionaries of them.
        actions: (B, A).
        rewards: float32, (B, 1).
        discounts: γ^n (1 − terminated), float32, (B, 1).
    """

    obs: Any
    next_obs: Any
    actions: Tensor
    rewards: Tensor
    discounts: Tensor


class OffPolicyUpdate(ModelUpdate):
    """The gradient steps of one off-policy model, which are called in `run`.

    Attributes:
        first_batch: the batch of the next step, if it was drawn to try out the update.
        training_mode: sets the mode of the policy's layers.
    """

    first_batch: tuple[Any, ...] | None = None

    def __init__(
        self, model: Any, batch_size: int, networks: list[FlatParameters], state: Any
    ) -> None:
        super().__init__(model, batch_size, networks, state)
        self.training_mode = TrainingMode(model.policy)

    def bind(
        self, function: Callable[..., Any], name: str, num_calls: int, eager_reason: str = ""
    ) -> BoundUpdate:
        """See `ModelUpdate.bind`. The products have the precision of `SETTINGS`."""

        def function_in_precision(*args: Any) -> Any:
            with products_in(SETTINGS.precision):
                return function(*args)

        return super().bind(function_in_precision, name, num_calls, eager_reason)

    def pack(self, samples: Any) -> tuple[Any, ...]:
        """Return the samples of a replay buffer as a tuple of tensors and None."""
        obs, next_obs = samples.observations, samples.next_observations
        if self._obs_keys is None:
            leaves = (obs, next_obs)
        else:
            leaves = tuple(x[key] for x in (obs, next_obs) for key in self._obs_keys)
        # Older versions of Stable-Baselines3 have no discounts.
        return (*(getattr(samples, name, None) for name in _FIELDS), *leaves)

    def unpack(self, batch: tuple[Any, ...], gamma: Tensor) -> Transitions:
        """Return the transitions of `pack`."""
        actions, rewards, dones, discounts, *leaves = batch
        if self._obs_keys is None:
            obs, next_obs = leaves
        else:
            count = len(self._obs_keys)
            obs = dict(zip(self._obs_keys, leaves[:count], strict=True))
            next_obs = dict(zip(self._obs_keys, leaves[count:], strict=True))
        gamma = gamma if discounts is None else discounts
        return Transitions(obs, next_obs, actions, rewards, (1 - dones) * gamma)

    def draw_noise(self, actions: Tensor) -> Tensor | None:
        """Return the random numbers of a step, as the original draws them."""
        return None

    def run(self, model: Any, gradient_steps: int, hyper: Any) -> dict[str, float]:
        """Make gradient steps on batches of the model's replay buffer.

        Args:
            hyper: the current hyper-parameters, a NamedTuple of floats.

        Returns:
            The means of the metrics.
        """
        raise NotImplementedError

    def next_batch(self, model: Any) -> tuple[Any, ...]:
        """Draw a batch from the model's replay buffer."""
        if self.first_batch is not None:
            batch, self.first_batch = self.first_batch, None
            return batch
        return self.pack(sample(model.replay_buffer, self.batch_size, model._vec_normalize_env))

    def optimize(
        self, network: FlatParameters, state: ModuleState, grad: Tensor, learning_rate: Scalar
    ) -> None:
        """Make one step of a network's optimizer in place."""
        assert network.rule is not None
        assert state.steps is not None
        network.rule.step(state.params, grad, state.moments, state.steps, learning_rate, None)


def means(bound: BoundUpdate, rows: list[Tensor]) -> dict[str, float]:
    """Return the means of the metrics of some calls of an update."""
    if not rows:
        return {}
    row = rows[0] if len(rows) == 1 else torch.stack(rows).mean(0)
    return dict(zip(bound.names, row.tolist(), strict=True))


class OffPolicyModel(AcceleratedModel):
    """The mixin of the accelerated off-policy classes."""

    _update_class: type[Any]
    """Its update is `_update_class(model, batch_size)`."""
    # The attribute of the policy with the network that acts.
    _acting_network = "actor"

    def _optimizers(self) -> list[Any]:
        """Return the optimizers whose learning rate follows the schedule."""
        raise NotImplementedError

    def _record(self, means: dict[str, float]) -> None:
        """Log the values that the original logs."""
        raise NotImplementedError

    def train(self, gradient_steps: int, batch_size: int = 100) -> None:
        """Make gradient steps on batches of the replay buffer."""
        update = self._prepared_update(batch_size)
        if update is None:
            super().train(gradient_steps, batch_size)  # pyright: ignore
            return
        update.training_mode.set(True)
        self._update_learning_rate(self._optimizers())
        hyper = self._hyper()
        update.set_hyper(hyper)
        self.acceleration.num_trains += 1
        with few_threads(batch_size, update.num_parameters):
            values = update.run(self, gradient_steps, hyper)
        self.logger.record("train/n_updates", self._n_updates, exclude="tensorboard")
        self._record(values)

    def _prepared_update(self, batch_size: int) -> OffPolicyUpdate | None:
        """Return the update for the current parameters and settings, or None to fall back."""
        settings = [optimizer_settings(x) for x in self._optimizers()]
        return self.current_update(
            (self.policy, *self._optimizers(), settings, batch_size, *self._structure()),
            lambda: self._prepare_update(batch_size),
        )

    def _prepare_update(self, batch_size: int) -> OffPolicyUpdate:
        update = self._update_class(self, batch_size)
        with unchanged_generators():  # for the original's code, if the update can't be tried out
            batch = update.next_batch(self)
            generators = np.random.get_state(), torch.get_rng_state()
            self.policy.set_training_mode(True)
            update.try_out(batch, update.draw_noise(batch[0]))
        # The first step learns from this batch too: a user's own buffer may count its batches.
        update.first_batch = batch
        np.random.set_state(generators[0])
        torch.set_rng_state(generators[1])
        return update

    def _expected_calls(self) -> int:
        steps = self._total_timesteps - max(self.num_timesteps, self.learning_starts)
        frequency, unit = self.train_freq
        transitions = frequency * self.n_envs
        if unit.value == "episode":
            transitions *= _EPISODE_STEPS
        per_train = self.gradient_steps if self.gradient_steps >= 0 else transitions
        return self._n_updates + max(0, steps) * per_train // transitions

    def _prepare_twin(self) -> Any:
        """Return a function of observations, (N, …), to actions, or raise Unsupported."""
        raise NotImplementedError

    def _acting_contents(self) -> ModuleContents:
        network = getattr(self.policy, self._acting_network)
        return ModuleContents([self.policy, *network.modules()])

    def collect_rollouts(self, *args: Any, **kwargs: Any) -> Any:
        """Collect transitions with the original's loop, and shorter copies of each step."""
        part = self.acceleration.parts.get("updates")
        if part is not None and part.value:
            part.value.training_mode.shorten_next_call(self.policy)
        with FAST_COPIES:
            return super().collect_rollouts(*args, **kwargs)  # pyright: ignore

    def _sample_action(
        self, learning_starts: int, action_noise: Any = None, n_envs: int = 1
    ) -> tuple[Any, Any]:
        """Return actions for the environments and for the replay buffer."""
        is_warm_up = self.num_timesteps < learning_starts
        twin = None
        if not is_warm_up:
            part = self.acceleration.parts.get("acting")
            if part is not None and part.value and not part.value[1].is_current():
                self.acceleration.forget("acting")
            twin = self.prepared(
                "acting",
                self.policy,
                lambda: (self._prepare_twin(), self._acting_contents()),
            )
        if twin is None:
            return super()._sample_action(learning_starts, action_noise, n_envs)  # pyright: ignore
        with np.errstate(all="ignore"):  # torch ignores them
            action = twin[0](self._last_obs)
        if not isinstance(self.action_space, spaces.Box):
            return action, action
        if action_noise is not None:
            action = np.clip(action + action_noise(), -1, 1)
        return self.policy.unscale_action(action), action
