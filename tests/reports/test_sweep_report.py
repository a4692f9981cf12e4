"""The report of a stored sweep, which is read as data."""

import dataclasses
import json
import os
import subprocess
import sys

import pytest

from hotloop.algorithms import find
from hotloop.cli import main
from hotloop.errors import ConfigError
from hotloop.experiments import Results, Trial
from hotloop.experiments.results import Run
from hotloop.experiments.spaces import Range, parse, stored_space
from hotloop.reports import sweep_plots
from hotloop.training.options.option_files import toml_loads
from tests.experiments.test_results import PLAN, finished

CONFIG = {"env_id": "CartPole-v1", "num_envs": 2, "target_kl": None, "env_kwargs": {}}
CONFIG["total_timesteps"] = 100


def write(path, *trials, **changes):
    results = Results(path)
    results.plan = dataclasses.replace(PLAN, config=CONFIG, **changes)
    for number, params in enumerate(trials, 1):
        results.add_trial(number, params, {})
        for seed in (1, 2, 3):
            results.claim(number, seed, 100, "tune", "1", "d")
            results.finish(finished(number, seed, float(number)))
    results.close()
    return path


@pytest.fixture
def path(tmp_path):
    trials = [{"learning_rate": 10.0**-k, "hidden_sizes": [64, 64]} for k in (2, 4, 3)]
    return write(tmp_path / "sweep.sqlite", *trials)


def test_the_best_options_are_the_stored_ones_and_the_winners(path, tmp_path, capsys):
    assert main(["sweep", "report", str(path)]) == 0
    out = capsys.readouterr().out
    assert "3 trials: 3 done, 0 pruned, 0 failed" in out
    assert "best: trial 3, learning_rate 0.001, hidden_sizes 64 64" in out
    assert toml_loads((tmp_path / "sweep_report" / "best.toml").read_text()) == {
        "algorithm": "ppo",
        "env_id": "CartPole-v1",
        "env_kwargs": {},
        "hidden_sizes": [64, 64],
        "learning_rate": 0.001,
        "num_envs": 2,
        "target_kl": "none",
        "total_timesteps": 100,
    }
    page = (tmp_path / "sweep_report" / "report.html").read_text()
    assert page.count("<tr><td>") == 3


def test_json(path, capsys):
    assert main(["sweep", "report", str(path), "--json"]) == 0
    content = json.loads(capsys.readouterr().out)
    assert [trial["trial"] for trial in content["trials"]] == [3, 2, 1]
    assert content["trials"][0]["scores_by_seed"] == {"1": 3.0, "2": 3.0, "3": 3.0}
    assert content["best"]["trial"] == 3
    assert content["best"]["options"]["learning_rate"] == 0.001
    assert content["test"] == {"best": [], "defaults": []}
    assert content["page"].endswith("report.html")


def test_importances_leave_out_trials_without_a_score(tmp_path, capsys):
    """In a group of trainings, a run is done even if no episode ended."""
    trials = [{"learning_rate": rate} for rate in (0.1, 0.03, 0.01, 0.003, 0.001)]
    path = write(tmp_path / "sweep.sqlite", *trials, space={"learning_rate": "log:1e-4,1,9"})
    results = Results(path)
    for seed in (1, 2, 3):
        results.finish(finished(5, seed)._replace(score=None))
    results.close()
    assert main(["sweep", "report", str(path)]) == 0
    out = capsys.readouterr().out
    assert "best: trial 4, " in out
    assert "importance: learning_rate 100%" in out


def test_a_report_needs_no_torch(path):
    code = (
        "import sys\n"
        "from hotloop.cli import main\n"
        f"assert main(['sweep', 'report', {str(path)!r}]) == 0\n"
        "assert not {'torch', 'gymnasium', 'tyro'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True, env=os.environ)


@pytest.mark.parametrize(
    ("name", "text", "values"),
    [
        ("gamma", "0.9,1", [0.9]),
        ("gae_lambda", "0.9:1:0.05", [0.95]),
        ("num_steps", "1e2,200", [100]),
        ("hidden_sizes", "64 64;32", [[64, 64]]),
        ("hidden_sizes", [[64, 64], [32]], [[32]]),
        ("learning_rate", "linear:3e-4,0;1e-3", ["linear:3e-4,0", 1e-3]),
        ("learning_rate", "log:1e-5,1e-2,7", [1e-5]),
        ("clip_reward", "none,1", [None]),
        ("normalize_advantages", "true,false", [True]),
    ],
)
def test_a_stored_space_is_that_of_the_configuration_class(tmp_path, name, text, values):
    """The types come from the values of the trials, as they would from the class."""
    trials = [Trial(k, {name: value}, {}) for k, value in enumerate(values, 1)]
    typed, stored = (
        parse({name: text}, find("ppo").config),
        stored_space(tmp_path, {name: text}, trials),
    )
    assert repr(stored) == repr(typed)


@pytest.mark.parametrize(
    "params", [{"gamma": "evil:f"}, {"network": "evil:Net"}, {"gamma": {"a": 1}}]
)
def test_trials_that_name_code_are_refused(tmp_path, params):
    with pytest.raises(ConfigError, match="is damaged: trial 1 sets `"):
        stored_space(tmp_path, {"gamma": "0.9,0.99"}, [Trial(1, params, {})])


def test_the_curve_of_the_best_trial_is_drawn_beside_many_others():
    def run(trial):
        curve = [(0, 0.0), (100, float(trial))]
        return Run(trial, 1, 100, "tune", "done", float(trial), "", 1.0, curve, "d")

    figure = sweep_plots.learning_curves([run(trial) for trial in range(1, 301)], 300)
    lines = {line.get_label(): line for line in figure.axes[0].get_lines()}
    assert lines["the best"].get_ydata().tolist() == [0.0, 300.0]


def test_a_range_of_less_than_a_decade_has_its_ends_as_ticks():
    options = {"learning_rate": Range(3e-4, 9e-4, is_log=True)}
    figure = sweep_plots.score_slices(options, [Trial(1, {"learning_rate": 5e-4}, {})], {1: 2.0})
    assert [tick.get_text() for tick in figure.axes[0].get_xticklabels()] == ["0.0003", "0.0009"]
