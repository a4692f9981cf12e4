"""`EnvSpec`, the description from which environments are made."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field
from typing import TYPE_CHECKING, Any, cast

from hotloop.base.documents import is_json_object
from hotloop.base.importing import importable_name, name_of
from hotloop.envs.checks import describe_value
from hotloop.envs.seeding import Stream, episode_seed
from hotloop.errors import ConfigError

if TYPE_CHECKING:
    import gymnasium

    from hotloop.envs.device.protocol import DeviceVectorEnv

    EnvFactory = Callable[
        ...,
        gymnasium.Env[Any, Any] | gymnasium.vector.VectorEnv[Any, Any, Any] | DeviceVectorEnv,
    ]


_PETTINGZOO = "pettingzoo:"


@dataclass(frozen=True)
class EnvSpec:
    """The environments of a run, and the seeds and the content of their episodes.

    ```python
    spec = EnvSpec("HalfCheetah-v5", {"ctrl_cost_weight": 0.5}, seed=1)
    envs = make_vec(spec, 8)
    test_envs = make_vec(dataclasses.replace(spec, stream="evaluation"), 8)
    ```

    Attributes:
        env: a Gymnasium id, `module:Id`, `module:factory`, `envpool:Id`, `pettingzoo:module`, or a
            factory: a callable that takes `env_kwargs` and returns a `gymnasium.Env`, a
            `gymnasium.vector.VectorEnv` or a `pettingzoo.ParallelEnv`. A factory that takes
            `num_envs` and `device` makes `hotloop.envs.device` environments.
        env_kwargs: arguments for the environment's constructor or the factory.
        seed: seed of the run.
        first_env: index of the first environment, counted over all workers.
        first_episode: index of the first episode. Only EnvPool uses it, since it is seeded at its
            creation: a resumed run must not repeat its first episodes.
        stream: purpose of the episodes, which determines their seeds.
        stagger: number of environments over all workers, to spread the ends of the first episodes,
            so that resets do not come in bursts. Environment e gets 1 − e / `stagger` of the time
            limit. 0 does not shorten any. Only for single environments with a time limit.
        action_masks: whether to read action masks, see `hotloop.envs.masks`.
        log_info: keys of `info` whose number at an episode's last step is an episode metric,
            besides the numbers in `info["episode"]`.

    Raises:
        ConfigError: `env`, `env_kwargs` or `log_info` has another type.
    """

    env: str | EnvFactory
    env_kwargs: Mapping[str, Any] = field(default_factory=dict)
    _: KW_ONLY
    seed: int = 0
    first_env: int = 0
    first_episode: int = 0
    stream: Stream = "training"
    stagger: int = 0
    action_masks: bool = False
    log_info: Sequence[str] = ()

    def __post_init__(self) -> None:
        if not (isinstance(self.env, str) or callable(self.env)):
            raise ConfigError(
                f"`env` must be an id or a factory, got {describe_value(self.env)}: pass a "
                "function that makes the environment"
            )
        if not isinstance(cast(object, self.env_kwargs), Mapping):
            raise ConfigError(
                "`env_kwargs` must be a dictionary of the environment's arguments, got "
                f"{describe_value(self.env_kwargs)}"
            )
        if isinstance(self.log_info, str):  # a string is also a sequence
            raise ConfigError(
                f"`log_info` must be a sequence of keys, got '{self.log_info}': pass "
                f"['{self.log_info}']"
            )
        # Later changes of the caller's objects must not change the specification.
        object.__setattr__(self, "env_kwargs", dict(self.env_kwargs))
        object.__setattr__(self, "log_info", tuple(self.log_info))

    @classmethod
    def of(cls, env: EnvSpec | str | EnvFactory) -> EnvSpec:
        """Return a specification unchanged, or make one from an id or a factory."""
        return env if isinstance(env, cls) else cls(cast("str | EnvFactory", env))

    @property
    def name(self) -> str:
        """Name of the environment in a run: an id unchanged, a factory as `module:name`.

        The name of a factory that can't be imported by it contains a `<`: lambdas, nested
        functions, partials.
        """
        return self.env if isinstance(self.env, str) else name_of(self.env)

    @property
    def is_envpool(self) -> bool:
        """Whether EnvPool makes the environments, all at once."""
        return isinstance(self.env, str) and self.env.startswith("envpool:")

    @property
    def pettingzoo_module(self) -> str:
        """Name of the module of a PettingZoo environment, "" for any other id or a factory."""
        if isinstance(self.env, str) and self.env.startswith(_PETTINGZOO):
            return self.env.removeprefix(_PETTINGZOO)
        return ""

    def episode_seed(self, i: int, episode: int) -> int:
        """Return the seed of an episode of environment `first_env` + i, see `seeding`."""
        return episode_seed(self.seed, self.first_env + i, episode, self.stream)

    def to_json(self) -> dict[str, Any]:
        """Return the fields as JSON, for another process, which imports a factory by its name.

        Raises:
            ConfigError: the factory can't be imported by name, or `env_kwargs` are not JSON.
        """
        for name, value in self.env_kwargs.items():
            if not is_json_object({name: value}):
                raise ConfigError(
                    f"`env_kwargs` must be the same in JSON, got {describe_value(value)} for "
                    f"{name!r}: pass plain numbers, strings, lists, and dictionaries with strings "
                    "as keys"
                )
        changed = {"env": _importable(self.env), "env_kwargs": dict(self.env_kwargs)}
        return {**vars(self), **changed, "log_info": list(self.log_info)}

    @classmethod
    def from_json(cls, fields: Mapping[str, Any]) -> EnvSpec:
        """Return the specification whose fields `to_json` returned."""
        return cls(**{**fields, "log_info": tuple(fields["log_info"])})


def _importable(env: str | EnvFactory) -> str:
    """Return the name under which another process imports the environment."""
    if isinstance(env, str):
        return env
    module, _, attribute = name_of(env).partition(":")
    advice = (
        "put it at the top level of a module, such as my_envs.py, and pass `my_envs.make` or "
        "'my_envs:make', with its arguments as `env_kwargs`"
    )
    if module == "__main__" and getattr(sys.modules["__main__"], "__spec__", None) is None:
        raise ConfigError(
            f"the factory {attribute} is defined in the main script or notebook, which "
            f"workers don't import: {advice}"
        )
    name = importable_name(env)
    if "<" in attribute or "." in attribute:
        raise ConfigError(f"a worker can't import the factory {name}: {advice}")
    return name
