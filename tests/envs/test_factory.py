"""Environments by id, module and factory, and the errors for unknown names."""

from __future__ import annotations

import functools
import re
import sys

import gymnasium
import numpy as np
import pytest
from gymnasium.vector import AsyncVectorEnv, SyncVectorEnv

from hotloop.base import memory, processes
from hotloop.envs import EnvSpec, make_env, make_vec
from hotloop.errors import (
    ConfigError,
    EnvironmentFailure,
    MissingExtraError,
    UnknownNameError,
    install_command,
)
from tests.envs.toy import CountingEnv, FailingEnv, numbered

TOY = "tests.envs.toy"


@pytest.mark.parametrize(
    ("env", "env_kwargs"),
    [
        (f"{TOY}:ToyCounting-v0", {"number": 7}),
        (f"{TOY}:counting", {"number": 7}),
        (f"{TOY}:CountingEnv", {"number": 7}),
        (f"{TOY}:Factories.counting", {"number": 7}),
        (CountingEnv, {"number": 7}),
        (functools.partial(CountingEnv, number=7), {}),
    ],
)
def test_ways_to_name_an_environment(env, env_kwargs):
    envs = make_vec(EnvSpec(env, env_kwargs), 2)
    assert envs.num_envs == 2
    assert envs.reset().tolist() == [[7, 0, 0]] * 2
    single = make_env(EnvSpec(env, env_kwargs))
    assert isinstance(single.unwrapped, CountingEnv)
    assert single.unwrapped.number == 7


def test_one_environment_by_default():
    assert make_vec("CartPole-v1").num_envs == 1


def test_render_mode_is_passed_on():
    class Drawing(CountingEnv):
        metadata = {"render_modes": ["rgb_array"]}  # noqa: RUF012

        def __init__(self, render_mode=None):
            super().__init__()
            self.render_mode = render_mode

    assert make_env(EnvSpec(Drawing, {"render_mode": "rgb_array"})).render_mode == "rgb_array"


@pytest.mark.parametrize(
    ("env", "message"),
    [
        ("CartPoel-v1", "no environment 'CartPoel-v1'; did you mean 'CartPole-v1'"),
        ("CartPole-v7", "no environment 'CartPole-v7'; did you mean 'CartPole-v1'"),
        ("pendulum-v1", "did you mean 'Pendulum-v1'"),
        ("Breakout-v5", "no environment 'Breakout-v5'; did you mean 'ALE/Breakout-v5'"),
        ("mspacman", "did you mean 'ALE/MsPacman-v5'"),
        ("QbertNoFrameskip-v3", "did you mean 'ALE/Qbert-v5'"),
        ("Zzzzzz", "no environment 'Zzzzzz': for an environment of another .* `module:Zzzzzz`"),
        ("FetchReach-v4", "write its module too, such as `gymnasium_robotics:FetchReach-v4`"),
        ("MiniGrid-Empty-8x8-v0", "such as `minigrid:MiniGrid-Empty-8x8-v0`"),
        ("", "no environment ''"),
        ("no_such_module:Env-v0", "no module 'no_such_module'"),
        (f"{TOY}.nothing:Env-v0", rf"no module '{TOY}.nothing'"),
        (f"{TOY}:ToyCountign-v0", f"did you mean '{TOY}:ToyCounting-v0'"),
        (f"{TOY}:countign", f"did you mean '{TOY}:counting'"),
        (f"{TOY}:NOT_A_FACTORY", "no environment"),
        (f"{TOY}:", "no environment"),
        ("no_such_namespace/Env-v0", "no environment"),
    ],
)
def test_unknown_names(env, message):
    with pytest.raises(UnknownNameError, match=message):
        make_vec(env)
    with pytest.raises(UnknownNameError, match=message):
        make_env(env)


def test_a_game_without_its_prefix_gets_the_command_that_installs_it(monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(UnknownNameError) as caught:
        make_env("Breakout-v5")
    assert str(caught.value).endswith(
        f"did you mean 'ALE/Breakout-v5'? It needs 'ale_py': {install_command('atari')}"
    )


@pytest.mark.parametrize("name", ["CartPole", f"{TOY}:ToyCounting"])
def test_a_name_without_a_version_means_the_newest(name):
    with pytest.warns(UserWarning, match="has no version: using '.*-v[01]'"):
        assert make_env(name).spec.id in ("CartPole-v1", "ToyCounting-v0")


@pytest.mark.parametrize(
    ("env", "advice"),
    [
        (
            "tests.envs.toy.CountingEnv",
            "a colon before the class or function, `tests.envs.toy:",
        ),
        ("./my/toy.py", "write its module and a class or a function, `toy:Name`"),
        ("toy.py:CountingEnv", "name the module instead, `toy:CountingEnv`, and"),
        ("./my/toy.py:CountingEnv", "name the module instead, `toy:CountingEnv`, and"),
        ("my/toy:CountingEnv", "name the module instead, `toy:CountingEnv`, and"),
        ("no.such.Env", "write its module too, such as `module:no.such.Env`"),
    ],
)
def test_other_ways_to_name_an_object_get_its_name(env, advice):
    with pytest.raises(UnknownNameError, match=re.escape(advice)):
        make_vec(env)


def test_a_vector_environment_without_its_spaces():
    class Bare(gymnasium.vector.VectorEnv):
        num_envs = 2
        observation_space = gymnasium.spaces.Box(0.0, 1.0, (2,))

    with pytest.raises(ConfigError, match="without single_observation_space, single_action_space"):
        make_vec(Bare)


def test_unknown_envpool_name():
    pytest.importorskip("envpool")
    with pytest.raises(UnknownNameError, match="no EnvPool environment 'CartPol-v1'; did you mean"):
        make_vec("envpool:CartPol-v1")
    with pytest.raises(ConfigError, match="no single environments: use `make_vec`"):
        make_env("envpool:CartPole-v1")


@pytest.mark.filterwarnings("ignore:.*precision lowered")
def test_envpool_kwargs():
    pytest.importorskip("envpool")
    with pytest.raises(ConfigError, match=r"with env_kwargs \{'color': 3\} raised TypeError"):
        make_vec(EnvSpec("envpool:CartPole-v1", {"color": 3}))
    with pytest.raises(ConfigError, match="all of its 4 environments at once, got batch_size 2"):
        make_vec(EnvSpec("envpool:CartPole-v1", {"batch_size": 2}), 4)


@pytest.mark.parametrize(
    ("missing", "env", "extra"),
    [
        ("gymnasium", "CartPole-v1", "train"),
        ("envpool", "envpool:CartPole-v1", "atari"),
        ("ale_py", "ALE/Pong-v5", "atari"),
        ("vizdoom", "VizdoomBasic-v1", "doom"),
        ("vizdoom", "vizdoom:VizdoomBasic-v1", "doom"),
        ("mujoco", "HalfCheetah-v5", "mujoco"),
        ("Box2D", "LunarLander-v3", "box2d"),
    ],
)
def test_missing_extras(monkeypatch, missing, env, extra):
    monkeypatch.setitem(sys.modules, missing, None)
    for name in list(sys.modules):
        if name.startswith(("gymnasium.envs.mujoco", "gymnasium.envs.box2d")):
            monkeypatch.delitem(sys.modules, name)
    with pytest.raises(MissingExtraError, match=re.escape(install_command(extra))):
        make_vec(env)


def test_bad_env_kwargs():
    with pytest.raises(ConfigError, match=r"CartPole-v1: .*\{'colour': 3\} raised TypeError") as e:
        make_vec(EnvSpec("CartPole-v1", {"colour": 3}))
    assert isinstance(e.value.__cause__, TypeError)
    with pytest.raises(ConfigError, match="CountingEnv: making it with env_kwargs"):
        make_vec(EnvSpec(CountingEnv, {"colour": 3}))


def test_constructor_that_raises():
    def make():
        raise OSError("no licence")

    with pytest.raises(EnvironmentFailure, match="make: making it raised OSError: no licence") as e:
        make_vec(make)
    assert isinstance(e.value.__cause__, OSError)


def test_module_that_raises(tmp_path, monkeypatch):
    (tmp_path / "broken_module.py").write_text("import no_such_dependency\n")
    (tmp_path / "broken_too.py").write_text("1 / 0\n")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(EnvironmentFailure, match=r"importing 'broken_module' .*no_such_dependency"):
        make_vec("broken_module:Env-v0")
    with pytest.raises(EnvironmentFailure, match="importing 'broken_too' raised ZeroDivisionError"):
        make_vec("broken_too:Env-v0")


@pytest.mark.parametrize("result", [None, "CartPole-v1", CountingEnv, np.zeros(3)])
def test_factory_must_return_an_environment(result):
    with pytest.raises(ConfigError, match="a factory must return a gymnasium"):
        make_vec(lambda: result)


def test_bad_env_and_num_envs():
    with pytest.raises(ConfigError, match="`env` must be an id or a factory, got 3"):
        make_vec(3)
    with pytest.raises(ConfigError, match="`num_envs` must be a positive integer, got '8'"):
        make_vec("CartPole-v1", "8")
    with pytest.raises(ConfigError, match="`num_envs` must be a positive integer, got 0"):
        make_vec("CartPole-v1", 0)


def test_factory_must_not_share_environments():
    shared = CountingEnv()
    with pytest.raises(ConfigError, match="the same environment twice"):
        make_vec(lambda: shared, 2)


def test_num_envs_of_a_vector_environment():
    def make():
        return SyncVectorEnv([CountingEnv] * 3)

    assert make_vec(make).num_envs == 3
    assert make_vec(make, 3).num_envs == 3
    with pytest.raises(ConfigError, match="`num_envs` is 2, but the factory makes 3"):
        make_vec(make, 2)
    with pytest.raises(ConfigError, match="a single environment is needed here"):
        make_env(make)


def test_unknown_autoreset_mode():
    def make():
        envs = SyncVectorEnv([CountingEnv])
        envs.metadata["autoreset_mode"] = "sometimes"
        return envs

    with pytest.raises(ConfigError, match="AutoresetMode, got 'sometimes'"):
        make_vec(make)


def test_processes_that_reset_twice_are_refused():
    with pytest.raises(ConfigError, match="must have `shared_memory`"):
        make_vec(lambda: AsyncVectorEnv([CountingEnv], shared_memory=False))


def test_close_closes_each_environment_once():
    created: list[CountingEnv] = []

    def make():
        created.append(CountingEnv(len(created)))
        return created[-1]

    envs = make_vec(make, 3)
    envs.close()
    envs.close()
    assert [env.num_closed for env in created] == [1, 1, 1]
    created.clear()
    envs = make_vec(lambda: SyncVectorEnv([make] * 3))
    envs.close()
    envs.close()
    assert [env.num_closed for env in created] == [1, 1, 1]


def test_close_continues_after_an_error():
    class Stuck(CountingEnv):
        def close(self):
            super().close()
            raise OSError("stuck")

    created = [CountingEnv(), Stuck(), CountingEnv()]
    envs = make_vec(iter(created).__next__, 3)
    with pytest.raises(OSError, match="stuck"):
        envs.close()
    envs.close()
    assert [env.num_closed for env in created] == [1, 1, 1]


def test_created_environments_close_when_a_later_one_fails():
    created: list[CountingEnv] = []

    def make():
        if len(created) == 2:
            raise OSError("out of licences")
        created.append(CountingEnv())
        return created[-1]

    with pytest.raises(EnvironmentFailure, match="out of licences"):
        make_vec(make, 3)
    assert [env.num_closed for env in created] == [1, 1]


def test_factory_is_called_for_each_environment():
    envs = make_vec(numbered(), 3)
    assert envs.reset()[:, 0].tolist() == [0, 1, 2]
    assert not isinstance(envs, gymnasium.vector.VectorEnv)
    assert make_vec(EnvSpec(FailingEnv, {"at": 3}), 2).obs_spec.shape == (4,)


def with_100_mib(monkeypatch, env_class):
    """Return a function that makes environments of 1 MiB each, of 100 that are free, and a list."""
    created = []

    def make():
        created.append(env_class())
        return created[-1]

    monkeypatch.setattr(processes, "resident_bytes", lambda: len(created) * 2**20)
    monkeypatch.setattr(memory, "available_memory", lambda: 100 * 2**20)
    return make, created


@pytest.mark.parametrize("num_envs", [200, 10**9, 10**30])
def test_num_envs_beyond_memory_is_refused_early(monkeypatch, num_envs):
    make, created = with_100_mib(monkeypatch, CountingEnv)
    message = rf"^{num_envs:,} environments take at least .* and 100 MiB are free: lower `num_envs`"
    with pytest.raises(ConfigError, match=message):
        make_vec(make, num_envs)
    assert len(created) == 64
    assert all(env.num_closed == 1 for env in created)
    created.clear()
    make_vec(make, 160).close()


def test_memory_estimate_ignores_other_growth_of_the_process(monkeypatch):
    sizes = iter(range(0, 2**23, 2**19))
    monkeypatch.setattr(processes, "resident_bytes", lambda: next(sizes))
    monkeypatch.setattr(memory, "available_memory", lambda: 2**20)
    make_vec(CountingEnv, 200).close()
