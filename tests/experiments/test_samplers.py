"""The default sampler, and what Optuna's samplers learn from failed trials."""

import json
import pickle
from pathlib import Path

import pytest

from hotloop.algorithms import ppo
from hotloop.experiments import Trial
from hotloop.experiments.samplers import SearchSampler, choose_sampler, importances
from hotloop.experiments.spaces import parse
from hotloop.runs import trust


@pytest.mark.parametrize(
    ("spaces", "trials", "sampler", "reason"),
    [
        ({"learning_rate": "3e-4,1e-3"}, None, "grid", "has 2 points: a grid, with a trial for"),
        ({"learning_rate": "3e-4,1e-3"}, 5, "grid", "has 2 points: a grid"),
        ({"learning_rate": "3e-4,1e-3"}, 1, "random", "2 points, more than `--trials 1`: random"),
        ({"learning_rate": "log:1e-5,1e-2,3", "gae_lambda": "0.9,1"}, None, "grid", "6 points"),
        ({"update_epochs": "int:1,10"}, None, "grid", "10 points"),
        ({"learning_rate": "log:1e-5,1e-2", "gae_lambda": "0.9,1"}, 20, "random", ""),
        ({"num_steps": "int:1,1000000"}, 20, "random", ""),
    ],
)
def test_a_finite_space_is_a_grid(spaces, trials, sampler, reason):
    choice = choose_sampler(parse(spaces, ppo.Config), trials)
    assert choice[0] == sampler
    assert reason in choice[1]


class Diverging:
    """Outcomes of trials that fail above a learning rate. Others have a score of at most `best`."""

    def __init__(self, best, best_rate, max_rate):
        self._best, self._best_rate, self._max_rate = best, best_rate, max_rate
        self._rates = {}

    def add(self, trial):
        self._rates[trial.number] = trial.params["learning_rate"]

    def state(self, trial):
        return "failed" if self._rates[trial] > self._max_rate else "done"

    def score(self, trial):
        if self.state(trial) == "failed":
            return None
        return self._best - abs(self._rates[trial] - self._best_rate)


# The limits are between the numbers of failures with and without what the sampler learns from them.
@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "best", "max_rate", "num_trials", "limit"),
    [
        ("tpe", -1000.0, 0.5, 40, 12),  # 6 and 19
        ("tpe", 1000.0, 0.5, 40, 12),  # 6 and 19
        ("gp", -1000.0, 0.5, 16, 2),  # 1 and 4
        ("cmaes", -1000.0, 0.3, 80, 24),  # 16 and 32
    ],
)
def test_samplers_avoid_a_region_of_failures(name, best, max_rate, num_trials, limit):
    pytest.importorskip("optuna", reason="Optuna is not installed")
    space = parse({"learning_rate": "lin:0.01,1", "gae_lambda": "lin:0.5,1"}, ppo.Config)
    outcomes, trials = Diverging(best, {0.5: 0.45, 0.3: 0.28}[max_rate], max_rate), []
    for number in range(1, num_trials + 1):
        suggestion = SearchSampler(name, space, 0).suggest(number, trials, outcomes)
        trials.append(Trial(number, *suggestion))
        outcomes.add(trials[-1])
    late = trials[num_trials // 2 :]
    assert sum(outcomes.state(trial.number) == "failed" for trial in late) <= limit


def test_failures_alone_are_no_problem_and_no_importance():
    pytest.importorskip("optuna", reason="Optuna is not installed")
    space = parse({"learning_rate": "lin:0.6,1.0"}, ppo.Config)
    outcomes, trials = Diverging(0.0, 0.4, 0.5), []
    for number in range(1, 13):
        params, attrs = SearchSampler("tpe", space, 0).suggest(number, trials, outcomes)
        trials.append(Trial(number, params, attrs))
        outcomes.add(trials[-1])
    outcomes.trials = trials
    assert importances(space, outcomes) is None


class Marker:
    """An object whose pickle creates a file when it is read."""

    def __init__(self, path):
        self._path = path

    def __reduce__(self):
        return Path.touch, (self._path,)


def test_a_pickle_of_another_user_is_not_read(tmp_path, monkeypatch):
    """CMA-ES stores its state with trials, as a pickle."""
    pytest.importorskip("cmaes", reason="cmaes is not installed")
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    space = parse({"learning_rate": "lin:0.01,1", "gae_lambda": "lin:0.5,1"}, ppo.Config)
    outcomes, trials = Diverging(0.0, 0.5, 1.0), []
    for number in range(1, 4):
        suggestion = SearchSampler("cmaes", space, 0).suggest(number, trials, outcomes)
        trials.append(Trial(number, *json.loads(json.dumps(suggestion))))
        outcomes.add(trials[-1])
    state = trials[-1].attrs["system"]
    assert state
    assert SearchSampler("cmaes", space, 0)._state_of(trials[-1]) == state
    attrs = {**trials[-1].attrs, "system": {**state, "cma:optimizer:0": pickled(tmp_path / "a")}}
    with pytest.warns(RuntimeWarning, match="have not signed the state of CMA-ES"):
        SearchSampler("cmaes", space, 0).suggest(4, [trials[-1]._replace(attrs=attrs)], outcomes)
    assert not (tmp_path / "a").exists()
    # Its own state of this process needs no signature, for which there may be no key.
    monkeypatch.setattr(trust, "signature", lambda _: "")
    sampler = SearchSampler("cmaes", space, 0)
    params, attrs = sampler.suggest(4, trials, outcomes)
    assert sampler._state_of(Trial(4, params, attrs)) == attrs["system"]


def pickled(path):
    return pickle.dumps(Marker(path)).hex()
