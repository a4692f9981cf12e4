"""APPO with workers: reproducibility, the age of experience, and the bias to fast workers."""

import itertools
import shutil

import numpy as np
import pytest
from safetensors.numpy import load_file

from hotloop.algorithms import appo
from hotloop.runs import RunDirectory
from hotloop.training.fragment_streams import FragmentStream
from tests.attempts import attempts
from tests.uneven_envs import Dawdling, FastAndSlow

SMALL = {
    "num_steps": 16,
    "workers": 2,
    "envs_per_worker": 2,
    "num_minibatches": 2,
    "update_epochs": 2,
    "hidden_sizes": (16,),
    "execution": "eager",
}
UNEVEN = {"env_kwargs": {"mean_s": [0.0, 0.001]}}


def train(path, env=None, *, on_report=None, resume_from=None, **options):
    config = appo.Config(**{**SMALL, **options}, run_dir=str(path))
    return appo.train(config, env=env, on_report=on_report, resume_from=resume_from)


def lines_of(path):
    return RunDirectory.open(path).metrics()


def load_learner(path):
    return load_file(path / "checkpoints" / "last" / "learner.safetensors")


def assert_same_learner(a, b):
    first, second = load_learner(a), load_learner(b)
    assert first.keys() == second.keys()
    for name, array in first.items():
        np.testing.assert_array_equal(array, second[name], err_msg=name)


# --- a lag of one --------------------------------------------------------------------------------


def test_lag_of_one_does_not_depend_on_worker_speed(tmp_path):
    options = {"schedule": "lag:1", "total_timesteps": 64 * 8, "normalize_obs": True}
    slow = {"env": Dawdling, **UNEVEN}
    other = {"env": Dawdling, "env_kwargs": {"mean_s": [0.0005, 0.0]}}
    for name, env in (("plain", {}), ("slow", slow), ("other", other)):
        result = train(tmp_path / name, **options, **env)
        assert result.timesteps == 64 * 8
        ages = [(x["age_mean"], x["age_max"]) for x in lines_of(tmp_path / name)]
        assert ages == [(0.0, 0.0), *[(1.0, 1.0)] * 7]
        assert_same_learner(tmp_path / name, tmp_path / "plain")


def test_lag_of_one_resumes_reproducibly(tmp_path):
    options = {"schedule": "lag:1", "total_timesteps": 64 * 6}
    train(tmp_path / "a", **options, on_report=lambda report: report.timesteps >= 64 * 3)
    shutil.copytree(tmp_path / "a", tmp_path / "b", symlinks=True)
    for name in ("a", "b"):
        train(tmp_path / name, **options, resume_from=tmp_path / name)
        ages = [x["age_max"] for x in lines_of(tmp_path / name)]
        # The unfinished fragments are lost, so a resumed run starts without a lag.
        assert ages == [0.0, 1.0, 1.0, 0.0, 1.0, 1.0]
    assert_same_learner(tmp_path / "a", tmp_path / "b")


def test_lag_of_one_stays_one_with_automatic_workers(tmp_path):
    options = {"workers": "auto", "envs_per_worker": None, "num_envs": 2}
    train(tmp_path / "run", schedule="lag:1", total_timesteps=32 * 3, **options)
    run = RunDirectory.open(tmp_path / "run")
    assert "environments, lag:1 (auto)" in run.auto_choice["summary"]
    chosen = run.config["config"]
    assert chosen["schedule"] == "lag:1"
    assert chosen["workers"] in (1, 2)
    assert [x["age_max"] for x in lines_of(tmp_path / "run")] == [0.0, 1.0, 1.0]


# --- the bound -----------------------------------------------------------------------------------


def check_ages(directory, num_workers, max_age, *, num_iterations, **options):
    """Train with half of the workers at least 30 times slower.

    On a busy machine, their experience may hardly age, and no experience gets as old as 5.
    """

    def measure(number):
        path = directory / str(number)
        return run_unevenly(path, num_workers, max_age, num_iterations=num_iterations, **options)

    for greatest, attempt in attempts(measure):
        assert greatest <= max_age
        with attempt:
            assert greatest >= 2


def run_unevenly(path, num_workers, max_age, *, num_iterations, **options):
    """Train with half of the workers slower, and return the greatest age of experience."""
    num_steps = options.get("num_steps", 4)
    mean_s = [0.0015 * max_age if worker % 2 else 0.0001 for worker in range(num_workers)]
    fields = {
        "schedule": "async",
        "workers": num_workers,
        "envs_per_worker": 1,
        "num_steps": num_steps,
        "max_policy_age": max_age,
        "env_kwargs": {"mean_s": mean_s},
        "num_minibatches": 1,
        "update_epochs": 1,
        "total_timesteps": num_workers * num_steps * num_iterations,
        **options,
    }
    result = train(path, Dawdling, **fields)
    lines = lines_of(path)
    # Each batch holds one whole fragment times the number of workers, so all have one size.
    size = num_workers * num_steps
    assert [x["timesteps"] for x in lines] == [size * k for k in range(1, num_iterations + 1)]
    accounting = result.accounting
    assert accounting["trained"] == size * num_iterations
    assert accounting["collected"] == accounting["trained"] + accounting["in_flight"]
    assert "too old" not in accounting["dropped"]
    assert accounting["policy_age_max"] == max(x["age_max"] for x in lines)
    return accounting["policy_age_max"]


def test_policy_age_stays_within_the_bound(tmp_path):
    check_ages(tmp_path, 3, 2, num_iterations=50)


@pytest.mark.slow
@pytest.mark.parametrize(("num_workers", "max_age"), list(itertools.product([2, 4], [2, 3, 5])))
def test_policy_age_stays_within_the_bound_in_long_runs(tmp_path, num_workers, max_age):
    check_ages(tmp_path, num_workers, max_age, num_iterations=300)


@pytest.mark.slow
@pytest.mark.parametrize("options", [{"inference": "central"}, {"memory": "gru:4"}])
def test_policy_age_stays_within_the_bound_with_central_inference_or_memory(tmp_path, options):
    check_ages(tmp_path, 4, 2, num_iterations=200, **options)


def test_too_old_fragments_are_dropped_on_request(tmp_path):
    size, count = 3 * 4, 60

    def measure(number):
        result = train(
            tmp_path / str(number),
            Dawdling,
            schedule="async",
            too_old="drop",
            max_policy_age=2,
            workers=3,
            envs_per_worker=1,
            num_steps=4,
            env_kwargs={"mean_s": [0.0001, 0.0001, 0.02]},
            num_minibatches=1,
            update_epochs=1,
            total_timesteps=size * count,
        )
        return result.accounting, lines_of(tmp_path / str(number))

    for (accounting, lines), attempt in attempts(measure):
        # No worker waited for the slow one, and all of its steps are counted.
        num_too_old = accounting["dropped"].get("too old", 0)
        assert num_too_old == sum(x.get("dropped_too_old", 0) for x in lines)
        assert accounting["trained"] == size * count == lines[-1]["timesteps"]
        dropped = sum(accounting["dropped"].values())
        assert accounting["collected"] == accounting["trained"] + dropped + accounting["in_flight"]
        assert max(x["age_max"] for x in lines) <= 2
        with attempt:
            assert num_too_old >= 4


# --- the bias towards fast environments ----------------------------------------------------------


def best_action(path, **options):
    """Return the final action, where fast and slow environments reward different ones."""
    result = train(
        path,
        FastAndSlow,
        env_id="uneven",
        schedule="async",
        envs_per_worker=1,
        num_steps=32,
        max_policy_age=4,
        learning_rate=6e-3,
        total_timesteps=64 * 200,
        **options,
    )
    policy = result.policy
    memory = policy.new_memory()
    return int(policy.act(np.zeros(1, np.float32), memory=memory))


@pytest.mark.slow
@pytest.mark.parametrize("options", [{}, {"memory": "gru:4"}])
def test_weights_find_the_action_that_is_best_everywhere(tmp_path, monkeypatch, options):
    assert best_action(tmp_path / "weighted", **options) == 1
    # Without the weights the other action wins, so the task does show the bias.
    monkeypatch.setattr(FragmentStream, "weights", lambda self, fragments: [1.0] * len(fragments))
    for action, attempt in attempts(lambda k: best_action(tmp_path / f"plain-{k}", **options)):
        with attempt:
            assert action == 0
