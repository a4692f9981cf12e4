import gymnasium
import numpy as np
import pytest
from gymnasium.vector import AutoresetMode, SyncVectorEnv
from gymnasium.wrappers import TimeLimit

from hotloop.envs import EnvSpec, make_vec
from hotloop.envs.episode_metrics import MAX_METRICS, EpisodeMetrics
from hotloop.errors import ConfigError
from tests.episode_info_envs import ReportsInfo


def play_episodes(env, *, num_steps=7, log_info=("is_success", "x"), num_envs=2):
    envs = make_vec(EnvSpec(env, log_info=log_info), num_envs)
    envs.reset()
    for _ in range(num_steps):
        envs.step(np.zeros(num_envs, np.int64))
    return envs.pop_episodes()


def vector(mode):
    return lambda: SyncVectorEnv([ReportsInfo, ReportsInfo], autoreset_mode=mode)


FIRST = {"is_success": 0.0, "x": 1.5, "angle": 0.25, "hits": 1.0}
SECOND = {"is_success": 1.0, "x": 1.5, "angle": 0.25, "hits": 2.0}


@pytest.mark.parametrize("env", [ReportsInfo, vector(AutoresetMode.DISABLED)])
def test_info_of_the_last_step_and_of_the_episode(env):
    assert [(episode.env, episode.info) for episode in play_episodes(env)] == [
        *((0, FIRST), (1, FIRST)),
        *((0, SECOND), (1, SECOND)),
    ]


@pytest.mark.parametrize("mode", [AutoresetMode.SAME_STEP, AutoresetMode.NEXT_STEP])
def test_autoreset_modes_of_vector_environments(mode):
    # Wrapped, the environment keeps its mode: hotloop cannot switch it to one that takes a mask.
    class Wrapped(gymnasium.vector.VectorWrapper):
        pass

    episodes = play_episodes(lambda: Wrapped(vector(mode)()), num_steps=8)
    assert [episode.info for episode in episodes] == [FIRST, FIRST, SECOND, SECOND]


def test_truncated_episode_has_the_info_of_its_last_step():
    (episode,) = play_episodes(
        lambda: TimeLimit(ReportsInfo(by_limit=True), 5), num_steps=5, num_envs=1
    )
    assert episode.length == 5
    assert episode.info == {"is_success": 0.0, "x": 2.5}


def test_environment_without_metrics_gives_none():
    (episode, _) = play_episodes("CartPole-v1", num_steps=12, log_info=())[:2]
    assert episode.info == {}


@pytest.mark.parametrize(
    ("value", "number"),
    [
        *((True, 1.0), (3, 3.0), (0.5, 0.5), (np.int8(4), 4.0), (np.array(7), 7.0)),
        *((float("nan"), None), (np.float32("inf"), None)),
    ],
)
def test_scalars(value, number):
    metrics = EpisodeMetrics(["n"], "env").from_info({"n": value})
    assert metrics == ({} if number is None else {"n": number})


@pytest.mark.parametrize("value", ["3", None, [1.0], np.zeros(1), 1j, 10**400])
def test_log_info_must_name_numbers(value):
    with pytest.raises(ConfigError, match=r"`log_info` must name numbers, but `info\['n'\]` is "):
        EpisodeMetrics(["n"], "env").from_info({"n": value})
    metrics = EpisodeMetrics(["n"], "env")
    values = metrics.values_of_env({"n": [value, value]}, 1)
    with pytest.raises(ConfigError, match=r"env: `log_info` must name numbers"):
        metrics.from_info(values)


def test_missing_metric_is_left_out():
    assert EpisodeMetrics(["n"], "env").from_info({"other": 1.0}) == {}
    info = {"n": np.ones(2), "_n": np.array([True, False])}
    metrics = EpisodeMetrics(["n"], "env")
    values = [metrics.from_info(metrics.values_of_env(info, i)) for i in range(2)]
    assert values == [{"n": 1.0}, {}]


def test_unprintable_and_long_names_are_left_out():
    info = {"episode": {"good": 1, "a\nb": 2, "x" * 65: 3, 4: 5}}
    assert EpisodeMetrics([], "env").from_info(info) == {"good": 1.0}


def test_too_many_metrics_warn_once():
    metrics = EpisodeMetrics(["requested"], "env")
    info = {"episode": {f"n{k}": k for k in range(MAX_METRICS)}, "requested": 1.0}
    with pytest.warns(RuntimeWarning, match=f"{MAX_METRICS} numbers at most, but 'n15'"):
        values = metrics.from_info(info)
    assert len(values) == MAX_METRICS
    assert "requested" in values
    assert "n15" not in values
    assert metrics.from_info(info) == values  # pytest turns a second warning into an error
