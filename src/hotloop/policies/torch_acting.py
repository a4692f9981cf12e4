"""Acting through torch: forward passes on the CPU or a GPU for networks that need torch."""

from __future__ import annotations

import copy
import itertools
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, Protocol

import numpy as np
import torch
from torch import Tensor, nn

from hotloop.base import transfer
from hotloop.policies.forward import LearnedNetwork
from hotloop.policies.snapshot import PolicySnapshot
from hotloop.policies.spec import Network
from hotloop.types import Array

ForwardFunction = Callable[["Tensor | None", Tensor, "Tensor | None"], tuple[Tensor, ...]]
"""Compute outputs, (B,) or (B, …), from parameters, observations and the hidden state, if any."""


class Execute(Protocol):
    """Wraps a function of (state, *arguments) to run it eagerly, compiled or as a graph.

    The state is a tree of tensors, which the function may change in place. `name` names the
    function in messages.
    """

    def __call__(
        self, function: Callable[..., Any], name: str, *, copies_outputs: bool = True
    ) -> Callable[..., Any]:
        """Return the wrapped function. See `hotloop.learner.Execution` for the options."""
        ...


class _CallBuffers(NamedTuple):
    """The tensors of a call. They keep their addresses, since CUDA graphs need fixed ones.

    `state` comes first, since it determines the device of a call. The other fields are on the host:
    obs, (B, *obs_shape), pinned for a GPU, memory, (B, M) or None, and outputs, (B, W).
    """

    state: Tensor | None
    obs: Tensor
    memory: Tensor | None
    outputs: Tensor


class DeviceCall:
    """A function of tensors on a device, called with arrays on the host.

    The copy to the device, the function and the copy back are one function of tensors, which a GPU
    can replay as one graph. The host waits once, for the end of the copy back.

    Args:
        function: the network.
        state: the parameters for the function, on the device; None: the function has its own.
        num_columns: W, the total width of the outputs.
        device: device of the function.
        num_rows: B of every call. Smaller batches are padded and larger ones split, so that all
            use one graph. None: the size of each batch.
        execute: wrapper that compiles the function or captures a graph; None: run it eagerly.
    """

    def __init__(
        self,
        function: ForwardFunction,
        state: Tensor | None,
        num_columns: int,
        device: torch.device,
        *,
        num_rows: int | None = None,
        execute: Execute | None = None,
    ) -> None:
        self._function, self._state = function, state
        self._num_columns, self._device, self._num_rows = num_columns, device, num_rows
        self._run = self._compute if execute is None else execute(self._compute, "act")
        self._is_gpu = device.type != "cpu"
        self._mark = transfer.DeviceEvent(device)
        self._buffers: _CallBuffers | None = None
        self._key: Any = None

    def __call__(self, obs: Array, memory: Array | None, dtype: np.dtype[Any]) -> Array:
        """Return the concatenated outputs: float32, (B, W), overwritten by the next call.

        Args:
            obs: (B, *obs_shape).
            memory: hidden state, float32, (B, M); None for a network without one.
            dtype: dtype of the observations for the function.
        """
        count, num_rows = len(obs), self._num_rows or len(obs)
        buffers = self._allocate(num_rows, obs.shape[1:], memory, dtype)
        if count <= num_rows:
            return self._call(buffers, obs, memory)
        outputs = np.empty((count, self._num_columns), np.float32)
        for start in range(0, count, num_rows):
            part = slice(start, start + num_rows)
            outputs[part] = self._call(buffers, obs[part], None if memory is None else memory[part])
        return outputs

    def _allocate(
        self, num_rows: int, shape: tuple[int, ...], memory: Array | None, dtype: np.dtype[Any]
    ) -> _CallBuffers:
        """Return the tensors of a call, new ones if a size changed."""
        key = (num_rows, shape, dtype, memory is None)
        if self._buffers is not None and key == self._key:
            return self._buffers

        def allocate(shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
            empty = transfer.pinned if self._is_gpu else _unpinned
            return empty(shape, dtype).zero_()  # the padding of a batch must not be NaN

        self._buffers = _CallBuffers(
            self._state,
            allocate((num_rows, *shape), torch.from_numpy(np.empty(0, dtype)).dtype),
            None if memory is None else allocate((num_rows, memory.shape[1]), torch.float32),
            allocate((num_rows, self._num_columns), torch.float32),
        )
        self._key = key
        return self._buffers

    def _call(self, buffers: _CallBuffers, obs: Array, memory: Array | None) -> Array:
        count = len(obs)
        np.copyto(buffers.obs.numpy()[:count], obs, casting="unsafe")
        if memory is not None and buffers.memory is not None:
            buffers.memory.numpy()[:count] = memory
        self._run(buffers)
        if self._is_gpu:
            self._mark.record()
            self._mark.wait()
        return buffers.outputs.numpy()[:count]

    def _compute(self, buffers: _CallBuffers) -> tuple[Tensor, ...]:
        with torch.no_grad():
            obs = buffers.obs.to(self._device, non_blocking=True)
            memory = buffers.memory
            if memory is not None:
                memory = memory.to(self._device, non_blocking=True)
            outputs = self._function(buffers.state, obs, memory)
            columns = torch.cat([x if x.ndim == 2 else x.unsqueeze(1) for x in outputs], 1)
            buffers.outputs.copy_(columns, non_blocking=True)
        return ()


def _unpinned(shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
    return torch.empty(shape, dtype=dtype)


class TorchForward(ABC):
    """A policy's head and, if any, its value.

    Attributes:
        obs_dtype: dtype of observations without a scale.
        last_value: value of the last call of `head`, float32, (B,); None without a value function.
    """

    last_value: Array | None = None

    def __init__(self, network: Network) -> None:
        self.obs_dtype = self._dtype = np.dtype(network.obs_spec.dtype)
        self._has_value = network.has_value
        sizes = (network.head_size, int(network.has_value), network.memory_size)
        self._num_columns = sum(sizes)
        stops = itertools.accumulate(sizes)
        self._column_slices = [
            slice(stop - size, stop) for size, stop in zip(sizes, stops, strict=True) if size
        ]

    def load(self, snapshot: PolicySnapshot) -> None:
        """Replace the snapshot."""
        self._dtype = np.dtype(np.float32) if snapshot.obs_scale is not None else self.obs_dtype

    @abstractmethod
    def refresh(self) -> None:
        """Read the loaded parameters again after they changed in place."""

    def head(self, obs: Array, out: Array | None, memory: Array | None = None) -> Array:
        """Return the outputs: float32, (B, H), from (B, *obs_shape). `memory` changes in place."""
        head, *extras = self._outputs(obs, memory)
        if self._has_value:
            self.last_value = extras[0].reshape(-1).copy()
        if memory is not None:
            np.copyto(memory, extras[-1])
        if out is None:
            return head.copy()
        out[...] = head
        return out

    def value(self, obs: Array, memory: Array | None = None) -> Array:
        """Return V(obs): float32, (B,), from (B, *obs_shape)."""
        return self._outputs(obs, memory)[1].reshape(-1).copy()

    @abstractmethod
    def _outputs(self, obs: Array, memory: Array | None) -> Sequence[Array]:
        """Return the head, (B, H), the value, (B,) or (B, 1), and the hidden state, (B, M)."""
        # A network without value or hidden state omits it. The next call may overwrite the arrays.

    def _split_columns(self, outputs: Array) -> list[Array]:
        """Return the separate outputs from the concatenated ones, (B, W)."""
        return [outputs[:, part] for part in self._column_slices]


class ModuleForward(TorchForward):
    """The forward pass of a module with its own parameters, copied from the snapshot. A function of
    parameters would have to set them in every call, but they change only once a fragment.

    Args:
        network: the network that acts.
        device: device of the module. "cpu" is the host, any other name is a device.
    """

    def __init__(self, network: Network, device: str = "cpu") -> None:
        super().__init__(network)
        module, params = network.layers.torch_module()
        self._input = np.empty(0, np.float32)
        self._call: DeviceCall | None = None
        target = torch.device(device)
        if target != torch.device("cpu"):
            moved = copy.deepcopy(module).to(target)
            pairs = zip(module.parameters(), moved.parameters(), strict=True)
            copies = {id(param): moved_param for param, moved_param in pairs}
            module, params = moved, {name: copies[id(param)] for name, param in params.items()}
            self._call = DeviceCall(
                lambda _, obs, memory: _outputs(moved, obs, memory), None, self._num_columns, target
            )
        self._module = module
        self._params = {name: param.detach() for name, param in params.items()}
        self._uploads = transfer.Uploads(target)

    def load(self, snapshot: PolicySnapshot) -> None:
        """See `TorchForward`. The parameters are copied."""
        super().load(snapshot)
        self._snapshot = snapshot
        self.refresh()

    def refresh(self) -> None:
        params = self._snapshot.params
        if self._call is None:
            for name, param in self._params.items():
                np.copyto(param.numpy(), params[name])
            return
        with self._uploads as uploads:
            for name, param in self._params.items():
                uploads.put(name, param, params[name])

    def _outputs(self, obs: Array, memory: Array | None) -> Sequence[Array]:
        if self._call is not None:
            return self._split_columns(self._call(obs, memory, self._dtype))
        if self._input.shape != obs.shape or self._input.dtype != self._dtype:
            # Copy, since torch rejects arrays with negative strides or foreign byte order.
            self._input = np.empty(obs.shape, self._dtype)
            self._obs = torch.from_numpy(self._input)
        np.copyto(self._input, obs, casting="unsafe")
        with torch.inference_mode():
            hidden_state = None if memory is None else torch.from_numpy(memory)
            return [x.numpy() for x in _outputs(self._module, self._obs, hidden_state)]


class LearnerForward(TorchForward):
    """A forward pass with the learner's own parameters, on the learner's device.

    It needs no published weights: each call reads the current values of the vector.

    Args:
        nets: the learned network.
        params: its parameters in the learner's state, float32, (P,).
        device: the learner's device.
        num_rows: number of environments in a call.
        execute: wrapper of the function of a step, see `DeviceCall`.
    """

    def __init__(
        self,
        nets: LearnedNetwork,
        params: Tensor,
        device: torch.device,
        *,
        num_rows: int,
        execute: Execute,
    ) -> None:
        super().__init__(nets.network)

        def step(params: Tensor | None, obs: Tensor, memory: Tensor | None) -> tuple[Tensor, ...]:
            assert params is not None
            return nets.step(params, obs, memory)

        self._call = DeviceCall(
            step, params, self._num_columns, device, num_rows=num_rows, execute=execute
        )

    def refresh(self) -> None:
        """See `TorchForward`. Nothing to do here."""

    def _outputs(self, obs: Array, memory: Array | None) -> Sequence[Array]:
        return self._split_columns(self._call(obs, memory, self._dtype))


def _outputs(module: nn.Module, obs: Tensor, memory: Tensor | None) -> tuple[Tensor, ...]:
    outputs = module(obs) if memory is None else module(obs, memory)
    return (outputs,) if isinstance(outputs, Tensor) else tuple(outputs)
