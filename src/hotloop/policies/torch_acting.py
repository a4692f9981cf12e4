"""Acting through torch: forwards of networks that NumPy does not compute, on the CPU or a GPU."""

from __future__ import annotations

import copy
import itertools
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, Protocol

import numpy as np
import torch
from torch import Tensor, nn

from hotloop.policies.learned import LearnedNetwork
from hotloop.policies.network import Network
from hotloop.policies.snapshot import PolicySnapshot
from hotloop.replay.storage import device as transfer
from hotloop.types import Array

Function = Callable[["Tensor | None", Tensor, "Tensor | None"], tuple[Tensor, ...]]
"""Compute outputs, (B,) or (B, …), from parameters, observations and the memory, if any."""


class Execute(Protocol):
    """Wraps a function of (state, *arguments), to run it eager, compiled or as a graph.

    The state is a tree of tensors, some of which the function changes in place. `name` is the
    function's in messages.
    """

    def __call__(
        self, function: Callable[..., Any], name: str, *, copies_outputs: bool = True
    ) -> Callable[..., Any]:
        """Return the wrapped function; see `hotloop.learner.Execution` for the options."""
        ...


class _Staged(NamedTuple):
    """The tensors of a call. They keep their addresses, as a CUDA graph needs it.

    Attributes:
        state: the parameters, on the device; first, since it shows where the function runs.
        obs: (B, *obs_shape), on the host, pinned for a GPU.
        memory: float32, (B, M), on the host; None for a network without memory.
        outputs: float32, (B, W), on the host.
    """

    state: Tensor | None
    obs: Tensor
    memory: Tensor | None
    outputs: Tensor


class DeviceCall:
    """A function of tensors on a device, called with arrays of the host.

    The copy to the device, the function and the copy back are one function of tensors, which a GPU
    can replay as one graph. The host waits once, for the end of the copy back.

    Args:
        function: the network.
        state: the parameters that the function reads, on the device; None: it holds its own.
        num_columns: W, the width of all outputs side by side.
        device: where the function runs.
        num_rows: B of every call. Smaller batches are padded and larger ones split, so that one
            graph serves all. None: the size of each batch.
        execute: runs the function; None: as it is.
    """

    def __init__(
        self,
        function: Function,
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
        self._mark = transfer.Mark(device)
        self._staged: _Staged | None = None
        self._key: Any = None

    def __call__(self, obs: Array, memory: Array | None, dtype: np.dtype[Any]) -> Array:
        """Return the outputs side by side: float32, (B, W), overwritten by the next call.

        Args:
            obs: (B, *obs_shape).
            memory: float32, (B, M); None for a network without memory.
            dtype: of the observations that the function takes.
        """
        count, num_rows = len(obs), self._num_rows or len(obs)
        staged = self._stage(num_rows, obs.shape[1:], memory, dtype)
        if count <= num_rows:
            return self._call(staged, obs, memory)
        outputs = np.empty((count, self._num_columns), np.float32)
        for start in range(0, count, num_rows):
            part = slice(start, start + num_rows)
            outputs[part] = self._call(staged, obs[part], None if memory is None else memory[part])
        return outputs

    def _stage(
        self, num_rows: int, shape: tuple[int, ...], memory: Array | None, dtype: np.dtype[Any]
    ) -> _Staged:
        """Return the tensors of a call, new ones where a size changed."""
        key = (num_rows, shape, dtype, memory is None)
        if self._staged is not None and key == self._key:
            return self._staged

        def host(shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
            make = transfer.pinned if self._is_gpu else _unpinned
            return make(shape, dtype).zero_()  # rows of padding must hold numbers

        self._staged = _Staged(
            self._state,
            host((num_rows, *shape), torch.from_numpy(np.empty(0, dtype)).dtype),
            None if memory is None else host((num_rows, memory.shape[1]), torch.float32),
            host((num_rows, self._num_columns), torch.float32),
        )
        self._key = key
        return self._staged

    def _call(self, staged: _Staged, obs: Array, memory: Array | None) -> Array:
        count = len(obs)
        np.copyto(staged.obs.numpy()[:count], obs, casting="unsafe")
        if memory is not None and staged.memory is not None:
            staged.memory.numpy()[:count] = memory
        self._run(staged)
        if self._is_gpu:
            self._mark.set()
            self._mark.wait()
        return staged.outputs.numpy()[:count]

    def _compute(self, staged: _Staged) -> tuple[Tensor, ...]:
        with torch.no_grad():
            obs = staged.obs.to(self._device, non_blocking=True)
            memory = staged.memory
            if memory is not None:
                memory = memory.to(self._device, non_blocking=True)
            outputs = self._function(staged.state, obs, memory)
            columns = torch.cat([x if x.ndim == 2 else x.unsqueeze(1) for x in outputs], 1)
            staged.outputs.copy_(columns, non_blocking=True)
        return ()


def _unpinned(shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
    return torch.empty(shape, dtype=dtype)


class TorchForward(ABC):
    """A policy's head and, where there is one, its value.

    Args:
        network: the network that acts.

    Attributes:
        obs_dtype: dtype of observations where nothing scales them.
        last_value: float32, (B,), the value beside the last `head`, until the next one; None where
            there is no value function.
    """

    last_value: Array | None = None

    def __init__(self, network: Network) -> None:
        self.obs_dtype = self._dtype = np.dtype(network.obs_spec.dtype)
        self._has_value = network.has_value
        sizes = (network.head_size, int(network.has_value), network.memory_size)
        self._num_columns = sum(sizes)
        stops = itertools.accumulate(sizes)
        self._parts = [
            slice(stop - size, stop) for size, stop in zip(sizes, stops, strict=True) if size
        ]

    def load(self, snapshot: PolicySnapshot) -> None:
        """Act with this snapshot from now on."""
        self._dtype = np.dtype(np.float32) if snapshot.obs_scale is not None else self.obs_dtype

    @abstractmethod
    def refresh(self) -> None:
        """Read the loaded parameters again, which were changed in place."""

    def head(self, obs: Array, out: Array | None, memory: Array | None = None) -> Array:
        """Return the outputs: float32, (B, H), from (B, *obs_shape); `memory` changes in place."""
        head, *others = self._outputs(obs, memory)
        if self._has_value:
            self.last_value = others[0].reshape(-1).copy()
        if memory is not None:
            np.copyto(memory, others[-1])
        if out is None:
            return head.copy()
        out[...] = head
        return out

    def value(self, obs: Array, memory: Array | None = None) -> Array:
        """Return V(obs): float32, (B,), from (B, *obs_shape)."""
        return self._outputs(obs, memory)[1].reshape(-1).copy()

    @abstractmethod
    def _outputs(self, obs: Array, memory: Array | None) -> Sequence[Array]:
        """Return the head, (B, H), the value, (B,) or (B, 1), and the memory, (B, M).

        The network may have no value and no memory. The next call may overwrite the arrays.
        """

    def _columns(self, outputs: Array) -> list[Array]:
        """Return the parts of outputs that lie side by side, (B, W)."""
        return [outputs[:, part] for part in self._parts]


class ModuleForward(TorchForward):
    """A forward by a module with parameters of its own, which a snapshot is copied into.

    A module instead of a function of parameters: these change once a fragment, and swapping them
    would cost every call.

    Args:
        network: the network that acts.
        device: where it is computed. "cpu" is the host; any other name is a device.
    """

    def __init__(self, network: Network, device: str = "cpu") -> None:
        super().__init__(network)
        module, params = network.layers.torch_module()
        self._input = np.empty(0, np.float32)
        self._call: DeviceCall | None = None
        there = torch.device(device)
        if there != torch.device("cpu"):
            moved = copy.deepcopy(module).to(there)
            pairs = zip(module.parameters(), moved.parameters(), strict=True)
            twins = {id(here): param for here, param in pairs}
            module, params = moved, {name: twins[id(param)] for name, param in params.items()}
            self._call = DeviceCall(
                lambda _, obs, memory: _outputs(moved, obs, memory), None, self._num_columns, there
            )
        self._module = module
        self._params = {name: param.detach() for name, param in params.items()}
        self._uploads = transfer.Uploads(there)

    def load(self, snapshot: PolicySnapshot) -> None:
        """See `TorchForward`: compute with a copy of these parameters."""
        super().load(snapshot)
        self._snapshot = snapshot
        self.refresh()

    def refresh(self) -> None:
        """See `TorchForward`."""
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
            return self._columns(self._call(obs, memory, self._dtype))
        if self._input.shape != obs.shape or self._input.dtype != self._dtype:
            # Torch takes no array with negative strides or foreign byte order; a copy is neither.
            self._input = np.empty(obs.shape, self._dtype)
            self._obs = torch.from_numpy(self._input)
        np.copyto(self._input, obs, casting="unsafe")
        with torch.inference_mode():
            before = None if memory is None else torch.from_numpy(memory)
            return [x.numpy() for x in _outputs(self._module, self._obs, before)]


class LearnerForward(TorchForward):
    """A forward on the learner's device by the learner's own parameters.

    Nothing is published to it: it computes with what the vector holds when it is called.

    Args:
        nets: the network that is learned.
        params: its parameters in the learner's state, float32, (P,).
        device: the learner's.
        num_rows: environments that are acted for at once.
        execute: runs the function of a step, see `DeviceCall`.
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
        """See `TorchForward`: there is nothing to do."""

    def _outputs(self, obs: Array, memory: Array | None) -> Sequence[Array]:
        return self._columns(self._call(obs, memory, self._dtype))


def _outputs(module: nn.Module, obs: Tensor, memory: Tensor | None) -> tuple[Tensor, ...]:
    outputs = module(obs) if memory is None else module(obs, memory)
    return (outputs,) if isinstance(outputs, Tensor) else tuple(outputs)
