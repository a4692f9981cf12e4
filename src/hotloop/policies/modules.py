"""Networks of the user's own: any `torch.nn.Module` that gives a head and a value.

    class Net(nn.Module):
        def __init__(self, obs_shape, head_size): ...
        def forward(self, obs): return head, value  # (B, H), and (B,) or (B, 1)

What is learned is a function of parameters and observations alone, so modules that remember (batch
normalisation's averages) or draw numbers (dropout) are refused when they are given.
"""

from __future__ import annotations

import traceback
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from hotloop.envs.spaces import ActionSpec, ObsSpec
from hotloop.errors import ConfigError, HotloopError, ShapeError
from hotloop.policies.protocol import check_not_empty, head_size
from hotloop.policies.snapshot import PolicySnapshot
from hotloop.types import Array

_LOG_STD = "policy.log_std"


class ModuleActorCritic:
    """A policy and a value function computed by one module; `make_network` makes it.

    Trained are the module's parameters that require a gradient, under its own names, and, for
    continuous actions, `policy.log_std`. Other parameters and buffers stay what construction from
    seed 0 makes of them.

    Args:
        factory: called as `factory(obs_shape, head_size)`; the module's `forward` takes (B,
            *obs_shape), float32, or uint8 where the environment gives bytes.
        name: of the factory, `module:Class`, by which it is found again.
        obs_spec: what is observed.
        action_spec: what is done.

    Raises:
        ConfigError: the factory or the module raised, or the module can't be trained as it is.
        ShapeError: `forward` gives something else than a head and a value.
        SpaceError: observations or actions are empty.
    """

    def __init__(
        self, *, factory: Callable[..., Any], name: str, obs_spec: ObsSpec, action_spec: ActionSpec
    ) -> None:
        check_not_empty(obs_spec, action_spec)
        self.obs_spec = obs_spec
        self.action_spec = action_spec
        self.factory = factory
        self.name = name
        self._module = self.construct(0)
        self._trained = [
            name for name, param in self._module.named_parameters() if param.requires_grad
        ]
        self._check_parameters()
        self._check_construction()
        self._check_forward()

    @property
    def head_size(self) -> int:
        """Width of the policy's head: Σ choices, or the action's dimension."""
        return head_size(self.action_spec)

    @property
    def is_continuous(self) -> bool:
        """Whether actions are drawn from a Gaussian."""
        return self.action_spec.kind == "box"

    def parameter_shapes(self) -> dict[str, tuple[int, ...]]:
        """Names and shapes of what is trained."""
        params = dict(self._module.named_parameters())
        shapes = {name: tuple(params[name].shape) for name in self._trained}
        if self.is_continuous:
            shapes[_LOG_STD] = (self.head_size,)
        return shapes

    def initial_parameters(self, seed: int) -> dict[str, Array]:
        """What the module is constructed with, and zero log standard deviations.

        Args:
            seed: of torch's generator while the module is constructed.

        Returns:
            float32 arrays by name.
        """
        module = self.construct(seed)
        params = {name: x.detach().numpy() for name, x in module.named_parameters()}
        initial = {name: params[name] for name in self._trained}
        if self.is_continuous:
            initial[_LOG_STD] = np.zeros(self.head_size, np.float32)
        return initial

    def forward(self, params: Mapping[str, Tensor], obs: Tensor) -> tuple[Tensor, Tensor]:
        """The head, (B, H), and the value, (B,), as a function of parameters, by name."""
        if obs.dtype != torch.uint8:
            obs = obs.to(torch.float32)
        trained = {name: params[name] for name in self._trained}
        head, value = torch.func.functional_call(self._module, trained, (obs,))
        return head, value.flatten()

    def construct(self, seed: int) -> nn.Module:
        """A new module; torch's global generator is left as it was.

        Raises:
            ConfigError, ShapeError: as the class says.
        """
        given = f"obs_shape={self.obs_spec.shape} and head_size={self.head_size}"
        with torch.random.fork_rng(devices=[]):
            torch.default_generator.manual_seed(seed)
            try:
                module = self.factory(self.obs_spec.shape, self.head_size)
            except HotloopError:
                raise
            except Exception as error:
                raise ConfigError(
                    f"network '{self.name}': making it with {given} raised {_describe(error)}"
                ) from error
            if not isinstance(module, nn.Module):
                raise ConfigError(
                    f"network '{self.name}': it must be a torch.nn.Module, got a "
                    f"{type(module).__name__}: name its class, or a function that returns one"
                )
            # Here and not later: lazy layers draw their parameters when they first see an input.
            self._run(module, torch.zeros(2, *self.obs_spec.shape, dtype=self._obs_dtype))
        return module

    def to_json(self) -> dict[str, Any]:
        """As plain lists and text, for a run directory."""
        return {
            "obs_spec": self.obs_spec.to_json(),
            "action_spec": self.action_spec.to_json(),
            "network": self.name,
        }

    @property
    def _obs_dtype(self) -> torch.dtype:
        return getattr(torch, self.obs_spec.dtype)

    def _run(self, module: nn.Module, obs: Tensor) -> tuple[Tensor, Tensor]:
        """Head and value of a trial batch.

        Raises:
            ConfigError: `forward` raised.
            ShapeError: it gave something else.
        """
        batch = len(obs)
        try:
            with torch.no_grad():
                outputs = module(obs)
        except Exception as error:
            raise ConfigError(
                f"network '{self.name}': `forward` must take observations of shape "
                f"{tuple(obs.shape)}, {obs.dtype}, but raised {_describe(error)}"
            ) from error
        is_pair = isinstance(outputs, (tuple, list)) and len(outputs) == 2
        if is_pair and all(isinstance(x, Tensor) and x.dtype == torch.float32 for x in outputs):
            head, value = outputs
            if head.shape == (batch, self.head_size) and value.shape in ((batch,), (batch, 1)):
                return head, value.flatten()
        what = "the action's means" if self.is_continuous else "logits"
        got = f"({', '.join(map(_outline, outputs))})" if is_pair else _outline(outputs)
        raise ShapeError(
            f"network '{self.name}': `forward` must return (head, value), torch.float32 of shapes "
            f"({batch}, {self.head_size}) ({what}) and ({batch},), for a batch of {batch} "
            f"observations of shape {self.obs_spec.shape}, got {got}"
        )

    def _check_parameters(self) -> None:
        if not self._trained:
            raise ConfigError(f"network '{self.name}' has no parameter that requires a gradient")
        for name, param in self._module.named_parameters():
            if param.dtype != torch.float32 or param.device.type != "cpu":
                raise ConfigError(
                    f"network '{self.name}': parameters must be torch.float32 on the CPU, but "
                    f"`{name}` is {param.dtype} on {param.device}"
                )
        if self.is_continuous and _LOG_STD in self._trained:
            raise ConfigError(
                f"network '{self.name}': its parameter `{_LOG_STD}` has the name of the log "
                "standard deviation that hotloop adds: leave it out, or rename it"
            )

    def _check_construction(self) -> None:
        again = self.construct(0)
        if again is self._module:
            raise ConfigError(
                f"network '{self.name}': the factory returned the same module twice: make a new "
                "one in each call"
            )
        first, second = _tensors(self._module), _tensors(again)
        differ = [name for name in first if name not in second or _differ(first, second, name)]
        if differ:
            raise ConfigError(
                f"network '{self.name}': one seed must give one module, but `{differ[0]}` differs "
                "between two constructions: draw from torch's generator alone"
            )

    def _check_forward(self) -> None:
        """Refuse what a function of parameters and observations can't be."""
        module = self._module
        for name, part in module.named_modules():
            if isinstance(part, nn.modules.dropout._DropoutNd) and part.training and part.p > 0:
                raise ConfigError(
                    f"network '{self.name}': `{name}` is dropout, under which one policy gives "
                    "two probabilities of one action: leave it out"
                )
        with torch.random.fork_rng(devices=[]):
            torch.default_generator.manual_seed(0)
            shape = (2, *self.obs_spec.shape)
            # Bytes may be indices: none but the first two are sure to be there.
            is_float = self._obs_dtype.is_floating_point
            obs = torch.rand(shape) if is_float else torch.randint(2, shape, dtype=self._obs_dtype)
            before = {name: tensor.clone() for name, tensor in _tensors(module).items()}
            first = self._run(module, obs)
            after = _tensors(module)
            for name in before:
                if _differ(before, after, name):
                    raise ConfigError(
                        f"network '{self.name}': its buffer `{name}` changes in a forward, which "
                        "no gradient sees and no other process would learn of: leave batch "
                        "normalisation and its like out; LayerNorm and scaled observations fit"
                    )
            second = self._run(module, obs)
            alone = self._run(module, obs[:1])
        for one, other in zip(first, second, strict=True):
            if not torch.allclose(one, other, rtol=1e-5, atol=1e-6, equal_nan=True):
                raise ConfigError(
                    f"network '{self.name}': `forward` gives something else each time for the "
                    "same observations: leave out what draws random numbers or remembers"
                )
        for one, other in zip(first, alone, strict=True):
            if not torch.allclose(one[:1], other, rtol=1e-3, atol=1e-4, equal_nan=True):
                raise ConfigError(
                    f"network '{self.name}': an observation alone must give what it gives in a "
                    "batch, but does not: look for what mixes the rows (a statistic or a softmax "
                    "over axis 0, a reshape)"
                )


class ModuleForward:
    """Acts through torch, by a module of its own.

    Attributes:
        obs_dtype: what observations are to be where nothing scales them.
    """

    def __init__(self, network: ModuleActorCritic) -> None:
        self.obs_dtype = np.dtype(network.obs_spec.dtype)
        # Not functional_call: parameters change once a fragment, and swapping costs every call.
        self._module = network.construct(0)
        self._params = {
            name: param.detach().numpy()
            for name, param in self._module.named_parameters()
            if param.requires_grad
        }
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

    def head(self, obs: Array, out: Array | None) -> Array:
        """Logits or means: float32, (B, H), from (B, *obs_shape)."""
        head = self._run(obs)[0]
        if out is None:
            return head.copy()
        out[...] = head
        return out

    def value(self, obs: Array) -> Array:
        """V(obs): float32, (B,), from (B, *obs_shape)."""
        return self._run(obs)[1].reshape(-1).copy()

    def _run(self, obs: Array) -> tuple[Array, Array]:
        if self._input.shape != obs.shape or self._input.dtype != self._dtype:
            # Whatever strides, dtype and flags an array has, it can be copied into one of ours.
            self._input = np.empty(obs.shape, self._dtype)
            self._obs = torch.from_numpy(self._input)
        np.copyto(self._input, obs, casting="unsafe")
        with torch.inference_mode():
            head, value = self._module(self._obs)
        return head.numpy(), value.numpy()


def _tensors(module: nn.Module) -> dict[str, Tensor]:
    return {**dict(module.named_parameters()), **dict(module.named_buffers())}


def _differ(one: Mapping[str, Tensor], other: Mapping[str, Tensor], name: str) -> bool:
    return not torch.equal(one[name], other[name])


def _outline(value: object) -> str:
    """What came, in few words: a tensor's dtype and shape, or a type."""
    if isinstance(value, Tensor):
        return f"{value.dtype} {tuple(value.shape)}"
    return f"a {type(value).__name__}"


def _describe(error: Exception) -> str:
    """`TypeError: its message (my_nets.py:12)`: the line of the user's code, not one of torch's."""
    not_theirs = (str(Path(torch.__file__).parent), __file__)
    frames = traceback.extract_tb(error.__traceback__)
    theirs = [frame for frame in frames if not frame.filename.startswith(not_theirs)]
    where = f" ({Path(theirs[-1].filename).name}:{theirs[-1].lineno})" if theirs else ""
    text = str(error).strip().split("\n")[0]
    return f"{type(error).__name__}{': ' if text else ''}{text}{where}"
