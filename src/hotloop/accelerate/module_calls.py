"""A module of Stable-Baselines3 as a function of flat parameters."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import chain, compress
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.distributions import Distribution
from torch.nn import functional
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from hotloop.accelerate.acceleration import Unsupported, own_methods
from hotloop.accelerate.flat_parameters import FlatParameters
from hotloop.accelerate.shared_changes import SharedChange
from hotloop.errors import first_line
from hotloop.learner.updates import BoundUpdate

_MISSING = object()


class ModuleFunction:
    """A method of a module as a function of the module's parameters and buffers.

    Args:
        parameters: the parameters of the module.
        method: the method. It may call any part of the module.
        distribution: the object of the module that keeps the last action distribution, since it
            must not keep tensors of a trace. None: there is none.
    """

    def __init__(
        self, parameters: FlatParameters, method: Callable[..., Any], distribution: Any = None
    ) -> None:
        self._parameters, self._method = parameters, method
        self._distribution = distribution

    def __call__(
        self, params: Tensor, constants: dict[str, Tensor], *args: Any, **kwargs: Any
    ) -> Any:
        """Return the method's result.

        Args:
            params: the learned parameters, float32, (P,).
            constants: see `ModuleState.constants`.
            *args, **kwargs: the method's arguments.
        """
        values = {**self._parameters.split(params), **constants}
        replaced = self._parameters.replaced_by(values)
        with replaced, WITHOUT_VALUE_READS, _restored(self._distribution):
            return self._method(*args, **kwargs)


def _leave_out_value_reads() -> Callable[[], None]:
    """Leave out checks of arguments, which read the values of tensors and so can't be compiled."""
    validates, one_hot = Distribution._validate_args, functional.one_hot

    def unchecked_one_hot(classes: Tensor, num_classes: int = -1) -> Tensor:
        if num_classes < 0:  # the original reads the values
            return one_hot(classes)
        numbers = torch.arange(num_classes, device=classes.device)
        return (classes.unsqueeze(-1) == numbers).long()

    def undo() -> None:
        Distribution.set_default_validate_args(validates)
        functional.one_hot = one_hot

    Distribution.set_default_validate_args(False)
    functional.one_hot = unchecked_one_hot
    return undo


WITHOUT_VALUE_READS = SharedChange(_leave_out_value_reads)


@contextmanager
def _restored(value: Any) -> Iterator[None]:
    """Restore the attributes of an object after the body."""
    if value is None:
        yield
        return
    attributes = dict(vars(value))
    try:
        yield
    finally:
        vars(value).clear()
        vars(value).update(attributes)


@contextmanager
def replaced_attribute(owner: Any, name: str, value: Any) -> Iterator[None]:
    """Replace an attribute of one object, not of its class, in the body."""
    # `vars`, since `nn.Module` registers what is set as an attribute, if it is a module.
    attributes = vars(owner)
    previous = attributes.get(name, _MISSING)
    attributes[name] = value
    try:
        yield
    finally:
        if previous is _MISSING:
            del attributes[name]
        else:
            attributes[name] = previous


@contextmanager
def unchanged_generators() -> Iterator[None]:
    """Restore the global generators of NumPy and torch after the body."""
    numpy_state, torch_state = np.random.get_state(), torch.get_rng_state()
    try:
        yield
    finally:
        np.random.set_state(numpy_state)
        torch.set_rng_state(torch_state)


class TrainingMode:
    """The mode of a policy's layers, set without a call of each layer.

    Args:
        policy: the policy. Its mode may change.

    Attributes:
        has_own_methods: whether code of the user's sets the mode of a layer, which must be called.
    """

    def __init__(self, policy: Any) -> None:
        self._policy = policy
        self._attributes: list[dict[str, Any]] = []
        # Keep the layers, so that no new one gets the id of one of them.
        self._layers = layers = list(policy.modules())
        networks = [x for x in layers if hasattr(type(x), "set_training_mode")]
        self.has_own_methods = (
            policy not in networks  # a compiled policy
            or any(own_methods(x, ["set_training_mode"]) for x in networks)
            or any(type(x).train is not nn.Module.train or "train" in vars(x) for x in layers)
        )
        if self.has_own_methods:
            return
        # The original leaves target networks as they are.
        modes: list[list[bool]] = []
        for mode in (True, False):
            policy.set_training_mode(mode)
            modes.append([x.training for x in layers])
        changes = [before is not after for before, after in zip(*modes, strict=True)]
        self._attributes = [vars(x) for x in compress(layers, changes)]
        self._children: list[dict[str, Any]] = [x._modules for x in layers]
        self._ids = self._current_ids()

    def set(self, mode: bool) -> None:
        """Do what the policy's `set_training_mode` does."""
        if self._has_changed():
            self._policy.set_training_mode(mode)
            return
        for attributes in self._attributes:
            attributes["training"] = mode

    def shorten_next_call(self, policy: Any) -> None:
        """Let the next call of the policy's `set_training_mode` be one of `set`.

        Args:
            policy: the model's policy, for which nothing is done if it is another one.
        """
        if policy is self._policy and not self._has_changed():
            # Removed by the call, so that no copy of the policy contains it.
            vars(policy)["set_training_mode"] = self._set_once

    def _set_once(self, mode: bool) -> None:
        del vars(self._policy)["set_training_mode"]
        self.set(mode)

    def _has_changed(self) -> bool:
        """Return whether `set` must call the policy's method."""
        return (
            self.has_own_methods
            or "set_training_mode" in vars(self._policy)
            or self._current_ids() != self._ids
        )

    def _current_ids(self) -> list[int]:
        return list(map(id, chain.from_iterable(map(dict.values, self._children))))


class _RecordedOperations(TorchDispatchMode):
    """Records names of operations in the body: those that draw random numbers, or read a vector."""

    def __init__(self, vectors: Sequence[Tensor]) -> None:
        super().__init__()
        self._addresses = {x.untyped_storage().data_ptr() for x in vectors if len(x)}
        self.random: list[str] = []
        self.reading: list[str] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        name = str(func.overloadpacket).split(".")[-1]
        if name not in _COPIES and any(map(self._is_part, tree_leaves((args, kwargs)))):
            self.reading.append(name)
        if torch.Tag.nondeterministic_seeded not in func.tags:
            return func(*args, **kwargs)
        # Attention without dropout has the tag too.
        generator = torch.get_rng_state()
        result = func(*args, **kwargs)
        if kwargs.get("generator") is not None or not torch.equal(generator, torch.get_rng_state()):
            self.random.append(name)
        return result

    def _is_part(self, x: Any) -> bool:
        return isinstance(x, Tensor) and x.untyped_storage().data_ptr() in self._addresses


# Operations of `copy.deepcopy`, which copies the state for the trial.
_COPIES = frozenset(["clone", "copy_", "new_empty", "set_", "detach"])


def try_out(
    updates: Sequence[BoundUpdate],
    networks: Sequence[FlatParameters],
    batch: Any,
    noise: Tensor | None,
) -> None:
    """Make the steps of updates on copies of their states.

    Raises:
        Unsupported: one fails, draws random numbers, which other executions would repeat, reads
            the modules' own parameters in place of the copies, so that it would not learn them, or
            replaces buffers of the modules, which would be lost.
    """
    operations = _RecordedOperations([network.state.params for network in networks])
    try:
        with operations:
            for update in updates:
                update.check(batch, noise)
    except Exception as error:  # a custom policy may raise anything
        raise Unsupported(f"one step on copies failed ({first_line(error)})") from error
    if operations.random:
        raise Unsupported(f"its networks draw random numbers ({operations.random[0]})")
    if operations.reading:
        raise Unsupported(
            "its networks keep parameters in another place than `nn.Module` does "
            f"({operations.reading[0]})"
        )
    for name in (name for network in networks for name in network.reassigned):
        raise Unsupported(f"its networks replace {name} in their forward, not its values")
