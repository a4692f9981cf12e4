"""Batches of a replay buffer as tensors, as the updates of SAC, TD3 and DQN take them."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from hotloop.replay import Batch as Drawn
from hotloop.replay import ReplayBuffer
from hotloop.training.worker_weights import WorkerWeights
from hotloop.types import Array


class Batch(NamedTuple):
    """Transitions that one update learns from.

    Attributes:
        obs: (B, *obs_shape).
        action: (B, *action_shape), as the environment took it.
        reward: float32, (B,), of n steps.
        next_obs: (B, *obs_shape), n steps later, the true successor.
        discount: float32, (B,): γ to the power of the steps between, 0 where the episode
            terminated: the target is `reward + discount · V(next_obs)`, and truncation does not
            stop the bootstrap.
        importance: float32, (B,), by which the critics' losses are weighed; 1 where batches are not
            drawn by priorities and all workers are equally fast.
        share: float32, (B,), by which the policy's loss is weighed, so that slow workers count as
            much as fast ones, 1 on average; None: all the same.
    """

    obs: Tensor
    action: Tensor
    reward: Tensor
    next_obs: Tensor
    discount: Tensor
    importance: Tensor
    share: Tensor | None = None


class Batches:
    """Draws from the buffer, as tensors in memory that stays where it is.

    Args:
        buffer: drawn from.
        batch_size: B.
        gamma: γ, for transitions of one step.
        shares: who wrote what; None: one worker alone, or all alike.
    """

    def __init__(
        self,
        buffer: ReplayBuffer,
        batch_size: int,
        gamma: float,
        shares: WorkerWeights | None = None,
    ) -> None:
        self._buffer = buffer
        self._shares = shares
        self._batch_size = batch_size
        self._gamma = np.float32(gamma)
        self._n_step = buffer.settings["n_step"]
        self._drawn: dict[int, tuple[Drawn, dict[str, Array], list[Batch]]] = {}

    def draw(self, count: int) -> tuple[list[Batch], Array]:
        """`count` batches in one call, and the numbers of their transitions, (count · B,)."""
        size = count * self._batch_size
        kept = self._drawn.get(count)
        if kept is None:
            drawn = self._buffer.sample(size)
            kept = self._drawn[count] = self._with_tensors(drawn, count)
        else:
            self._buffer.sample(size, out=kept[0])
        drawn, own, batches = kept
        if self._n_step == 1:
            np.logical_not(drawn.terminated, out=own["discount"])
            np.multiply(own["discount"], self._gamma, out=own["discount"])
        if self._shares is not None:
            own["share"][:] = self._shares.weights(drawn.index)
            if self._has_importance(drawn):
                np.multiply(own["share"], drawn.importance, out=own["importance"])
            else:
                own["importance"][:] = own["share"]
        return batches, drawn.index

    def _with_tensors(
        self, drawn: Drawn, count: int
    ) -> tuple[Drawn, dict[str, Array], list[Batch]]:
        """Tensors of what was drawn, and of arrays of our own that are filled with each draw."""
        discount = np.empty(len(drawn), np.float32) if self._n_step == 1 else drawn.discount
        if self._shares is None and self._has_importance(drawn):
            importance = drawn.importance
        else:
            importance = np.ones(len(drawn), np.float32)
        fields = {
            "obs": drawn.obs,
            "action": drawn.action,
            "reward": drawn.reward,
            "next_obs": drawn.next_obs,
            "discount": discount,
            "importance": importance,
        }
        if self._shares is not None:
            fields["share"] = np.ones(len(drawn), np.float32)
        tensors = {name: torch.from_numpy(x).chunk(count) for name, x in fields.items()}
        batches = [Batch(*parts) for parts in zip(*tensors.values(), strict=True)]
        return drawn, fields, batches

    @staticmethod
    def _has_importance(drawn: Drawn) -> bool:
        return "importance" in drawn.keys()  # noqa: SIM118  (its items are attributes)
