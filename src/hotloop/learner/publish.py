"""Publishing: the one way in which parameters leave the device where they are learned."""

from __future__ import annotations

import torch
from torch import Tensor

from hotloop.policies import ObsScale, PolicySnapshot
from hotloop.policies.parameters import ParameterLayout


class Publisher:
    """Copies the acting network's parameters to host memory that stays where it is.

    Who acts reads that copy alone. From a GPU it is one transfer into pinned memory, which the
    caller waits for; from the CPU one copy of the flat vector.

    Args:
        layout: where each parameter stands in the flat vector.
        params: the vector, (P,), on any device; changed in place by learning.
    """

    def __init__(self, layout: ParameterLayout, params: Tensor) -> None:
        self._params = params
        self._layout = layout
        self._is_on_gpu = params.device.type == "cuda"
        self._host = torch.empty(params.shape, dtype=torch.float32, pin_memory=self._is_on_gpu)
        self._arrays = layout.views(self._host)

    def publish(self, version: int, obs_scale: ObsScale | None = None) -> PolicySnapshot:
        """Return the policy as it is now, in arrays that the next call overwrites.

        Args:
            version: updates or iterations that it has learned from.
            obs_scale: how observations are scaled first.
        """
        self._host.copy_(self._params, non_blocking=True)
        if self._is_on_gpu:
            torch.cuda.current_stream(self._params.device).synchronize()
        return PolicySnapshot(version, self._arrays, obs_scale)

    def kept(self, snapshot: PolicySnapshot) -> PolicySnapshot:
        """Return a copy of what was published last, which later calls leave alone."""
        params = self._layout.views(self._host.clone())
        return PolicySnapshot(snapshot.version, params, snapshot.obs_scale)
