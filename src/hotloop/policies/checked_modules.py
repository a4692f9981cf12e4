"""Networks that are modules of the user's own, checked for what learning and acting ask of them.

What is learned is a function of parameters and inputs alone, so modules that remember (batch
normalisation's averages) or draw numbers (dropout) are refused when they are given.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from hotloop.errors import ConfigError, HotloopError, ShapeError
from hotloop.importing import describe_exception
from hotloop.ops.products import Precision
from hotloop.policies.modules import Module
from hotloop.types import Array


class CheckedModule:
    """A user's module as a function of its parameters and inputs.

    Learned are its parameters that require a gradient, under its own names. Other parameters and
    buffers stay what construction from seed 0 makes of them.

    Args:
        body: the factory and its name.
        arguments: of the factory, by name, in order.
        inputs: of `forward`: shape and dtype of one row, by what they are.
        outputs: of `forward`: shape of one row, float32, and what it means; of the shape (), (B, 1)
            will do.

    Attributes:
        shapes: of what is learned, by name.
        twin: None: it acts through torch.
        memory: None: it remembers nothing.

    Raises:
        ConfigError: the factory or the module raised, or the module can't be trained as it is.
        ShapeError: `forward` returns something else.
    """

    twin = None
    memory = None
    num_encoder_products = 0  # not known

    def __init__(
        self,
        body: Module,
        *,
        arguments: Mapping[str, Any],
        inputs: Mapping[str, tuple[tuple[int, ...], str]],
        outputs: Mapping[str, tuple[tuple[int, ...], str]],
    ) -> None:
        self._factory, self._name = body.factory, body.name
        self._arguments, self._inputs, self._outputs = arguments, inputs, outputs
        self._module = self._construct(0)
        params = self._module.named_parameters()
        self.shapes = {name: tuple(x.shape) for name, x in params if x.requires_grad}
        self._check_parameters()
        self._check_construction()
        self._check_forward()

    def initial_parameters(
        self, seed: int, shapes: Mapping[str, tuple[int, ...]]
    ) -> dict[str, Array]:
        """Return float32 arrays by name: as constructed, and zeros for what the module lacks.

        Args:
            seed: of torch's generator while the module is constructed.
            shapes: of all that is learned, by name.
        """
        own = self._construct(seed).get_parameter
        return {
            name: own(name).detach().numpy() if name in self.shapes else np.zeros(shape, np.float32)
            for name, shape in shapes.items()
        }

    def learned(
        self, precision: Precision, device: torch.device | str
    ) -> Callable[..., tuple[Tensor, ...]]:
        """Return `function(params, *inputs)`, which gives the outputs, those of shape () as (B,).

        Raises:
            ConfigError: the precision is bfloat16.
        """
        if precision == "bfloat16":
            raise self._error(
                f"`precision` '{precision}' is of hotloop's own layers: "
                "leave it at 'float32', and round inside the module's `forward`"
            )
        is_on_cpu = torch.device(device).type == "cpu"
        module = self._module if is_on_cpu else self._construct(0).to(device)
        names = list(self.shapes)

        def function(params: Mapping[str, Tensor], *inputs: Tensor) -> tuple[Tensor, ...]:
            learned = {name: params[name] for name in names}
            seen = tuple(x if x.dtype == torch.uint8 else x.to(torch.float32) for x in inputs)
            return self._flat(torch.func.functional_call(module, learned, seen))

        return function

    def torch_module(self) -> tuple[nn.Module, Mapping[str, Tensor]]:
        """Return a new module, and its parameters that are learned, by name."""
        module = self._construct(0)
        return module, {name: module.get_parameter(name) for name in self.shapes}

    def _construct(self, seed: int) -> nn.Module:
        """Return a new module; torch's global generator is left as it was."""
        given = " and ".join(f"{name}={x}" for name, x in self._arguments.items())
        with torch.random.fork_rng(devices=[]):
            torch.default_generator.manual_seed(seed)
            try:
                module = self._factory(*self._arguments.values())
            except HotloopError:
                raise
            except Exception as error:
                raise self._error(f"making it with {given} raised {_describe(error)}") from error
            if not isinstance(module, nn.Module):
                raise self._error(
                    f"it must be a torch.nn.Module, got a {type(module).__name__}: name its class, "
                    "or a function that returns one"
                )
            # Here and not later: lazy layers draw their parameters when they first see an input.
            inputs = self._inputs.values()
            self._run(module, [torch.zeros(2, *x, dtype=getattr(torch, t)) for x, t in inputs])
        return module

    def _error(self, problem: str) -> ConfigError:
        return ConfigError(f"network '{self._name}': {problem}")

    def _flat(self, outputs: Any) -> tuple[Tensor, ...]:
        """Return a tuple also of a single output, in which (B, 1) has become (B,)."""
        wanted = self._outputs.values()
        given = (outputs,) if len(wanted) == 1 else outputs
        return tuple(
            x if shape else x.flatten() for x, (shape, _) in zip(given, wanted, strict=True)
        )

    def _run(self, module: nn.Module, inputs: list[Tensor]) -> tuple[Tensor, ...]:
        """Return the outputs of a trial batch, which are checked."""
        batch, wanted = len(inputs[0]), self._outputs
        try:
            with torch.no_grad():
                outputs = module(*inputs)
        except Exception as error:
            taken = " and ".join(
                f"{what} of shape {tuple(x.shape)}, {x.dtype},"
                for what, x in zip(self._inputs, inputs, strict=True)
            )
            raise self._error(
                f"`forward` must take {taken} but raised {_describe(error)}"
            ) from error
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
        rows = " and ".join(f"{what} of shape {x}" for what, (x, _) in self._inputs.items())
        got = f"({', '.join(map(_outline, given))})" if is_tuple else _outline(outputs)
        raise ShapeError(
            f"network '{self._name}': `forward` must return {names}, torch.float32 of shape{s} "
            f"{shapes}, for a batch of {batch} {rows}, got {got}"
        )

    def _check_parameters(self) -> None:
        if not self.shapes:
            raise ConfigError(f"network '{self._name}' has no parameter that requires a gradient")
        for name, param in self._module.named_parameters():
            if param.dtype != torch.float32 or param.device.type != "cpu":
                raise self._error(
                    f"parameters must be torch.float32 on the CPU, but `{name}` is {param.dtype} "
                    f"on {param.device}"
                )

    def _check_construction(self) -> None:
        again = self._construct(0)
        if again is self._module:
            raise self._error(
                "the factory returned the same module twice: make a new one in each call"
            )
        name = _first_difference(_tensors(self._module), _tensors(again))
        if name is not None:
            raise self._error(
                f"one seed must give one module, but `{name}` differs between two constructions: "
                "draw from torch's generator alone"
            )

    def _check_forward(self) -> None:
        """Refuse what a function of parameters and inputs can't be."""
        module = self._module
        for name, part in module.named_modules():
            if isinstance(part, nn.modules.dropout._DropoutNd) and part.training and part.p > 0:
                raise self._error(
                    f"`{name}` is dropout, under which one policy gives two probabilities of one "
                    "action: leave it out"
                )
        with torch.random.fork_rng(devices=[]):
            torch.default_generator.manual_seed(0)
            # Bytes may be indices: none but the first two are sure to be there.
            inputs = [
                torch.rand(2, *shape)
                if dtype == "float32"
                else torch.randint(2, (2, *shape), dtype=getattr(torch, dtype))
                for shape, dtype in self._inputs.values()
            ]
            before = {name: tensor.clone() for name, tensor in _tensors(module).items()}
            first = self._run(module, inputs)
            name = _first_difference(before, _tensors(module))
            if name is not None:
                raise self._error(
                    f"its buffer `{name}` changes in a forward, which no gradient sees and no "
                    "other process would learn of: leave batch normalisation and its like out; "
                    "LayerNorm and scaled observations fit"
                )
            second = self._run(module, inputs)
            alone = self._run(module, [x[:1] for x in inputs])
        for one, again, single in zip(first, second, alone, strict=True):
            if not torch.allclose(one, again, rtol=1e-5, atol=1e-6, equal_nan=True):
                raise self._error(
                    "`forward` gives something else each time for the same observations: leave "
                    "out what draws random numbers or remembers"
                )
            if not torch.allclose(one[:1], single, rtol=1e-3, atol=1e-4, equal_nan=True):
                raise self._error(
                    "an observation alone must give what it gives in a batch, but does not: look "
                    "for what mixes the rows (a statistic or a softmax over axis 0, a reshape)"
                )


def _tensors(module: nn.Module) -> dict[str, Tensor]:
    return {**dict(module.named_parameters()), **dict(module.named_buffers())}


def _first_difference(one: dict[str, Tensor], other: dict[str, Tensor]) -> str | None:
    names = (name for name, x in one.items() if name not in other or not x.equal(other[name]))
    return next(names, None)


def _outline(value: object) -> str:
    """What came, in few words: a tensor's dtype and shape, or a type."""
    if isinstance(value, Tensor):
        return f"{value.dtype} {tuple(value.shape)}"
    return f"a {type(value).__name__}"


def _describe(error: Exception) -> str:
    """Name the line of the user's code, not one of torch's."""
    return describe_exception(error, skip=(str(Path(torch.__file__).parent),))
