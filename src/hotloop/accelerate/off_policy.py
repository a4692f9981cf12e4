"""The mixin of accelerated off-policy classes: gradient steps on replayed batches, and acting."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import torch
from gymnasium import spaces
from torch import Tensor

from hotloop.accelerate.acceleration import (
    SETTINGS,
    AcceleratedModel,
    Acceleration,
    compile_if_worthwhile,
    few_threads,
    hyper_tensors,
    set_hyper,
)
from hotloop.accelerate.flat_parameters import FlatParameters, ModuleContents, ModuleState
from hotloop.accelerate.module_calls import TrainingMode, try_out, unchanged_generators
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


class OffPolicyUpdate:
    """The gradient steps of one model.

    A class binds its functions in `__init__` and calls them in `run`.

    Args:
        model: the model.
        batch_size: rows of a batch.
        networks: its modules as flat parameters, with and without optimizers.
        hyper: the hyper-parameters, a NamedTuple of floats with `gamma`.
        state: the tensors that the functions change.

    Attributes:
        hyper: the hyper-parameters as 0-d tensors.
        learn_id: identifies the call of `learn` for which the execution was chosen.
        first_batch: the batch of the next step, if it was drawn to try out the update.
        training_mode: sets the mode of the policy's layers.
    """

    def __init__(
        self, model: Any, batch_size: int, networks: list[FlatParameters], hyper: Any, state: Any
    ) -> None:
        self.batch_size = batch_size
        self.networks = networks
        self.hyper = hyper_tensors(hyper)
        self.learn_id = model.start_time
        self.first_batch: tuple[Any, ...] | None = None
        self.training_mode = TrainingMode(model.policy)
        self._state = state
        self._hyper_values = tuple(hyper)
        self._bound: list[BoundUpdate] = []
        space = model.observation_space
        self._obs_keys = tuple(space.spaces) if isinstance(space, spaces.Dict) else None

    @property
    def num_parameters(self) -> int:
        """Return P, the number of learned parameters."""
        return sum(len(x.state.params) for x in self.networks if x.rule is not None)

    def bind(
        self, acceleration: Acceleration, function: Callable[..., Any], name: str, num_calls: int
    ) -> BoundUpdate:
        """Return an executed function of the state, see `Acceleration.bind`."""

        def function_in_precision(*args: Any) -> Any:
            with products_in(SETTINGS.precision):
                return function(*args)

        bound = acceleration.bind(
            function_in_precision,
            self._state,
            self.hyper,
            name=name,
            num_calls=num_calls,
            batch_size=self.batch_size,
            num_parameters=self.num_parameters,
        )
        self._bound.append(bound)
        return bound

    def try_out(self, batch: tuple[Any, ...], noise: Tensor | None) -> None:
        """Make the steps on copies, see `module_calls.try_out`."""
        try_out(self._bound, self.networks, batch, noise)

    def is_current(self) -> bool:
        """Return whether the modules still have the same parameters, as objects."""
        return all(x.is_current() for x in self.networks)

    def refresh(self, hyper: Any) -> None:
        """Take over replaced parameters and the current hyper-parameters.

        Raises:
            Unsupported: see `FlatParameters.refresh`.
        """
        for network in self.networks:
            network.refresh()
        self.set_hyper(hyper)

    def set_hyper(self, hyper: Any) -> None:
        """Write the current hyper-parameters if they have changed."""
        if tuple(hyper) != self._hyper_values:
            self._hyper_values = tuple(hyper)
            set_hyper(self.hyper, hyper)

    def choose_again(self, num_calls: int) -> None:
        """Choose the execution for the expected number of gradient steps, if it is eager."""
        for bound in self._bound:
            compile_if_worthwhile(bound, num_calls, self.batch_size, self.num_parameters)

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

    # The attribute of the policy with the network that acts.
    _acting_network = "actor"

    def _hyper(self) -> Any:
        """Return the current hyper-parameters, a NamedTuple of floats."""
        raise NotImplementedError

    def _structure(self) -> tuple[Any, ...]:
        """Return the objects and settings that the update was made for."""
        raise NotImplementedError

    def _optimizers(self) -> list[Any]:
        """Return the optimizers whose learning rate follows the schedule."""
        raise NotImplementedError

    def _make_update(self, batch_size: int, num_calls: int) -> OffPolicyUpdate:
        """Return the update."""
        raise NotImplementedError

    def _record(self, means: dict[str, float]) -> None:
        """Log the values that the original logs."""
        raise NotImplementedError

    def train(self, gradient_steps: int, batch_size: int = 100) -> None:
        """Make gradient steps on batches of the replay buffer."""
        model: Any = self
        update = self._prepared_update(batch_size)
        if update is None:
            super().train(gradient_steps, batch_size)  # pyright: ignore
            return
        update.training_mode.set(True)
        model._update_learning_rate(self._optimizers())
        hyper = self._hyper()
        update.set_hyper(hyper)
        self.acceleration.num_trains += 1
        with few_threads(batch_size, update.num_parameters):
            values = update.run(model, gradient_steps, hyper)
        model.logger.record("train/n_updates", model._n_updates, exclude="tensorboard")
        self._record(values)

    def _prepared_update(self, batch_size: int) -> OffPolicyUpdate | None:
        """Return the update for the current parameters and settings, or None to fall back."""
        model: Any = self
        settings = [optimizer_settings(x) for x in self._optimizers()]
        return self.current_update(
            (model.policy, *self._optimizers(), settings, batch_size, *self._structure()),
            lambda: self._prepare_update(batch_size),
            hyper=self._hyper,
            num_calls=self._expected_calls,
        )

    def _prepare_update(self, batch_size: int) -> OffPolicyUpdate:
        model: Any = self
        update = self._make_update(batch_size, self._expected_calls())
        with unchanged_generators():  # for the original's code, if the update can't be tried out
            batch = update.next_batch(model)
            generators = np.random.get_state(), torch.get_rng_state()
            model.policy.set_training_mode(True)
            update.try_out(batch, update.draw_noise(batch[0]))
        # The first step learns from this batch too: a user's own buffer may count its batches.
        update.first_batch = batch
        np.random.set_state(generators[0])
        torch.set_rng_state(generators[1])
        return update

    def _expected_calls(self) -> int:
        """Return the number of gradient steps, done and expected in this call of `learn`."""
        model: Any = self
        steps = model._total_timesteps - max(model.num_timesteps, model.learning_starts)
        frequency, unit = model.train_freq
        transitions = frequency * model.n_envs
        if unit.value == "episode":
            transitions *= _EPISODE_STEPS
        per_train = model.gradient_steps if model.gradient_steps >= 0 else transitions
        return model._n_updates + max(0, steps) * per_train // transitions

    def _prepare_twin(self) -> Any:
        """Return a function of observations, (N, …), to actions, or raise Unsupported."""
        raise NotImplementedError

    def _acting_contents(self) -> ModuleContents:
        model: Any = self
        network = getattr(model.policy, self._acting_network)
        return ModuleContents([model.policy, *network.modules()])

    def collect_rollouts(self, *args: Any, **kwargs: Any) -> Any:
        """Collect transitions with the original's loop, and shorter copies of each step."""
        model: Any = self
        part = self.acceleration.parts.get("updates")
        if part is not None and part.value:
            part.value.training_mode.shorten_next_call(model.policy)
        with FAST_COPIES:
            return super().collect_rollouts(*args, **kwargs)  # pyright: ignore

    def _sample_action(
        self, learning_starts: int, action_noise: Any = None, n_envs: int = 1
    ) -> tuple[Any, Any]:
        """Return actions for the environments and for the replay buffer."""
        model: Any = self
        is_warm_up = model.num_timesteps < learning_starts
        twin = None
        if not is_warm_up:
            part = self.acceleration.parts.get("acting")
            if part is not None and part.value and not part.value[1].is_current():
                self.acceleration.forget("acting")
            twin = self.prepared(
                "acting",
                model.policy,
                lambda: (self._prepare_twin(), self._acting_contents()),
            )
        if twin is None:
            return super()._sample_action(learning_starts, action_noise, n_envs)  # pyright: ignore
        with np.errstate(all="ignore"):  # torch ignores them
            action = twin[0](model._last_obs)
        if not isinstance(model.action_space, spaces.Box):
            return action, action
        if action_noise is not None:
            action = np.clip(action + action_noise(), -1, 1)
        return model.policy.unscale_action(action), action
