"""The environments of a training, for callbacks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from hotloop.envs.attributes import values_by_row
from hotloop.errors import ConfigError
from hotloop.rollouts import Rollout
from hotloop.rollouts.env_calls import EnvCall


class TrainingEnvs:
    """The environments of a training, in this process, in workers, or on other machines.

    A method waits until the workers have finished the rows that they collect. Arguments and results
    travel to workers as pickles. Environments that are replaced, and those of a resumed run, begin
    with their own values.
    """

    def __init__(self, rollout: Rollout) -> None:
        self._rollout = rollout

    @property
    def num_envs(self) -> int:
        """Number of environments. 0 if there are no single ones."""
        return sum(self._rollout.group_sizes)

    def call(self, name: str, *args: Any, **kwargs: Any) -> tuple[Any, ...]:
        """Return each environment's result of a method, or its attribute, in the order of the rows.

        Raises:
            ConfigError: An environment lacks the attribute, attributes can't be reached, or an
                argument can't be pickled.
            EnvironmentFailure: The method raised, or workers failed too often.
        """
        calls = [EnvCall("call", name, args, kwargs)] * len(self._group_sizes(name))
        return tuple(x for results in self._rollout.call_groups(calls) for x in results)

    def get_attr(self, name: str) -> tuple[Any, ...]:
        """Return an attribute of each environment; see `call`."""
        return self.call(name)

    def set_attr(self, name: str, values: Any) -> None:
        """Set an attribute of each environment: one value, or a list or tuple with one for each.

        Raises:
            ConfigError: The number of values is wrong; see also `call`.
        """
        calls: list[EnvCall] = []
        sizes, start = self._group_sizes(name), 0
        rows = values_by_row(values, sum(sizes))
        for size in sizes:
            calls.append(EnvCall("set_attr", name, (list(rows[start : start + size]),)))
            start += size
        self._rollout.call_groups(calls)

    def _group_sizes(self, name: str) -> Sequence[int]:
        if not self._rollout.group_sizes:
            raise ConfigError(
                f"`{name}` can't be read or set: this training has no single environments, but "
                "tensors on a device or recorded steps. Pass it in `env_kwargs`"
            )
        return self._rollout.group_sizes
