"""The parts that hotloop adds to a model of Stable-Baselines3, and the mixin of all classes.

A model has two parts: "updates" (its `train`) and "acting" (its `collect_rollouts`). `prepared`
prepares a part on its first use, and again when its key changes, for example because the user's
code has replaced the optimizer. `current_update` also copies the values of parameters that the user
has replaced. Both return None if the preparation raises `Unsupported`, and log the reason once.
Then Stable-Baselines3's own code runs.

Everything that hotloop adds is in one attribute of the model, `_hotloop`, which is neither saved
nor pickled nor copied: a copy prepares its parts again.
"""

from __future__ import annotations

import logging
from abc import ABC
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import torch

from hotloop.errors import ConfigError, first_line
from hotloop.learner import Mode, choose
from hotloop.learner.execution import ExecutionChoice
from hotloop.learner.updates import BoundUpdate

LOGGER = logging.getLogger("hotloop.accelerate")
# If rows times parameters of an update are fewer, a second thread costs more than it saves.
_SMALL_UPDATE = 2**24
# Modules whose methods hotloop's shortcuts compute.
_LIBRARIES = ("stable_baselines3.", "sb3_contrib.", "hotloop.")


class Unsupported(Exception):
    """A reason for which a part of a model runs Stable-Baselines3's own code."""


@dataclass
class Settings:
    """Settings of all accelerated models of this process.

    Attributes:
        execution: how updates are executed. "auto" compiles an update where this pays, and uses
            the compiled updates that earlier runs have stored.
        precision: precision of the matrix products of off-policy updates.
    """

    execution: Mode = "auto"
    precision: Literal["float32", "bfloat16"] = "float32"


SETTINGS = Settings()


class _Part(NamedTuple):
    key: Any
    value: Any
    reason: str


@dataclass
class Acceleration:
    """The parts that hotloop has added to one model.

    Attributes:
        parts: the parts that have been used, by name. A part without value has a `reason`.
        updates: the updates by name.
        num_trains: number of calls of `train` that hotloop's updates have run.
    """

    parts: dict[str, _Part] = field(default_factory=dict, repr=False)
    updates: dict[str, BoundUpdate] = field(default_factory=dict, repr=False)
    num_trains: int = 0

    def reasons(self) -> dict[str, str]:
        """Return the reasons of the parts that run Stable-Baselines3's own code, by part."""
        return {name: part.reason for name, part in self.parts.items() if part.reason}

    @property
    def compile_s(self) -> float:
        """The seconds of compiling the model's updates."""
        return sum(update.execution.compile_s for update in self.updates.values())

    def bind(
        self,
        function: Callable[..., Any],
        state: Any,
        hyper: Any,
        *,
        name: str,
        num_calls: int,
        batch_size: int,
        num_parameters: int,
        eager_reason: str = "",
    ) -> BoundUpdate:
        """Return an update that is executed as `SETTINGS` request.

        Args:
            function: `function(state, batch, noise, hyper)` returns a dictionary of 0-d tensors, or
                such a dictionary and a tensor, (B,). It changes `state` in place, see
                `BoundUpdate`.
            state: a tree of tensors, see `hotloop.learner.state`.
            hyper: a NamedTuple of 0-d tensors.
            name: the update's name in messages.
            num_calls: expected number of calls, which decides whether compiling pays.
            batch_size: B.
            num_parameters: P.
            eager_reason: the reason why the update can't be compiled. Empty: it can.
        """
        if eager_reason:
            choice = ExecutionChoice(False, f"eager: {eager_reason}")
        else:
            choice = _choose(num_calls, batch_size, num_parameters)
        self.updates[name] = BoundUpdate(function, state, hyper, choice, name)
        return self.updates[name]

    def forget(self, part: str) -> None:
        """Prepare a part again at its next use, since objects that it uses have been replaced."""
        self.parts.pop(part, None)

    def summary(self) -> list[str]:
        """Return a line for each part: how its updates were executed, or why it was not changed."""
        lines = [describe_part(name, part.reason) for name, part in self.parts.items()]
        return [*lines, *(update.execution.summary() for update in self.updates.values())]


class AcceleratedModel(ABC):  # noqa: B024
    """The mixin of all accelerated classes, to the left of the class of Stable-Baselines3.

    It derives from ABC like `BaseAlgorithm`. Otherwise Python refuses to change the class of an
    existing model.
    """

    _hotloop: Acceleration | None = None

    if TYPE_CHECKING:  # the attributes of the original

        def __getattr__(self, name: str) -> Any: ...

        def __setattr__(self, name: str, value: Any) -> None: ...

    @property
    def acceleration(self) -> Acceleration:
        """The parts that hotloop has added to this model."""
        if self._hotloop is None:
            self._hotloop = Acceleration()
        return self._hotloop

    def prepared(self, part: str, key: Any, prepare: Callable[[], Any]) -> Any:
        """Return a prepared part of the model, or None if Stable-Baselines3's own code must run.

        Args:
            part: the part's name.
            key: the values that the preparation depends on. It is repeated when they change.
            prepare: returns the part, or raises `Unsupported`.
        """
        parts = self.acceleration.parts
        existing = parts.get(part)
        if existing is None or existing.key != key:
            try:
                parts[part] = _Part(key, prepare(), "")
            except Unsupported as error:
                self.fall_back(part, str(error), key)
            except ConfigError:  # the settings of `hotloop accelerate`
                raise
            except Exception as error:  # classes of the user's may differ in any way
                reason = f"hotloop can't prepare it ({type(error).__name__}: {first_line(error)})"
                self.fall_back(part, reason, key)
        return parts[part].value

    def fall_back(self, part: str, reason: str, key: Any = None) -> None:
        """Let a part run Stable-Baselines3's own code, and log the reason once."""
        existing = self.acceleration.parts.get(part)
        self.acceleration.parts[part] = _Part(key, None, reason)
        if existing is None or existing.reason != reason:
            LOGGER.warning("%s: %s", type(self).__name__, describe_part(part, reason))

    def _hyper(self) -> Any:
        """Return the current hyper-parameters, a NamedTuple of floats."""
        raise NotImplementedError

    def _structure(self) -> tuple[Any, ...]:
        """Return the objects and settings that the update was made for."""
        raise NotImplementedError

    def _expected_calls(self) -> int:
        """Return the number of gradient steps, done and expected in this call of `learn`."""
        raise NotImplementedError

    def current_update(self, key: Any, prepare: Callable[[], Any]) -> Any:
        """Return the part "updates" for the model's current objects, or None to fall back.

        Args:
            key, prepare: see `prepared`. The part is a `ModelUpdate`.
        """
        part = self.acceleration.parts.get("updates")
        if part is not None and part.value and not part.value.is_current():
            self.acceleration.forget("updates")
        update = self.prepared("updates", key, prepare)
        if update is None:
            return None
        try:
            update.refresh(self._hyper())
        except Unsupported as reason:
            self.fall_back("updates", str(reason), key)
            return None
        if update.learn_id != self.start_time:
            update.learn_id = self.start_time
            update.choose_again(self._expected_calls())
        return update

    def _excluded_save_params(self) -> list[str]:
        return [*super()._excluded_save_params(), "_hotloop"]  # pyright: ignore

    def __getstate__(self) -> dict[str, Any]:
        return {name: x for name, x in self.__dict__.items() if name != "_hotloop"}


def own_methods(owner: Any, names: Iterable[str]) -> list[str]:
    """Return those of an object's methods that are the user's: overridden, or replaced later."""
    return [
        name
        for name in names
        if name in vars(owner) or not getattr(type(owner), name).__module__.startswith(_LIBRARIES)
    ]


def describe_part(part: str, reason: str) -> str:
    """Return how a part of a model runs, in words. An empty reason means that it is accelerated."""
    if not reason:
        return f"{part}: accelerated"
    return f"{part}: Stable-Baselines3's own code, since {reason}"


def compile_if_worthwhile(
    update: BoundUpdate, num_calls: int, batch_size: int, num_parameters: int
) -> None:
    """Choose the execution again for an eager update, since more calls are expected than before."""
    execution = update.execution
    if execution.mode_used == "eager" and execution.choice.may_use_cached:
        choice = _choose(num_calls, batch_size, num_parameters)
        execution.choice = replace(choice, may_use_cached=execution.choice.may_use_cached)


@contextmanager
def few_threads(batch_size: int, num_parameters: int) -> Iterator[None]:
    """Run the body with one thread of torch if its updates are small."""
    # `torch_threads` also limits NumPy, which takes milliseconds: too long for algorithms that
    # update at every step.
    count = torch.get_num_threads()
    if count == 1 or batch_size * num_parameters > _SMALL_UPDATE:
        yield
        return
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(count)


def _choose(num_calls: int, batch_size: int, num_parameters: int) -> Any:
    return choose(
        SETTINGS.execution, num_calls=num_calls, flop_per_call=4 * batch_size * num_parameters
    )
