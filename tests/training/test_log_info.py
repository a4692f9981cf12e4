import warnings
from types import SimpleNamespace

import pytest

from hotloop.algorithms import dqn, ppo
from hotloop.errors import ConfigError
from hotloop.runs import RunDirectory
from hotloop.training.reporting import Reporter
from tests.episode_info_envs import ReportsInfo

KINDS = {
    "ppo": (ppo, {"num_envs": 2, "num_steps": 8, "num_minibatches": 1, "update_epochs": 1}),
    "dqn": (dqn, {"learning_starts": 32, "report_interval": 32, "batch_size": 8}),
}


def train_run(name, tmp_path, **options):
    module, fixed = KINDS[name]
    config = module.Config(
        total_timesteps=64, execution="eager", run_dir=str(tmp_path / "run"), **{**fixed, **options}
    )
    module.train(config, env=ReportsInfo)
    return RunDirectory.open(tmp_path / "run")


@pytest.mark.parametrize("name", KINDS)
def test_metrics_have_a_number_for_each_episode(name, tmp_path):
    run = train_run(name, tmp_path, log_info=("x",), eval_interval=32, eval_episodes=2)
    lines = run.metrics()
    with_episodes = [line for line in lines if line["episode_returns"]]
    assert len(with_episodes) > 1
    hits: list[float] = []
    for line in with_episodes:
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


def test_keys_that_no_episode_had_are_warned_about(tmp_path):
    with pytest.warns(UserWarning, match=r"no finished episode had 'nope', 'nor'"):
        train_run("ppo", tmp_path, log_info=("nope", "x", "nor"))


def test_no_warning_if_all_keys_were_present(tmp_path):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        run = train_run("ppo", tmp_path, log_info=("x", "is_success"))
    assert run.config["defaults"]["log_info"] == []
    assert run.config["defaults"]["total_timesteps"] == 200_000
    assert "gamma" not in run.config["defaults"]


def test_no_episode_info_without_info(tmp_path):
    config = ppo.Config(
        total_timesteps=64, execution="eager", run_dir=str(tmp_path / "run"), **KINDS["ppo"][1]
    )
    ppo.train(config)
    assert all("episode_info" not in line for line in RunDirectory.open(tmp_path / "run").metrics())


@pytest.mark.parametrize(
    "log_info", [("x", "x"), ("",), ("a,b",), tuple(f"n{k}" for k in range(17))]
)
def test_invalid_names_are_refused(log_info):
    with pytest.raises(ConfigError, match="`log_info` must name up to 16 keys of `info`"):
        ppo.Config(log_info=log_info)


def test_secrets_in_names_of_metrics_are_masked(tmp_path, monkeypatch):
    """Names of metrics come from algorithms of users, and their values are numbers."""
    monkeypatch.setenv("HF_TOKEN", "hf_planted5555555")
    lines = []
    reporter = Reporter(SimpleNamespace(path=tmp_path, log=lines.append), None)
    reporter.log(1, {"loss of hf_planted5555555": 1.0, "value_loss": 2.0})
    assert lines == [{"loss of ***": 1.0, "value_loss": 2.0}]


def test_a_text_in_place_of_a_list_gets_the_list():
    with pytest.raises(ConfigError, match=r"got 'x': pass a list, \['x'\]$"):
        ppo.Config(log_info="x")
    with pytest.raises(ConfigError, match=r"got 64: pass a list, \[64\]$"):
        ppo.Config(hidden_sizes=64)
    ppo.Config(log_info=["x"], hidden_sizes=[64])
