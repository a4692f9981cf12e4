"""Rollouts on the learner's device, without transfers to the host.

Environments that are functions of tensors are stepped in blocks. One function acts, steps and
evaluates a whole block. `execute` compiles it or captures it as a graph. For other environments,
which take single steps, only acting and evaluation are such functions.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from hotloop.base.memory import require_memory
from hotloop.base.transfer import to_device, to_host
from hotloop.envs.device.checks import check_obs, check_step
from hotloop.envs.device.functional import TensorVectorEnv
from hotloop.envs.device.protocol import DeviceVectorEnv
from hotloop.errors import EnvironmentFailure, NonFiniteError
from hotloop.ops.noise import device_seed
from hotloop.policies import PolicySnapshot
from hotloop.policies.device_acting import DevicePolicy
from hotloop.policies.torch_acting import Execute
from hotloop.rollouts.accounting import Accounting
from hotloop.rollouts.device_rows import (
    DerivedRows,
    DeviceRows,
    derive_rows,
    stack_rows,
)
from hotloop.rollouts.env_calls import EnvCall
from hotloop.rollouts.protocol import CollectionOptions
from hotloop.rollouts.state import RolloutPosition, RolloutState
from hotloop.timing import span
from hotloop.types import Array, Episode, Fragment

# Maximum number of steps in a block. Compiled or captured code is unrolled: eight steps of CartPole
# take about 25 s to compile. A call for eight steps of many environments has no relevant overhead.
MAX_BLOCK_STEPS = 8
_PREFIX = "envs."  # prefix of the names of the environments' tensors


@dataclass(frozen=True, kw_only=True)
class DeviceRolloutState(RolloutState):
    """See `RolloutState`.

    Attributes:
        tensors: Copies of the complete state, by name.
        vector_steps: Steps of each environment so far.
    """

    tensors: Mapping[str, Tensor] = field(default_factory=dict, repr=False)
    vector_steps: int = 0

    def to_arrays(self) -> dict[str, Array]:
        """Return the state as arrays for a checkpoint, by name."""
        return {f"rollout.{name}": to_host(x) for name, x in self.tensors.items()}

    def position(self) -> RolloutPosition:
        """Return the counters for a checkpoint, everything that `to_arrays` does not contain."""
        return RolloutPosition(
            num_transitions=self.num_transitions, vector_steps=(self.vector_steps,)
        )


class DeviceEnvironments:
    """Environments on a device; see `Environments`.

    Args:
        envs: Vector environment.
        execute: Returns the execution of a function, such as a compiled one.

    Attributes:
        executions: All results of `execute`.
    """

    # A checkpoint contains the environments' state, so no actions are replayed.
    can_replay = False

    def __init__(self, envs: DeviceVectorEnv, execute: Execute) -> None:
        self._envs, self._execute = envs, execute
        self.num_envs = envs.num_envs
        self.obs_spec, self.action_spec = envs.obs_spec, envs.action_spec
        self.executions: list[Any] = []

    def rollout(self, policy: DevicePolicy, options: CollectionOptions) -> OnDeviceRollout:
        """Return a rollout that collects with these environments."""
        return OnDeviceRollout(
            self._envs, policy, num_steps=options.num_steps, seed=options.seed, execute=self._add
        )

    def _add(self, function: Callable[..., Any], name: str, *, copies_outputs: bool = True) -> Any:
        self.executions.append(self._execute(function, name, copies_outputs=copies_outputs))
        return self.executions[-1]

    def close(self) -> None:
        """Close the environments."""
        self._envs.close()


class OnDeviceRollout:
    """Collects fragments of T steps; see `Rollout`.

    Args:
        envs: Vector environment.
        policy: Acting policy on the same device.
        num_steps: T.
        seed: Seed of the environments and of the action noise, which is a function of (seed, step,
            environment).
        execute: Returns the execution of a function, such as a compiled one.

    Attributes:
        num_transitions: Transitions so far, over all environments.

    Raises:
        ConfigError: The fragments do not fit into memory.
    """

    def __init__(
        self,
        envs: DeviceVectorEnv,
        policy: DevicePolicy,
        *,
        num_steps: int,
        seed: int,
        execute: Execute,
    ) -> None:
        self._envs, self._policy = envs, policy
        self._num_steps, self._seed = num_steps, seed
        self.num_transitions = self._vector_steps = self._num_collected = 0
        self._version = policy.host.version
        self._obs: Tensor | None = None  # only for environments with internal state
        device, num_envs = envs.device, envs.num_envs
        if device.type == "cpu":
            obs_bytes = 4 * math.prod(envs.obs_spec.shape)
            require_memory(
                num_steps * num_envs * (2 * obs_bytes + 4 * math.prod(envs.action_spec.shape) + 46),
                f"{num_envs:,} environments × {num_steps:,} steps",
                "use fewer environments, or shorter fragments (`num_steps`)",
            )
        self._clock = torch.zeros((), dtype=torch.int64, device=device)  # steps so far
        # State that changes in place with each step, and that checkpoints contain.
        self._state = {
            "key": device_seed(seed, device),
            "episode": torch.zeros(num_envs, dtype=torch.int64, device=device),
            "episode_return": torch.zeros(num_envs, dtype=torch.float64, device=device),
            "episode_length": torch.zeros(num_envs, dtype=torch.int64, device=device),
        }
        self._inputs: dict[str, Any] = {}
        self._finished_episodes: list[tuple[Tensor, ...]] = []
        self._block_steps = max(
            k for k in range(1, min(num_steps, MAX_BLOCK_STEPS) + 1) if num_steps % k == 0
        )
        if isinstance(envs, TensorVectorEnv):
            # Several blocks are copied into one fragment, so their outputs need no other copy.
            is_single = self._block_steps == num_steps
            self._run_block = execute(self._block, "rollout", copies_outputs=is_single)
        else:
            self._act = execute(policy.draw, "act")
            self._evaluate = execute(self._derive_rows, "evaluate")

    # --- see `Rollout` --------------------------------------------------------------------------

    last_failure = ""  # a failure raises an error instead
    group_sizes: Sequence[int] = ()

    def publish(self, snapshot: PolicySnapshot) -> None:
        """See `Rollout.publish`. The policy reads the learner's parameters."""
        self._policy.load(snapshot)
        self._version = snapshot.version

    def collect(self) -> list[Fragment]:
        """Return the next T steps of each environment. The next call may overwrite them.

        Raises:
            EnvironmentFailure: An environment returned NaN or infinity.
            NonFiniteError: The policy's outputs were NaN or infinite.
        """
        if isinstance(self._envs, TensorVectorEnv):
            rows, derived, last_obs = self._collect_blocks(self._envs)
        else:
            rows, derived, last_obs = self._collect_steps(self._envs)
        self._check_finite(rows, derived)
        self._store_episodes(rows, derived)
        count = self._num_steps * self._envs.num_envs
        self._vector_steps += self._num_steps
        self.num_transitions += count
        self._num_collected += count
        no_masks = rows.terminated.new_empty((*rows.terminated.shape, 0))
        no_memory = rows.reward.new_empty(no_masks.shape)
        fields: dict[str, Any] = {
            **rows._asdict(),
            "next_value": derived.next_value,
            "last_obs": last_obs,
            "valid": torch.ones_like(rows.terminated),
            "mask": no_masks,
            "next_mask": no_masks,
            "last_mask": no_masks[-1],
            "memory": no_memory,
            "last_memory": no_memory[-1],
        }
        return [Fragment(**fields, policy_version=self._version)]

    def pop_episodes(self) -> list[Episode]:
        """See `Rollout.pop_episodes`. This call transfers them from the device."""
        episodes: list[Episode] = []
        for tensors in self._finished_episodes:
            columns = (x.tolist() for x in tensors)
            episodes += [Episode(*numbers) for numbers in zip(*columns, strict=True)]
        self._finished_episodes.clear()
        return episodes

    def state(self) -> DeviceRolloutState:
        """See `Rollout.state`."""
        if not self._vector_steps:
            return DeviceRolloutState()
        tensors = {name: x.clone() for name, x in {**self._state, "clock": self._clock}.items()}
        if not isinstance(self._envs, TensorVectorEnv):
            env_state = self._envs.state()
            assert self._obs is not None
            if env_state is not None:
                tensors |= {f"{_PREFIX}{name}": x for name, x in env_state.items()}
                tensors["obs"] = self._obs.clone()
        return DeviceRolloutState(
            num_transitions=self.num_transitions, vector_steps=self._vector_steps, tensors=tensors
        )

    def restore(self, arrays: Mapping[str, Array], position: RolloutPosition) -> list[int]:
        """See `Rollout.restore`."""
        self.num_transitions = position.num_transitions
        if not position.vector_steps:
            return []
        (self._vector_steps,) = position.vector_steps
        prefix, device = "rollout.", self._envs.device
        tensors = {
            name[len(prefix) :]: to_device(x, device).clone()
            for name, x in arrays.items()
            if name.startswith(prefix)
        }
        self._clock = tensors.pop("clock")
        if isinstance(self._envs, TensorVectorEnv):
            self._state = tensors
            return []
        env_state = {name: tensors.pop(name) for name in list(tensors) if name.startswith(_PREFIX)}
        self._obs = tensors.pop("obs", None)
        self._state = tensors
        if self._obs is not None:
            self._envs.load({name[len(_PREFIX) :]: x for name, x in env_state.items()})
            return []
        # The environments have no saved state. Begin new episodes, and drop the interrupted ones.
        self._obs = self._envs.reset(self._seed + self._vector_steps)
        self._state["episode_return"].zero_()
        self._state["episode_length"].zero_()
        self._state["episode"].add_(1)
        return list(range(self._envs.num_envs))

    def call_groups(self, calls: Sequence[EnvCall]) -> list[Any]:
        """Return no results, as there are no single environments."""
        return []

    def updates_allowed(self) -> None:
        """Return None: experience is never too old, as the learner uses it at once."""

    def watch(self) -> None:
        """Do nothing: there are no other processes; see `Rollout.watch`."""

    def accounting(self, *, with_workers: bool = True) -> Accounting:
        """See `Rollout.accounting`."""
        return Accounting(collected=self._num_collected, trained=self._num_collected)

    def close(self) -> None:
        """Close the environments."""
        self._envs.close()

    # --- environments that are functions of tensors ---------------------------------------------

    def _collect_blocks(self, envs: TensorVectorEnv) -> tuple[DeviceRows, DerivedRows, Tensor]:
        """Return T rows, the derived rows, and the next observations to act on."""
        state = self._state
        if "obs" not in state:
            env_state, obs = envs.begin(envs.draw_uniform(state["key"], self._clock, 1)[0])
            # Cloned, because the observation may be the state, and both change in place.
            state |= {f"{_PREFIX}{name}": x.clone() for name, x in env_state.items()}
            state["obs"] = obs.clone()
        if not self._inputs:  # keep these tensors, since a captured graph refers to them
            self._inputs = {"policy": self._policy.tensors, "state": state}
        outputs: list[Tensor] = []
        for start in range(0, self._num_steps, self._block_steps):
            with span("block"):
                block = self._run_block(self._inputs, self._clock)
                self._clock.add_(self._block_steps)
                if self._block_steps == self._num_steps:
                    outputs = list(block)
                    break
                if not outputs:
                    outputs = [x.new_empty((self._num_steps, *x.shape[1:])) for x in block]
                for output, block_output in zip(outputs, block, strict=True):
                    output[start : start + self._block_steps].copy_(block_output)
        count = len(DeviceRows._fields)
        return DeviceRows(*outputs[:count]), DerivedRows(*outputs[count:]), state["obs"]

    def _block(self, inputs: dict[str, Any], clock: Tensor) -> tuple[Tensor, ...]:
        """Take a block's steps, and return the tensors of `DeviceRows` and `DerivedRows`."""
        # `clock` is the number of steps before, int64, 0-d. The state in `inputs` changes in place.
        envs, count = self._envs, self._block_steps
        assert isinstance(envs, TensorVectorEnv)
        policy_tensors, state = inputs["policy"], inputs["state"]
        key, obs = state["key"], state["obs"]
        noise = self._policy.host.draw_noise(
            key, first_step=clock, num_steps=count, num_envs=envs.num_envs
        )
        uniform = envs.draw_uniform(key, clock + 1, count)
        env_state = {
            name[len(_PREFIX) :]: x for name, x in state.items() if name.startswith(_PREFIX)
        }
        steps: list[Any] = []
        for t in range(count):
            outputs = self._policy.draw(policy_tensors, obs, noise[t])
            env_state, step = envs.advance(env_state, outputs[0], uniform[t])
            steps.append((obs, outputs, step))
            obs = step.obs
        rows = stack_rows(steps)
        derived = self._derive_rows(inputs, *rows)
        for name, x in env_state.items():
            state[f"{_PREFIX}{name}"].copy_(x)
        state["obs"].copy_(obs)
        return *rows, *derived

    # --- environments with internal state -------------------------------------------------------

    def _collect_steps(self, envs: DeviceVectorEnv) -> tuple[DeviceRows, DerivedRows, Tensor]:
        """Return T rows, the derived rows, and the next observations to act on."""
        state = self._state
        if not self._inputs:
            self._inputs = {"policy": self._policy.tensors, "state": state}
        if self._obs is None:
            self._obs = envs.reset(self._seed)
            check_obs(self._obs, envs)
        with span("draw_noise"):
            noise = self._policy.host.draw_noise(
                state["key"],
                first_step=self._clock,
                num_steps=self._num_steps,
                num_envs=envs.num_envs,
            )
        obs = self._obs
        steps: list[Any] = []
        for t in range(self._num_steps):
            with span("act"):
                outputs = self._act(self._policy.tensors, obs, noise[t])
            with span("env_step"):
                step = envs.step(outputs[0])
            if not self._vector_steps and not t:
                check_step(step, envs)
            steps.append((obs, outputs, step))
            obs = step.obs
        rows = stack_rows(steps)
        with span("evaluate"):
            derived = self._evaluate(self._inputs, *rows)
        self._clock.add_(self._num_steps)
        self._obs = obs
        return rows, DerivedRows(*derived), obs

    # --- both -----------------------------------------------------------------------------------

    def _derive_rows(self, inputs: dict[str, Any], *row_tensors: Tensor) -> tuple[Tensor, ...]:
        """Evaluate the successors of T rows, count episodes, and return the `DerivedRows`."""
        # V of all successors is computed without checking which steps were truncated. This costs
        # one of the 30 or more forward passes of an iteration.
        rows = DeviceRows(*row_tensors)
        next_value = self._policy.value(inputs["policy"], rows.next_obs)
        return tuple(derive_rows(inputs["state"], rows, next_value))

    def _check_finite(self, rows: DeviceRows, derived: DerivedRows) -> None:
        """Raise NonFiniteError for NaN and infinity of the policy, or EnvironmentFailure."""
        # This is the only synchronization with the device per fragment.
        is_env_finite = rows.next_obs.flatten(2).isfinite().all(-1) & rows.reward.isfinite()
        is_policy_finite = rows.value.isfinite() & rows.log_prob.isfinite()
        is_finite = is_env_finite & is_policy_finite & derived.next_value.isfinite()
        if is_finite.all():
            return
        t, env = (~is_finite).nonzero()[0].tolist()
        step = self._vector_steps + t
        # NaN spreads from the policy to the environment and back, so check both in the first row.
        if is_policy_finite[t, env] and not is_env_finite[t, env]:
            raise EnvironmentFailure(
                f"environment {env} returned NaN or infinity at step {step} (reward "
                f"{rows.reward[t, env].item():g}, observation {rows.next_obs[t, env].tolist()}): "
                "look for a division by zero or a state that grows without bound"
            )
        raise NonFiniteError(
            f"the policy's outputs must be finite, but at step {step} they were not: lower the "
            "learning rate, and check the scale of the rewards"
        )

    def _store_episodes(self, rows: DeviceRows, derived: DerivedRows) -> None:
        index = (rows.terminated | rows.truncated).nonzero()
        t, env = index.unbind(1)
        columns = (derived.episode, derived.episode_return, derived.episode_length)
        self._finished_episodes.append((env, *(x[t, env] for x in columns)))
