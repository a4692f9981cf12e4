"""The declaration of an update of an off-policy algorithm."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

from hotloop.learner import UpdateRule
from hotloop.training.learners import policy_network
from hotloop.training.options import ReplayOptions


@dataclass(frozen=True, kw_only=True)
class Update:
    """One of the updates of an off-policy algorithm.

    Attributes:
        function: `function(state, batch, noise, hyper, *, nets, config)` updates the state in place
            and returns metrics, 0-d tensors by name, or a pair of metrics and |TD error|, (B,).
        name: the name in messages.
        every: the name of an option: the update runs with every n-th batch. None: with each.
        times: the name of an option: the update runs n times in a row, with new noise. None: once.
        has_noise: whether the function receives standard normal noise, (B, A), instead of None.
        noise_shape: `noise_shape(nets, config)` returns another shape of the noise; None: no noise.
    """

    function: Callable[..., Any]
    name: str = "update"
    every: str | None = None
    times: str | None = None
    has_noise: bool = False
    noise_shape: Callable[[Any, Any], tuple[int, ...] | None] | None = None

    def rule(self, nets: Any, config: ReplayOptions) -> UpdateRule:
        """Return the update rule for a run's networks and configuration."""
        noise_shape = None
        if self.noise_shape is not None:
            noise_shape = self.noise_shape(nets, config)
        elif self.has_noise:
            action_shape = policy_network(nets).network.action_spec.shape
            num_rows = config.batch_size * config.sequence_steps
            noise_shape = num_rows, math.prod(action_shape)
        return UpdateRule(
            function=partial(self.function, nets=nets, config=config),
            name=self.name,
            every=1 if self.every is None else config.value_of(self.every),
            times=1 if self.times is None else config.value_of(self.times),
            noise_shape=noise_shape,
        )
