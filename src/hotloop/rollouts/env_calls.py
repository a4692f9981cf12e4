"""Calls of the environments' methods and attributes, wherever the environments are stepped."""

from __future__ import annotations

import pickle
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from hotloop.base.importing import describe_exception
from hotloop.envs import VectorEnv
from hotloop.errors import ConfigError, EnvironmentFailure, HotloopError


@dataclass(frozen=True)
class EnvCall:
    """A call of a method of a vector environment, for one group of environments.

    Attributes:
        method: Name of the method of the vector environment.
        name: Name of the environments' method or attribute.
        args, kwargs: Further arguments.
    """

    method: Literal["call", "set_attr"]
    name: str
    args: tuple[Any, ...] = ()
    kwargs: Mapping[str, Any] = field(default_factory=dict)

    def run(self, envs: VectorEnv) -> Any:
        """Make the call, and return its result.

        Raises:
            ConfigError: An environment lacks the attribute.
            EnvironmentFailure: The environment's own method raised.
        """
        try:
            return getattr(envs, self.method)(self.name, *self.args, **self.kwargs)
        except HotloopError:
            raise
        except (Exception, SystemExit) as error:
            raise EnvironmentFailure(
                f"`{self.name}` of an environment raised {describe_exception(error)}"
            ) from error


def pickle_call(call: EnvCall) -> bytes:
    """Return a call as a pickle.

    Raises:
        ConfigError: An argument can't be pickled.
    """
    try:
        return pickle.dumps(call)
    except Exception as error:  # pickles call the objects' own methods
        raise ConfigError(
            f"the arguments of `{call.name}` can't be sent to workers ({error}): use numbers, "
            "text, arrays, and objects of importable classes"
        ) from error
