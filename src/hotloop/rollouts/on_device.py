"""Rollouts on the device: act and step where the learner's tensors are; nothing goes to the host.

Environments that are functions of tensors are stepped in blocks: a block of steps, acting and
stepping and what they are worth, is one function, which `execute` makes one compiled or captured
graph of. Others are stepped one by one, and acting is such a function.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from hotloop.envs import ActionSpec, ObsSpec
from hotloop.envs.device.checks import check_obs, check_step
from hotloop.envs.device.functional import TensorVectorEnv
from hotloop.envs.device.protocol import DeviceVectorEnv
from hotloop.errors import EnvironmentFailure, NonFiniteError
from hotloop.ops import tensor_noise
from hotloop.policies import PolicySnapshot
from hotloop.policies.device_acting import Bound, DevicePolicy
from hotloop.policies.torch_acting import Execute
from hotloop.rollouts.accounting import Accounting
from hotloop.rollouts.device_rows import DeviceFragment, Rows, Told, row_of, stacked, told_of
from hotloop.rollouts.protocol import CollectionOptions
from hotloop.rollouts.state import RolloutPosition, RolloutState
from hotloop.system.memory import need_memory
from hotloop.timing import span
from hotloop.types import Array, Episode

# Steps of a block at most. What is compiled or captured is written out step by step: eight of
# CartPole take some 25 s to compile, and a call for eight steps of many environments costs nothing.
MOST_BLOCK_STEPS = 8
_ENVS = "envs."  # before the names of the environments' own tensors


@dataclass(frozen=True, kw_only=True)
class DeviceRolloutState(RolloutState):
    """See `RolloutState`.

    Attributes:
        tensors: copies of all that later steps depend on, by name.
        vector_steps: steps of each environment so far.
    """

    tensors: Mapping[str, Tensor] = field(default_factory=dict, repr=False)
    vector_steps: int = 0

    def to_arrays(self) -> dict[str, Array]:
        """For a checkpoint."""
        return {f"rollout.{name}": x.cpu().numpy() for name, x in self.tensors.items()}

    def position(self) -> RolloutPosition:
        """All else, for a checkpoint."""
        return RolloutPosition(
            num_transitions=self.num_transitions, vector_steps=(self.vector_steps,)
        )


class DeviceEnvironments:
    """Environments on a device, for a rollout; see `Environments`.

    Args:
        envs: themselves.
        execute: runs what the rollout does.

    Attributes:
        executions: what `execute` has given.
    """

    def __init__(self, envs: DeviceVectorEnv, execute: Execute) -> None:
        self._envs, self._execute = envs, execute
        self.executions: list[Any] = []

    @property
    def num_envs(self) -> int:
        """N."""
        return self._envs.num_envs

    @property
    def obs_spec(self) -> ObsSpec:
        """Shape, dtype and layout of one observation."""
        return self._envs.obs_spec

    @property
    def action_spec(self) -> ActionSpec:
        """Kind, shape and bounds of one action."""
        return self._envs.action_spec

    @property
    def can_replay(self) -> bool:
        """No action is replayed: a checkpoint holds the environments' state."""
        return False

    def rollout(self, policy: DevicePolicy, plan: CollectionOptions) -> OnDeviceRollout:
        """Begin to collect with them."""
        return OnDeviceRollout(
            self._envs, policy, num_steps=plan.num_steps, seed=plan.seed, execute=self._made
        )

    def _made(self, function: Callable[..., Any], name: str, *, copies_outputs: bool = True) -> Any:
        self.executions.append(self._execute(function, name, copies_outputs=copies_outputs))
        return self.executions[-1]

    def close(self) -> None:
        """Close the environments."""
        self._envs.close()


class OnDeviceRollout:
    """Collects fragments of T steps; see `Rollout`.

    Args:
        envs: the environments.
        policy: acts, on the same device.
        num_steps: T.
        seed: of the environments, and of the noise for acting, which is a function of (seed, step,
            environment).
        execute: runs what is done.

    Attributes:
        num_transitions: so far, over all environments.

    Raises:
        ConfigError: its fragments don't fit into memory.
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
        self._obs: Tensor | None = None  # of environments that keep their state themselves
        device, num_envs = envs.device, envs.num_envs
        if device.type == "cpu":
            obs_bytes = 4 * math.prod(envs.obs_spec.shape)
            need_memory(
                num_steps * num_envs * (2 * obs_bytes + 4 * math.prod(envs.action_spec.shape) + 46),
                f"{num_envs:,} environments × {num_steps:,} steps",
                "use fewer environments, or shorter fragments (`num_steps`)",
            )
        self._clock = torch.zeros((), dtype=torch.int64, device=device)  # steps so far
        self._here = {
            "key": tensor_noise.key_of(seed, device),
            "episode": torch.zeros(num_envs, dtype=torch.int64, device=device),
            "episode_return": torch.zeros(num_envs, dtype=torch.float64, device=device),
            "episode_length": torch.zeros(num_envs, dtype=torch.int64, device=device),
        }
        self._tree: dict[str, Any] = {}
        self._ended: list[tuple[Tensor, ...]] = []
        self._block_steps = max(
            k for k in range(1, min(num_steps, MOST_BLOCK_STEPS) + 1) if num_steps % k == 0
        )
        if isinstance(envs, TensorVectorEnv):
            # Several blocks are copied into one fragment, so their outputs need no other copy.
            is_whole = self._block_steps == num_steps
            self._run_block = execute(self._block, "rollout", copies_outputs=is_whole)
        else:
            self._act = execute(self._acted, "act")
            self._evaluate = execute(self._told, "evaluate")

    # --- see `Rollout` --------------------------------------------------------------------------

    def publish(self, snapshot: PolicySnapshot) -> None:
        """See `Rollout.publish`; the parameters are the learner's own."""
        self._policy.load(snapshot)
        self._version = snapshot.version

    def collect(self) -> list[DeviceFragment]:
        """The next T steps of each environment, which the next call may overwrite.

        Raises:
            EnvironmentFailure: an environment gave NaN or infinity.
            NonFiniteError: the policy's outputs were NaN or infinite.
        """
        if isinstance(self._envs, TensorVectorEnv):
            rows, told, last_obs = self._collect_blocks(self._envs)
        else:
            rows, told, last_obs = self._collect_steps(self._envs)
        self._check_finite(rows, told)
        self._keep_ended(rows, told)
        count = self._num_steps * self._envs.num_envs
        self._vector_steps += self._num_steps
        self.num_transitions += count
        self._num_collected += count
        fragment = DeviceFragment(
            obs=rows.obs,
            action=rows.action,
            reward=rows.reward,
            terminated=rows.terminated,
            truncated=rows.truncated,
            next_obs=rows.next_obs,
            value=rows.value,
            next_value=told.next_value,
            log_prob=rows.log_prob,
            last_obs=last_obs,
            policy_version=self._version,
        )
        return [fragment]

    def pop_episodes(self) -> list[Episode]:
        """See `Rollout.pop_episodes`; they come from the device here."""
        episodes: list[Episode] = []
        for tensors in self._ended:
            columns = (x.tolist() for x in tensors)
            episodes += [Episode(*numbers) for numbers in zip(*columns, strict=True)]
        self._ended.clear()
        return episodes

    def state(self) -> DeviceRolloutState:
        """See `Rollout.state`."""
        if not self._vector_steps:
            return DeviceRolloutState()
        kept = {name: x.clone() for name, x in {**self._here, "clock": self._clock}.items()}
        if not isinstance(self._envs, TensorVectorEnv):
            state = self._envs.state()
            assert self._obs is not None
            if state is not None:
                kept |= {f"{_ENVS}{name}": x for name, x in state.items()}
                kept["obs"] = self._obs.clone()
        return DeviceRolloutState(
            num_transitions=self.num_transitions, vector_steps=self._vector_steps, tensors=kept
        )

    def restore(self, arrays: Mapping[str, Array], position: RolloutPosition) -> list[int]:
        """See `Rollout.restore`."""
        self.num_transitions = position.num_transitions
        if not position.vector_steps:
            return []
        (self._vector_steps,) = position.vector_steps
        prefix, device = "rollout.", self._envs.device
        kept = {
            name[len(prefix) :]: torch.from_numpy(x).to(device).clone()
            for name, x in arrays.items()
            if name.startswith(prefix)
        }
        self._clock = kept.pop("clock")
        if isinstance(self._envs, TensorVectorEnv):
            self._here = kept
            return []
        own = {name: kept.pop(name) for name in list(kept) if name.startswith(_ENVS)}
        self._obs = kept.pop("obs", None)
        self._here = kept
        if self._obs is not None:
            self._envs.load({name[len(_ENVS) :]: x for name, x in own.items()})
            return []
        # They began episodes that nobody has seen the start of; what was summed is of lost ones.
        self._obs = self._envs.reset(self._seed + self._vector_steps)
        self._here["episode_return"].zero_()
        self._here["episode_length"].zero_()
        self._here["episode"].add_(1)
        return list(range(self._envs.num_envs))

    def updates_allowed(self) -> None:
        """No bound: what is collected is learned from at once."""

    def watch(self) -> None:
        """See `Rollout.watch`: there is nothing that could stand still while this is called."""

    def accounting(self, *, with_workers: bool = True) -> Accounting:
        """See `Rollout.accounting`."""
        return Accounting(collected=self._num_collected, trained=self._num_collected)

    def close(self) -> None:
        """Close the environments."""
        self._envs.close()

    # --- environments that are functions of tensors ---------------------------------------------

    def _collect_blocks(self, envs: TensorVectorEnv) -> tuple[Rows, Told, Tensor]:
        """Return T rows, what is told of them, and what is to be acted on next."""
        here = self._here
        if "obs" not in here:
            state, obs = envs.begun(envs.drawn(here["key"], self._clock, 1)[0])
            # Clones: what is observed may be the state itself, and both change in place.
            here |= {f"{_ENVS}{name}": x.clone() for name, x in state.items()}
            here["obs"] = obs.clone()
        if not self._tree:  # one and the same in all calls: what is captured is of its tensors
            self._tree = {"bound": self._policy.bound, "here": here}
        whole: list[Tensor] = []
        for start in range(0, self._num_steps, self._block_steps):
            with span("block"):
                block = self._run_block(self._tree, self._clock)
                self._clock.add_(self._block_steps)
                if self._block_steps == self._num_steps:
                    whole = list(block)
                    break
                if not whole:
                    whole = [x.new_empty((self._num_steps, *x.shape[1:])) for x in block]
                for to, part in zip(whole, block, strict=True):
                    to[start : start + self._block_steps].copy_(part)
        count = len(Rows._fields)
        return Rows(*whole[:count]), Told(*whole[count:]), here["obs"]

    def _block(self, tree: dict[str, Any], clock: Tensor) -> tuple[Tensor, ...]:
        """Take some steps: return the tensors of `Rows` and of `Told`.

        Args:
            tree: what to act by, and where everything stands, which changes in place.
            clock: int64, 0-d, steps before these.
        """
        envs, count = self._envs, self._block_steps
        assert isinstance(envs, TensorVectorEnv)
        bound, here = tree["bound"], tree["here"]
        key, obs = here["key"], here["obs"]
        noise = self._policy.nets.draw_noise(key, clock, num_steps=count, num_envs=envs.num_envs)
        uniform = envs.drawn(key, clock + 1, count)
        state = {name[len(_ENVS) :]: x for name, x in here.items() if name.startswith(_ENVS)}
        steps: list[Rows] = []
        for t in range(count):
            acted = self._policy.draw(bound, obs, noise[t])
            state, step = envs.advanced(state, acted[0], uniform[t])
            steps.append(row_of(obs, acted, step))
            obs = step.obs
        rows = stacked(steps)
        told = self._told(tree, *rows)
        for name, x in state.items():
            here[f"{_ENVS}{name}"].copy_(x)
        here["obs"].copy_(obs)
        return *rows, *told

    # --- environments that keep their state themselves ------------------------------------------

    def _collect_steps(self, envs: DeviceVectorEnv) -> tuple[Rows, Told, Tensor]:
        """Return T rows, what is told of them, and what is to be acted on next."""
        here = self._here
        if not self._tree:
            self._tree = {"bound": self._policy.bound, "here": here}
        if self._obs is None:
            self._obs = envs.reset(self._seed)
            check_obs(self._obs, envs)
        with span("draw_noise"):
            noise = self._policy.nets.draw_noise(
                here["key"], self._clock, num_steps=self._num_steps, num_envs=envs.num_envs
            )
        obs = self._obs
        steps: list[Rows] = []
        for t in range(self._num_steps):
            with span("act"):
                acted = self._act(self._policy.bound, obs, noise[t])
            with span("env_step"):
                step = envs.step(acted[0])
            if not self._vector_steps and not t:
                check_step(step, envs)
            steps.append(row_of(obs, acted, step))
            obs = step.obs
        rows = stacked(steps)
        with span("evaluate"):
            told = self._evaluate(self._tree, *rows)
        self._clock.add_(self._num_steps)
        self._obs = obs
        return rows, Told(*told), obs

    def _acted(self, bound: Bound, obs: Tensor, noise: Tensor) -> tuple[Tensor, ...]:
        return self._policy.draw(bound, obs, noise)

    # --- both -----------------------------------------------------------------------------------

    def _told(self, tree: dict[str, Any], *rows: Tensor) -> tuple[Tensor, ...]:
        """Value the successors of T rows, and count their episodes: return the tensors of `Told`.

        V of all successors, since which were truncated is not looked at. It costs one forward in
        thirty and more of an iteration's passes.
        """
        given = Rows(*rows)
        next_value = self._policy.value(tree["bound"], given.next_obs)
        return tuple(told_of(tree["here"], given, next_value))

    def _check_finite(self, rows: Rows, told: Told) -> None:
        """Look for NaN and infinity: the one time that a fragment is waited for.

        Raises:
            NonFiniteError: the policy made them.
            EnvironmentFailure: an environment did.
        """
        observed = rows.next_obs.flatten(2).isfinite().all(-1) & rows.reward.isfinite()
        acted = rows.value.isfinite() & rows.log_prob.isfinite()
        whole = observed & acted & told.next_value.isfinite()
        if whole.all():
            return
        t, env = (~whole).nonzero()[0].tolist()
        step = self._vector_steps + t
        # What the policy gave NaN to may give NaN back, and the other way round.
        if acted[t, env] and not observed[t, env]:
            raise EnvironmentFailure(
                f"environment {env} gave NaN or infinity at step {step} (reward "
                f"{rows.reward[t, env].item():g}, observation {rows.next_obs[t, env].tolist()}): "
                "look for a division by zero or a state that grows without bound"
            )
        raise NonFiniteError(
            f"the policy's outputs must be finite, but at step {step} they were not: lower the "
            "learning rate, and check the scale of the rewards"
        )

    def _keep_ended(self, rows: Rows, told: Told) -> None:
        """Keep what is told of the episodes that ended, on the device."""
        index = (rows.terminated | rows.truncated).nonzero()
        t, env = index.unbind(1)
        columns = (told.episode, told.episode_return, told.episode_length)
        self._ended.append((env, *(x[t, env] for x in columns)))
