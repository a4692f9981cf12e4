"""Replay on a device: a launch stores, draws, gathers and learns from K batches as one function.

A launch is a function of tensors alone, run as any update is: eager, compiled, or as a graph of a
GPU. Everything it reads and writes has a fixed address: the state, the hyper-parameters, the
transitions, the noise and the log of what the updates returned. What changes from launch to launch
comes in one copy from pinned memory, the inbox: new transitions, and where in the tables the
launch finds its random numbers and leaves its results.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from hotloop.errors import ConfigError
from hotloop.learner import Learner
from hotloop.learner.execution import Execution
from hotloop.ops.schedules import as_schedule
from hotloop.policies import ObsScale
from hotloop.replay.adapters import describe
from hotloop.replay.device_buffer import DeviceReplay
from hotloop.replay.storage.device import Make, Stored, gathered, numbers_drawn, store_new
from hotloop.replay.storage.device_room import (
    checked_fields,
    free_bytes,
    is_apart,
    needed_bytes,
)
from hotloop.rollouts import Environments
from hotloop.training.replay import Batch
from hotloop.types import Array, Fragment

# What 'auto' leaves free on a device, for networks and their work.
_SHARE = 0.8
# Transitions of one copy to the device: a copy of a static size must not become long.
_MIN_NEW, _MAX_NEW = 16, 1024
# Updates whose results stay on the device until they are read, unless one launch makes more.
_LOGGED = 1_000

# How often each update is made with each batch of a launch: a number for each rule, for each of the
# K batches.
Pattern = tuple[tuple[int, ...], ...]


class ReplayOnDevice:
    """The replay buffer of a run, in tensors where it learns.

    Args:
        config: the run's configuration.
        envs: the environments whose transitions it holds.
        device: where networks are updated.

    Attributes:
        buffer: the transitions.
        by_priority: whether it draws by TD error.
        max_drawn: K, batches that are drawn at once, at most.

    Raises:
        ConfigError: the device has no room for it, or its sampler can't draw there.
    """

    def __init__(self, config: Any, envs: Environments, device: torch.device) -> None:
        weight_from = None
        if config.replay == "proportional":
            weight_from = config.replay_weight_from or "episode_return"
        found = describe(envs)
        self.max_drawn = config.updates_per_launch
        self.is_scaled = config.normalize_obs or config.clip_obs is not None
        number, real = np.dtype(np.int64), np.dtype(np.float32)
        extra: dict[str, Make] = {
            "noise": ((self.max_drawn,), number),
            "log": ((self.max_drawn,), number),
        }
        if self.is_scaled:
            shape = found.fields["obs"][0]
            extra |= {"mean": (shape, real), "std": (shape, real), "clip": ((), real)}
        new = found.num_envs * (config.train_frequency + config.n_step - 1)  # of one round
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
            batch_size=config.batch_size,
            max_batches=self.max_drawn,
            max_new=min(max(new, _MIN_NEW), _MAX_NEW),
            extra=extra,
        )
        self.by_priority = config.replay in ("prioritized", "rank")
        self._num_envs = envs.num_envs
        self._clip_reward = config.clip_reward

    def store(self, fragment: Fragment) -> None:
        """Add a fragment's transitions, once the priorities of the last round are written."""
        self.buffer.settle()
        first = fragment.first_env
        for env in fragment.restarted_envs:
            self.cut(first + env)
        flat = {name: _flat(getattr(fragment, name)) for name in self.buffer.fields}
        if self._clip_reward is not None:  # a copy: reports have the fragment's
            flat["reward"] = flat["reward"].clip(-self._clip_reward, self._clip_reward)
        envs: Array | None = None
        if fragment.num_envs != self._num_envs:
            envs = np.tile(np.arange(first, first + fragment.num_envs), fragment.num_steps)
        if not fragment.valid.all():
            kept = np.flatnonzero(fragment.valid)
            if envs is None:
                envs = np.arange(fragment.valid.size) % self._num_envs
            flat, envs = {name: array[kept] for name, array in flat.items()}, envs[kept]
        if len(flat["reward"]):
            self.buffer.add_steps(flat, envs)

    def cut(self, env: int | None = None) -> None:
        """Start a new episode in an environment, or in all, though the last step ended none."""
        self.buffer.cut(env)

    def prepare(self, count: int, scale: ObsScale | None) -> Array | None:
        """Write to the inbox what `count` batches are made by.

        Returns:
            The numbers of their transitions, int64, (count, B), where the host draws; else None.
        """
        on_host = self.buffer.prepare(count)
        if scale is not None:
            arrays = self.buffer.inbox.arrays
            arrays["mean"][...], arrays["std"][...] = scale.mean, scale.std
            arrays["clip"][...] = scale.clip
        return on_host

    def draw(self, count: int, scale: ObsScale | None = None) -> tuple[list[Batch], Any]:
        """Draw `count` batches and gather them, as `Replay.draw` does.

        Returns:
            The batches, and the numbers of their transitions, (count · B,), on the device, or on
            the host where they were drawn there.
        """
        on_host = self.prepare(count, scale)
        self.buffer.send()
        number, batches = self.batches(self.buffer.stored, count)
        return list(batches), (number.clone() if on_host is None else on_host).reshape(-1)

    def batches(self, stored: Stored, count: int) -> tuple[Tensor, Iterator[Batch]]:
        """Store the new transitions and draw `count` batches: a function of tensors alone.

        Returns:
            The numbers of their transitions, int64, (count, B), and the batches.
        """
        store_new(stored)
        number = numbers_drawn(stored, count)
        return number, (self.batch(stored, number[k], k) for k in range(count))

    def batch(self, stored: Stored, number: Tensor, k: int) -> Batch:
        """Gather the batch in place `k` of a launch."""
        inbox = stored.inbox
        rows = gathered(stored, self.buffer.layout, number, self.buffer.obs_shape)
        if self.is_scaled:
            for name in ("obs", "next_obs"):
                scaled = (rows[name].to(torch.float32) - inbox["mean"]) / inbox["std"]
                rows[name] = torch.clamp(scaled, -inbox["clip"], inbox["clip"])
        if "importance" in inbox:
            importance = inbox["importance"][k].clone()
        else:
            importance = torch.ones_like(rows["reward"])
        return Batch(**rows, importance=importance)

    def update_priorities(self, index: Any, td_error: Tensor) -> None:
        """Give transitions that were learned from their new priorities, a round later."""
        self.buffer.update_weights(np.asarray(index), td_error)

    def kept(self, index: Any) -> dict[str, Array]:
        """Return those of some transitions that are still there, by field."""
        number = index.cpu().numpy() if isinstance(index, Tensor) else index
        oldest = self.buffer.num_added - len(self.buffer)
        return self.buffer.get(number[number >= oldest])

    def to_arrays(self) -> dict[str, Array]:
        """Return nothing: what is drawn follows from the counters of the checkpoint."""
        return {}

    def load(self, arrays: Mapping[str, Array]) -> None:
        """Do nothing, as `to_arrays` returns nothing."""


@dataclass(slots=True)
class UpdateLog:
    """What updates returned, on the device until it is read.

    Attributes:
        metrics: float32, (R, M): a row for each batch, of all its updates side by side; where an
            update is not made with a batch, the values have no meaning.
        numbers: int64, (R, B), the transitions of each batch.
    """

    metrics: Tensor
    numbers: Tensor


class Launches:
    """Updates that are made as launches.

    K batches make a launch, and the rest of those that are due is made one by one. Which delayed
    updates a launch makes is settled before: each such pattern is a function of its own, without a
    branch. K is a multiple of their periods, so that launches that follow each other have one
    pattern.

    Args:
        learner: makes the updates; its noise is numbered from here on.
        replay: the transitions they learn from.
        most: K.

    Attributes:
        replay: the same.
        all: the launches, one for each pattern.

    Raises:
        ConfigError: K is no multiple of the period of a delayed update.
    """

    def __init__(self, learner: Learner, replay: ReplayOnDevice, most: int) -> None:
        self._learner, self.replay, self._most = learner, replay, most
        period = math.lcm(*(rule.every for rule, _ in learner.rules))
        if most > 1 and most % period:
            delays = ", ".join(f"the {x.name}, every {x.every}" for x, _ in learner.rules)
            raise ConfigError(
                f"`updates_per_launch` must be a multiple of {period}, so that each launch has "
                f"the same updates ({delays}), got {most}: take {_near(most, period)}"
            )
        self._noise = learner.number_noise(most).table
        self._log: UpdateLog | None = None
        self._num_logged = 0
        self._bound: Any = None
        self._period = period
        by_pattern: dict[Pattern, _Launch] = {}
        self._launches: dict[tuple[int, int], _Launch] = {}  # by what was made before, and K
        for count in sorted({most, 1}, reverse=True):
            for phase in range(period):
                pattern = _pattern(learner, phase, count)
                launch = by_pattern.setdefault(pattern, _Launch(learner, replay, pattern))
                self._launches[phase, count] = launch
        self.all = list(by_pattern.values())
        learner.executions = [launch.execution for launch in self.all]

    def counts(self, due: int) -> Iterator[int]:
        """Yield how many updates each launch makes of those that are due."""
        while due > 0:
            count = self._most if due >= self._most else 1
            yield count
            due -= count

    @property
    def is_full(self) -> bool:
        """Whether the log has no room for another launch: `read` must come first."""
        return self._num_logged + self._most > max(_LOGGED, self._most)

    def make(self, count: int, scale: ObsScale | None) -> tuple[Array | None, Tensor | None]:
        """Make one launch, and log what its updates return.

        Args:
            count: K, as `counts` gave it.
            scale: of observations; None: they stay as they are.

        Returns:
            Where batches are drawn by priorities, the numbers of the transitions, int64, (K, B),
            and |TD error|, (K, B), on the device; None where there is none.

        Raises:
            ConfigError: an update does not keep the contract, or can't be compiled.
        """
        learner, replay = self._learner, self.replay
        if self._log is None:
            self._make_log()
        on_host = replay.prepare(count, scale)
        arrays, logged = replay.buffer.inbox.arrays, self._num_logged
        if self._noise is not None:
            arrays["noise"][:count] = self._noise.places(learner.num_updates + 1, count)
        arrays["log"][:count] = np.arange(logged, logged + count)
        replay.buffer.send()
        launch = self._launches[learner.num_updates % self._period, count]
        errors = launch.execution(self._bound)
        self._num_logged += count
        learner.num_updates += count
        return on_host, errors[0] if errors else None

    def read(self) -> list[Tensor]:
        """Move the log to the learner's metrics.

        Returns:
            For each update since the last call the numbers of its transitions, int64, (B,), which
            stay until the next launch.
        """
        count, self._num_logged = self._num_logged, 0
        if self._log is None or not count:
            return []
        learner, start = self._learner, 0
        first = learner.num_updates - count + 1
        rows = self._log.metrics[:count].to("cpu", copy=True)
        for rule, update in learner.rules:
            part = slice(start, start + rule.times * len(update.names))
            start = part.stop
            numbers = np.arange(first, first + count)
            due = numbers % rule.every == 0
            if not due.any():
                continue
            each = rows[torch.from_numpy(due), part].reshape(-1, len(update.names))
            made = np.repeat(numbers[due], rule.times).tolist()
            learner.metrics.extend(rule.name, update.names, each, made)
        return list(self._log.numbers[:count])

    def _make_log(self) -> None:
        """Hold each update against its contract, with the first batch, and make room for rows."""
        replay, learner = self.replay, self._learner
        replay.buffer.flush()
        device = learner.device
        number = torch.full((replay.buffer.batch_size,), replay.buffer.num_added - 1)
        batch = replay.batch(replay.buffer.stored, number.to(device), 0)
        for rule, update in learner.rules:
            shape = rule.noise_shape
            update.check(batch, None if shape is None else torch.zeros(shape, device=device))
        num_rows = max(_LOGGED, self._most)
        num_metrics = sum(rule.times * len(update.names) for rule, update in learner.rules)
        self._log = UpdateLog(
            torch.zeros((num_rows, num_metrics), device=device),
            torch.zeros((num_rows, len(number)), dtype=torch.int64, device=device),
        )
        noise = None if self._noise is None else self._noise.tensor
        state = (learner.state, learner.hyper.tensors)
        self._bound = (*state, replay.buffer.stored, self._log, noise)


class _Launch:
    """Updates with K batches as one function.

    Args:
        learner: whose updates they are.
        replay: gathers batches.
        pattern: which updates.

    Attributes:
        execution: how it runs.
    """

    def __init__(self, learner: Learner, replay: ReplayOnDevice, pattern: Pattern) -> None:
        self._pattern, self._rules, self._replay = pattern, learner.rules, replay
        totals = [sum(times) for times in zip(*pattern, strict=True)]
        made = [
            f"{total} × {rule.name}"
            for total, (rule, _) in zip(totals, learner.rules, strict=True)
            if total
        ]
        name = f"launch of {len(pattern)} ({', '.join(made) or 'none'})"
        self.execution = Execution(self.call, learner.choose(), name)

    def call(self, bound: tuple[Any, Any, Stored, UpdateLog, Tensor | None]) -> tuple[Tensor, ...]:
        """Store what is new, draw K batches, and make the updates that are due with each.

        Args:
            bound: state, hyper-parameters, transitions, log, noise.

        Returns:
            |TD error|, (K, B), where batches are drawn by it and each one has one; else nothing.
        """
        state, hyper, stored, log, noise = bound
        inbox, count = stored.inbox, len(self._pattern)
        number, batches = self._replay.batches(stored, count)
        drawn = None if noise is None else noise.index_select(0, inbox["noise"][:count])
        rows: list[Tensor] = []
        errors: list[Tensor] = []
        for place, (batch, times) in enumerate(zip(batches, self._pattern, strict=True)):
            error, parts, taken = None, [], 0
            for made, (rule, update) in zip(times, self._rules, strict=True):
                for _ in range(made):
                    one = None
                    if rule.noise_shape is not None:
                        assert drawn is not None
                        size = math.prod(rule.noise_shape)
                        one = drawn[place, taken : taken + size].view(rule.noise_shape)
                        taken += size
                    result = update.packed((state, hyper), batch, one)
                    row, more = result if isinstance(result, tuple) else (result, None)
                    parts.append(row)
                    error = more if error is None else error
                if not made:
                    parts.append(log.metrics.new_zeros(rule.times * len(update.names)))
            rows.append(torch.cat(parts))
            if error is not None:
                errors.append(error)
        log.metrics.index_copy_(0, inbox["log"][:count], torch.stack(rows))
        log.numbers.index_copy_(0, inbox["log"][:count], number)
        is_wanted = self._replay.by_priority and len(errors) == count
        return (torch.stack(errors),) if is_wanted else ()


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


def _flat(steps: Array) -> Array:
    """Return (T · N, …) from (T, N, …)."""
    return steps.reshape(-1, *steps.shape[2:])


def _near(number: int, period: int) -> int:
    """The multiple of a period that is nearest to a number, from the period on."""
    return max(1, round(number / period)) * period
