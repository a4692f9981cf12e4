"""Networks that are the user's own modules, with checks that they can learn and act.

A learned function depends on parameters and inputs alone. The constructor therefore rejects modules
that change their buffers (batch normalization) or draw random numbers (dropout).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from hotloop.base.importing import describe_exception
from hotloop.errors import ConfigError, HotloopError, ShapeError
from hotloop.ops.products import Precision
from hotloop.types import Array


class CheckedModule:
    """A user's module as a function of its parameters and inputs.

    Parameters that require a gradient are learned, under the module's own names. Other parameters
    and buffers keep their values from construction with seed 0.

    Args:
        factory: the class or function that returns the module.
        name: its name in errors.
        arguments: arguments of the factory by name, in order.
        inputs: inputs of `forward` by description: shape and dtype of one row.
        outputs: float32 outputs of `forward` by name: shape of one row, and its meaning. For the
            shape (), (B, 1) is accepted too.

    Attributes:
        shapes: shapes of the learned parameters by name.
        numpy_layers: None, since the module acts through torch.
        recurrent_layer: None, since the module has no hidden state.

    Raises:
        ConfigError: the factory or the module raised, or the module can't be trained as it is.
        ShapeError: `forward` returns something else.
    """

    numpy_layers = None
    recurrent_layer = None
    num_encoder_products = 0  # unknown

    def __init__(
        self,
        factory: Callable[..., Any],
        name: str,
        *,
        arguments: Mapping[str, Any],
        inputs: Mapping[str, tuple[tuple[int, ...], str]],
        outputs: Mapping[str, tuple[tuple[int, ...], str]],
    ) -> None:
        self._factory, self._name = factory, name
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
        """Return float32 arrays by name: as constructed, and zeros for parameters of the head.

        Args:
            seed: seed of torch's generator during the construction.
            shapes: shapes of all learned parameters by name.
        """
        get = self._construct(seed).get_parameter
        return {
            name: get(name).detach().numpy() if name in self.shapes else np.zeros(shape, np.float32)
            for name, shape in shapes.items()
        }

    def make_forward(
        self, precision: Precision, device: torch.device | str
    ) -> Callable[..., tuple[Tensor, ...]]:
        """Return `function(params, *inputs)` for the outputs. One number per row has shape (B,).

        Raises:
            ConfigError: the precision is bfloat16.
        """
        if precision == "bfloat16":
            raise self._error(
                f"`precision` '{precision}' is for hotloop's own layers: "
                "leave it at 'float32', and round inside the module's `forward`"
            )
        is_on_cpu = torch.device(device).type == "cpu"
        module = self._module if is_on_cpu else self._construct(0).to(device)
        names = list(self.shapes)

        def function(params: Mapping[str, Tensor], *inputs: Tensor) -> tuple[Tensor, ...]:
            learned = {name: params[name] for name in names}
            cast_inputs = tuple(
                x if x.dtype == torch.uint8 else x.to(torch.float32) for x in inputs
            )
            return self._as_tuple(torch.func.functional_call(module, learned, cast_inputs))

        return function

    def torch_module(self) -> tuple[nn.Module, Mapping[str, Tensor]]:
        """Return a new module and its learned parameters by name."""
        module = self._construct(0)
        return module, {name: module.get_parameter(name) for name in self.shapes}

    def _construct(self, seed: int) -> nn.Module:
        """Return a new module. The state of torch's global generator does not change."""
        args = " and ".join(f"{name}={x}" for name, x in self._arguments.items())
        with torch.random.fork_rng(devices=[]):
            torch.default_generator.manual_seed(seed)
            try:
                module = self._factory(*self._arguments.values())
            except HotloopError:
                raise
            except (Exception, SystemExit) as error:
                parameters = ", ".join(self._arguments)
                raise self._error(
                    f"construction with {args} raised {_describe(error)}: it must take "
                    f"({parameters}) and build layers of these sizes"
                ) from error
            if not isinstance(module, nn.Module):
                raise self._error(
                    f"it must be a torch.nn.Module, got a {type(module).__name__}: name its class, "
                    "or a function that returns one"
                )
            # A trial batch: lazy layers draw their parameters at their first input.
            inputs = self._inputs.values()
            self._run(module, [torch.zeros(2, *x, dtype=getattr(torch, t)) for x, t in inputs])
        return module

    def _error(self, problem: str) -> ConfigError:
        return ConfigError(f"network '{self._name}': {problem}")

    def _as_tuple(self, outputs: Any) -> tuple[Tensor, ...]:
        """Return the outputs as a tuple, (B, 1) as (B,) where one row has the shape ()."""
        specs = self._outputs.values()
        tensors = (outputs,) if len(specs) == 1 else outputs
        return tuple(
            x if shape else x.flatten() for x, (shape, _) in zip(tensors, specs, strict=True)
        )

    def _run(self, module: nn.Module, inputs: list[Tensor]) -> tuple[Tensor, ...]:
        """Check and return the outputs for a trial batch."""
        batch, specs = len(inputs[0]), self._outputs
        try:
            with torch.no_grad():
                outputs = module(*inputs)
        except (Exception, SystemExit) as error:
            expected = " and ".join(
                f"{name} of shape {tuple(x.shape)}, {x.dtype},"
                for name, x in zip(self._inputs, inputs, strict=True)
            )
            raise self._error(
                f"`forward` must take {expected} but raised {_describe(error)}"
            ) from error
        is_tuple = isinstance(outputs, (tuple, list))
        received = outputs if is_tuple else [outputs]
        # Compare the number of outputs, and each dtype and shape.
        if is_tuple == (len(specs) > 1) and len(received) == len(specs):
            matches = (
                isinstance(x, Tensor)
                and x.dtype == torch.float32
                and (x.shape == (batch, *shape) or (not shape and x.shape == (batch, 1)))
                for x, (shape, _) in zip(received, specs.values(), strict=True)
            )
            if all(matches):
                return self._as_tuple(outputs)
        names, s = (f"({', '.join(specs)})", "s") if len(specs) > 1 else (*specs, "")
        shapes = " and ".join(
            f"{(batch, *shape)}{f' ({meaning})' if meaning else ''}"
            for shape, meaning in specs.values()
        )
        rows = " and ".join(f"{name} of shape {x}" for name, (x, _) in self._inputs.items())
        got = f"({', '.join(map(_outline, received))})" if is_tuple else _outline(outputs)
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
        rebuilt = self._construct(0)
        if rebuilt is self._module:
            raise self._error(
                "the factory returned the same module twice: make a new one in each call"
            )
        name = _first_difference(_tensors(self._module), _tensors(rebuilt))
        if name is not None:
            raise self._error(
                f"one seed must give one module, but `{name}` differs between two constructions: "
                "draw from torch's generator alone"
            )

    def _check_forward(self) -> None:
        """Raise `ConfigError` unless `forward` is a pure function, row by row."""
        module = self._module
        for name, part in module.named_modules():
            if isinstance(part, nn.modules.dropout._DropoutNd) and part.training and part.p > 0:
                raise self._error(
                    f"`{name}` is dropout, which gives one action two probabilities under one "
                    "policy: leave it out"
                )
        with torch.random.fork_rng(devices=[]):
            torch.default_generator.manual_seed(0)
            # Bytes may be indices into a table: 0 and 1 are valid for any table.
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
                    f"its buffer `{name}` changes in a forward, outside of gradients and unseen by "
                    "other processes: leave out batch normalization and the like; use LayerNorm "
                    "or scaled observations"
                )
            second = self._run(module, inputs)
            alone = self._run(module, [x[:1] for x in inputs])
        for output, repeated, single in zip(first, second, alone, strict=True):
            if not torch.allclose(output, repeated, rtol=1e-5, atol=1e-6, equal_nan=True):
                raise self._error(
                    "`forward` must return the same outputs for the same observations, but they "
                    "differ between two calls: leave out random numbers and stored state"
                )
            if not torch.allclose(output[:1], single, rtol=1e-3, atol=1e-4, equal_nan=True):
                raise self._error(
                    "an observation must have the same outputs alone and in a batch, but they "
                    "differ: find the operation that mixes the rows (a statistic or a softmax over "
                    "axis 0, a reshape)"
                )


def _tensors(module: nn.Module) -> dict[str, Tensor]:
    return {**dict(module.named_parameters()), **dict(module.named_buffers())}


def _first_difference(old: dict[str, Tensor], new: dict[str, Tensor]) -> str | None:
    names = (name for name, x in old.items() if name not in new or not x.equal(new[name]))
    return next(names, None)


def _outline(value: object) -> str:
    """Return a short description of an output: a tensor's dtype and shape, or a type."""
    if isinstance(value, Tensor):
        return f"{value.dtype} {tuple(value.shape)}"
    return f"a {type(value).__name__}"


def _describe(error: BaseException) -> str:
    """Return the error with the line of the user's code, not one of torch's."""
    return describe_exception(error, skip=(str(Path(torch.__file__).parent),))
