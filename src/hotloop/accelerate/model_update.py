"""The gradient steps of one model, on-policy or off-policy."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from gymnasium import spaces
from torch import Tensor

from hotloop.accelerate.acceleration import compile_if_worthwhile
from hotloop.accelerate.flat_parameters import FlatParameters
from hotloop.accelerate.module_calls import try_out
from hotloop.learner.updates import BoundUpdate


class ModelUpdate:
    """The gradient steps of one model.

    A subclass binds its functions in `__init__`.

    Args:
        model: the model.
        batch_size: rows of a batch.
        networks: its modules as flat parameters, with and without optimizers.
        state: the tensors that the functions change.

    Attributes:
        batch_size: rows of a batch.
        networks: its modules as flat parameters.
        hyper: the hyper-parameters, a NamedTuple of 0-d tensors.
        learn_id: identifies the call of `learn` for which the execution was chosen.
    """

    def __init__(
        self, model: Any, batch_size: int, networks: list[FlatParameters], state: Any
    ) -> None:
        hyper = model._hyper()
        self.batch_size, self.networks = batch_size, networks
        self.hyper = type(hyper)(*(torch.tensor(x, dtype=torch.float32) for x in hyper))
        self.learn_id = model.start_time
        self._acceleration, self._state = model.acceleration, state
        self._hyper_values = tuple(hyper)
        self._bound: list[BoundUpdate] = []
        space = model.observation_space
        self._obs_keys = tuple(space.spaces) if isinstance(space, spaces.Dict) else None

    @property
    def num_parameters(self) -> int:
        """Return P, the number of learned parameters."""
        return sum(len(x.state.params) for x in self.networks if x.rule is not None)

    def bind(
        self, function: Callable[..., Any], name: str, num_calls: int, eager_reason: str = ""
    ) -> BoundUpdate:
        """Return an executed function of the state, see `Acceleration.bind`."""
        bound = self._acceleration.bind(
            function,
            self._state,
            self.hyper,
            name=name,
            num_calls=num_calls,
            batch_size=self.batch_size,
            num_parameters=self.num_parameters,
            eager_reason=eager_reason,
        )
        self._bound.append(bound)
        return bound

    def try_out(self, batch: tuple[Any, ...], noise: Tensor | None = None) -> None:
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
        """Write the current hyper-parameters, a NamedTuple of floats, if they have changed."""
        if tuple(hyper) != self._hyper_values:
            self._hyper_values = tuple(hyper)
            for tensor, value in zip(self.hyper, hyper, strict=True):
                tensor.fill_(value)

    def choose_again(self, num_calls: int) -> None:
        """Choose the execution for the expected number of gradient steps, if it is eager."""
        for bound in self._bound:
            compile_if_worthwhile(bound, num_calls, self.batch_size, self.num_parameters)
