"""Small trained runs that the whole test session shares.

A run is trained in one process, once per session, when the first test requests it:

    def test_something(trained_run):
        path = trained_run("ppo")  # read only

    def test_something_else(copy_trained_run):
        path = copy_trained_run("dqn")  # the test's own copy: it may be resumed, damaged, …

`config_of(name, path)` returns the configuration that the run was trained with, to resume a copy.
The session fails at its end if a test has changed a shared run.
"""

from __future__ import annotations

import fcntl
import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

_COMMON = {"hidden_sizes": (8,), "execution": "eager", "torch_threads": 1, "seed": 1}
_ON_POLICY = {
    **_COMMON,
    "num_envs": 4,
    "num_steps": 32,
    "num_minibatches": 2,
    "update_epochs": 2,
    "total_timesteps": 512,
    "checkpoint_interval": 128,
    "eval_interval": 256,
    "eval_episodes": 2,
}
_OFF_POLICY = {
    **_COMMON,
    "total_timesteps": 200,
    "learning_starts": 40,
    "batch_size": 16,
    "buffer_size": 500,
    "train_frequency": 1,
    "update_to_data": 1.0,
    "report_interval": 50,
    "checkpoint_interval": 50,
    "eval_interval": 100,
    "eval_episodes": 2,
    "save_replay": True,
}
# Name of a run → algorithm and options. The name contains the differences to the defaults.
RUNS: dict[str, tuple[str, dict[str, Any]]] = {
    "ppo": ("ppo", _ON_POLICY),
    "ppo-normalized": (
        "ppo",
        {
            **_ON_POLICY,
            "env_id": "Pendulum-v1",
            "normalize_obs": True,
            "normalize_reward": True,
            "total_timesteps": 1024,  # an episode of Pendulum takes 200 steps
        },
    ),
    "ppo-lstm": ("ppo", {**_ON_POLICY, "memory": "lstm:8", "num_minibatches": 2}),
    "ppo-workers": ("ppo", {**_ON_POLICY, "workers": 2}),
    "ppo-inline": ("ppo", {**_ON_POLICY, "workers": 2, "backend": "inline"}),
    "appo": ("appo", {**_ON_POLICY, "workers": 2}),
    "sac": ("sac", {**_OFF_POLICY, "env_id": "Pendulum-v1"}),
    "tqc": ("tqc", {**_OFF_POLICY, "env_id": "Pendulum-v1", "num_critics": 2, "num_quantiles": 5}),
    "crossq": (
        "crossq",
        {**_OFF_POLICY, "env_id": "Pendulum-v1", "critic_hidden_sizes": (8,)},
    ),
    "td3": ("td3", {**_OFF_POLICY, "env_id": "Pendulum-v1"}),
    "dqn": ("dqn", {**_OFF_POLICY, "env_id": "CartPole-v1"}),
}


def config_of(name: str, run_dir: Path) -> Any:
    """Return the configuration of a shared run, with another run directory."""
    from hotloop.algorithms import find

    algorithm, options = RUNS[name]
    return find(algorithm).config(**options, run_dir=str(run_dir))


def shared_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the temporary directory that all processes of this test session share."""
    base = tmp_path_factory.getbasetemp()
    return base.parent if "PYTEST_XDIST_WORKER" in os.environ else base


@contextmanager
def created_once(path: Path) -> Iterator[bool]:
    """Lock a path between the session's processes, and yield whether it is missing.

    If a process raises, the path stays missing and the next process tries again.
    """
    done = path.with_name(f"{path.name}.done")
    with open(path.with_name(f"{path.name}.lock"), "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        is_missing = not done.exists()
        yield is_missing
        if is_missing:
            done.touch()


def _train(name: str, path: Path) -> None:
    from hotloop.algorithms import find

    algorithm, _ = RUNS[name]
    find(algorithm).train(config_of(name, path), progress=False)


def _state(path: Path) -> dict[str, tuple[int, int]]:
    """Return the size and the time of the last change of each file."""
    files = sorted(file for file in path.rglob("*") if file.is_file())
    return {str(file): (file.stat().st_size, file.stat().st_mtime_ns) for file in files}


@pytest.fixture(scope="session")
def trained_run(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[str], Path]]:
    """Return the directory of a shared run by its name; tests must not change it."""
    folder = shared_folder(tmp_path_factory) / "trained_runs"
    folder.mkdir(exist_ok=True)
    states: dict[Path, dict[str, tuple[int, int]]] = {}

    def find_or_train(name: str) -> Path:
        path = folder / name
        if path not in states:
            with created_once(path) as is_missing:
                if is_missing:
                    shutil.rmtree(path, ignore_errors=True)
                    _train(name, path)
            states[path] = _state(path)
        return path

    yield find_or_train
    changed = [path.name for path, state in states.items() if _state(path) != state]
    assert not changed, f"a test has changed shared runs: {', '.join(changed)}"


@pytest.fixture
def copy_trained_run(trained_run: Callable[[str], Path], tmp_path: Path) -> Callable[..., Path]:
    """Return a function that copies a shared run into the test's own directory."""

    def copy(name: str, to: str = "run") -> Path:
        return Path(shutil.copytree(trained_run(name), tmp_path / to, symlinks=True))

    return copy
