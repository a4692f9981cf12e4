"""A policy as one torch module for export, from raw observations to the environment's actions."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from hotloop.envs.spaces import ActionSpec
from hotloop.ops.scaling import scale_obs
from hotloop.policies.heads.base import action_limits
from hotloop.policies.snapshot import PolicySnapshot
from hotloop.policies.spec import Network
from hotloop.types import Array

_WIDE_UNSIGNED = ("uint1", "uint3", "uint6")


class TracedPolicy(nn.Module):
    """`TrainedPolicy.act` and `TrainedPolicy.head` as a module."""

    def __init__(self, network: Network, snapshot: PolicySnapshot) -> None:
        super().__init__()
        self._head = network.head
        self._network, params = network.layers.torch_module()
        folded = network.fold(snapshot.params)
        with torch.no_grad():
            for name, param in params.items():
                param.copy_(torch.from_numpy(folded[name].copy()))
        self._is_scaled = snapshot.obs_scale is not None
        if snapshot.obs_scale is not None:
            self._clip = float(snapshot.obs_scale.clip)
            _register(self, mean=snapshot.obs_scale.mean, std=snapshot.obs_scale.std)
        self._has_value = network.has_value
        spec = network.action_spec
        self._columns = spec.columns
        self._decoders = nn.ModuleList(_Decoder(part) for part in spec.parts or (spec,))
        if self._head.action_scale is not None:
            center, half_width = self._head.action_scale
            _register(self, action_centre=center, action_half=half_width)  # `half` is a method

    def forward(
        self, obs: Tensor, memory: Tensor | None = None, action_mask: Tensor | None = None
    ) -> tuple[Tensor, ...]:
        """Return the greedy action, the head and, if any, the value and the new hidden state.

        Args:
            obs: (B, *obs_shape), float32, or uint8 if the observations are bytes.
            memory: hidden state of a recurrent policy, (B, M).
            action_mask: allowed actions of a policy with action masks, bool, (B, A).

        Returns:
            The action for the environment, int64 or of the dtype of its box, (B, *action_shape), or
            one for each part of a Dict or Tuple space, the head, float32, (B, H), the value,
            float32, (B,), and the hidden state after the step, (B, M).
        """
        if self._is_scaled:
            mean, std = self.get_buffer("mean"), self.get_buffer("std")
            obs = scale_obs(obs, mean, std, self._clip)
        outputs = self._network(obs) if memory is None else self._network(obs, memory)
        head, *extras = [outputs] if isinstance(outputs, Tensor) else outputs
        if self._has_value:
            extras[0] = extras[0].reshape(-1)
        if action_mask is not None:
            head = self._head.forbid(head, action_mask)
        return *self._actions(head), head, *extras

    def _actions(self, head: Tensor) -> list[Tensor]:
        """Return the action, or one for each part of a Dict or Tuple space."""
        mode = self._head.mode(head)
        if self._head.action_scale is not None:
            mode = mode * self.get_buffer("action_half") + self.get_buffer("action_centre")
        values = [mode[:, columns] for columns in self._columns] or [mode]
        return [decoder(value) for decoder, value in zip(self._decoders, values, strict=True)]


class _Decoder(nn.Module):
    """`ActionSpec.decode` of a space without parts, as a module."""

    def __init__(self, spec: ActionSpec) -> None:
        super().__init__()
        self._shape, self._is_box = spec.shape, spec.kind == "box"
        dtype = spec.space_dtype if self._is_box else "int64"
        self._is_integer = "int" in dtype
        # Torch has hardly any operation for unsigned integers of more than 8 bits.
        is_wide = dtype[:5] in _WIDE_UNSIGNED
        self._dtype = torch.int64 if is_wide else getattr(torch, dtype or "float32")
        _register(self, **action_limits(spec))

    def forward(self, action: Tensor) -> Tensor:
        """Return the actions of the space, (B, *shape)."""
        action = action.reshape(-1, *self._shape)
        if not self._is_box:
            return action.to(self._dtype) + self.get_buffer("start")
        low, high = self.get_buffer("low"), self.get_buffer("high")
        action = torch.clamp(action.to(low.dtype), low, high)
        return (action.round() if self._is_integer else action).to(self._dtype)


def _register(module: nn.Module, **arrays: Array) -> None:
    for name, array in arrays.items():
        module.register_buffer(name, torch.from_numpy(array.copy()))
