"""Creation of environments from ids or factories, and the errors for unknown names."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import importlib
import importlib.util
import itertools
import numbers
import re
import warnings
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

from hotloop.base.cores import available_cores
from hotloop.base.importing import (
    describe_exception,
    file_name_note,
    hidden_file_note,
    import_module_of,
    missing_module_error,
    script_object_error,
)
from hotloop.base.redaction import redacted_options
from hotloop.envs import atari, doom
from hotloop.envs.checks import describe_value
from hotloop.envs.closing import close_all
from hotloop.envs.device.factory import is_on_device, make_host_vec
from hotloop.envs.double_buffer import DoubleBufferedEnvs
from hotloop.envs.environment_memory import MemoryCheck
from hotloop.envs.games import find_game, is_game, make_games
from hotloop.envs.global_generators import seed_global_generators, seed_torch_generator
from hotloop.envs.pettingzoo_envs import PettingZooEnvs
from hotloop.envs.protocol import VectorEnv
from hotloop.envs.serial import SerialVectorEnv
from hotloop.envs.spec import EnvSpec
from hotloop.envs.vector import VectorAdapter
from hotloop.errors import (
    ConfigError,
    EnvironmentFailure,
    HotloopError,
    MissingExtraError,
    UnknownNameError,
    install_command,
    nearest,
    requires_extra,
)

if TYPE_CHECKING:
    import gymnasium

    from hotloop.envs.spec import EnvFactory

# Libraries that register their environments at import: prefix of the ids, module to import, and the
# extra of hotloop that installs it.
_LATE_REGISTRATION = (("ALE/", "ale_py", "atari"), ("Vizdoom", "vizdoom.gymnasium_wrapper", "doom"))

# Prefixes of ids → the package to import, which registers them.
_PACKAGES = {
    **dict.fromkeys(("MiniGrid-", "BabyAI-"), "minigrid"),
    **dict.fromkeys(("Fetch", "Hand", "AntMaze", "PointMaze", "Adroit"), "gymnasium_robotics"),
    **dict.fromkeys(("highway-", "merge-", "roundabout-", "parking-"), "highway_env"),
    "FrankaKitchen-": "gymnasium_robotics",
    "MiniWorld-": "miniworld",
    "popgym-": "popgym",
    "dm_control/": "shimmy",
    "mo-": "mo_gymnasium",
}


def make_env(env: EnvSpec | str | EnvFactory) -> gymnasium.Env[Any, Any]:
    """Return one single environment.

    Args:
        env: a specification, of which `env` and `env_kwargs` count, or its `env` alone.

    Raises:
        UnknownNameError: there is no such id, module or factory.
        MissingExtraError: a library that the environment needs is not installed.
        ConfigError: `env_kwargs` are invalid, or the result is not a single environment.
        EnvironmentFailure: the environment's constructor raised.
    """
    instance = make_filmed(EnvSpec.of(env))
    if isinstance(instance, PettingZooEnvs):
        game = instance.first_game
        instance.close()
        raise _not_single(EnvSpec.of(env).name, game)
    return instance


def make_filmed(spec: EnvSpec) -> gymnasium.Env[Any, Any] | PettingZooEnvs:
    """Return one single environment, or all agents of one game of PettingZoo; see `make_env`."""
    if is_on_device(spec):
        raise ConfigError(
            f"{spec.name} steps many environments at once on a device, and has no "
            "single one to step or film: use `make_vec`"
        )
    env_id, factory = resolve(spec)
    if atari.is_preprocessed(spec):
        game = import_gymnasium().spec(env_id)
        factory = functools.partial(_call_with_mapping, atari.make_game, game)
    instance = construct(env_id, factory, spec.env_kwargs)
    if is_game(instance):
        games = make_games(instance, lambda: instance, spec, None, env_id)
        return PettingZooEnvs(games, spec, env_id=env_id)
    if _is_vector(instance):
        instance.close()
        raise _not_single(env_id, instance)
    return instance


def _not_single(env_id: str, instance: Any) -> ConfigError:
    return ConfigError(
        f"{env_id}: a single environment is needed here, got {describe_value(instance)}: pass "
        "a factory of single environments"
    )


def make_vec(
    env: EnvSpec | str | EnvFactory,
    num_envs: int | None = None,
    *,
    on_failure: Callable[[HotloopError], None] | None = None,
    num_threads: int | None = None,
) -> VectorEnv:
    """Return N environments that step together.

    ```python
    envs = make_vec("CartPole-v1", 8)
    envs = make_vec(EnvSpec("CartPole-v1", seed=1), 8)
    ```

    A loop steps single environments, and resets every episode with a seed derived from
    (`seed`, environment, episode). A factory may also return one of Gymnasium's vector
    environments, and `envpool:Id` creates one of EnvPool's. Those reset themselves and accept only
    one seed at the start. Exceptions are bare `SyncVectorEnv` and `AsyncVectorEnv`, which get one
    per episode unless their mode is same-step. Environments that step on a device
    (`hotloop.envs.device`) are created on the CPU, and their tensors are copied to arrays.

    Args:
        env: a specification of the environments. An id or a factory is short for `EnvSpec(env)`.
        num_envs: N. By default 1, or the number of a vector environment.
        on_failure: callback with the failure of a single environment, which may raise. Otherwise a
            new environment continues with the next episode. None raises failures.
        num_threads: number of threads that step Atari games, one per core by default.

    Raises:
        UnknownNameError: there is no such id, module or factory.
        MissingExtraError: a library that the environment needs is not installed.
        ConfigError: `env_kwargs` are invalid, the factory makes another number of environments, or
            there is not enough memory.
        SpaceError: an observation or action space is not supported.
        EnvironmentFailure: an environment's constructor raised.
    """
    spec = EnvSpec.of(env)
    if is_on_device(spec):
        return make_host_vec(spec, num_envs or 1)
    return _make_groups(spec, num_envs, 1, on_failure, num_threads)[0]


@contextlib.contextmanager
def seeded_generators(spec: EnvSpec, *key: int | str) -> Iterator[None]:
    """Seed the global generators before the body makes environments, see `global_generators`.

    Args:
        spec: the environments. Their module, which may load torch, is imported first.
        key: further parts of the generators' key, see `seed_global_generators`.
    """
    with contextlib.suppress(HotloopError):  # `make_vec` reports a failure
        resolve(spec)
    key = (spec.seed, spec.first_env, spec.first_episode, *key)
    seed_global_generators(*key)
    yield
    seed_torch_generator(*key)  # the environments may have imported torch


def make_double_buffered(
    env: EnvSpec | str | EnvFactory,
    num_envs: int,
    *,
    on_failure: Callable[[HotloopError], None] | None = None,
    num_threads: int | None = None,
) -> DoubleBufferedEnvs:
    """Return N environments whose two halves can be stepped separately.

    There is a single half if N is 1, or if a factory returns a vector environment. Arguments and
    exceptions are those of `make_vec`.
    """
    spec = EnvSpec.of(env)
    if num_envs < 2 or not (spec.is_envpool or atari.is_preprocessed(spec)):
        return DoubleBufferedEnvs(_make_groups(spec, num_envs, 2, on_failure, num_threads))
    halves: list[VectorEnv] = []
    try:
        for start, stop in _split_ranges(num_envs, 2):
            half_spec = dataclasses.replace(spec, first_env=spec.first_env + start)
            halves += _make_groups(half_spec, stop - start, 1, on_failure, num_threads)
    except BaseException:
        with contextlib.suppress(Exception):
            close_all(halves)
        raise
    return DoubleBufferedEnvs(halves)


def _split_ranges(count: int, num_groups: int) -> list[tuple[int, int]]:
    """Return the start and stop of each non-empty group."""
    bounds = [-(-count * k // num_groups) for k in range(num_groups + 1)]
    return [(start, stop) for start, stop in itertools.pairwise(bounds) if start < stop]


def _make_groups(
    spec: EnvSpec,
    num_envs: int | None,
    num_groups: int,
    on_failure: Callable[[HotloopError], None] | None,
    num_threads: int | None,
) -> list[VectorEnv]:
    """Return single environments in at most `num_groups` groups, all others in one group."""
    is_count = isinstance(num_envs, numbers.Integral) and num_envs > 0
    if num_envs is not None and not is_count:
        raise ConfigError(f"`num_envs` must be a positive integer, got {num_envs!r}")
    kwargs = dict(spec.env_kwargs)
    if spec.is_envpool:
        pool = _make_envpool(spec, num_envs or 1)
        return [_adapt(pool, spec, num_envs, spec.name)]
    # Create the first environment, which may be a vector environment.
    env_id, factory = resolve(spec)
    if atari.is_preprocessed(spec):
        game, num_envs = import_gymnasium().spec(env_id), num_envs or 1
        threads = min(num_envs, num_threads or available_cores())
        make_atari = functools.partial(atari.make_games, game, num_envs, threads)
        factory = functools.partial(_call_with_mapping, make_atari)
    instance = construct(env_id, factory, kwargs)

    # A vector environment or a game of several agents is one group.
    if _is_vector(instance):
        return [_adapt(instance, spec, num_envs, env_id)]
    make_single = functools.partial(construct, env_id, factory, kwargs)
    if is_game(instance):
        games = make_games(instance, make_single, spec, num_envs, env_id)
        return [PettingZooEnvs(games, spec, env_id=env_id)]

    # Create the other single environments, and split them into groups.
    singles, known = [instance], {id(instance)}
    try:
        memory = MemoryCheck(num_envs or 1)
        for count in range(1, num_envs or 1):
            memory.check(count)
            single = make_single()
            if id(single) in known:
                raise ConfigError(
                    f"{env_id}: the factory returned the same environment twice: make a new one "
                    "in each call"
                )
            known.add(id(single))
            singles.append(single)
        options: dict[str, Any] = {"env_id": env_id}
        if on_failure is not None:
            options["on_failure"] = on_failure
            options["rebuild"] = make_single
        return [
            SerialVectorEnv(
                singles[start:stop],
                dataclasses.replace(spec, first_env=spec.first_env + start),
                **options,
            )
            for start, stop in _split_ranges(len(singles), num_groups)
        ]
    except BaseException:
        with contextlib.suppress(Exception):  # the first failure is the relevant one
            close_all(singles)
        raise


def _adapt(envs: Any, spec: EnvSpec, num_envs: int | None, env_id: str) -> VectorAdapter:
    try:
        if num_envs is not None and envs.num_envs != num_envs:
            raise ConfigError(
                f"{env_id}: `num_envs` is {num_envs}, but the factory makes {envs.num_envs} "
                "environments at once: make both equal"
            )
        return VectorAdapter(envs, spec, env_id=env_id)
    except BaseException:
        envs.close()
        raise


def _call_with_mapping(make: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    return make(*args, kwargs)


def _is_vector(env: Any) -> bool:
    gymnasium = import_gymnasium()
    return isinstance(env, gymnasium.vector.VectorEnv)


def import_gymnasium() -> Any:
    """Return the module `gymnasium`, or raise an error with the install command."""
    with requires_extra("environments need Gymnasium", "train"):
        import gymnasium
    return gymnasium


def resolve(spec: EnvSpec) -> tuple[str, Callable[..., Any]]:
    """Return the environment's name for messages, and its factory."""
    gymnasium = import_gymnasium()
    if not isinstance(spec.env, str):
        return spec.name.rpartition(":")[2], spec.env
    env = doom.normalize_id(spec.env)
    if spec.pettingzoo_module:
        with requires_extra(f"environment '{env}' needs PettingZoo", "pettingzoo"):
            importlib.import_module("pettingzoo")
        return env, find_game(env, _import_module(env, spec.pettingzoo_module))
    module_name, _, name = env.rpartition(":")
    if "<" in name:
        raise UnknownNameError(
            f"'{env}' names a factory that cannot be imported: from Python, pass the factory "
            "itself as `env`"
        )
    if module_name == "envpool":
        raise ConfigError(f"{env}: EnvPool has no single environments: use `make_vec`")
    module = _import_module(env, module_name) if module_name else None
    if module is None:
        _register_late(name)
    registry = gymnasium.registry
    scenario = doom.find_scenario(name, registry) if module is None else None
    if scenario is not None:
        return name, functools.partial(_call_with_mapping, doom.make_scenario, scenario)
    if name and name not in registry:
        versions = [known for known in registry if re.fullmatch(rf"{re.escape(name)}-v\d+", known)]
        if versions:
            newest = max(versions, key=lambda known: int(known.rpartition("-v")[2]))
            warnings.warn(f"'{name}' has no version: using '{newest}'", stacklevel=2)
            name = newest
    if name in registry:
        # Gymnasium's checker inspects only the first step. hotloop checks every step.
        return name, lambda **kwargs: gymnasium.make(
            name, **{"disable_env_checker": True, **kwargs}
        )
    with contextlib.suppress(AttributeError):
        factory = functools.reduce(getattr, name.split("."), module)  # a class may be nested
        if module is not None and callable(factory):
            return env, factory
    if module_name == "__main__":
        raise script_object_error(env, kind="environment")
    if module is not None:
        # A suggestion must work as printed, with the module that registers the environment.
        hint = hidden_file_note(module)
        hint = hint or nearest(name, [*registry, *vars(module)], prefix=f"{module_name}:")
        hint = hint or f": register it in '{module_name}', or name a factory"
    else:
        package = next((x for prefix, x in _PACKAGES.items() if name.startswith(prefix)), None)
        hint = atari.namespace_hint(name)
        hint = hint or ("" if package else _module_hint(name) or nearest(name, registry))
        hint = hint or (
            ": for an environment of another package, write its module too, such as "
            f"`{package or 'module'}:{name or 'Id'}`"
        )
    raise UnknownNameError(f"there is no environment '{env}'{hint}")


def _module_hint(name: str) -> str:
    """Return the advice on a file's path or a dotted name in place of `module:name`, or ""."""
    if name.endswith(".py"):
        return f": write its module and a class or a function, `{Path(name).stem}:Name`"
    module_name, _, attribute = name.rpartition(".")
    try:
        is_module = attribute.isidentifier() and importlib.util.find_spec(module_name) is not None
    except (ImportError, ValueError):
        return ""
    advice = f": write a colon before the class or function, `{module_name}:{attribute}`"
    return advice if is_module else ""


def _import_module(env: str, module_name: str) -> ModuleType:
    file_note = file_name_note(module_name, env.rpartition(":")[2])
    if file_note:
        raise UnknownNameError(f"environment '{env}' names a file: {file_note}")
    try:
        return import_module_of(f"{module_name}:{env.rpartition(':')[2]}")
    except (Exception, SystemExit) as error:
        missing = error.name if isinstance(error, ModuleNotFoundError) else None
        if missing is None or not f"{module_name}.".startswith(f"{missing}."):
            raise EnvironmentFailure(
                f"environment '{env}': importing '{module_name}' raised {describe_exception(error)}"
            ) from error
        raise missing_module_error(f"environment '{env}'", module_name, missing) from error


def _register_late(name: str) -> None:
    for prefix, module_name, extra in _LATE_REGISTRATION:
        if name.startswith(prefix):
            library = module_name.partition(".")[0]
            with requires_extra(f"environment '{name}' needs '{library}'", extra):
                module = importlib.import_module(module_name)
            import_gymnasium().register_envs(module)


def construct(env_id: str, factory: Callable[..., Any], kwargs: Mapping[str, Any]) -> Any:
    gymnasium = import_gymnasium()
    kwargs_text = f" with env_kwargs {redacted_options(kwargs)}" if kwargs else ""
    try:
        instance = factory(**kwargs)
    except HotloopError:
        raise
    except gymnasium.error.DependencyNotInstalled as error:
        raise MissingExtraError(
            f"environment '{env_id}' needs a library that is not installed ({error}): "
            f"{_install_hint(env_id)}"
        ) from error
    except TypeError as error:
        kind = ConfigError if kwargs else EnvironmentFailure
        raise kind(
            f"{env_id}: making it{kwargs_text} raised {describe_exception(error)}: its factory is "
            "called with `env_kwargs` alone, so check their names"
        ) from error
    except (Exception, SystemExit) as error:  # an environment must not end the program
        raise EnvironmentFailure(
            f"{env_id}: making it{kwargs_text} raised {describe_exception(error)}"
        ) from error
    if is_game(instance):
        return instance
    if not isinstance(instance, (gymnasium.Env, gymnasium.vector.VectorEnv)):
        raise ConfigError(
            f"{env_id}: a factory must return a gymnasium.Env, a gymnasium.vector.VectorEnv or a "
            f"pettingzoo.ParallelEnv, got {describe_value(instance)}: return the environment (not "
            "one of old Gym)"
        )
    if isinstance(instance, gymnasium.vector.VectorEnv):
        attributes = ("num_envs", "single_observation_space", "single_action_space")
        missing = [name for name in attributes if getattr(instance, name, None) is None]
        if missing:
            raise ConfigError(
                f"{env_id}: a vector environment needs {', '.join(f'`{x}`' for x in attributes)}, "
                f"got {describe_value(instance)} without {', '.join(missing)}: set them in the "
                "factory, and `metadata['autoreset_mode']` to its gymnasium.vector.AutoresetMode"
            )
    return instance


def _install_hint(env_id: str) -> str:
    spec = import_gymnasium().registry.get(env_id)
    entry_point = str(spec.entry_point) if spec is not None else ""
    for extra in ("box2d", "mujoco"):
        if f".{extra}." in entry_point:
            return install_command(extra)
    return "install it"


def _make_envpool(spec: EnvSpec, num_envs: int) -> Any:
    import_gymnasium()
    env, kwargs = spec.name, dict(spec.env_kwargs)
    # EnvPool is seeded at its creation: environment i with seed + i.
    seed = spec.episode_seed(0, spec.first_episode)
    with requires_extra(f"environment '{env}' needs EnvPool", "atari"):
        import envpool  # pyright: ignore[reportMissingImports]
    name = env.partition(":")[2]
    known = envpool.list_all_envs()
    if name not in known:
        raise UnknownNameError(f"there is no EnvPool environment '{name}'{nearest(name, known)}")
    try:
        return envpool.make(
            name, **{"env_type": "gymnasium", "num_envs": num_envs, "seed": seed, **kwargs}
        )
    except Exception as error:
        kind = ConfigError if kwargs else EnvironmentFailure
        kwargs_text = f" with env_kwargs {redacted_options(kwargs)}" if kwargs else ""
        raise kind(f"{env}: making it{kwargs_text} raised {describe_exception(error)}") from error
