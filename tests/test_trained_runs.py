"""Each shared run is trained once per session and is complete."""

from __future__ import annotations

import threading

import pytest

import hotloop
from hotloop.algorithms import find
from hotloop.runs import RunDirectory
from tests.trained_runs import RUNS, config_of, created_once


@pytest.mark.parametrize("name", RUNS)
def test_a_shared_run_is_complete_and_can_be_resumed(name, copy_trained_run):
    path = copy_trained_run(name)
    run = RunDirectory.open(path)
    assert run.is_signed
    steps = run.metrics()[-1]["timesteps"]
    assert steps == RUNS[name][1]["total_timesteps"]
    assert {"best", "last"} <= set(run.checkpoints.names())
    assert len(hotloop.evaluate(path, episodes=1).returns) == 1
    algorithm, options = RUNS[name]
    more = {**options, "total_timesteps": 2 * steps, "run_dir": str(path)}
    config = find(algorithm).config(**more)
    result = find(algorithm).train(config, resume_from=path)
    assert result.timesteps == 2 * steps
    assert config_of(name, path).total_timesteps == steps


def test_one_of_two_processes_trains(tmp_path):
    were_missing, inside = [], threading.Event()

    def make():
        with created_once(tmp_path / "it") as is_missing:
            inside.set()
            were_missing.append(is_missing)

    with created_once(tmp_path / "it") as is_missing:
        assert is_missing
        thread = threading.Thread(target=make)
        thread.start()
        assert not inside.is_set()
    thread.join()
    assert were_missing == [False]


def test_a_failed_training_is_repeated(tmp_path):
    with pytest.raises(RuntimeError), created_once(tmp_path / "it"):
        raise RuntimeError
    with created_once(tmp_path / "it") as is_missing:
        assert is_missing
