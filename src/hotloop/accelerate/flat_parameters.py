"""The parameters of a module and its optimizer's state as flat vectors, without copies.

Each parameter of the module becomes a view of one vector (P,), and so do the optimizer's moments.
The module, the optimizer, their `state_dict` and everything that reads them see the current values.
Code that replaces tensors (`load_state_dict` of an optimizer, `.to(…)`, an assignment) breaks the
views. `refresh` detects this by comparing addresses, and copies the new values into the vectors.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import accumulate, chain
from operator import attrgetter
from typing import Any

import torch
from torch import Tensor, nn

from hotloop.accelerate.acceleration import Unsupported
from hotloop.accelerate.optimizer_rules import OptimizerRule, optimizer_rule


@dataclass(slots=True)
class ModuleState:
    """The tensors of a module and its optimizer, which an update changes in place.

    Attributes:
        params: the parameters that are learned, float32, (P,).
        grad: the gradient of the last step, float32, (P,), for code that reads the parameters'
            `.grad`. None: not kept.
        moments: the optimizer's vectors, float32, (P,), by its own names. Empty without optimizer.
        steps: number of steps, float32, one for each parameter, (K,), all equal.
        constants: parameters that are not learned, and buffers, by name. A batch normalization
            changes its buffers.
    """

    params: Tensor
    grad: Tensor | None = None
    moments: dict[str, Tensor] = field(default_factory=dict)
    steps: Tensor | None = None
    constants: dict[str, Tensor] = field(default_factory=dict)


_STATUS = attrgetter("requires_grad", "_backward_hooks", "_post_accumulate_grad_hooks")
_BACKWARD_HOOKS = ("_backward_hooks", "_backward_pre_hooks")
_CONTENTS = (
    *("_modules", "_parameters", "_buffers", "_forward_hooks", "_forward_pre_hooks"),
    *_BACKWARD_HOOKS,
)


class ModuleContents:
    """The layers, parameters, buffers and hooks of layers, to detect new ones quickly.

    Args:
        layers: the layers. Those within them are not included.
    """

    def __init__(self, layers: Iterable[nn.Module]) -> None:
        layers = list(layers)
        self._owners = [getattr(x, kind) for x in layers for kind in _CONTENTS]
        # Keep references to the objects, so that no new object gets the id of one of them.
        self._objects = [*layers, *(x for owner in self._owners for x in owner.values())]
        self._ids = self._current_ids()

    def is_current(self) -> bool:
        """Return whether the layers still have the same objects."""
        return self._current_ids() == self._ids

    def _current_ids(self) -> list[int]:
        # Without bytecode of Python: off-policy models call this at each step.
        return list(map(id, chain.from_iterable(map(dict.values, self._owners))))


class FlatParameters:
    """The parameters of a module as views of one vector.

    Args:
        module: the module. Its parameters are changed to views.
        optimizer: the optimizer of the parameters to learn. None: all parameters, without optimizer
            (a target network).
        keeps_gradient: whether `state` has the last gradient, which the parameters' `.grad` view.
            Otherwise their `.grad` is None.

    Attributes:
        state: the vectors, which later calls never replace.
        rule: one step of the optimizer as a function. None without optimizer.
        names: names of the learned parameters within the module, in the order of the vector.
        shapes: their shapes.
        reassigned: names of tensors that the module has replaced during a call, which is lost.

    Raises:
        Unsupported: the optimizer or a parameter is of another kind.
    """

    def __init__(
        self,
        module: nn.Module,
        optimizer: torch.optim.Optimizer | None = None,
        *,
        keeps_gradient: bool = False,
    ) -> None:
        self._optimizer = optimizer
        self.reassigned: set[str] = set()
        self.rule: OptimizerRule | None = None if optimizer is None else optimizer_rule(optimizer)

        # Find the parameters to learn.
        named = dict(module.named_parameters())
        learned = {id(x) for x in named.values() if x.requires_grad}
        if optimizer is not None:
            (group,) = optimizer.param_groups  # `optimizer_rule` has checked that there is one
            learned &= {id(x) for x in group["params"]}
        self.names = tuple(name for name, x in named.items() if id(x) in learned)
        self._parameters = [named[name] for name in self.names]
        _check_parameters(dict(zip(self.names, self._parameters, strict=True)))
        _check_layers(module)
        self.shapes = tuple(tuple(x.shape) for x in self._parameters)
        self._sizes = [x.numel() for x in self._parameters]

        # Record where the module holds its tensors, to replace them and to detect changes.
        self._slots = _slots(module)
        self._contents = ModuleContents(module.modules())
        self._trainable = {x: x.requires_grad for x in named.values()}
        self._statuses = [(is_trainable, None, None) for is_trainable in self._trainable.values()]
        constants = {name: x for name, x in named.items() if id(x) not in learned}
        constants |= dict(module.named_buffers())
        names = {id(x): name for name, x in (named | constants).items()}
        self._slot_names = [names[id(x)] for _, _, x in self._slots]

        # Allocate the vectors, and turn the existing tensors into views of them.
        size = sum(self._sizes)
        self.state = ModuleState(torch.zeros(size), constants=constants)
        self._gradients: list[Tensor | None] = [None] * len(self._parameters)
        if keeps_gradient:
            self.state.grad = torch.zeros(size)
            self._gradients[:] = self._reshaped(self.state.grad)
        if self.rule is not None:
            self.state.moments = {name: torch.zeros(size) for name in self.rule.moments}
            self.state.steps = torch.zeros(len(self._parameters))
        self._views = self._reshaped(self.state.params)
        self._moment_views = {
            name: self._reshaped(vector) for name, vector in self.state.moments.items()
        }
        self._bound_addresses: list[int] = []
        self.refresh()

    def is_current(self) -> bool:
        """Return whether the module's layers, parameters and buffers are the same objects.

        The same parameters must also be frozen, and none may have hooks.
        """
        if not self._contents.is_current():
            return False
        if list(map(_STATUS, self._trainable)) == self._statuses:
            return True
        return all(
            x.requires_grad is before and not _has_hooks(x) for x, before in self._trainable.items()
        )

    def refresh(self) -> None:
        """Copy the values of tensors that other code has replaced, and restore the views.

        Raises:
            Unsupported: a new tensor has another type or device, or the optimizer's parameters
                differ in their number of steps.
        """
        # Off-policy algorithms call this before each gradient step. Usually nothing has changed.
        for parameter, gradient in zip(self._parameters, self._gradients, strict=True):
            if parameter.grad is not gradient:  # of other code, or after `zero_grad`
                parameter.grad = gradient
        if self._current_addresses() == self._bound_addresses:
            return
        for parameter, view in zip(self._parameters, self._views, strict=True):
            if parameter.data_ptr() != view.data_ptr():
                _check_parameters({"": parameter})
                view.copy_(parameter.data)
                parameter.data = view
        if self._optimizer is not None:
            self._refresh_moments(self._optimizer)
        self._bound_addresses = self._current_addresses()

    def split(self, params: Tensor) -> dict[str, Tensor]:
        """Return views of a vector of parameters, (P,), by name. Gradients flow back to it."""
        # One `split` has one backward operation. Slices have one each, of P elements.
        parts = params.split(self._sizes)
        shaped = (part.view(shape) for part, shape in zip(parts, self.shapes, strict=True))
        return dict(zip(self.names, shaped, strict=True))

    @contextmanager
    def replaced_by(self, values: dict[str, Tensor]) -> Iterator[None]:
        """Put other tensors, by name, in the place of the module's own in the body.

        `torch.func.functional_call` restores the wrong tensors of a submodule with several names,
        such as a shared features extractor.
        """
        for (owner, key, _), name in zip(self._slots, self._slot_names, strict=True):
            owner[key] = values[name]
        try:
            yield
        finally:
            for (owner, key, x), name in zip(self._slots, self._slot_names, strict=True):
                if owner.get(key) is not values[name]:
                    self.reassigned.add(name)
                owner[key] = x

    def _current_addresses(self) -> list[int]:
        """Return the addresses of the parameters and of the optimizer's tensors."""
        entries = () if self._optimizer is None else self._optimizer.state.values()
        values = [*self._parameters, *chain.from_iterable(map(dict.values, entries))]
        try:
            return list(map(Tensor.data_ptr, values))
        except TypeError:  # other code has stored a number
            return [x.data_ptr() if isinstance(x, Tensor) else 0 for x in values]

    def _reshaped(self, vector: Tensor) -> list[Tensor]:
        # Slices, since torch forbids changes in place of a view by `split`.
        starts = [0, *accumulate(self._sizes)]
        parts = zip(starts, self._sizes, self.shapes, strict=False)
        return [vector[start : start + size].view(shape) for start, size, shape in parts]

    def _refresh_moments(self, optimizer: torch.optim.Optimizer) -> None:
        """Copy the optimizer's state that other code has replaced, and restore its views.

        Raises:
            Unsupported: the parameters differ in their numbers of steps.
        """
        steps = self.state.steps
        assert steps is not None
        entries = [optimizer.state[x] for x in self._parameters]
        is_bound = [self._is_bound(k, entry) for k, entry in enumerate(entries)]
        if all(is_bound):
            return
        # A parameter without gradients has no entry. Its moments stay 0 at any number of steps.
        counts = {float(entry.get("step", 0.0)) for entry in entries} - {0.0}
        if len(counts) > 1:
            raise Unsupported(
                "its optimizer's parameters differ in their numbers of steps, "
                f"{', '.join(f'{x:g}' for x in sorted(counts))}"
            )
        for k, entry in enumerate(entries):
            if is_bound[k]:
                continue
            values = dict(entry)
            entry.clear()
            entry["step"] = steps[k]
            for name, views in self._moment_views.items():
                entry[name] = views[k]
                if (value := values.get(name)) is None:
                    views[k].zero_()
                else:
                    views[k].copy_(value)
        steps.fill_(max(counts, default=0.0))

    def _is_bound(self, k: int, entry: dict[str, Any]) -> bool:
        """Return whether the optimizer's entry of a parameter holds views of the vectors."""
        assert self.state.steps is not None
        views = {"step": self.state.steps[k], **{n: x[k] for n, x in self._moment_views.items()}}
        return all(
            isinstance(entry.get(name), Tensor) and entry[name].data_ptr() == view.data_ptr()
            for name, view in views.items()
        )


def _check_parameters(parameters: dict[str, nn.Parameter]) -> None:
    for name, x in parameters.items():
        if x.dtype is not torch.float32 or x.device.type != "cpu":
            raise Unsupported(
                f"its parameter {name} is {x.dtype} on {x.device}, not float32 on the CPU"
            )
        if x.is_shared():  # a view of another vector would leave this memory
            raise Unsupported(f"its parameter {name} is in memory that processes share")
        if _has_hooks(x):
            raise Unsupported(f"its parameter {name} has hooks, which read or change gradients")


def _has_hooks(parameter: Tensor) -> bool:
    return bool(parameter._backward_hooks or parameter._post_accumulate_grad_hooks)


def _check_layers(module: nn.Module) -> None:
    for layer in module.modules():
        if any(getattr(layer, kind) for kind in _BACKWARD_HOOKS):
            raise Unsupported(f"its {type(layer).__name__} has backward hooks")


def _slots(module: nn.Module) -> list[tuple[dict[str, Any], str, Tensor]]:
    """Return each parameter and buffer with the dictionary of its owner that holds it."""
    slots: list[tuple[dict[str, Any], str, Tensor]] = []
    for child in module.modules():
        owners: tuple[dict[str, Any], ...] = (child._parameters, child._buffers)
        for owner in owners:
            slots += [(owner, name, x) for name, x in owner.items() if x is not None]
    return slots
