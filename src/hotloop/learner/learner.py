"""The owner of all that learning changes: state, hyper-parameters, updates, random numbers."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor

from hotloop.errors import ConfigError
from hotloop.learner.execution import Mode, choose, repeat
from hotloop.learner.hyper import HyperParameters
from hotloop.learner.metrics import Metrics
from hotloop.learner.noise import HostNoise, NumberedNoise
from hotloop.learner.optimizer import AdamState
from hotloop.learner.publish import Publisher
from hotloop.learner.state import clone, load_arrays, non_finite, tensors, to_arrays, to_device
from hotloop.learner.updates import BoundUpdate
from hotloop.policies import ObsScale, PolicySnapshot
from hotloop.policies.learned import LearnedNetwork
from hotloop.replay.storage.device import Uploads
from hotloop.types import Array


@dataclass(frozen=True, kw_only=True)
class UpdateRule:
    """One of an algorithm's updates, and when it is made.

    Attributes:
        function: `function(state, batch, noise, hyper)`, see `BoundUpdate`.
        name: what messages call it.
        every: made with every so many-th batch.
        times: so often then, with that batch and new noise.
        noise_shape: of standard normal numbers that it is given; None: none.
    """

    function: Callable[..., Any]
    name: str = "update"
    every: int = 1
    times: int = 1
    noise_shape: tuple[int, ...] | None = None


class Learner:
    """A state on a device, and what changes it.

    Args:
        state: a tree of tensors, see `hotloop.learner.state`.
        hyper: a NamedTuple of numbers and schedules.
        rules: the updates, in the order in which they are made.
        network: what acts.
        acting: the name of its parameters, (P,), in `state`.
        device: where all of it lives.
        seed: of minibatches and noise.
        execution: how updates run.
        num_batches: batches that the run will learn from, about.
        batch_size: B.
        overlap: whether the policy that acts is the one that was published before, see `Publisher`.

    Attributes:
        state: changed in place; its tensors are never replaced.
        hyper: the numbers that may change while it trains.
        rng: orders minibatches, and draws noise on the CPU.
        metrics: what the updates said.
        rules: what each update is, and the update.
        executions: how the updates run.
        choose: gives how an update of this run is best executed.
        num_updates: batches that it has learned from.
    """

    def __init__(
        self,
        state: Any,
        hyper: Any,
        rules: Sequence[UpdateRule],
        *,
        network: LearnedNetwork,
        acting: str,
        device: torch.device,
        seed: tuple[int, ...],
        execution: Mode,
        num_batches: int,
        batch_size: int,
        overlap: bool = False,
    ) -> None:
        self.device = device
        self.state = to_device(state, device)
        self.hyper = HyperParameters(hyper, device)
        self.rng = np.random.default_rng(seed)
        self.metrics = Metrics()
        self.num_updates = 0
        self._seed = seed
        self._uploads = Uploads(device)
        self._publisher = Publisher(network.layout, getattr(self.state, acting), overlap=overlap)
        calls_per_batch = sum(rule.times / rule.every for rule in rules)
        self.choose = partial(
            choose,
            execution,
            device=device,
            num_calls=int(num_batches * calls_per_batch),
            # Forward and backward of every network, more or less; convolutions use each parameter
            # at many places.
            flop_per_call=batch_size
            * (4 * _num_parameters(self.state) + 6 * network.network.layers.num_encoder_products),
        )
        choice = self.choose()
        self.rules = [
            (rule, BoundUpdate(rule.function, self.state, self.hyper.tensors, choice, rule.name))
            for rule in rules
        ]
        self._noise: HostNoise | NumberedNoise = HostNoise(self.rng)
        if device.type != "cpu":
            self.number_noise()
        self._executed: dict[str, str] = {}
        self.executions = [update.execution for _, update in self.rules]

    def update(self, batch: Any) -> Tensor | None:
        """Make the updates that are due with a batch, and keep their metrics.

        Args:
            batch: a NamedTuple of tensors on the device.

        Returns:
            |TD error|, (B,), as the first of the updates that gives one gives it.

        Raises:
            ConfigError: an update does not keep the contract, or can't be compiled.
        """
        self.num_updates += 1
        td_error = None
        for rule, update in self.rules:
            for _ in range(self.num_due(rule)):
                row, more = update(batch, self.draw(rule))
                self.metrics.add(rule.name, update.names, row, self.num_updates)
                td_error = more if td_error is None else td_error
        return td_error

    def num_due(self, rule: UpdateRule) -> int:
        """Return how often an update is made with this batch."""
        return 0 if self.num_updates % rule.every else rule.times

    def draw(self, rule: UpdateRule) -> Tensor | None:
        """Return noise for an update, which a later draw overwrites; None: it takes none."""
        if rule.noise_shape is None:
            return None
        return self._noise.draw(rule.noise_shape, self.num_updates)

    def number_noise(self, most: int = 1) -> NumberedNoise:
        """Take noise from a table by the number of the batch from now on, as a launch does.

        Args:
            most: batches whose noise is used at once, at most.
        """
        size = sum(
            math.prod(rule.noise_shape) * rule.times
            for rule, _ in self.rules
            if rule.noise_shape is not None
        )
        self._noise = NumberedNoise(self._seed, size, self.device, most)
        return self._noise

    def sent(self, arrays: Mapping[str, Array]) -> dict[str, Tensor]:
        """Return host arrays as tensors on the device; on the CPU these share their memory.

        To a GPU they are copied behind what it was given so far, and nobody waits for that: the
        arrays may change at once. Of two calls after another the first is waited for in the third.
        """
        tensors = {name: torch.from_numpy(x) for name, x in arrays.items()}
        if self.device.type == "cpu":
            return tensors
        sent = {
            name: torch.empty(x.shape, dtype=x.dtype, device=self.device)
            for name, x in tensors.items()
        }
        with self._uploads as uploads:
            for name, there in sent.items():
                uploads.put(name, there, arrays[name])
        return sent

    def publish(
        self, version: int, obs_scale: ObsScale | None = None, *, newest: bool = False
    ) -> PolicySnapshot:
        """Return the policy as it is now, in host arrays that the next call overwrites.

        With `overlap` it is the one of the call before, unless it must be the `newest`.
        """
        return self._publisher.publish(version, obs_scale, newest=newest)

    def kept(self, snapshot: PolicySnapshot) -> PolicySnapshot:
        """Return a copy of what was published last, which later calls leave alone."""
        return self._publisher.kept(snapshot)

    def non_finite(self) -> list[str]:
        """The parts of the state that hold NaN or infinity."""
        return non_finite(self.state)

    def kept_state(self) -> Callable[[], dict[str, Array]]:
        """Return what gives the state as it is now, as host arrays for a checkpoint.

        The copy stays on the device until it is asked for.
        """
        state = clone(self.state)
        return lambda: to_arrays(state)

    def random_state(self) -> dict[str, Any]:
        """Return the host generator's state as JSON; numbered noise needs none."""
        return {"host": self.rng.bit_generator.state}

    def executed(self) -> dict[str, str]:
        """How the updates ran that there were, by name, as `Execution.was` says."""
        now = {one.name: one.was for one in self.executions if one.was is not None}
        return {**self._executed, **now}

    def load(
        self,
        arrays: Mapping[str, Array],
        random_state: Mapping[str, Any],
        num_updates: int,
        executed: Mapping[str, str],
    ) -> None:
        """Go on from a checkpoint.

        What `execution` "auto" has chosen once stays, whatever has been compiled since.

        Raises:
            CheckpointError: an array is missing or has another shape.
        """
        load_arrays(self.state, arrays)
        self.rng.bit_generator.state = random_state["host"]
        self.num_updates = num_updates
        self._executed = dict(executed)
        for one in self.executions:
            if one.choice.may_be_eager and one.name in executed:
                one.choice = repeat(executed[one.name], self.device)


def choose_device(device: str) -> torch.device:
    """The device of a run: `auto` is the GPU where there is one.

    Raises:
        ConfigError: there is no such device.
    """
    count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if device == "auto":
        return torch.device("cuda" if count else "cpu")
    chosen = torch.device(device)
    if chosen.type == "cuda" and (chosen.index or 0) >= count:
        raise ConfigError(
            f"`device` '{device}' must be there, but torch {torch.__version__} sees {count} CUDA "
            "devices: choose 'cpu' or 'auto', or install a torch with CUDA where there is a GPU"
        )
    return chosen


def _num_parameters(state: Any) -> int:
    """Numbers in a state's networks: the optimizers' memories are left out."""
    return sum(x.numel() for name, x in tensors(state).items() if not name.endswith(_ADAM))


_ADAM = tuple(f".{field.name}" for field in dataclasses.fields(AdamState))
