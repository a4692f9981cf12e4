"""A learner: state, hyper-parameters, updates, random numbers and publishing."""

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

from hotloop.base.transfer import Uploads
from hotloop.errors import CheckpointError, ConfigError, shortened
from hotloop.learner.execution import Mode, choose, repeat_choice
from hotloop.learner.hyper import HyperParameters
from hotloop.learner.metrics import Metrics
from hotloop.learner.noise import HostNoise, NumberedNoise
from hotloop.learner.optimizer import AdamState
from hotloop.learner.publish import Publisher
from hotloop.learner.state import clone, load_arrays, non_finite, tensors, to_arrays, to_device
from hotloop.learner.updates import BoundUpdate
from hotloop.policies import ObsScale, PolicySnapshot
from hotloop.policies.forward import LearnedNetwork
from hotloop.types import Array


@dataclass(frozen=True, kw_only=True)
class UpdateRule:
    """One of an algorithm's updates, with its frequency.

    Attributes:
        function: `function(state, batch, noise, hyper)`, see `BoundUpdate`.
        name: its name in messages.
        every: period in batches. With 2, the update runs for every second batch.
        times: number of repetitions with the same batch and new noise.
        noise_shape: shape of its standard normal noise. None: it needs no noise.
    """

    function: Callable[..., Any]
    name: str = "update"
    every: int = 1
    times: int = 1
    noise_shape: tuple[int, ...] | None = None


class Learner:
    """A state on a device, and the updates that change it.

    Args:
        state: a tree of tensors, see `hotloop.learner.state`.
        hyper: a NamedTuple of numbers and schedules.
        rules: the updates, in the order of their execution.
        network: the acting network.
        acting: the name of its parameters, (P,), in `state`.
        device: the device of the state and of all updates.
        seed: seed of minibatch order and noise.
        execution: the execution mode of the updates.
        num_batches: approximate number of batches in the run.
        batch_size: B.
        overlap: whether to act with the previously published policy, see `Publisher`.

    Attributes:
        state: the state. Updates change its tensors in place and never replace them.
        hyper: the hyper-parameters that may change during training.
        rng: generator of minibatch orders, and of noise on the CPU.
        metrics: the metrics of the updates.
        rules: the rule and the bound update of each update.
        executions: the executions of the updates.
        choose: function that returns the best `ExecutionChoice` for an update of this run.
        num_updates: number of batches learned from.
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
            # A rough estimate: 4 operations for each parameter. Convolutions use each parameter at
            # many positions, so add their products, forward and backward.
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
            self.use_numbered_noise()
        self._modes_used: dict[str, str] = {}
        self.executions = [update.execution for _, update in self.rules]

    def update(self, batch: Any) -> Tensor | None:
        """Run the due updates with a batch, and store their metrics.

        Args:
            batch: a NamedTuple of tensors on the device.

        Returns:
            |TD error|, (B,), of the first update that returns one, or None.

        Raises:
            ConfigError: an update breaks its contract, or can't be compiled.
        """
        self.num_updates += 1
        td_error = None
        for rule, update in self.rules:
            for _ in range(self.num_repeats(rule)):
                row, errors = update(batch, self.draw(rule))
                self.metrics.add(rule.name, update.names, row, self.num_updates)
                td_error = errors if td_error is None else td_error
        return td_error

    def num_repeats(self, rule: UpdateRule) -> int:
        """Return the number of times that an update runs with this batch."""
        return 0 if self.num_updates % rule.every else rule.times

    def draw(self, rule: UpdateRule) -> Tensor | None:
        """Return noise for an update, or None if it needs none. A later draw overwrites it."""
        if rule.noise_shape is None:
            return None
        return self._noise.draw(rule.noise_shape, self.num_updates)

    def use_numbered_noise(self, max_batches: int = 1) -> NumberedNoise:
        """Replace the source of noise by a table with a row for each batch, for launches.

        Args:
            max_batches: maximum number of batches whose noise is used at once.
        """
        size = sum(
            math.prod(rule.noise_shape) * rule.times
            for rule, _ in self.rules
            if rule.noise_shape is not None
        )
        self._noise = NumberedNoise(self._seed, size, self.device, max_batches)
        return self._noise

    def upload(self, arrays: Mapping[str, Array]) -> dict[str, Tensor]:
        """Return host arrays as tensors on the device, see `Uploads.send`."""
        return self._uploads.send(arrays)

    def publish(
        self, version: int, obs_scale: ObsScale | None = None, *, must_be_current: bool = False
    ) -> PolicySnapshot:
        """Return the current policy, in host arrays that the next call overwrites.

        With `overlap`, return the policy of the previous call, unless `must_be_current`.
        """
        return self._publisher.publish(version, obs_scale, must_be_current=must_be_current)

    def copy_snapshot(self, snapshot: PolicySnapshot) -> PolicySnapshot:
        """Return a copy of the last published policy. Later calls do not change it."""
        return self._publisher.copy_snapshot(snapshot)

    def non_finite(self) -> list[str]:
        """Return the names of the state's tensors that contain NaN or infinity."""
        return non_finite(self.state)

    def state_snapshot(self) -> Callable[[], dict[str, Array]]:
        """Return a function that returns the current state as host arrays, for a checkpoint.

        The copy stays on the device until the function is called.
        """
        state = clone(self.state)
        return lambda: to_arrays(state)

    def random_state(self) -> dict[str, Any]:
        """Return the host generator's state as JSON. Numbered noise has no state."""
        return {"host": self.rng.bit_generator.state}

    def modes_used(self) -> dict[str, str]:
        """Return the `Execution.mode_used` of all updates that have run, by name."""
        modes = {x.name: x.mode_used for x in self.executions if x.mode_used is not None}
        return {**self._modes_used, **modes}

    def load(
        self,
        arrays: Mapping[str, Array],
        random_state: Mapping[str, Any],
        num_updates: int,
        modes_used: Mapping[str, str],
    ) -> None:
        """Load a checkpoint.

        Modes that `execution` "auto" chose before stay, even if the cache has new artifacts.

        Raises:
            CheckpointError: an array is missing or has another shape, or the random state is none.
        """
        load_arrays(self.state, arrays)
        try:
            self.rng.bit_generator.state = random_state["host"]
        except (KeyError, OverflowError, TypeError, ValueError) as error:
            reason = shortened(str(error))
            raise CheckpointError(
                f"the checkpoint's state of the random generator is damaged ({reason}): choose "
                "another checkpoint, or start a new run"
            ) from error
        self.num_updates = num_updates
        self._modes_used = dict(modes_used)
        for execution in self.executions:
            if execution.choice.may_fall_back and execution.name in modes_used:
                execution.choice = repeat_choice(modes_used[execution.name], self.device)


def choose_device(device: str) -> torch.device:
    """Return the device of a run. `auto` is the GPU, if there is one.

    Raises:
        ConfigError: the device is missing, or neither a CPU nor a CUDA device.
    """
    count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if device == "auto":
        return torch.device("cuda" if count else "cpu")
    try:
        chosen = torch.device(device)
    except RuntimeError:  # torch has no such type
        chosen = torch.device("meta")
    if chosen.type not in ("cpu", "cuda"):
        raise ConfigError(f"`device` must be 'auto', 'cpu', 'cuda' or 'cuda:1', got {device!r}")
    if chosen.type == "cuda" and (chosen.index or 0) >= count:
        raise ConfigError(
            f"`device` '{device}' is missing, torch {torch.__version__} finds {count} CUDA "
            "devices: choose 'cpu' or 'auto', or install a torch with CUDA on a machine with a GPU"
        )
    return chosen


def _num_parameters(state: Any) -> int:
    """Return the number of parameters in a state's networks, without the optimizers' states."""
    return sum(x.numel() for name, x in tensors(state).items() if not name.endswith(_ADAM))


_ADAM = tuple(f".{field.name}" for field in dataclasses.fields(AdamState))
