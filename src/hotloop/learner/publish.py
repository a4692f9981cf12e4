"""Publishing: copying the learned parameters to the host."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from hotloop.base import transfer
from hotloop.policies import ObsScale, PolicySnapshot
from hotloop.policies.parameters import ParameterLayout


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
        empty = transfer.pinned if self._is_on_gpu else torch.empty
        self._host = empty(tuple(params.shape), dtype=torch.float32)
        self._arrays = layout.views(self._host)
        self._downloads = transfer.Downloads(params.device) if overlap else None
        # Version, scale and download of the last publication. The download is None at its end.
        self._pending: tuple[int, ObsScale | None, Any] | None = None

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
        if self._downloads is None:
            # Detach at each call: lanes move the tensor to another storage.
            self._host.copy_(self._params.detach(), non_blocking=True)
            if self._is_on_gpu:
                torch.cuda.current_stream(self._params.device).synchronize()
            return PolicySnapshot(version, self._arrays, obs_scale)
        previous = self._pending
        download = self._downloads.start(self._params.detach())
        self._pending = version, obs_scale, download
        if must_be_current or previous is None:
            self._pending = version, obs_scale, None
        else:
            version, obs_scale, download = previous
        if download is not None:
            self._downloads.read(download, out=self._host.numpy())
        return PolicySnapshot(version, self._arrays, obs_scale)

    def copy_snapshot(self, snapshot: PolicySnapshot) -> PolicySnapshot:
        """Return a copy of the last published policy."""
        params = self._layout.views(self._host.clone())
        return PolicySnapshot(snapshot.version, params, snapshot.obs_scale)
