"""An algorithm's update: it checks the update's contract, and returns its metrics in one tensor."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

from hotloop.errors import ConfigError
from hotloop.learner.execution import Execution, ExecutionChoice
from hotloop.learner.state import tensors


class BoundUpdate:
    """An update, bound to the state that it changes and to its hyper-parameters.

    Args:
        function: `function(state, batch, noise, hyper)` returns metrics, a dictionary of 0-d
            tensors by name, or metrics and another tensor, the |TD error| of each row.
        state: a tree of tensors. Updates change it in place.
        hyper: a NamedTuple of 0-d tensors.
        choice: the execution mode.
        name: the update's name in messages.

    Attributes:
        names: names of the metrics, known after the first call.
        execution: executes the update.
    """

    def __init__(
        self,
        function: Callable[..., Any],
        state: Any,
        hyper: Any,
        choice: ExecutionChoice,
        name: str,
    ) -> None:
        self.names: tuple[str, ...] = ()
        self._function = function
        self._state_and_hyper = (state, hyper)
        self.execution = Execution(self.run_packed, choice, name)

    def __call__(self, batch: Any, noise: Tensor | None) -> tuple[Tensor, Tensor | None]:
        """Update the state.

        Args:
            batch: a NamedTuple of tensors, rows first.
            noise: random numbers of the shape that the algorithm requests, or None.

        Returns:
            The metrics, float32, (M,), in the order of `names`, and |TD error|, (B,), or None.

        Raises:
            ConfigError: the update breaks its contract.
        """
        if not self.names:
            self.check(batch, noise)
        result = self.execution(self._state_and_hyper, batch, noise)
        return result if isinstance(result, tuple) else (result, None)

    def run_packed(self, state_and_hyper: tuple[Any, Any], batch: Any, noise: Tensor | None) -> Any:
        """Run the update and return its metrics in one tensor, with |TD error| if it has any."""
        state, hyper = state_and_hyper
        metrics, td_error = _split(self._function(state, batch, noise, hyper))
        if tuple(metrics) != self.names:
            raise self._contract_error(
                f"must return the same metrics each time, got {list(self.names)} first, then "
                f"{list(metrics)}: always return all of them, 0 if a metric has no meaning"
            )
        self._check_metrics(metrics)
        row = torch.stack([x.detach().to(torch.float32) for x in metrics.values()])
        return row if td_error is None else (row, td_error.detach())

    def check(self, batch: Any, noise: Tensor | None) -> None:
        """Run the update once on copies, and check its contract.

        Raises:
            ConfigError: the update breaks its contract.
        """
        (state, hyper), batch, noise = copy.deepcopy((self._state_and_hyper, batch, noise))
        old_tensors = tensors(state)
        shapes = {name: (x.shape, x.dtype) for name, x in old_tensors.items()}
        metrics, td_error = _split(self._function(state, batch, noise, hyper))
        if not isinstance(metrics, Mapping) or not metrics:
            raise self._contract_error(
                "must return its metrics, a dictionary of 0-d tensors by name, got "
                f"{_describe(metrics)}: return at least the loss"
            )
        self._check_metrics(metrics)
        new_tensors = tensors(state)
        for name, tensor in old_tensors.items():
            if new_tensors.get(name) is not tensor or (tensor.shape, tensor.dtype) != shapes[name]:
                raise self._contract_error(
                    f"must change the tensors of its state in place, but replaces `{name}`: write "
                    f"`state.{name}.copy_(…)` or another operation that ends in _"
                )
        if td_error is not None and not isinstance(td_error, Tensor):
            raise self._contract_error(
                "must return metrics, or metrics and |TD error|, (B,), got metrics and "
                f"{_describe(td_error)}: leave it out"
            )
        self.names = tuple(metrics)

    def _check_metrics(self, metrics: Mapping[str, Any]) -> None:
        for name, value in metrics.items():
            if not isinstance(value, Tensor) or value.ndim:
                is_array = getattr(value, "ndim", 0) > 0
                fix = "take its mean" if is_array else "leave it a tensor, without `.item()`"
                raise self._contract_error(
                    f"must return 0-d tensors as metrics, but `{name}` is {_describe(value)}: {fix}"
                )

    def _contract_error(self, problem: str) -> ConfigError:
        return ConfigError(f"the {self.execution.name} {problem}")


def _split(result: Any) -> tuple[Any, Any]:
    """Return the metrics and |TD error| or None."""
    if isinstance(result, tuple) and len(result) == 2:
        return result[0], result[1]
    return result, None


def _describe(value: object) -> str:
    if isinstance(value, Tensor):
        return f"a tensor of shape {tuple(value.shape)}"
    return f"a {type(value).__name__}"
