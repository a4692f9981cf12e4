"""An algorithm's update, checked once, with its metrics in one tensor."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

from hotloop.errors import ConfigError
from hotloop.learner.execution import Choice, Execution
from hotloop.learner.state import tensors


class BoundUpdate:
    """An update, bound to the state that it changes and to its hyper-parameters.

    Args:
        function: `function(state, batch, noise, hyper)` returns metrics, a dictionary of 0-d
            tensors by name, or metrics and another tensor, the |TD error| of each row.
        state: a tree of tensors, changed in place.
        hyper: a NamedTuple of 0-d tensors.
        choice: the way it is executed.
        name: the update's name in messages.

    Attributes:
        names: names of the metrics, known after the first call.
        execution: executes the update.
    """

    def __init__(
        self, function: Callable[..., Any], state: Any, hyper: Any, choice: Choice, name: str
    ) -> None:
        self.names: tuple[str, ...] = ()
        self._function = function
        self._bound = (state, hyper)
        self.execution = Execution(self.packed, choice, name)

    def __call__(self, batch: Any, noise: Tensor | None) -> tuple[Tensor, Tensor | None]:
        """Update the state.

        Args:
            batch: a NamedTuple of tensors, rows first.
            noise: random numbers of the shape that the algorithm requests; None: none.

        Returns:
            The metrics, float32, (M,), in the order of `names`; |TD error|, (B,), or None.

        Raises:
            ConfigError: the update does not keep the contract.
        """
        if not self.names:
            self.check(batch, noise)
        result = self.execution(self._bound, batch, noise)
        return result if isinstance(result, tuple) else (result, None)

    def packed(self, bound: tuple[Any, Any], batch: Any, noise: Tensor | None) -> Any:
        """Run the update; return its metrics in one tensor."""
        state, hyper = bound
        metrics, more = _split(self._function(state, batch, noise, hyper))
        if tuple(metrics) != self.names:
            raise self._broken(
                f"must give the same metrics each time, first {list(self.names)}, then "
                f"{list(metrics)}: give every one of them always, 0 where it has no meaning"
            )
        self._check_metrics(metrics)
        row = torch.stack([x.detach().to(torch.float32) for x in metrics.values()])
        return row if more is None else (row, more.detach())

    def check(self, batch: Any, noise: Tensor | None) -> None:
        """Run the update once on copies, and check its contract.

        Raises:
            ConfigError: the update does not keep the contract.
        """
        (state, hyper), batch, noise = copy.deepcopy((self._bound, batch, noise))
        before = tensors(state)
        shapes = {name: (x.shape, x.dtype) for name, x in before.items()}
        metrics, more = _split(self._function(state, batch, noise, hyper))
        if not isinstance(metrics, Mapping) or not metrics:
            raise self._broken(
                "must return its metrics, a dictionary of 0-d tensors by name, got "
                f"{_outline(metrics)}: return at least the loss"
            )
        self._check_metrics(metrics)
        after = tensors(state)
        for name, tensor in before.items():
            if after.get(name) is not tensor or (tensor.shape, tensor.dtype) != shapes[name]:
                raise self._broken(
                    f"must change the tensors of its state in place, but replaces `{name}`: write "
                    f"`state.{name}.copy_(…)` or another operation that ends in _"
                )
        if more is not None and not isinstance(more, Tensor):
            raise self._broken(
                "must return metrics, or metrics and |TD error|, (B,), got beside the metrics "
                f"{_outline(more)}: leave it out"
            )
        self.names = tuple(metrics)

    def _check_metrics(self, metrics: Mapping[str, Any]) -> None:
        for name, value in metrics.items():
            if not isinstance(value, Tensor) or value.ndim:
                is_array = getattr(value, "ndim", 0) > 0
                mend = "take its mean" if is_array else "leave it a tensor, without `.item()`"
                raise self._broken(
                    f"must return 0-d tensors as metrics, but `{name}` is {_outline(value)}: {mend}"
                )

    def _broken(self, what: str) -> ConfigError:
        return ConfigError(f"the {self.execution.name} {what}")


def _split(result: Any) -> tuple[Any, Any]:
    """Return the metrics and the other result."""
    if isinstance(result, tuple) and len(result) == 2:
        return result[0], result[1]
    return result, None


def _outline(value: object) -> str:
    if isinstance(value, Tensor):
        return f"a tensor of shape {tuple(value.shape)}"
    return f"a {type(value).__name__}"
