"""Callbacks that call and change a training's environments, in this process and in workers."""

import numpy as np
import pytest
from safetensors.numpy import load_file

from hotloop.algorithms import appo, ppo
from hotloop.errors import CallbackError
from hotloop.training import Callback
from tests.toy_envs import Levels

NUM_STEPS = 8
SMALL = {
    "num_steps": NUM_STEPS,
    "num_minibatches": 1,
    "update_epochs": 1,
    "hidden_sizes": (4,),
    "execution": "eager",
    "total_timesteps": 3 * 4 * NUM_STEPS,
}
WORKERS = {"workers": 2, "envs_per_worker": 2}
BACKENDS = {
    "inline": (ppo, {"num_envs": 4}),
    "processes": (ppo, WORKERS),
    "overlap": (ppo, {**WORKERS, "overlap": True}),
    "central": (ppo, {**WORKERS, "inference": "central"}),
    "async": (appo, WORKERS),
}


def train(path, callback, algorithm=ppo, *, resume_from=None, env=Levels, **options):
    config = algorithm.Config(**{"env_id": env, "run_dir": path, **SMALL, **options})
    return algorithm.train(
        config, callbacks=[callback], resume_from=resume_from, on_report=None, progress=False
    )


class Curriculum(Callback):
    """Starts with another level in each environment, and raises all by one after an iteration."""

    def __init__(self):
        self.levels, self.seen = [], []

    def on_start(self, report):
        assert self.envs.num_envs == 4
        assert self.envs.get_attr("level") == (0, 0, 0, 0)
        self.envs.set_attr("level", [0, 1, 2, 3])

    def on_rollout(self, fragments):
        self.seen.append({round(10 * x) for f in fragments for x in f.obs[..., 0].ravel()})

    def on_update(self, report):
        self.levels.append(self.envs.get_attr("level"))
        assert self.envs.call("raise_level", 1, limit=4) == tuple(
            min(4, level + 1) for level in self.levels[-1]
        )


@pytest.mark.parametrize("backend", BACKENDS)
def test_callbacks_reach_all_environments(tmp_path, backend):
    algorithm, options = BACKENDS[backend]
    curriculum = Curriculum()
    train(tmp_path / "run", curriculum, algorithm, **options)
    assert curriculum.levels[:3] == [(0, 1, 2, 3), (1, 2, 3, 4), (2, 3, 4, 4)]
    # No worker steps before `on_start`. Then the levels at the resets show the values.
    assert curriculum.seen[0] >= {0, 1, 2, 3}
    assert max(curriculum.seen[-1]) == 4
    if backend in ("inline", "processes", "central"):  # the others collect during a callback
        assert curriculum.seen == [{0, 1, 2, 3}, {0, 1, 2, 3, 4}, {1, 2, 3, 4}]


class Run(Callback):
    """Calls a function with the environments."""

    def __init__(self, function):
        self.function = function

    def on_update(self, report):
        self.function(self.envs)


FAULTS = {
    "attribute": (lambda envs: envs.get_attr("levl"), "has no attribute `levl`"),
    "number": (lambda envs: envs.set_attr("level", [1, 2]), "a list of 4, got 2"),
    "method": (
        lambda envs: envs.call("raise_level", -1),
        r"`raise_level` of an environment raised ValueError: levels only rise \(.*\.py:\d+\)",
    ),
}


@pytest.mark.parametrize("backend", ["inline", "processes"])
@pytest.mark.parametrize("fault", FAULTS)
def test_a_failed_call_names_the_callback_and_the_reason(tmp_path, backend, fault):
    function, message = FAULTS[fault]
    with pytest.raises(CallbackError, match=f"the callback Run raised in `on_update`.*{message}"):
        train(tmp_path / "run", Run(function), **BACKENDS[backend][1])


def test_only_pickles_reach_workers(tmp_path):
    def set_function(envs):
        envs.set_attr("level", lambda: 0)

    with pytest.raises(CallbackError, match="the arguments of `level` can't be sent to workers"):
        train(tmp_path / "run", Run(set_function), **WORKERS)

    def get_values(envs):
        envs.get_attr("local_values")

    with pytest.raises(CallbackError, match=r"worker 0: .*pickle.*lambda"):
        train(tmp_path / "other", Run(get_values), **WORKERS)


def test_tensor_environments_have_no_single_ones(tmp_path):
    function = lambda envs: envs.set_attr("length", [1.0])  # noqa: E731
    options = {"env": "hotloop:CartPole", "num_envs": 4}
    with pytest.raises(CallbackError, match=r"`length` can't be read or set: .* no single environ"):
        train(tmp_path / "run", Run(function), **options)


@pytest.mark.filterwarnings("ignore:.*similar failures are only counted:RuntimeWarning")
def test_a_process_that_replaces_a_lost_one_makes_the_call_again(tmp_path):
    levels = []

    def call(envs):
        envs.call("die_once", str(tmp_path / "died"))
        levels.append(envs.get_attr("level"))

    train(tmp_path / "run", Run(call), **WORKERS)
    assert (tmp_path / "died").exists()
    assert levels[0] == (7, 7, 7, 7)


class Lesson(Callback):
    """Sets level 3 after the first iteration, also in the environments of a resumed run."""

    def __init__(self, stop_at=None):
        self.level, self.stop_at = 0, stop_at

    def on_update(self, report):
        self.level = 3
        self.envs.set_attr("level", self.level)
        return report.timesteps == self.stop_at

    def state(self):
        return {"level": self.level}

    def load(self, state):
        self.level = state["level"]
        self.envs.set_attr("level", self.level)


@pytest.mark.parametrize("backend", ["inline", "processes"])
def test_attributes_set_in_load_are_there_when_episodes_resume(tmp_path, backend):
    options = {**BACKENDS[backend][1], "total_timesteps": 6 * 4 * NUM_STEPS}
    train(tmp_path / "whole", Lesson(), **options)
    train(tmp_path / "part", Lesson(stop_at=3 * 4 * NUM_STEPS), **options)
    train(tmp_path / "part", Lesson(), resume_from=tmp_path / "part", **options)
    whole, part = (
        load_file(tmp_path / name / "checkpoints" / "last" / "learner.safetensors")
        for name in ("whole", "part")
    )
    for name, array in whole.items():
        np.testing.assert_array_equal(array, part[name], err_msg=name)
