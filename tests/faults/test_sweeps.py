"""Sweeps that are killed at any moment: the same command ends with the table of another one."""

import contextlib
import os
import shutil
import signal
import time
from pathlib import Path

import pytest

from hotloop.experiments import Results
from tests.faults.trials import Failed, check_success, kill, make_rng, scale

pytestmark = [pytest.mark.faults, pytest.mark.timeout(1800)]
TRAINING = ["--env-id", "CartPole-v1", "--total-timesteps", "2048", "--num-steps", "16"]
TRAINING += ["--num-envs", "4", "--hidden-sizes", "8", "--update-epochs", "1", "--execution"]
TRAINING += ["eager", "--torch-threads", "1"]
GRID = ["learning_rate=log:1e-4,1e-2,4", "gae_lambda=0.9,1", "--seeds", "1-2"]
POPULATION = ["learning_rate=log:1e-5,1e-1", "--sampler", "pbt", "--trials", "4"]
POPULATION += ["--generations", "4"]
POOLS = {
    "a pool": [*GRID, "--jobs", "2"],
    "lanes": [*GRID, "--jobs", "2", "--lanes", "4"],
}
ON_RAY = {
    "Ray": [*GRID, "--jobs", "2"],
    "a population": POPULATION,
}


def read(path):
    """Return options and outcomes of all runs."""
    results = Results(path)
    try:
        params = {trial.number: (trial.params, trial.options(2048)) for trial in results.trials()}
        runs = {(run.trial, run.seed): (run.state, run.score) for run in results.runs()}
        return params, runs
    finally:
        results.close()


def pool_processes(directory):
    """Return the processes of a pool that writes into a directory."""
    pids = []
    for process in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if b"hotloop.experiments.worker" in (process / "cmdline").read_bytes():
                log = os.readlink(process / "fd" / "2")
                pids += [int(process.name)] if log.startswith(str(directory)) else []
    return pids


def kill_often(forks, tally, folder, name, command, env=None):
    """Kill a sweep at many times, and compare its results with those of an undisturbed one."""
    start_s = time.monotonic()
    whole, cut = folder / "whole.sqlite", folder / "cut.sqlite"
    check_success(forks.run(*command, "--file", whole, timeout_s=300.0, env=env), "sweep")
    duration_s = time.monotonic() - start_s
    rng = make_rng(f"sweep {name}")

    def trial(share):
        child = forks.command(*command, "--file", cut, env=env)
        time.sleep(share * duration_s)
        pids = pool_processes(folder)
        if pids and rng.random() < 0.5:  # a process of the pool, and then the sweep
            with contextlib.suppress(ProcessLookupError):
                os.kill(rng.choice(pids), signal.SIGKILL)
            time.sleep(0.2 * duration_s)
        kill(child.pid)
        result = child.wait()
        if result.code not in (0, -signal.SIGKILL):
            raise Failed(f"sweep: {result.summary}")
        if result.code:
            return None
        if read(cut) != read(whole):
            raise Failed("its results differ")
        for path in folder.glob("cut.sqlite*"):  # the next kill hits another sweep
            path.unlink()
        shutil.rmtree(folder / "cut")
        return "ended before it was killed"

    count = scale(20)
    tally(f"kill of a sweep, {name}").run(
        trial, [round(rng.uniform(0.0, 0.6), 4) for _ in range(count)], jobs=0
    )
    left_until = time.monotonic() + 30
    while pool_processes(folder) and time.monotonic() < left_until:
        time.sleep(0.1)
    assert not pool_processes(folder)
    check_success(forks.run(*command, "--file", cut, timeout_s=300.0, env=env), "sweep")
    assert read(cut) == read(whole)
    assert {state for state, _ in read(whole)[1].values()} == {"done"}


@pytest.mark.parametrize("name", POOLS)
def test_a_sweep_in_processes(forks, tally, tmp_path, name):
    kill_often(forks, tally, tmp_path, name, ["sweep", "ppo", *TRAINING, *POOLS[name]])


@pytest.fixture(scope="module")
def ray_address():
    """Start a Ray, so that each sweep starts soon."""
    ray = pytest.importorskip("ray")
    pytest.importorskip("ray.tune")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RAY_AUTH_MODE", "disabled")  # the sweeps do not know its token
        ray.init("local", num_cpus=3, include_dashboard=False, log_to_driver=False)
        yield ray.get_runtime_context().gcs_address
        ray.shutdown()


@pytest.mark.parametrize("name", ON_RAY)
def test_a_sweep_on_ray(forks, tally, ray_address, tmp_path, name):
    options = ["--backend", "ray", "--ray-address", ray_address]
    command = ["sweep", "ppo", *TRAINING, *ON_RAY[name], *options]
    kill_often(forks, tally, tmp_path, name, command, {"RAY_AUTH_MODE": "disabled"})
