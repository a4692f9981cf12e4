"""Publishing: the one way in which parameters leave the device where they are learned."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from hotloop.policies import ObsScale, PolicySnapshot
from hotloop.policies.parameters import ParameterLayout
from hotloop.replay.storage.device import Mark, pinned

# Copies that may be on their way: one is read while the next is written.
_NUM_SLOTS = 2


@dataclass(frozen=True)
class _Sent:
    """A policy on its way to the host.

    Attributes:
        version, obs_scale: what belongs to it.
        host: float32, (P,), that its parameters are copied to.
        mark: where the device has copied them.
    """

    version: int
    obs_scale: ObsScale | None
    host: Tensor
    mark: Mark


class Publisher:
    """Copies the acting network's parameters to host memory that stays where it is.

    Who acts reads that copy alone. From a GPU it is one transfer into pinned memory, which the
    caller waits for; from the CPU one copy of the flat vector.

    Args:
        layout: where each parameter stands in the flat vector.
        params: the vector, (P,), on any device; changed in place by learning.
        overlap: give what was published the time before, whose copy has ended while environments
            were stepped, and begin the next copy: the policy that acts is one publish old, always,
            and nobody waits for the updates that were just begun.
    """

    def __init__(self, layout: ParameterLayout, params: Tensor, *, overlap: bool = False) -> None:
        self._params = params
        self._layout = layout
        self._is_on_gpu = params.device.type == "cuda"
        self._host = self._new_host()
        self._arrays = layout.views(self._host)
        self._slots = [
            (self._new_host(), Mark(params.device)) for _ in range(_NUM_SLOTS if overlap else 0)
        ]
        self._sent: _Sent | None = None

    def publish(
        self, version: int, obs_scale: ObsScale | None = None, *, newest: bool = False
    ) -> PolicySnapshot:
        """Return the policy as it is now, in arrays that the next call overwrites.

        Args:
            version: updates or iterations that it has learned from.
            obs_scale: how observations are scaled first.
            newest: wait for it even with `overlap`, as a checkpoint must; the first call does.
        """
        if self._slots:
            before, self._sent = self._sent, self._send(version, obs_scale)
            return self._received(self._sent if newest or before is None else before)
        self._host.copy_(self._params, non_blocking=True)
        if self._is_on_gpu:
            torch.cuda.current_stream(self._params.device).synchronize()
        return PolicySnapshot(version, self._arrays, obs_scale)

    def kept(self, snapshot: PolicySnapshot) -> PolicySnapshot:
        """Return a copy of what was published last, which later calls leave alone."""
        params = self._layout.views(self._host.clone())
        return PolicySnapshot(snapshot.version, params, snapshot.obs_scale)

    def _send(self, version: int, obs_scale: ObsScale | None) -> _Sent:
        """Begin to copy, behind the updates that the device was given so far."""
        host, mark = self._slots.pop(0)  # what it held was read in the call before, at the latest
        self._slots.append((host, mark))
        host.copy_(self._params, non_blocking=True)
        if self._is_on_gpu:
            mark.set()
        return _Sent(version, obs_scale, host, mark)

    def _received(self, sent: _Sent) -> PolicySnapshot:
        """Copy what has arrived to where those who act read it."""
        sent.mark.wait()
        self._host.copy_(sent.host)
        return PolicySnapshot(sent.version, self._arrays, sent.obs_scale)

    def _new_host(self) -> Tensor:
        size = tuple(self._params.shape)
        if self._is_on_gpu:
            return pinned(size, torch.float32)
        return torch.empty(size, dtype=torch.float32)
