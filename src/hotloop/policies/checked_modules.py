"""Networks that are modules of the user's own, checked for what learning and acting ask of them.

What is learned is a function of parameters and inputs alone, so modules that remember (batch
normalisation's averages) or draw numbers (dropout) are refused when they are given.
"""

from __future__ import annotations

import traceback
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from hotloop.envs.spaces import ObsSpec, Spaces
from hotloop.errors import ConfigError, HotloopError, ShapeError
from hotloop.ops.products import Precision
from hotloop.policies.heads import Head
from hotloop.policies.heads.base import num_action_values
from hotloop.policies.modules import Module
from hotloop.types import Array


@dataclass(frozen=True)
class Signature:
    """What a module is made with, what its `forward` takes, and what it returns.

    Attributes:
        arguments: of the factory, by name, in order.
        inputs: shape and dtype of one row, by what they are.
        outputs: shape of one row, float32, and what it means; of the shape (), (B, 1) will do.
    """

    arguments: Mapping[str, Any]
    inputs: Mapping[str, tuple[tuple[int, ...], str]]
    outputs: Mapping[str, tuple[tuple[int, ...], str]]


class CheckedModule:
    """A user's module as a function of its parameters and inputs.

    Learned are its parameters that require a gradient, under its own names. Other parameters and
    buffers stay what construction from seed 0 makes of them.

    Args:
        body: the factory and its name.
        signature: what it must keep to.

    Raises:
        ConfigError: the factory or the module raised, or the module can't be trained as it is.
        ShapeError: `forward` returns something else.
    """

    def __init__(self, body: Module, signature: Signature) -> None:
        self._factory, self.name = body.factory, body.name
        self._signature = signature
        self._module = self.construct(0)
        params = dict(self._module.named_parameters())
        self.shapes = {n: tuple(param.shape) for n, param in params.items() if param.requires_grad}
        self._check_parameters()
        self._check_construction()
        self._check_forward()

    def initial_parameters(self, seed: int) -> dict[str, Array]:
        """Return what is learned as constructed: float32 arrays by name.

        Args:
            seed: of torch's generator while the module is constructed.
        """
        params = dict(self.construct(seed).named_parameters())
        return {name: params[name].detach().numpy() for name in self.shapes}

    def function(
        self, precision: Precision, device: torch.device | str
    ) -> Callable[..., tuple[Tensor, ...]]:
        """Return `function(params, *inputs)`, which gives the outputs, those of shape () as (B,).

        Raises:
            ConfigError: the precision is not float32.
        """
        if precision != "float32":
            raise ConfigError(
                f"network '{self.name}': `precision` '{precision}' is of hotloop's own layers: "
                "leave it at 'float32', and round inside the module's `forward`"
            )
        is_on_cpu = torch.device(device).type == "cpu"
        module = self._module if is_on_cpu else self.construct(0).to(device)
        names = list(self.shapes)

        def function(params: Mapping[str, Tensor], *inputs: Tensor) -> tuple[Tensor, ...]:
            learned = {name: params[name] for name in names}
            seen = tuple(x if x.dtype == torch.uint8 else x.to(torch.float32) for x in inputs)
            return self._flat(torch.func.functional_call(module, learned, seen))

        return function

    def construct(self, seed: int) -> nn.Module:
        """Return a new module; torch's global generator is left as it was.

        Raises:
            ConfigError, ShapeError: as the class says.
        """
        given = " and ".join(f"{name}={x}" for name, x in self._signature.arguments.items())
        with torch.random.fork_rng(devices=[]):
            torch.default_generator.manual_seed(seed)
            try:
                module = self._factory(*self._signature.arguments.values())
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
            inputs = self._signature.inputs.values()
            self._run(module, [torch.zeros(2, *x, dtype=getattr(torch, t)) for x, t in inputs])
        return module

    def _flat(self, outputs: Any) -> tuple[Tensor, ...]:
        """Return a tuple also of a single output, in which (B, 1) has become (B,)."""
        wanted = self._signature.outputs.values()
        given = (outputs,) if len(wanted) == 1 else outputs
        return tuple(
            x if shape else x.flatten() for x, (shape, _) in zip(given, wanted, strict=True)
        )

    def _run(self, module: nn.Module, inputs: list[Tensor]) -> tuple[Tensor, ...]:
        """Return the outputs of a trial batch.

        Raises:
            ConfigError: `forward` raised.
            ShapeError: it gave something else.
        """
        batch, signature = len(inputs[0]), self._signature
        try:
            with torch.no_grad():
                outputs = module(*inputs)
        except Exception as error:
            taken = " and ".join(
                f"{what} of shape {tuple(x.shape)}, {x.dtype},"
                for what, x in zip(signature.inputs, inputs, strict=True)
            )
            raise ConfigError(
                f"network '{self.name}': `forward` must take {taken} but raised {_describe(error)}"
            ) from error
        wanted = signature.outputs
        is_tuple = isinstance(outputs, (tuple, list))
        given = outputs if is_tuple else [outputs]
        if is_tuple == (len(wanted) > 1) and len(given) == len(wanted):
            fit = (
                isinstance(x, Tensor)
                and x.dtype == torch.float32
                and (x.shape == (batch, *shape) or (not shape and x.shape == (batch, 1)))
                for x, (shape, _) in zip(given, wanted.values(), strict=True)
            )
            if all(fit):
                return self._flat(outputs)
        names, s = (f"({', '.join(wanted)})", "s") if len(wanted) > 1 else (*wanted, "")
        shapes = " and ".join(
            f"{(batch, *shape)}{f' ({meaning})' if meaning else ''}"
            for shape, meaning in wanted.values()
        )
        rows = " and ".join(f"{what} of shape {x}" for what, (x, _) in signature.inputs.items())
        got = f"({', '.join(map(_outline, given))})" if is_tuple else _outline(outputs)
        raise ShapeError(
            f"network '{self.name}': `forward` must return {names}, torch.float32 of shape{s} "
            f"{shapes}, for a batch of {batch} {rows}, got {got}"
        )

    def _check_parameters(self) -> None:
        if not self.shapes:
            raise ConfigError(f"network '{self.name}' has no parameter that requires a gradient")
        for name, param in self._module.named_parameters():
            if param.dtype != torch.float32 or param.device.type != "cpu":
                raise ConfigError(
                    f"network '{self.name}': parameters must be torch.float32 on the CPU, but "
                    f"`{name}` is {param.dtype} on {param.device}"
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
        """Refuse what a function of parameters and inputs can't be."""
        module = self._module
        for name, part in module.named_modules():
            if isinstance(part, nn.modules.dropout._DropoutNd) and part.training and part.p > 0:
                raise ConfigError(
                    f"network '{self.name}': `{name}` is dropout, under which one policy gives "
                    "two probabilities of one action: leave it out"
                )
        with torch.random.fork_rng(devices=[]):
            torch.default_generator.manual_seed(0)
            # Bytes may be indices: none but the first two are sure to be there.
            inputs = [
                torch.rand(2, *shape)
                if dtype == "float32"
                else torch.randint(2, (2, *shape), dtype=getattr(torch, dtype))
                for shape, dtype in self._signature.inputs.values()
            ]
            before = {name: tensor.clone() for name, tensor in _tensors(module).items()}
            first = self._run(module, inputs)
            after = _tensors(module)
            for name in before:
                if _differ(before, after, name):
                    raise ConfigError(
                        f"network '{self.name}': its buffer `{name}` changes in a forward, which "
                        "no gradient sees and no other process would learn of: leave batch "
                        "normalisation and its like out; LayerNorm and scaled observations fit"
                    )
            second = self._run(module, inputs)
            alone = self._run(module, [x[:1] for x in inputs])
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


class ModuleLayers:
    """A head, and a value where there is one, by one module; see `Layers`."""

    twin = None

    def __init__(self, body: Module, obs_spec: ObsSpec, head: Head, has_value: bool) -> None:
        if head.needs_perceptrons:
            raise ConfigError(
                f"network '{body.name}': this head's layers are hotloop's own, and a module gives "
                f"{head.description} by itself: leave one of both out"
            )
        outputs: dict[str, tuple[tuple[int, ...], str]]
        outputs = {"head": ((head.size,), head.description)}
        if has_value:
            outputs["value"] = ((), "")
        self._head = head
        self._module = CheckedModule(
            body,
            Signature(
                arguments={"obs_shape": obs_spec.shape, "head_size": head.size},
                inputs={"observations": (obs_spec.shape, obs_spec.dtype)},
                outputs=outputs,
            ),
        )
        for name in head.learned_shapes({}):
            if name in self._module.shapes:
                raise ConfigError(
                    f"network '{body.name}': its parameter `{name}` has the name of one that "
                    "hotloop adds: leave it out, or rename it"
                )

    def parameter_shapes(self) -> dict[str, tuple[int, ...]]:
        """See `Layers`."""
        return self._head.learned_shapes(self._module.shapes)

    def initial_parameters(self, seed: int) -> dict[str, Array]:
        """See `Layers`; what the head adds is zero."""
        added = self._head.learned_shapes({})
        zeros = {name: np.zeros(shape, np.float32) for name, shape in added.items()}
        return {**self._module.initial_parameters(seed), **zeros}

    def learned(
        self, precision: Precision, device: torch.device | str
    ) -> Callable[[Mapping[str, Tensor], Tensor], tuple[Tensor, Tensor | None]]:
        """See `Layers`."""
        function = self._module.function(precision, device)

        def outputs(params: Mapping[str, Tensor], obs: Tensor) -> tuple[Tensor, Tensor | None]:
            head, *value = function(params, obs)
            return head, value[0] if value else None

        return outputs

    def torch_module(self) -> tuple[nn.Module, Mapping[str, Tensor]]:
        """See `Layers`."""
        module = self._module.construct(0)
        return module, {name: module.get_parameter(name) for name in self._module.shapes}


class ModuleCritics:
    """K critics, a module each, whose parameters are `critic.k.…`; see `CriticLayers`."""

    def __init__(self, body: Module, spaces: Spaces, count: int) -> None:
        obs, size = spaces.obs_spec, num_action_values(spaces.action_spec)
        self._count = count
        self._module = CheckedModule(
            body,
            Signature(
                arguments={"obs_shape": obs.shape, "action_size": size},
                inputs={"observations": (obs.shape, obs.dtype), "actions": ((size,), "float32")},
                outputs={"value": ((), "")},
            ),
        )

    def parameter_shapes(self) -> dict[str, tuple[int, ...]]:
        """See `CriticLayers`."""
        shapes = self._module.shapes.items()
        return {f"critic.{k}.{name}": x for k in range(self._count) for name, x in shapes}

    def initial_parameters(self, seed: int) -> dict[str, Array]:
        """See `CriticLayers`; each critic has a seed of its own, which no actor has."""
        seeds = np.random.SeedSequence((seed, 1)).generate_state(self._count)
        return {
            f"critic.{k}.{name}": x
            for k, own in enumerate(seeds.tolist())
            for name, x in self._module.initial_parameters(own).items()
        }

    def learned(
        self, precision: Precision, device: torch.device | str
    ) -> Callable[[Mapping[str, Tensor], Tensor, Tensor, int], Tensor]:
        """See `CriticLayers`."""
        function, names = self._module.function(precision, device), list(self._module.shapes)

        def values(params: Mapping[str, Tensor], obs: Tensor, action: Tensor, count: int) -> Tensor:
            each = [{name: params[f"critic.{k}.{name}"] for name in names} for k in range(count)]
            return torch.stack([function(own, obs, action)[0] for own in each])

        return values


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
