"""Lanes: learners whose updates run as one joint update, by `vmap` over their states.

Each learner has its own random numbers, metrics and checkpoints. Its tensors are rows of stacked
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
from hotloop.learner.state import map_tensors, stack_trees, tensors
from hotloop.learner.updates import BoundUpdate


class Lanes:
    """K learners whose states have the same shapes.

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
        shapes = [_shapes((learner.state, learner.hyper.tensors)) for learner in learners]
        for lane_shapes in shapes[1:]:
            for name, shape in shapes[0].items():
                if lane_shapes.get(name) != shape:
                    raise ConfigError(
                        f"lanes must have states of one shape, but `{name}` is {shape} in the "
                        f"first lane and {lane_shapes.get(name)} in another: vary only numbers"
                    )
        stacks = stack_trees([(learner.state, learner.hyper.tensors) for learner in learners])
        for k, learner in enumerate(learners):
            rows = tensors((learner.state, learner.hyper.tensors)).values()
            for row, stack in zip(rows, tensors(stacks).values(), strict=True):
                row.data = stack[k]  # all references to the row now share the stack's memory
        self._stacks = stacks
        self._updates = [_LaneUpdate(first, rule, len(learners)) for rule, _ in first.rules]
        self.executions = [update.execution for update in self._updates]
        for learner in learners:
            learner.executions = self.executions
        self._batches: dict[Any, _StackedBatch] = {}
        self._noise: dict[tuple[int, ...], Tensor] = {}
        self._active_lanes = set(range(len(learners)))

    def release(self, lane: int) -> None:
        """Stop preserving the state of a lane that has finished."""
        self._active_lanes.discard(lane)

    def update(self, batches: Mapping[int, Any]) -> dict[int, Tensor | None]:
        """Run the due updates for the lanes that have a batch.

        Args:
            batches: batches by lane, NamedTuples of tensors of the same shapes. The states of other
                lanes do not change.

        Returns:
            |TD error| by lane, (B,), see `Learner.update`.

        Raises:
            ConfigError: an update breaks its contract, or the chosen execution is impossible.
        """
        stack = self._batch_stack(next(iter(batches.values())))
        for k, batch in batches.items():
            stack.put(k, batch)
            self._learners[k].num_updates += 1
        td_errors: dict[int, Tensor | None] = dict.fromkeys(batches)
        for update in self._updates:
            rule = update.rule
            due_lanes = {k for k in batches if self._learners[k].num_repeats(rule)}
            for _ in range(rule.times if due_lanes else 0):
                noise = self._draw_noise(rule, due_lanes)
                with self._preserve(self._active_lanes - due_lanes):
                    rows, td_error = update(self._stacks, stack.batch, noise)
                for k in due_lanes:
                    learner = self._learners[k]
                    learner.metrics.add(rule.name, update.names, rows[k], learner.num_updates)
                    if td_error is not None and td_errors[k] is None:
                        td_errors[k] = td_error[k]
        return td_errors

    def _batch_stack(self, batch: Any) -> _StackedBatch:
        key = tuple(_shapes(batch).items())
        if key not in self._batches:
            self._batches[key] = _StackedBatch(batch, len(self._learners))
        return self._batches[key]

    def _draw_noise(self, rule: UpdateRule, lanes: set[int]) -> Tensor | None:
        shape = rule.noise_shape
        if shape is None:
            return None
        if shape not in self._noise:
            device = self._learners[0].device
            self._noise[shape] = torch.zeros((len(self._learners), *shape), device=device)
        for k in lanes:
            noise = self._learners[k].draw(rule)
            assert noise is not None
            self._noise[shape][k].copy_(noise)
        return self._noise[shape]

    @contextlib.contextmanager
    def _preserve(self, lanes: set[int]) -> Iterator[None]:
        """Undo the changes that the body makes to the states of some lanes."""
        saved = [(x[k], x[k].clone()) for x in tensors(self._stacks).values() for k in lanes]
        try:
            yield
        finally:
            for row, old_row in saved:
                row.copy_(old_row)


class _StackedBatch:
    """One batch for each lane, in tensors of shape (K, …)."""

    def __init__(self, batch: Any, num_lanes: int) -> None:
        self.batch = map_tensors(batch, lambda x: x.new_zeros((num_lanes, *x.shape)))
        self._rows = [[x[k] for x in tensors(self.batch).values()] for k in range(num_lanes)]

    def put(self, lane: int, batch: Any) -> None:
        for row, x in zip(self._rows[lane], tensors(batch).values(), strict=True):
            row.copy_(x)


class _LaneUpdate:
    """One of the updates, executed for all lanes."""

    def __init__(self, learner: Learner, rule: UpdateRule, num_lanes: int) -> None:
        self.rule = rule
        self._is_stacked = True
        choice = learner.choose(num_lanes=num_lanes)
        state_and_hyper = (learner.state, learner.hyper.tensors)
        self._single = BoundUpdate(rule.function, *state_and_hyper, choice, rule.name)
        self.execution = Execution(self._update_all, choice, f"{rule.name} of {num_lanes} lanes")

    @property
    def names(self) -> tuple[str, ...]:
        return self._single.names

    def __call__(self, stacks: Any, batch: Any, noise: Tensor | None) -> tuple[Tensor, Any]:
        """Update all states. Return the metrics, (K, M), and |TD error|, (K, B), or None."""
        if not self._single.names:
            first_lane = map_tensors((batch, noise), lambda x: x[0])
            self._single.check(*first_lane)
            self._check_vmap(stacks, batch, noise)
        result = self.execution(stacks, batch, noise)
        return result if isinstance(result, tuple) else (result, None)

    def _check_vmap(self, *tree: Any) -> None:
        """Run the update on copies to find out whether `vmap` supports it."""
        try:
            self._update_all(*copy.deepcopy(tree))
        except RuntimeError as error:  # an operation that `vmap` lacks, or a branch on a value
            self._is_stacked = False
            reason = str(error).strip().partition("\n")[0]
            self.execution.name += f", one after another, since `vmap` fails ({shortened(reason)})"

    def _update_all(self, *tree: Any) -> Any:
        """Run all updates, with tensors of shape (K, …) in (state, hyper), batch and noise."""

        def update_lane(*leaves: Tensor) -> Any:
            remaining = iter(leaves)
            return self._single.run_packed(*map_tensors(tree, lambda _: next(remaining)))

        stacks = tensors(tree).values()
        if self._is_stacked:
            return torch.func.vmap(update_lane)(*stacks)
        results = [update_lane(*rows) for rows in zip(*(x.unbind() for x in stacks), strict=True)]
        if isinstance(results[0], tuple):
            return tuple(torch.stack(parts) for parts in zip(*results, strict=True))
        return torch.stack(results)


def _shapes(tree: Any) -> dict[str, Any]:
    return {name: (tuple(x.shape), x.dtype) for name, x in tensors(tree).items()}
