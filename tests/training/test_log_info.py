import warnings

import pytest

from hotloop.algorithms import dqn, ppo
from hotloop.errors import ConfigError
from hotloop.runs import RunDirectory
from tests.told_envs import Tells

KINDS = {
    "ppo": (ppo, {"num_envs": 2, "num_steps": 8, "num_minibatches": 1, "update_epochs": 1}),
    "dqn": (dqn, {"learning_starts": 32, "report_interval": 32, "batch_size": 8}),
}


def trained(name, tmp_path, **options):
    module, own = KINDS[name]
    config = module.Config(
        total_timesteps=64, execution="eager", run_dir=str(tmp_path / "run"), **{**own, **options}
    )
    module.train(config, env=Tells)
    return RunDirectory.open(tmp_path / "run")


@pytest.mark.parametrize("name", KINDS)
def test_metrics_have_a_number_for_each_episode(name, tmp_path):
    run = trained(name, tmp_path, log_info=("x",), eval_interval=32, eval_episodes=2)
    lines = run.metrics()
    ended = [line for line in lines if line["episode_returns"]]
    assert len(ended) > 1
    hits: list[float] = []
    for line in ended:
        info = line["episode_info"]
        assert info.keys() == {"x", "angle", "hits"}
        assert all(len(values) == len(line["episode_returns"]) for values in info.values())
        assert set(info["x"]) == {1.5}
        hits += info["hits"]
    assert (
        max(hits)
        == sum(len(line["episode_returns"]) for line in lines) // (run.config["config"]["num_envs"])
    )
    evaluation = next(line["evaluation"] for line in lines if "evaluation" in line)
    assert evaluation["info"]["x"] == [1.5, 1.5]


def test_what_no_episode_had_is_told_in_the_end(tmp_path):
    with pytest.warns(UserWarning, match=r"no episode that ended had 'nope', 'nor'"):
        trained("ppo", tmp_path, log_info=("nope", "x", "nor"))


def test_nothing_is_told_where_all_were_there(tmp_path):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        run = trained("ppo", tmp_path, log_info=("x", "is_success"))
    assert run.config["defaults"]["log_info"] == []
    assert run.config["defaults"]["total_timesteps"] == 200_000
    assert "gamma" not in run.config["defaults"]


def test_no_line_has_what_no_environment_tells(tmp_path):
    config = ppo.Config(
        total_timesteps=64, execution="eager", run_dir=str(tmp_path / "run"), **KINDS["ppo"][1]
    )
    ppo.train(config)
    assert all("episode_info" not in line for line in RunDirectory.open(tmp_path / "run").metrics())


@pytest.mark.parametrize("given", [("x", "x"), ("",), ("a,b",), tuple(f"n{k}" for k in range(17))])
def test_names_that_can_not_be(given):
    with pytest.raises(ConfigError, match="`log_info` must name up to 16 keys of `info`"):
        ppo.Config(log_info=given)
