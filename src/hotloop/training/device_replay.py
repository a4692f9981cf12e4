"""Replay on a device: a launch draws, gathers and learns from K batches as one function.

A launch is a function of tensors alone, run as any update is: eager, compiled, or as a graph of a
GPU. The state, the hyper-parameters and the transitions are bound to it; the random numbers are
drawn before, all at once, and handed in.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

from hotloop.errors import ConfigError
from hotloop.learner import Learner, UpdateRule
from hotloop.learner.execution import Execution
from hotloop.ops.schedules import as_schedule
from hotloop.policies import ObsScale
from hotloop.replay.adapters import describe
from hotloop.replay.device_buffer import DeviceReplay, Drawn
from hotloop.replay.storage.device import Stored, numbers_of, rows_of
from hotloop.replay.storage.device_room import (
    checked_fields,
    free_bytes,
    is_apart,
    needed_bytes,
)
from hotloop.rollouts import Environments
from hotloop.training.replay import Batch
from hotloop.types import Array, Fragment

_RANDOM = "replay_random"
# What 'auto' leaves free on a device, for networks and their work.
_SHARE = 0.8

# How often each update is made with each batch of a launch: a number for each rule, for each of the
# K batches.
Pattern = tuple[tuple[int, ...], ...]


class ReplayOnDevice:
    """The buffer of a run, in tensors where it learns.

    Args:
        config: the run's.
        envs: whose transitions it holds.
        device: where networks are updated.

    Attributes:
        buffer: the transitions.
        by_priority: whether it draws by TD error.
        max_drawn: batches that are drawn in one call.

    Raises:
        ConfigError: the device has no room for it, or what it is to draw can't be drawn there.
    """

    def __init__(self, config: Any, envs: Environments, device: torch.device) -> None:
        weight_from = None
        if config.replay == "proportional":
            weight_from = config.replay_weight_from or "episode_return"
        found = describe(envs)
        self.buffer = DeviceReplay(
            config.buffer_size,
            found.fields,
            device=device,
            sampler=None if _is_plain(config) else config.sampler(),
            seed=config.seed,
            num_envs=found.num_envs,
            n_step=config.n_step,
            gamma=as_schedule(config.gamma)(0.0),
            weight_from=weight_from,
            frame_stacks=found.frame_stacks,
        )
        self.by_priority = config.replay in ("prioritized", "rank")
        self.max_drawn = config.updates_per_launch
        self._is_kept = config.save_replay
        self._batch_size = config.batch_size
        self._num_envs = envs.num_envs
        self._clip_reward = config.clip_reward
        self._scale: dict[str, Tensor] = {}

    def store(self, fragment: Fragment) -> None:
        """Add a fragment's transitions, once the priorities of the last round are written."""
        self.buffer.settle()
        flat = {
            name: getattr(fragment, name).reshape(-1, *getattr(fragment, name).shape[2:])
            for name in ("obs", "action", "reward", "next_obs", "terminated", "truncated")
        }
        if self._clip_reward is not None:  # a copy: the fragment's are what is reported
            flat["reward"] = flat["reward"].clip(-self._clip_reward, self._clip_reward)
        first = fragment.first_env
        for env in fragment.restarted_envs:
            self.cut(first + env)
        env = None
        if fragment.num_envs != self._num_envs:
            env = np.tile(np.arange(first, first + fragment.num_envs), fragment.num_steps)
        valid = fragment.valid.reshape(-1)
        self.buffer.extend(**flat, env=env, valid=None if valid.all() else valid)

    def cut(self, env: int | None = None) -> None:
        """Have what comes next of an environment, or of all, follow on nothing."""
        self.buffer.cut(env)

    def draw_numbers(self, count: int) -> Drawn:
        """Draw what `count` batches are gathered by."""
        return self.buffer.draw(count, self._batch_size)

    def draw(self, count: int, scale: ObsScale | None = None) -> tuple[list[Batch], Any]:
        """Draw `count` batches and gather them, as `Replay.draw` does.

        Returns:
            The batches, and the numbers of their transitions, (count · B,), on the device, or on
            the host where they were drawn there.
        """
        drawn = self.draw_numbers(count)
        number = self.buffer.numbers(drawn)
        batches = [
            self.batch(self.buffer.stored, number[k], _row(drawn.importance, k), self.sent(scale))
            for k in range(count)
        ]
        return batches, (number if drawn.on_host is None else drawn.on_host).reshape(-1)

    def sent(self, scale: ObsScale | None) -> tuple[Tensor, Tensor, Tensor] | None:
        """Return a scale's mean, deviation and bound on the device, always in the same tensors."""
        if scale is None:
            return None
        values = {"mean": scale.mean, "std": scale.std, "clip": np.float32(scale.clip)}
        with self.buffer.uploads as uploads:
            for name, value in values.items():
                array = np.asarray(value)
                if name not in self._scale:
                    there = torch.empty(array.shape, device=self.buffer.device)
                    self._scale[name] = there
                uploads.put(name, self._scale[name], array)
        return self._scale["mean"], self._scale["std"], self._scale["clip"]

    def batch(
        self,
        stored: Stored,
        number: Tensor,
        importance: Tensor | None,
        scale: tuple[Tensor, ...] | None,
    ) -> Batch:
        """Gather a batch: a function of tensors alone.

        Args:
            stored: the transitions.
            number: int64, (B,).
            importance: float32, (B,); None: 1.
            scale: what observations become, `sent` gave it; None: they stay as they are.
        """
        rows = rows_of(stored, number, self.buffer.obs_shape)
        obs, next_obs = rows.obs, rows.next_obs
        if scale is not None:
            mean, std, clip = scale
            obs, next_obs = (
                torch.clamp((x.to(torch.float32) - mean) / std, -clip, clip)
                for x in (obs, next_obs)
            )
        weight = torch.ones_like(rows.reward) if importance is None else importance
        return Batch(obs, rows.action, rows.reward, next_obs, rows.discount, weight)

    def update_priorities(self, index: Any, td_error: Tensor) -> None:
        """Give transitions that were learned from their new priorities, a round later."""
        self.buffer.update_weights(np.asarray(index), td_error)

    def kept(self, index: Any) -> dict[str, Array]:
        """Return those of some transitions that are still there, by field."""
        number = index.cpu().numpy() if isinstance(index, Tensor) else index
        oldest = self.buffer.num_added - len(self.buffer)
        return self.buffer.get(number[number >= oldest])

    def to_arrays(self) -> dict[str, Array]:
        """For a checkpoint that the buffer is kept with."""
        return {_RANDOM: self.buffer.random.get_state().numpy()} if self._is_kept else {}

    def load(self, arrays: Mapping[str, Array]) -> None:
        """The inverse of `to_arrays`; of a run whose replay was elsewhere there is nothing."""
        state = arrays.get(_RANDOM)
        if state is not None and state.shape == tuple(self.buffer.random.get_state().shape):
            self.buffer.random.set_state(torch.from_numpy(state.copy()))


class Launches:
    """Updates that are made as launches.

    K batches make a launch, and what is left of those that are due is made one by one. Which
    delayed updates a launch makes is settled before: each such pattern is a function of its own,
    without a branch. K is a multiple of their periods, so that launches that follow each other have
    one pattern.

    Args:
        learner: makes the updates.
        replay: what they learn from.
        most: K.

    Raises:
        ConfigError: K is no multiple of the period of a delayed update.
    """

    def __init__(self, learner: Learner, replay: ReplayOnDevice, most: int) -> None:
        self._learner, self._replay, self._most = learner, replay, most
        period = math.lcm(*(rule.every for rule, _ in learner.rules))
        if most > 1 and most % period:
            told = ", ".join(f"the {x.name}, every {x.every}" for x, _ in learner.rules)
            raise ConfigError(
                f"`updates_per_launch` must be a multiple of {period}, so that each launch has "
                f"the same updates ({told}), got {most}: take {_near(most, period)}"
            )
        self._bound = (learner.state, learner.hyper.tensors, replay.buffer.stored)
        self._period = period
        by_pattern: dict[Pattern, _Launch] = {}
        self._launches: dict[tuple[int, int], _Launch] = {}  # by what was made before, and K
        for count in sorted({most, 1}, reverse=True):
            for phase in range(period):
                pattern = _pattern(learner, phase, count)
                launch = by_pattern.setdefault(pattern, _Launch(learner, replay, pattern))
                self._launches[phase, count] = launch
        learner.executions = [launch.execution for launch in by_pattern.values()]

    def counts(self, due: int) -> Iterator[int]:
        """Yield how many updates each launch makes of those that are due."""
        while due > 0:
            count = self._most if due >= self._most else 1
            yield count
            due -= count

    def make(self, count: int, scale: ObsScale | None) -> tuple[Any, Tensor | None]:
        """Make one launch, and keep what its updates say.

        Args:
            count: K, as `counts` gave it.
            scale: what observations become; None: they stay as they are.

        Returns:
            The numbers of the transitions, int64, (K, B), on the device or, where they were drawn
            there, on the host; and |TD error|, (K, B), or None.

        Raises:
            ConfigError: an update does not keep the contract, or can't be compiled.
        """
        learner, replay = self._learner, self._replay
        launch = self._launches[learner.num_updates % self._period, count]
        drawn = replay.draw_numbers(count)
        random = (drawn.uniform, drawn.number, drawn.importance)
        noise = tuple(learner.draw(rule) for rule in launch.drawing)
        sent = replay.sent(scale)
        if not all(update.names for _, update in learner.rules):
            self._check(drawn, sent)
        result = list(launch.execution(self._bound, random, noise, sent))
        number = result.pop(0) if drawn.on_host is None else drawn.on_host
        for k, (rule, update) in enumerate(learner.rules):
            if any(times[k] for times in launch.pattern):
                rows = iter(result.pop(0))
                for made, times in enumerate(launch.pattern, learner.num_updates + 1):
                    for _ in range(times[k]):
                        learner.metrics.add(rule.name, update.names, next(rows), made)
        learner.num_updates += count
        return number, result[0] if result else None

    def _check(self, drawn: Drawn, scale: tuple[Tensor, ...] | None) -> None:
        """Hold each update against its contract, with the first batch."""
        replay, learner = self._replay, self._learner
        number = replay.buffer.numbers(drawn)[0]
        batch = replay.batch(replay.buffer.stored, number, _row(drawn.importance, 0), scale)
        for rule, update in learner.rules:
            shape = rule.noise_shape
            noise = None if shape is None else torch.zeros(shape, device=learner.device)
            update.check(batch, noise)


class _Launch:
    """Updates with K batches as one function, and what it is given.

    Args:
        learner: whose updates they are.
        replay: gathers batches.
        pattern: which updates.

    Attributes:
        pattern: the same.
        drawing: for each shape of noise a rule that asks the learner for all of it, (times, …).
        execution: how it runs.
    """

    def __init__(self, learner: Learner, replay: ReplayOnDevice, pattern: Pattern) -> None:
        self.pattern = pattern
        self._rules, self._replay = learner.rules, replay
        totals = [sum(times) for times in zip(*pattern, strict=True)]
        made = [
            (total, rule) for total, (rule, _) in zip(totals, learner.rules, strict=True) if total
        ]
        counts: dict[tuple[int, ...], int] = {}
        for total, rule in made:
            if rule.noise_shape is not None:
                counts[rule.noise_shape] = counts.get(rule.noise_shape, 0) + total
        self._shapes = list(counts)
        self.drawing = [
            UpdateRule(function=self.call, noise_shape=(count, *shape))
            for shape, count in counts.items()
        ]
        told = ", ".join(f"{total} × {rule.name}" for total, rule in made)
        name = f"launch of {len(pattern)} ({told or 'none'})"
        self.execution = Execution(self.call, learner.choose(), name)

    def call(
        self,
        bound: tuple[Any, Any, Stored],
        random: tuple[Tensor | None, Tensor | None, Tensor | None],
        noise: tuple[Tensor, ...],
        scale: tuple[Tensor, ...] | None,
    ) -> tuple[Tensor, ...]:
        """Gather K batches and make the updates that are due with each.

        Args:
            bound: state, hyper-parameters, transitions.
            random: uniform numbers, numbers of transitions, importance weights, as of `Drawn`.
            noise: float32, (times, *shape), for each shape that is asked for.
            scale: what observations become; None: they stay as they are.

        Returns:
            The numbers, int64, (K, B), where they were drawn by uniform numbers; for each update
            that was made its metrics, float32, (times, M); |TD error|, (K, B), where each batch
            has one.
        """
        state, hyper, stored = bound
        uniform, number, importance = random
        given: list[Tensor] = []
        if uniform is not None:
            number = numbers_of(stored.counts, uniform)
            given.append(number)
        assert number is not None
        following = dict(zip(self._shapes, map(iter, noise), strict=True))
        rows: list[list[Tensor]] = [[] for _ in self._rules]
        errors: list[Tensor] = []
        for place, times in enumerate(self.pattern):
            batch = self._replay.batch(stored, number[place], _row(importance, place), scale)
            error = None
            for k, (rule, update) in enumerate(self._rules):
                for _ in range(times[k]):
                    shape = rule.noise_shape
                    one = None if shape is None else next(following[shape])
                    result = update.packed((state, hyper), batch, one)
                    row, more = result if isinstance(result, tuple) else (result, None)
                    rows[k].append(row)
                    error = more if error is None else error
            if error is not None:
                errors.append(error)
        given += [torch.stack(each) for each in rows if each]
        return (*given, torch.stack(errors)) if len(errors) == len(self.pattern) else tuple(given)


def _pattern(learner: Learner, num_updates: int, count: int) -> Pattern:
    """How often each update is made with the batches after so many others."""
    rules = [rule for rule, _ in learner.rules]
    made = range(num_updates + 1, num_updates + count + 1)
    return tuple(
        tuple(0 if number % rule.every else rule.times for rule in rules) for number in made
    )


def is_on_device(config: Any, envs: Environments, device: torch.device) -> bool:
    """Whether the replay of a run lies where networks are updated.

    Raises:
        ConfigError: it is to make launches, and `replay_device` 'auto' has chosen the host.
    """
    chosen = config.replay_device == "device" or (
        config.replay_device == "auto"
        and device.type != "cpu"
        and not config.needs_host_replay
        and _fits(config, envs, device)
    )
    if config.updates_per_launch > 1 and not chosen:
        raise ConfigError(
            "`updates_per_launch` is of a replay on the device, and `replay_device` "
            f"'{config.replay_device}' keeps it on the host: choose 'device', which says what is "
            "in the way, or leave `updates_per_launch` out"
        )
    return chosen


def _fits(config: Any, envs: Environments, device: torch.device) -> bool:
    found, free = describe(envs), free_bytes(device)
    try:
        has_frames = is_apart(checked_fields(found.fields), found.frame_stacks)
    except ConfigError:  # such transitions stay on the host
        return False
    size = needed_bytes(
        config.buffer_size, found.fields, found.num_envs, config.n_step, found.frame_stacks
    )
    is_drawn_there = not has_frames or _is_plain(config)
    return is_drawn_there and (free is None or size <= _SHARE * free)


def _is_plain(config: Any) -> bool:
    """Whether batches are drawn uniformly and with replacement, as a device does by itself."""
    return config.replay == "uniform" and config.replay_replacement is not False


def _row(tensor: Tensor | None, k: int) -> Tensor | None:
    return None if tensor is None else tensor[k]


def _near(number: int, period: int) -> int:
    """The multiple of a period that is nearest to a number, from the period on."""
    return max(1, round(number / period)) * period
