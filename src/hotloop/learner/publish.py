"""Publishing: copying the learned parameters to the host."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from hotloop.policies import ObsScale, PolicySnapshot
from hotloop.policies.parameters import ParameterLayout
from hotloop.replay.storage.device import Mark, pinned

# Copies in flight: one is read while the next is written.
_NUM_SLOTS = 2


@dataclass(frozen=True)
class _Sent:
    """A policy on its way to the host.

    Attributes:
        version, obs_scale: of the policy.
        host: the destination of its parameters, float32, (P,).
        mark: set when the device has copied them.
    """

    version: int
    obs_scale: ObsScale | None
    host: Tensor
    mark: Mark


class Publisher:
    """Copies the acting network's parameters to a fixed place in host memory.

    Acting reads only that copy. From a GPU it is one transfer into pinned memory, which the caller
    waits for. On the CPU it is one copy of the flat vector.

    Args:
        layout: the position of each parameter in the flat vector.
        params: the vector, (P,), on any device. Learning changes it in place.
        overlap: return the policy of the call before, whose copy finished while environments were
            stepped, and start the next copy. The acting policy is always one publication old, and
            nothing waits for the newest updates.
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
        """Return the current policy, in arrays that the next call overwrites.

        Args:
            version: number of updates or iterations of the policy.
            obs_scale: the scaling of its observations.
            newest: wait for the current policy even with `overlap`, as a checkpoint must. The first
                call always does.
        """
        if self._slots:
            before, self._sent = self._sent, self._send(version, obs_scale)
            return self._received(self._sent if newest or before is None else before)
        self._host.copy_(self._params, non_blocking=True)
        if self._is_on_gpu:
            torch.cuda.current_stream(self._params.device).synchronize()
        return PolicySnapshot(version, self._arrays, obs_scale)

    def kept(self, snapshot: PolicySnapshot) -> PolicySnapshot:
        """Return a copy of the last published policy."""
        params = self._layout.views(self._host.clone())
        return PolicySnapshot(snapshot.version, params, snapshot.obs_scale)

    def _send(self, version: int, obs_scale: ObsScale | None) -> _Sent:
        """Start a copy behind the updates that were launched so far."""
        host, mark = self._slots.pop(0)  # its content was read in the call before at the latest
        self._slots.append((host, mark))
        host.copy_(self._params, non_blocking=True)
        if self._is_on_gpu:
            mark.set()
        return _Sent(version, obs_scale, host, mark)

    def _received(self, sent: _Sent) -> PolicySnapshot:
        """Wait for a copy, and move it to the memory that acting reads."""
        sent.mark.wait()
        self._host.copy_(sent.host)
        return PolicySnapshot(sent.version, self._arrays, sent.obs_scale)

    def _new_host(self) -> Tensor:
        size = tuple(self._params.shape)
        if self._is_on_gpu:
            return pinned(size, torch.float32)
        return torch.empty(size, dtype=torch.float32)
