"""Replay on a device: a launch stores, draws, gathers and learns from K batches as one function.

A launch is a function of tensors only. Like any update it runs eager, compiled, or as a CUDA graph.
Everything that it reads and writes has a fixed address: the state, the hyper-parameters, the
transitions, the noise and the log of results. New transitions, and the launch's positions in the
noise table and the log, arrive in one copy from pinned memory, the inbox.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from hotloop.base.transfer import ArraySpec
from hotloop.errors import ConfigError
from hotloop.learner import Learner
from hotloop.learner.execution import Execution
from hotloop.ops.scaling import scale_obs
from hotloop.ops.schedules import as_schedule
from hotloop.policies import ObsScale
from hotloop.replay.adapters import describe_env
from hotloop.replay.device_buffer import DeviceReplay
from hotloop.replay.storage.device_memory import (
    check_fields,
    free_bytes,
    needed_bytes,
    stores_frames,
)
from hotloop.replay.storage.device_store import (
    ReplayTensors,
    draw_numbers,
    gather_rows,
    store_new,
)
from hotloop.rollouts import Environments
from hotloop.training.options import ReplayOptions
from hotloop.training.replay import ReplayBatch, StoredTransitions, weight_source
from hotloop.types import Array, Fragment

# The share of free device memory that 'auto' may use. Networks and updates need the remaining part.
_MEMORY_SHARE = 0.8
# Bounds on the transitions of one copy to the device, which has a static size.
_MIN_NEW, _MAX_NEW = 16, 1024
# Updates whose results stay on the device until they are read, unless one launch runs more.
_MIN_LOG_ROWS = 1_000

# The repetitions of each update rule for each of the K batches of a launch.
Pattern = tuple[tuple[int, ...], ...]


class ReplayOnDevice(StoredTransitions):
    """The replay buffer of a run, in tensors on the learner's device.

    Args:
        envs: the environments that produce the transitions.
        device: the learner's device.
        is_scaled: whether `draw` and `Launches.run` receive a scale of observations.

    Attributes:
        buffer: the transitions.
        by_priority: whether batches are drawn by TD error.
        max_drawn: K, the maximum number of batches drawn at once.

    Raises:
        ConfigError: the device lacks memory for the buffer, or its sampler can't draw there.
    """

    def __init__(
        self, config: ReplayOptions, envs: Environments, device: torch.device, *, is_scaled: bool
    ) -> None:
        spec = describe_env(envs)
        self.max_drawn = config.updates_per_launch
        self.is_scaled = is_scaled
        number, real = np.dtype(np.int64), np.dtype(np.float32)
        extra: dict[str, ArraySpec] = {
            "noise": ((self.max_drawn,), number),
            "log": ((self.max_drawn,), number),
        }
        if config.n_step == 1:  # with n > 1, each reward is stored with its own discount
            extra["gamma"] = ((), real)
        if self.is_scaled:
            shape = envs.obs_spec.shape
            extra |= {"mean": (shape, real), "std": (shape, real), "clip": ((), real)}
        # Between two launches.
        num_new = spec.num_envs * (config.train_frequency + config.n_step - 1)
        buffer = DeviceReplay(
            config.buffer_size,
            spec.fields,
            device=device,
            sampler=None if _is_uniform(config) else config.sampler(),
            seed=config.seed,
            num_envs=spec.num_envs,
            n_step=config.n_step,
            gamma=as_schedule(config.gamma)(0.0),
            weight_from=weight_source(config),
            frame_stacks=spec.frame_stacks,
            batch_size=config.batch_size,
            max_batches=self.max_drawn,
            max_new=min(max(num_new, _MIN_NEW), _MAX_NEW),
            extra=extra,
        )
        super().__init__(config, envs, buffer)

    def store(self, fragment: Fragment) -> int:
        """Add a fragment's transitions, once the priorities of the last round are written."""
        self.buffer.settle()
        return super().store(fragment)

    def fill_inbox(self, count: int, scale: ObsScale | None) -> Array | None:
        """Write the inputs for drawing `count` batches to the inbox.

        Returns:
            The transition numbers, int64, (count, B), if the host draws them, else None.
        """
        host_numbers, arrays = self.buffer.prepare(count), self.buffer.inbox.arrays
        if "gamma" in arrays:
            arrays["gamma"][...] = self.gamma
        if scale is not None:
            arrays["mean"][...], arrays["std"][...] = scale.mean, scale.std
            arrays["clip"][...] = scale.clip
        return host_numbers

    def draw(self, count: int, scale: ObsScale | None = None) -> tuple[list[ReplayBatch], Any]:
        """Draw `count` batches and gather them, like `Replay.draw`.

        Returns:
            The batches, and their transition numbers, (count · B,), on the device, or on the host
            if the host draws them.
        """
        host_numbers = self.fill_inbox(count, scale)
        self.buffer.send()
        numbers, batches = self.batches(self.buffer.stored, count)
        return list(batches), (numbers.clone() if host_numbers is None else host_numbers).reshape(
            -1
        )

    def batches(self, stored: ReplayTensors, count: int) -> tuple[Tensor, Iterator[ReplayBatch]]:
        """Store the new transitions and draw `count` batches, as a function of tensors only.

        Returns:
            The transition numbers, int64, (count, B), and the batches.
        """
        store_new(stored)
        numbers = draw_numbers(stored, count)
        return numbers, (self.batch(stored, numbers[k], k) for k in range(count))

    def batch(self, stored: ReplayTensors, numbers: Tensor, k: int) -> ReplayBatch:
        """Gather batch `k` of a launch."""
        inbox = stored.inbox
        rows = gather_rows(stored, self.buffer.layout, numbers, self.buffer.obs_shape)
        if self.is_scaled:
            for name in ("obs", "next_obs"):
                rows[name] = scale_obs(rows[name], inbox["mean"], inbox["std"], inbox["clip"])
        if "gamma" in inbox:
            rows["discount"] = inbox["gamma"] * rows["discount"]
        if "importance" in inbox:
            importance = inbox["importance"][k].clone()
        else:
            importance = torch.ones_like(rows["reward"])
        rows.pop("mask", None)  # the mask of `obs`, which no update needs
        return ReplayBatch(**rows, importance=importance)

    def update_priorities(self, index: Any, td_error: Tensor) -> None:
        """Set new priorities of transitions by TD error. They take effect a round later."""
        self.buffer.update_weights(np.asarray(index), td_error)


@dataclass(slots=True)
class UpdateLog:
    """The results of updates, on the device until they are read.

    Attributes:
        metrics: the metrics of all updates of each batch, float32, (R, M). Values of updates that
            do not run with a batch are undefined.
        numbers: the transition numbers of each batch, int64, (R, B).
    """

    metrics: Tensor
    numbers: Tensor


class Launches:
    """Updates that run in launches.

    A launch has K batches. Remaining due updates run in launches of one batch. Delayed updates
    follow a fixed pattern, and each pattern is a separate function without branches. K is a
    multiple of the updates' periods, so that consecutive launches have the same pattern.

    Args:
        learner: the learner, whose noise is numbered from now on.
        replay: the replay buffer on the device.
        max_updates: K.

    Attributes:
        replay: the replay buffer.
        distinct: the launches, one for each pattern.

    Raises:
        ConfigError: K is not a multiple of the period of a delayed update.
    """

    def __init__(self, learner: Learner, replay: ReplayOnDevice, max_updates: int) -> None:
        self._learner, self.replay, self._max_updates = learner, replay, max_updates
        period = math.lcm(*(rule.every for rule, _ in learner.rules))
        if max_updates > 1 and max_updates % period:
            delays = ", ".join(f"the {x.name}, every {x.every}" for x, _ in learner.rules)
            raise ConfigError(
                f"`updates_per_launch` must be a multiple of {period}, so that each launch has "
                f"the same updates ({delays}), got {max_updates}: use "
                f"{_nearest_multiple(max_updates, period)}"
            )
        self._noise = learner.use_numbered_noise(max_updates).table
        self._log: UpdateLog | None = None
        self._num_logged = 0
        self._bound: Any = None
        self._period = period
        by_pattern: dict[Pattern, _Launch] = {}
        self._launches: dict[tuple[int, int], _Launch] = {}  # by position in the period, and size
        for count in sorted({max_updates, 1}, reverse=True):
            for phase in range(period):
                pattern = _pattern(learner, phase, count)
                launch = by_pattern.setdefault(pattern, _Launch(learner, replay, pattern))
                self._launches[phase, count] = launch
        self.distinct = list(by_pattern.values())
        learner.executions = [launch.execution for launch in self.distinct]

    def launch_sizes(self, num_updates: int) -> Iterator[int]:
        """Yield the sizes of the launches that run `num_updates` updates."""
        while num_updates > 0:
            count = self._max_updates if num_updates >= self._max_updates else 1
            yield count
            num_updates -= count

    @property
    def is_log_full(self) -> bool:
        """Whether the log lacks room for another launch, so that `drain_log` must run first."""
        return self._num_logged + self._max_updates > max(_MIN_LOG_ROWS, self._max_updates)

    def run(self, count: int, scale: ObsScale | None) -> tuple[Array | None, Tensor | None]:
        """Run one launch, and log the results of its updates.

        Args:
            count: the launch's size, from `launch_sizes`.
            scale: the scale of observations, None for raw ones.

        Returns:
            The transition numbers, int64, (K, B), if the host draws them, and |TD error|, (K, B),
            on the device, if batches are drawn by priorities. None for either otherwise.

        Raises:
            ConfigError: an update violates its contract, or can't be compiled.
        """
        learner, replay = self._learner, self.replay
        if self._log is None:
            self._make_log()
        host_numbers = replay.fill_inbox(count, scale)
        arrays, logged = replay.buffer.inbox.arrays, self._num_logged
        if self._noise is not None:
            arrays["noise"][:count] = self._noise.rows_of(learner.num_updates + 1, count)
        arrays["log"][:count] = np.arange(logged, logged + count)
        replay.buffer.send()
        launch = self._launches[learner.num_updates % self._period, count]
        errors = launch.execution(self._bound)
        self._num_logged += count
        learner.num_updates += count
        return host_numbers, errors[0] if errors else None

    def drain_log(self) -> list[Tensor]:
        """Move the log to the learner's metrics.

        Returns:
            The transition numbers, int64, (B,), of each update since the last call, valid until the
            next launch.
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
            has_run = numbers % rule.every == 0
            if not has_run.any():
                continue
            values = rows[torch.from_numpy(has_run), part].reshape(-1, len(update.names))
            update_numbers = np.repeat(numbers[has_run], rule.times).tolist()
            learner.metrics.extend(rule.name, update.names, values, update_numbers)
        return list(self._log.numbers[:count])

    def _make_log(self) -> None:
        """Check each update's contract with the first batch, and allocate the log."""
        replay, learner = self.replay, self._learner
        replay.buffer.flush()
        device = learner.device
        numbers = torch.full((replay.buffer.batch_size,), replay.buffer.num_added - 1)
        batch = replay.batch(replay.buffer.stored, numbers.to(device), 0)
        for rule, update in learner.rules:
            shape = rule.noise_shape
            update.check(batch, None if shape is None else torch.zeros(shape, device=device))
        num_rows = max(_MIN_LOG_ROWS, self._max_updates)
        num_metrics = sum(rule.times * len(update.names) for rule, update in learner.rules)
        self._log = UpdateLog(
            torch.zeros((num_rows, num_metrics), device=device),
            torch.zeros((num_rows, len(numbers)), dtype=torch.int64, device=device),
        )
        noise = None if self._noise is None else self._noise.tensor
        state = (learner.state, learner.hyper.tensors)
        self._bound = (*state, replay.buffer.stored, self._log, noise)


class _Launch:
    """Updates with K batches as one function."""

    def __init__(self, learner: Learner, replay: ReplayOnDevice, pattern: Pattern) -> None:
        self._pattern, self._rules, self._replay = pattern, learner.rules, replay
        totals = [sum(times) for times in zip(*pattern, strict=True)]
        parts = [
            f"{total} × {rule.name}"
            for total, (rule, _) in zip(totals, learner.rules, strict=True)
            if total
        ]
        name = f"launch of {len(pattern)} ({', '.join(parts) or 'none'})"
        self.execution = Execution(self.call, learner.choose(), name)

    def call(
        self, bound: tuple[Any, Any, ReplayTensors, UpdateLog, Tensor | None]
    ) -> tuple[Tensor, ...]:
        """Store new transitions, draw K batches, and run each batch's updates.

        Args:
            bound: state, hyper-parameters, transitions, log and noise table.

        Returns:
            |TD error|, (K, B), if batches are drawn by TD error, else an empty tuple.
        """
        # Store the transitions, and draw the batches.
        state, hyper, stored, log, noise = bound
        inbox, count = stored.inbox, len(self._pattern)
        numbers, batches = self._replay.batches(stored, count)
        noise_rows = None if noise is None else noise.index_select(0, inbox["noise"][:count])

        # Run the updates with each batch.
        rows: list[Tensor] = []
        errors: list[Tensor] = []
        for k, (batch, times) in enumerate(zip(batches, self._pattern, strict=True)):
            error, parts, offset = None, [], 0
            for num_runs, (rule, update) in zip(times, self._rules, strict=True):
                for _ in range(num_runs):
                    update_noise = None
                    if rule.noise_shape is not None:
                        assert noise_rows is not None
                        size = math.prod(rule.noise_shape)
                        update_noise = noise_rows[k, offset : offset + size].view(rule.noise_shape)
                        offset += size
                    result = update.run_packed((state, hyper), batch, update_noise)
                    row, td_error = result if isinstance(result, tuple) else (result, None)
                    parts.append(row)
                    error = td_error if error is None else error
                if not num_runs:
                    parts.append(log.metrics.new_zeros(rule.times * len(update.names)))
            rows.append(torch.cat(parts))
            if error is not None:
                errors.append(error)

        # Write the results to the log.
        log.metrics.index_copy_(0, inbox["log"][:count], torch.stack(rows))
        log.numbers.index_copy_(0, inbox["log"][:count], numbers)
        has_priorities = self._replay.by_priority and len(errors) == count
        return (torch.stack(errors),) if has_priorities else ()


def _pattern(learner: Learner, num_updates: int, count: int) -> Pattern:
    """Return the repetitions of each update for `count` batches after `num_updates` others."""
    rules = [rule for rule, _ in learner.rules]
    numbers = range(num_updates + 1, num_updates + count + 1)
    return tuple(
        tuple(0 if number % rule.every else rule.times for rule in rules) for number in numbers
    )


def is_on_device(config: ReplayOptions, envs: Environments, device: torch.device) -> bool:
    """Return whether a run's replay buffer is on the learner's device.

    Raises:
        ConfigError: launches are configured, but the buffer is on the host.
    """
    is_chosen = config.replay_device == "device" or (
        config.replay_device == "auto"
        and device.type != "cpu"
        and not config.host_replay_reason
        and _has_room(config, envs, device)
    )
    if config.updates_per_launch > 1 and not is_chosen:
        raise ConfigError(
            "`updates_per_launch` needs a replay buffer on the device, and `replay_device` "
            f"'{config.replay_device}' keeps it on the host: choose 'device', which reports the "
            "reason, or leave `updates_per_launch` out"
        )
    return is_chosen


def _has_room(config: ReplayOptions, envs: Environments, device: torch.device) -> bool:
    """Return whether 'auto' may place the buffer in a device's free memory."""
    spec, free = describe_env(envs), free_bytes(device)
    try:
        has_frames = stores_frames(check_fields(spec.fields), spec.frame_stacks)
    except ConfigError:  # a device does not support such transitions
        return False
    size = needed_bytes(
        config.buffer_size, spec.fields, spec.num_envs, config.n_step, spec.frame_stacks
    )
    can_draw = not has_frames or _is_uniform(config)
    return can_draw and (free is None or size <= _MEMORY_SHARE * free)


def _is_uniform(config: ReplayOptions) -> bool:
    """Return whether batches are drawn uniformly with replacement, which needs no sampler."""
    return config.replay == "uniform" and config.replay_replacement is not False


def _nearest_multiple(number: int, period: int) -> int:
    """Return the multiple of a period that is nearest to a number, at least the period."""
    return max(1, round(number / period)) * period
