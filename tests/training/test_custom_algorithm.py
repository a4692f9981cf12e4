"""The custom algorithms of the documentation: training, evaluation, resume, and errors."""

import dataclasses
import importlib
import json
import re
import sys
from pathlib import Path

import numpy as np
import pytest

from hotloop.algorithms import find, ppo
from hotloop.cli import main
from hotloop.errors import CheckpointError, ConfigError, UnknownNameError
from hotloop.runs import RunDirectory
from hotloop.training import OffPolicy, Update, check_algorithm

PAGE = Path(__file__).parents[2] / "docs" / "tutorials" / "write-an-algorithm.md"
BLOCKS = re.findall(r"^```python\n(.*?)^```", PAGE.read_text(), re.MULTILINE | re.DOTALL)
FILES = {name[1]: block for block in BLOCKS if (name := re.match(r"# (my_[ar]\w+)\.py\n", block))}
SHORT = ["--total-timesteps", "2000", "--num-steps", "16", "--checkpoint-interval", "500"]


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    for name, text in FILES.items():
        (tmp_path / f"{name}.py").write_text(text)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    yield tmp_path
    for name in FILES:
        sys.modules.pop(name, None)


def train(*options, name="my_reinforce", run="run"):
    command = [f"{name}:algorithm", "--env-id", "CartPole-v1", "--run-dir", run]
    return main(["train", *command, *SHORT, "--execution", "eager", *options])


def load_last(run):
    return RunDirectory.open(run).checkpoints.load()


def test_page_has_two_short_algorithms():
    assert list(FILES) == ["my_reinforce", "my_a2c"]
    assert len(FILES["my_reinforce"].splitlines()) <= 80


@pytest.mark.parametrize("name", FILES)
def test_algorithm_trains_and_writes_the_usual_files(name, capsys):
    assert train("--eval-interval", "1000", "--eval-episodes", "2", name=name) == 0
    metrics = RunDirectory.open("run").metrics()
    assert metrics[-1]["timesteps"] == 2048
    assert {"policy_loss", "entropy", "learning_rate", "num_updates"} <= metrics[-1].keys()
    assert json.loads(Path("run/config.json").read_text())["algorithm"] == f"{name}:algorithm"
    assert Path("run/learning_curve.png").exists()
    assert main(["eval", "run", "--episodes", "3"]) == 0
    assert main(["plot", "run", "--output", "curve.png"]) == 0
    assert main(["runs", "."]) == 0
    assert "mean return" in capsys.readouterr().out


def test_workers_give_the_weights_of_the_same_groups_inline():
    train("--workers", "2", run="workers")
    train("--workers", "2", "--backend", "inline", run="inline")
    for name, array in load_last("inline").snapshot.params.items():
        np.testing.assert_array_equal(array, load_last("workers").snapshot.params[name], name)


@pytest.mark.parametrize("name", FILES)
def test_algorithm_keeps_the_contract(name):
    algorithm = importlib.import_module(name).algorithm
    check_algorithm(algorithm, normalize_obs=True, learning_rate="linear:3e-3,1e-3")


def test_algorithm_trains_from_python(folder):
    module = importlib.import_module("my_reinforce")
    config = module.Config(
        total_timesteps=500, num_steps=16, execution="eager", run_dir=str(folder / "python")
    )
    result = module.algorithm.train(config)
    assert result.policy.act(np.zeros(4, np.float32)).shape == ()
    assert find("my_reinforce:algorithm") is module.algorithm


@pytest.mark.slow
@pytest.mark.parametrize("name", FILES)
def test_compiled_algorithm_learns(name, capsys):
    command = [
        f"{name}:algorithm",
        "--env-id",
        "CartPole-v1",
        "--workers",
        "2",
        "--execution",
        "compile",
    ]
    options = ["--total-timesteps", "100000", "--num-steps", "32", "--run-dir", "compiled"]
    assert main(["train", *command, *options, "--learning-rate", "linear:3e-3,0"]) == 0
    out = capsys.readouterr().out
    assert "0 recompilations" in out
    last_returns = [
        r for x in RunDirectory.open("compiled").metrics() for r in x["episode_returns"]
    ]
    assert np.mean(last_returns[-100:]) > 100


# --- errors -------------------------------------------------------------------------------------


def changed_algorithm(**parts):
    """Return REINFORCE with other parts, and a configuration for a few steps."""
    module = importlib.import_module("my_reinforce")
    algorithm = dataclasses.replace(module.algorithm, **parts)
    return algorithm, module.Config(
        total_timesteps=256, num_steps=16, num_envs=2, execution="eager"
    )


def reinforce():
    return importlib.import_module("my_reinforce")


def assert_refused(match, config=None, **parts):
    algorithm, small = changed_algorithm(**parts)
    with pytest.raises(ConfigError, match=match):
        algorithm.train(dataclasses.replace(small, **(config or {})))
    assert not list(Path("runs").glob("*"))  # no run directory is left


def test_update_that_reads_values_is_not_compiled():
    def update(state, batch, noise, hyper, *, nets, config):
        metrics = reinforce().update(state, batch, noise, hyper, nets=nets, config=config)
        if metrics["loss"].item() > 1e9:
            metrics["loss"] = metrics["loss"] * 2
        return metrics

    assert_refused(
        "can't compile the update .* without `.item",
        update=update,
        config={"execution": "compile"},
    )
    algorithm, config = changed_algorithm(update=update)
    config = dataclasses.replace(config, execution="auto", total_timesteps=500_000_000)
    reports = []

    def stop(report):
        reports.append(report)
        return report.timesteps > 0

    result = algorithm.train(config, on_report=stop)
    assert "eager: torch " in result.execution
    assert "can't compile the update (" in result.execution


def test_reference_names_the_module_of_the_algorithm():
    module = reinforce()
    assert module.algorithm.reference == "my_reinforce:algorithm"
    assert importlib.import_module("my_a2c").algorithm.reference == "my_a2c:algorithm"
    assert ppo.algorithm.reference == "ppo"
    # A copy without a module-level name is not confused with its original.
    assert dataclasses.replace(ppo.algorithm, update=module.update).reference == (
        "hotloop.algorithms.ppo:<ppo>"
    )


def test_configuration_of_another_algorithm_is_refused():
    with pytest.raises(
        ConfigError, match=r"must be a my_reinforce\.Config, got a hotloop.*ppo\.Con"
    ):
        reinforce().algorithm.train(ppo.Config())


def test_missing_option_is_refused():
    parts = {"updates": (Update(function=reinforce().update, every="policy_frequenzy"),)}
    names = ("name", "config", "networks", "init", "hyper")
    common = {name: getattr(reinforce().algorithm, name) for name in names}
    with pytest.raises(ConfigError, match="names an option `policy_frequenzy`"):
        OffPolicy(**common, **parts)
    with pytest.raises(ConfigError, match="add an `Update"):
        OffPolicy(**common, updates=(reinforce().update,))


def test_workers_that_auto_chooses_never_need_weights():
    algorithm = reinforce().algorithm
    assert algorithm.nonblocking_schedule(algorithm.config()) == "barrier"
    assert ppo.algorithm.nonblocking_schedule(ppo.Config()) == "variable"
    assert ppo.algorithm.nonblocking_schedule(ppo.Config(memory="gru:8")) == "barrier"


def test_noise_is_passed_on_request():
    shapes = []

    def update(state, batch, noise, hyper, *, nets, config):
        shapes.append(tuple(noise.shape))
        return {"loss": noise.mean() + state.params.sum()}

    algorithm, config = changed_algorithm(update=update, has_noise=True)
    algorithm.train(config)
    assert set(shapes) == {(32, 1)}


def test_batch_without_weights_refuses_variable_schedule():
    assert_refused(
        "has no field `weight`: add the field",
        config={"schedule": "variable", "workers": 2},
    )


def test_a_prepared_fragment_of_nan_is_not_learned_from():
    def prepare(fragment, hyper, config):
        batch = reinforce().prepare(fragment, hyper, config)
        return batch._replace(advantages=batch.advantages * np.nan)

    algorithm, config = changed_algorithm(prepare=prepare)
    with pytest.raises(ArithmeticError, match=r"update 1 of iteration 1 .*policy_loss"):
        algorithm.train(config)


@pytest.mark.parametrize(
    ("name", "error", "match"),
    [
        ("my_reinforce:algoritm", UnknownNameError, "did you mean 'algorithm'|algorithm"),
        ("my_reinforc:algorithm", UnknownNameError, "there is no module 'my_reinforc'"),
        ("my_reinforce:Config", ConfigError, "must be an algorithm"),
        ("reinforce", UnknownNameError, "expected an algorithm"),
    ],
)
def test_unknown_names_are_refused(name, error, match):
    with pytest.raises(error, match=match):
        find(name)


def test_a_run_is_resumed_by_its_own_algorithm_alone():
    train()
    config = ppo.Config(total_timesteps=4000)
    with pytest.raises(ConfigError, match="is a run of my_reinforce:algorithm, got ppo"):
        ppo.train(config, resume_from="run")


def train_on(run):
    module = reinforce()
    return module.algorithm.train(module.Config(total_timesteps=9_000), resume_from=run)


def test_a_checkpoint_from_before_the_contract_is_refused(capsys):
    train()
    path = Path("run/checkpoints/last/state.json")
    state = json.loads(path.read_text())
    path.write_text(json.dumps({**state, "checkpoint_version": 2}))
    config = json.loads(Path("run/config.json").read_text())
    config["config"]["anneal_learning_rate"] = True  # an option of that time
    Path("run/config.json").write_text(json.dumps({**config, "signature": ""}))
    for read in (lambda: load_last("run"), lambda: train_on("run")):
        with pytest.raises(
            CheckpointError, match="version 2, this hotloop reads 4: start a new training"
        ):
            read()
    assert main(["resume", "run", "--total-timesteps", "4000", "--trust"]) == 1
    assert "version 2, this hotloop reads 4" in capsys.readouterr().err
