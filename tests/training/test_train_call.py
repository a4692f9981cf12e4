"""`hotloop.train` and `Algorithm.train` with an environment and options instead of a `Config`."""

import gymnasium
import pytest

import hotloop
from hotloop.algorithms import find, ppo, sac
from hotloop.errors import ConfigError, EnvironmentFailure, UnknownNameError
from hotloop.runs import RunDirectory
from tests import toy_envs

SMALL = {
    "num_envs": 2,
    "num_steps": 8,
    "num_minibatches": 1,
    "update_epochs": 1,
    "hidden_sizes": (4,),
    "execution": "eager",
}


def test_one_call_trains_with_whole_floats(tmp_path):
    result = hotloop.train(
        "ppo",
        toy_envs.ChooseTheSign,
        total_timesteps=3.2e1,
        run_dir=tmp_path / "run",
        progress=False,
        **SMALL,
    )
    assert result.status == "finished"
    assert result.timesteps == 32
    run = RunDirectory.open(result.run_dir)
    assert run.config["env_id"] == run.config["config"]["env_id"] == "tests.toy_envs:ChooseTheSign"
    assert run.config["config"]["total_timesteps"] == 32
    # The environment's name suffices to resume and to evaluate.
    config = ppo.Config(
        env_id=toy_envs.ChooseTheSign, total_timesteps=64, run_dir=result.run_dir, **SMALL
    )
    resumed = ppo.train(config, resume_from=result.run_dir, progress=False)
    assert resumed.timesteps == 64
    assert len(hotloop.evaluate(result.run_dir, episodes=3).returns) == 3


@pytest.mark.parametrize(
    ("arguments", "options", "expected"),
    [
        ((), {}, ppo.Config()),
        (("Acrobot-v1",), {"seed": 3}, ppo.algorithm.preset("Acrobot-v1", seed=3)),
        ((), {"env_id": "Acrobot-v1"}, ppo.algorithm.preset("Acrobot-v1")),
        ((toy_envs.ChooseTheSign,), {}, ppo.Config(env_id=toy_envs.ChooseTheSign)),
        ((ppo.Config(seed=2),), {}, ppo.Config(seed=2)),
    ],
)
def test_arguments_of_train_make_a_configuration(monkeypatch, arguments, options, expected):
    configs = []

    def keep(_, config, *__, **___):
        configs.append(config)
        return iter(())

    monkeypatch.setattr("hotloop.training.run.run_training", keep)
    monkeypatch.setattr("hotloop.training.algorithm.drive", lambda _: None)
    ppo.train(*arguments, progress=False, **options)
    assert configs == [expected]


@pytest.mark.parametrize(
    ("arguments", "options", "message"),
    [
        ((ppo.Config(),), {"seed": 2}, r"got seed beside it: write `ppo\.Config\(seed=…\)`"),
        ((sac.Config(),), {}, r"must be a hotloop\.algorithms\.ppo\.Config, got a .*sac\.Config"),
        ((3,), {}, "`env_id` must be an id, or a class or function that makes the env"),
        (("CartPole-v1",), {"total_timesteps": 1.5}, "must be a positive integer, got 1.5"),
    ],
)
def test_arguments_that_are_refused(arguments, options, message):
    with pytest.raises(ConfigError, match=message):
        ppo.train(*arguments, **options)


def test_an_environment_that_exists_is_refused():
    env = gymnasium.make("CartPole-v1")
    with pytest.raises(
        ConfigError, match=r"a class or function that makes the env.*got <TimeLimit"
    ):
        hotloop.train("ppo", env, total_timesteps=1e4)


def test_unknown_names_are_refused():
    with pytest.raises(UnknownNameError, match="expected an algorithm"):
        hotloop.train("pp0", "CartPole-v1")
    with pytest.raises(UnknownNameError, match="use `entropy_coef`"):
        hotloop.train(find("ppo"), "CartPole-v1", ent_coef=0.01)


def test_many_trainings_need_an_environment_that_their_processes_can_import():
    with pytest.raises(ConfigError, match=r"can't import the factory .*at the top level of a mod"):
        hotloop.train_many("ppo", lambda: None, seeds=1)


def test_a_script_does_not_train_again_when_it_is_imported(tmp_path, monkeypatch):
    """Another process imports it for the environment of a run."""
    script = """
import hotloop
from tests.toy_envs import ChooseTheSign as Guess
hotloop.train("ppo", Guess, total_timesteps=32, run_dir="run", progress=False)
"""
    (tmp_path / "script_that_trains.py").write_text(script)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.chdir(tmp_path)
    message = "importing 'script_that_trains' for its `Guess` would train again: put the training"
    with pytest.raises(EnvironmentFailure, match=message):
        hotloop.make_vec("script_that_trains:Guess", 2)
    assert not (tmp_path / "run").exists()
