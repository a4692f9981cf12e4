"""Acting through torch: networks that have no torch-free twin."""

from __future__ import annotations

import copy
from collections.abc import Mapping

import numpy as np
import torch
from torch import Tensor, nn

from hotloop.policies.snapshot import PolicySnapshot
from hotloop.types import Array


class TorchForward:
    """A policy's head and, where there is one, its value, by a module of its own.

    A module, and no function of parameters: these change once a fragment, and swapping them costs
    every call.

    Args:
        module: gives the head, or head and value, from observations.
        params: its parameters, by name.
        obs_dtype: of observations where nothing scales them; also an attribute.
        device: where it is computed.

    Attributes:
        last_value: float32, (B,), beside the last `head`, until the next one; None: there is none.
    """

    last_value: Array | None = None

    def __init__(
        self,
        module: nn.Module,
        params: Mapping[str, Tensor],
        obs_dtype: str,
        device: str = "cpu",
    ) -> None:
        self.obs_dtype = np.dtype(obs_dtype)
        self._device = torch.device(device)
        self._is_on_host = self._device == torch.device("cpu")
        self._on_host = module
        self._module = module if self._is_on_host else copy.deepcopy(module).to(self._device)
        self._params = {name: param.detach().numpy() for name, param in params.items()}
        self._input = np.empty(0, np.float32)

    def load(self, snapshot: PolicySnapshot) -> None:
        """Compute with a copy of these parameters from now on."""
        self._dtype = np.dtype(np.float32) if snapshot.obs_scale is not None else self.obs_dtype
        self._snapshot = snapshot
        self.refresh()

    def refresh(self) -> None:
        """Compute with what the parameters have become, which were changed in place."""
        for name, param in self._params.items():
            np.copyto(param, self._snapshot.params[name])
        if not self._is_on_host:
            self._module.load_state_dict(self._on_host.state_dict())

    def head(self, obs: Array, out: Array | None, memory: Array | None = None) -> Array:
        """Return the outputs: float32, (B, H), from (B, *obs_shape); `memory` changes in place."""
        given, *value = self._run(obs, memory)
        head = given.numpy()
        if value:
            self.last_value = value[0].numpy().reshape(-1)
        if out is None:
            return head.copy()
        out[...] = head
        return out

    def value(self, obs: Array, memory: Array | None = None) -> Array:
        """Return V(obs): float32, (B,), from (B, *obs_shape); `memory` changes in place."""
        return self._run(obs, memory)[1].numpy().reshape(-1).copy()

    def _run(self, obs: Array, memory: Array | None) -> tuple[Tensor, ...]:
        """Return the head and, where there is one, the value."""
        if self._input.shape != obs.shape or self._input.dtype != self._dtype:
            # Whatever strides, dtype and flags an array has, it can be copied into one of ours.
            self._input = np.empty(obs.shape, self._dtype)
            self._obs = torch.from_numpy(self._input)
        np.copyto(self._input, obs, casting="unsafe")
        with torch.inference_mode():
            seen = self._obs if self._is_on_host else self._obs.to(self._device)
            if memory is None:
                outputs = self._module(seen)
                return self._to_host((outputs,) if isinstance(outputs, Tensor) else outputs)
            before = torch.from_numpy(memory)
            if not self._is_on_host:
                before = before.to(self._device)
            *outputs, following = self._to_host(self._module(seen, before))
            np.copyto(memory, following.numpy())
            return tuple(outputs)

    def _to_host(self, outputs: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        return outputs if self._is_on_host else tuple(one.cpu() for one in outputs)
