"""Publishing: copying the learned parameters to the host."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from hotloop.base import transfer
from hotloop.policies import ObsScale, PolicySnapshot
from hotloop.policies.parameters import ParameterLayout

# Copies in flight. One is read while the next one is written.
_NUM_SLOTS = 2


@dataclass(frozen=True)
class _PendingCopy:
    """A copy in flight: `host` is its float32 (P,) target, `event` follows it on the device."""

    version: int
    obs_scale: ObsScale | None
    host: Tensor
    event: transfer.DeviceEvent


class Publisher:
    """A copy of the acting network's parameters at a fixed address in host memory.

    Acting reads only that copy. From a GPU, publishing is one transfer into pinned memory, and the
    caller waits for it. On the CPU, it is one copy of the flat vector.

    Args:
        layout: the position of each parameter in the flat vector.
        params: the vector, (P,), on any device. Learning changes it in place.
        overlap: whether to return the policy of the previous call, whose copy finished during
            environment steps, and to start the next copy. The acting policy is then one publication
            old, and publishing does not wait for the latest updates.
    """

    def __init__(self, layout: ParameterLayout, params: Tensor, *, overlap: bool = False) -> None:
        self._params = params
        self._layout = layout
        self._is_on_gpu = params.device.type == "cuda"
        self._host = self._new_host()
        self._arrays = layout.views(self._host)
        self._slots = [
            (self._new_host(), transfer.DeviceEvent(params.device))
            for _ in range(_NUM_SLOTS if overlap else 0)
        ]
        self._pending: _PendingCopy | None = None

    def publish(
        self, version: int, obs_scale: ObsScale | None = None, *, must_be_current: bool = False
    ) -> PolicySnapshot:
        """Return the current policy, in arrays that the next call overwrites.

        Args:
            version: number of updates or iterations of the policy.
            obs_scale: the scale of its observations.
            must_be_current: whether to wait for the current policy even with `overlap`, as for a
                checkpoint. The first call always waits.
        """
        if self._slots:
            previous, self._pending = self._pending, self._send(version, obs_scale)
            return self._receive(self._pending if must_be_current or previous is None else previous)
        self._host.copy_(self._params, non_blocking=True)
        if self._is_on_gpu:
            torch.cuda.current_stream(self._params.device).synchronize()
        return PolicySnapshot(version, self._arrays, obs_scale)

    def copy_snapshot(self, snapshot: PolicySnapshot) -> PolicySnapshot:
        """Return a copy of the last published policy."""
        params = self._layout.views(self._host.clone())
        return PolicySnapshot(snapshot.version, params, snapshot.obs_scale)

    def _send(self, version: int, obs_scale: ObsScale | None) -> _PendingCopy:
        """Start a copy after the updates that were launched so far."""
        host, event = self._slots.pop(0)  # the previous call or an earlier one has read it
        self._slots.append((host, event))
        host.copy_(self._params, non_blocking=True)
        if self._is_on_gpu:
            event.record()
        return _PendingCopy(version, obs_scale, host, event)

    def _receive(self, pending: _PendingCopy) -> PolicySnapshot:
        """Wait for a copy, and move it to the memory that acting reads."""
        pending.event.wait()
        self._host.copy_(pending.host)
        return PolicySnapshot(pending.version, self._arrays, pending.obs_scale)

    def _new_host(self) -> Tensor:
        size = tuple(self._params.shape)
        if self._is_on_gpu:
            return transfer.pinned(size, torch.float32)
        return torch.empty(size, dtype=torch.float32)
