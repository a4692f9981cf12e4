"""Lanes: learners whose updates are executed as one, by `vmap` over their states.

Each learner keeps its own random numbers, metrics and checkpoints. Its tensors are rows of stacked
tensors, and its batches are copied into stacked batches.
"""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from hotloop.errors import ConfigError, shortened
from hotloop.learner.execution import Execution
from hotloop.learner.learner import Learner, UpdateRule
from hotloop.learner.state import mapped, stacked, tensors
from hotloop.learner.updates import BoundUpdate


class Lanes:
    """K learners of one shape.

    Args:
        learners: learners of the same algorithm and networks, with the same number of updates.
            Their tensors become rows of stacked tensors.

    Attributes:
        executions: the executions of the joint updates.

    Raises:
        ConfigError: the states have different shapes.
    """

    def __init__(self, learners: Sequence[Learner]) -> None:
        self._learners = learners
        first = learners[0]
        shapes = [_shapes((one.state, one.hyper.tensors)) for one in learners]
        for other in shapes[1:]:
            for name, shape in shapes[0].items():
                if other.get(name) != shape:
                    raise ConfigError(
                        f"lanes must have states of one shape, but `{name}` is {shape} in the "
                        f"first and {other.get(name)} in another: vary only numbers"
                    )
        bound = stacked([(one.state, one.hyper.tensors) for one in learners])
        for k, one in enumerate(learners):
            rows = tensors((one.state, one.hyper.tensors)).values()
            for row, stack in zip(rows, tensors(bound).values(), strict=True):
                row.data = stack[k]  # holders of the row see the stack's memory
        self._bound = bound
        self._updates = [_LaneUpdate(first, rule, len(learners)) for rule, _ in first.rules]
        self.executions = [update.execution for update in self._updates]
        for one in learners:
            one.executions = self.executions
        self._batches: dict[Any, _Stack] = {}
        self._noise: dict[tuple[int, ...], Tensor] = {}
        self._going_on = set(range(len(learners)))

    def leave(self, lane: int) -> None:
        """Stop preserving a lane's state."""
        self._going_on.discard(lane)

    def update(self, batches: Mapping[int, Any]) -> dict[int, Tensor | None]:
        """Make the updates that are due with a batch for some of the lanes.

        Args:
            batches: by lane, NamedTuples of tensors of the same shapes. Other lanes keep their
                states.

        Returns:
            |TD error| by lane, (B,), see `Learner.update`.

        Raises:
            ConfigError: an update breaks its contract, or can't be executed as chosen.
        """
        stack = self._stack(next(iter(batches.values())))
        for k, batch in batches.items():
            stack.put(k, batch)
            self._learners[k].num_updates += 1
        td_errors: dict[int, Tensor | None] = dict.fromkeys(batches)
        for update in self._updates:
            rule = update.rule
            due = {k for k in batches if self._learners[k].num_due(rule)}
            for _ in range(rule.times if due else 0):
                noise = self._drawn(rule, due)
                with self._unchanged(self._going_on - due):
                    rows, more = update(self._bound, stack.batch, noise)
                for k in due:
                    one = self._learners[k]
                    one.metrics.add(rule.name, update.names, rows[k], one.num_updates)
                    if more is not None and td_errors[k] is None:
                        td_errors[k] = more[k]
        return td_errors

    def _stack(self, batch: Any) -> _Stack:
        key = tuple(_shapes(batch).items())
        if key not in self._batches:
            self._batches[key] = _Stack(batch, len(self._learners))
        return self._batches[key]

    def _drawn(self, rule: UpdateRule, lanes: set[int]) -> Tensor | None:
        shape = rule.noise_shape
        if shape is None:
            return None
        if shape not in self._noise:
            device = self._learners[0].device
            self._noise[shape] = torch.zeros((len(self._learners), *shape), device=device)
        for k in lanes:
            drawn = self._learners[k].draw(rule)
            assert drawn is not None
            self._noise[shape][k].copy_(drawn)
        return self._noise[shape]

    @contextlib.contextmanager
    def _unchanged(self, lanes: set[int]) -> Iterator[None]:
        """Undo the changes that the body makes to the states of some lanes."""
        kept = [(x[k], x[k].clone()) for x in tensors(self._bound).values() for k in lanes]
        yield
        for row, before in kept:
            row.copy_(before)


class _Stack:
    """One batch for each lane, in tensors of shape (K, …)."""

    def __init__(self, batch: Any, num_lanes: int) -> None:
        self.batch = mapped(batch, lambda x: x.new_zeros((num_lanes, *x.shape)))
        self._rows = [[x[k] for x in tensors(self.batch).values()] for k in range(num_lanes)]

    def put(self, lane: int, batch: Any) -> None:
        """Copy a lane's batch into the stack."""
        for row, x in zip(self._rows[lane], tensors(batch).values(), strict=True):
            row.copy_(x)


class _LaneUpdate:
    """One of the updates, for all lanes."""

    def __init__(self, learner: Learner, rule: UpdateRule, num_lanes: int) -> None:
        self.rule = rule
        self._is_stacked = True
        choice = learner.choose(num_lanes=num_lanes)
        bound = (learner.state, learner.hyper.tensors)
        self._one = BoundUpdate(rule.function, *bound, choice, rule.name)
        self.execution = Execution(self._joint, choice, f"{rule.name} of {num_lanes} lanes")

    @property
    def names(self) -> tuple[str, ...]:
        """Return the names of the metrics."""
        return self._one.names

    def __call__(self, bound: Any, batch: Any, noise: Tensor | None) -> tuple[Tensor, Any]:
        """Update all states; return the metrics, (K, M), and |TD error|, (K, B), or None."""
        if not self._one.names:
            one = mapped((batch, noise), lambda x: x[0])
            self._one.check(*one)
            self._try(bound, batch, noise)
        result = self.execution(bound, batch, noise)
        return result if isinstance(result, tuple) else (result, None)

    def _try(self, *tree: Any) -> None:
        """Find out whether `vmap` supports the update."""
        try:
            self._joint(*copy.deepcopy(tree))
        except RuntimeError as error:  # an operation without a rule, or a branch on a value
            self._is_stacked = False
            why = str(error).strip().partition("\n")[0]
            self.execution.name += f", one after another, since `vmap` can't ({shortened(why)})"

    def _joint(self, *tree: Any) -> Any:
        """Make all updates, with tensors of shape (K, …) in (state, hyper), batch and noise."""

        def one(*leaves: Tensor) -> Any:
            following = iter(leaves)
            return self._one.packed(*mapped(tree, lambda _: next(following)))

        stacks = tensors(tree).values()
        if self._is_stacked:
            return torch.func.vmap(one)(*stacks)
        each = [one(*rows) for rows in zip(*(x.unbind() for x in stacks), strict=True)]
        if isinstance(each[0], tuple):
            return tuple(torch.stack(parts) for parts in zip(*each, strict=True))
        return torch.stack(each)


def _shapes(tree: Any) -> dict[str, Any]:
    return {name: (tuple(x.shape), x.dtype) for name, x in tensors(tree).items()}
