"""Sweeps on Ray: resources, trials and populations."""

import dataclasses
import json
import os
import signal
import threading
import time
from types import SimpleNamespace

import pytest

from hotloop.algorithms import ppo
from hotloop.cli import main
from hotloop.errors import ConfigError
from hotloop.experiments import Plan, Results
from hotloop.experiments.plan import plan_options
from hotloop.experiments.population import check_population
from hotloop.experiments.ray_trainable import extend_schedule
from hotloop.experiments.ray_tune import trial_resources
from hotloop.experiments.spaces import draw, parse
from hotloop.ops.schedules import as_schedule
from hotloop.training.forking import copy_last, fork
from hotloop.training.options.option_files import toml_loads
from tests.experiments.test_sweep import TINY, sweep, table
from tests.rollouts.ray.test_ray import pids_of

RAY = ("--backend", "ray")


def final_policy(run_dir):
    """Return the bytes of a run's last policy."""
    return (run_dir / "checkpoints" / "last" / "policy.safetensors").read_bytes()


@pytest.fixture(scope="module")
def ray():
    ray = pytest.importorskip("ray")
    ray.init("local", num_cpus=3, include_dashboard=False, log_to_driver=False)
    yield ray
    ray.shutdown()


# --- without Ray ----------------------------------------------------------------------------------


def test_changed_values_extend_a_schedule():
    assert extend_schedule("0.001", 0.25, 0.001) == "steps:0=0.001"
    assert extend_schedule("0.001", 0.25, 0.002) == "steps:0=0.001,0.25=0.002"
    assert extend_schedule("steps:0=0.001,0.25=0.002", 0.5, 0.002) == "steps:0=0.001,0.25=0.002"
    grown = extend_schedule("steps:0=0.001,0.25=0.002", 1 / 3, 0.1)
    assert grown == f"steps:0=0.001,0.25=0.002,{1 / 3!r}=0.1"


def test_resources_of_a_trial():
    config = ppo.Config()
    assert trial_resources(config, {}) == {"num_cpus": 1}
    assert trial_resources(dataclasses.replace(config, workers=4), {}) == {"num_cpus": 5}
    central = dataclasses.replace(config, workers=4, inference="central")
    assert trial_resources(central, {}) == {"num_cpus": 6}
    with_gpu = SimpleNamespace(workers=0, torch_threads=2, device="cuda:0")
    assert trial_resources(with_gpu, {}) == {"num_cpus": 2, "num_gpus": 1}
    assert trial_resources(with_gpu, {"num_gpus": 0.5, "big": 1}) == {
        "num_cpus": 2,
        "num_gpus": 0.5,
        "big": 1,
    }

    for config, resources in ((ppo.Config(), {"num_cpus": 0}), (ppo.Config(workers="auto"), {})):
        with pytest.raises(ConfigError, match=r"one amount above 0|needs a number of `--workers`"):
            trial_resources(config, resources)


@pytest.mark.parametrize(
    ("space", "options", "plan", "message"),
    [
        ({"hidden_sizes": "8,16"}, {}, {}, "`hidden_sizes` can't change: sweep over clip_range, "),
        ({"gamma": "linear:1,0;1"}, {}, {}, "give `gamma` numbers or a range"),
        ({"gamma": "0.9,1"}, {}, {"trials": 1}, "pass `--trials` with 2 or more"),
        ({"gamma": "0.9,1"}, {}, {"seeds": (1, 2)}, "trials with one seed, got 2"),
        ({"gamma": "0.9,1"}, {}, {"hours": 1.0}, "a population trains all together"),
        ({"gamma": "0.9,1"}, {"track": ("tensorboard",)}, {}, "`--track` follows one run"),
        ({"gamma": "0.9,1"}, {"num_steps": 999}, {}, "2,500 steps, and an iteration 7,992: lower"),
        ({"gamma": "0.9,1"}, {"eval_interval": 3000}, {"metric": "evaluation"}, "an evaluation"),
    ],
)
def test_invalid_populations_are_rejected(space, options, plan, message):
    config = ppo.Config(total_timesteps=20_000, **options)
    settings = {"trials": 4, "generations": 8, "sampler": "pbt", **plan}
    plan = Plan(algorithm="ppo", config=plan_options(config), space=space, **settings)
    with pytest.raises(ConfigError, match=message):
        check_population(parse(space, ppo.Config), plan, config)


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (("--backend", "raay"), "`--backend` must be processes or ray, got 'raay'"),
        (("--ray-address", "10.0.0.1:6379"), "`--ray-address` needs `--backend ray`"),
        (("--trial-resources", "{}"), "`--trial-resources` needs `--backend ray`"),
        (("--sampler", "pbt"), "needs Ray Tune: pass `--backend ray`"),
        (("--generations", "4"), "pass `--sampler pbt`"),
        ((*RAY, "--lanes", "4"), "`--lanes` needs `--backend processes`"),
        ((*RAY, "--trial-resources", "2"), "must be a JSON object, got '2'"),
        (
            (*RAY, "--trial-resources", '{"num_cpus": -1}'),
            "must map names to numbers of at least 0, got '{\"num_cp",
        ),
        ((*RAY, "--sampler", "pbt", "--pruner", "asha"), "remove `--pruner`"),
        ((*RAY, "--sampler", "pbt", "--generations", "1"), "must be 2 or more, got 1"),
        ((*RAY, "--sampler", "pbt", "--jobs", "2"), "does not support `--jobs`"),
        ((*RAY, "--sampler", "pbt", "--join"), "does not support `--join`"),
        ((*RAY, "--ray-runtime-env", "[]"), "must be a JSON object, got '[]'"),
        ((*RAY, "--ray-address", "ray://10.0.0.1:10001"), "must be host:port of a cluster"),
        ((*RAY, "--ray-address", "127.0.0.1:1"), "no Ray answers at"),
    ],
)
def test_incompatible_options_are_rejected(args, message, tmp_path, capsys):
    path = tmp_path / "one.sqlite"
    if "pbt" in args:
        args = (*args, *(("--generations", "2") if "--generations" not in args else ()))
    sweep(path, "learning_rate=log:1e-4,1e-2", "--trials", "2", *args, code=2)
    assert message in capsys.readouterr().err
    # The rejected sweep leaves no record, so another sweep may use the file.
    results = Results(path)
    assert results.plan is None or "no Ray" in message
    results.close()


@pytest.mark.parametrize("has_evaluations", [False, True])
def test_a_fork_equals_a_run_of_its_configuration(tmp_path, has_evaluations):
    """The fork is identical bit for bit, also from a copy without links or a fork of a fork."""
    base = ppo.Config(
        env_id="CartPole-v1",
        total_timesteps=1024,
        num_steps=16,
        num_envs=8,
        hidden_sizes=(8,),
        execution="eager",
        checkpoint_interval=128,
        learning_rate=1e-3,
        **({"eval_interval": 256, "eval_episodes": 2} if has_evaluations else {}),
    )

    def config(name, rates):
        return dataclasses.replace(base, run_dir=str(tmp_path / name), learning_rate=rates)

    def train(config, *, until=1024, **options):
        ppo.train(
            config, on_report=lambda report: report.timesteps >= until, progress=False, **options
        )

    train(config("one", 1e-3), until=256)
    copy_last(tmp_path / "one", tmp_path / "copy")
    second = config("two", "steps:0=0.001,0.25=0.01")
    fork(tmp_path / "copy", tmp_path / "two", second)
    train(second, until=512, resume_from=tmp_path / "two")
    third = config("three", "steps:0=0.001,0.25=0.01,0.5=0.0001")
    fork(tmp_path / "two", tmp_path / "three", third)
    train(third, resume_from=tmp_path / "three")
    train(config("whole", third.learning_rate))
    assert final_policy(tmp_path / "three") == final_policy(tmp_path / "whole")
    assert final_policy(tmp_path / "three") != final_policy(tmp_path / "two")


# --- on Ray ---------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.timeout(240)
def test_the_same_sweep_on_ray_and_in_processes(ray, tmp_path, capsys):
    args = ("learning_rate=log:1e-4,1e-2", "--trials", "3", "--seeds", "1-2")
    sweep(tmp_path / "here.sqlite", *args)
    sweep(tmp_path / "ray.sqlite", *args, *RAY)
    params, runs = table(tmp_path / "ray.sqlite")
    local_params, local_runs = table(tmp_path / "here.sqlite")
    assert params == local_params
    assert {key: run[:2] for key, run in runs.items()} == {
        k: run[:2] for k, run in local_runs.items()
    }
    assert "3 trials: 3 done, 0 pruned, 0 failed" in capsys.readouterr().out
    for trial, seed in runs:
        name = f"trial_{trial:04}__seed_{seed}__256"
        assert final_policy(tmp_path / "ray" / name) == final_policy(tmp_path / "here" / name)
    # An extension does not repeat finished trials.
    before = {p: p.stat().st_mtime_ns for p in (tmp_path / "ray").glob("trial_*/config.json")}
    assert main(["sweep", "resume", str(tmp_path / "ray.sqlite"), "--trials", "4"]) == 0
    assert len(table(tmp_path / "ray.sqlite")[1]) == 8
    assert all(path.stat().st_mtime_ns == time_ns for path, time_ns in before.items())
    assert not (tmp_path / "ray" / "tune").exists()


@pytest.mark.slow
@pytest.mark.timeout(240)
def test_a_population_and_its_best_trained_again(ray, tmp_path, capsys):
    args = ("learning_rate=log:1e-5,1e-1", "entropy_coef=lin:0,0.1", "--sampler", "pbt", *RAY)
    args += ("--trials", "4", "--generations", "3", "--total-timesteps", "768")
    for name in ("one", "two"):
        sweep(tmp_path / f"{name}.sqlite", *args)
    assert "4 trials: 4 done" in capsys.readouterr().out
    # The same seed gives the same population, bit for bit.
    assert table(tmp_path / "one.sqlite") == table(tmp_path / "two.sqlite")
    results = Results(tmp_path / "one.sqlite")
    trials = {trial.number: trial for trial in results.trials()}
    results.close()
    learning_rates = {str(trial.params["learning_rate"]) for trial in trials.values()}
    assert len(learning_rates) == 4
    rates = [trial.options(768)["learning_rate"] for trial in trials.values()]
    # A trial that copied another has its first learning rate and a later change.
    assert len({rate.partition(",")[0] for rate in rates}) < 4
    assert any("," in rate for rate in rates)
    for trial in trials.values():
        run_dir = tmp_path / "one" / f"trial_{trial.number:04}__seed_1__768"
        again = tmp_path / f"again_{trial.number}"
        options = [
            f"--{name.replace('_', '-')}={text}" for name, text in trial.options(768).items()
        ]
        arguments = [*TINY, "--total-timesteps", "768", "--run-dir", str(again), "--seed", "1"]
        assert main(["train", "ppo", *arguments, *options]) == 0
        assert final_policy(again) == final_policy(run_dir)
    # The report uses the final configuration of the best trial.
    assert main(["sweep", "report", str(tmp_path / "one.sqlite"), "--test-seeds", "101-102"]) == 0
    out = capsys.readouterr().out
    assert "on 2 fresh seeds" in out
    best = toml_loads((tmp_path / "one_report" / "best.toml").read_text())["learning_rate"]
    number = int(out.partition("best: trial ")[2].partition(",")[0])
    became = as_schedule(trials[number].options(768)["learning_rate"])
    assert [as_schedule(best)(x / 9) for x in range(10)] == [became(x / 9) for x in range(10)]


@pytest.mark.slow
@pytest.mark.timeout(240)
def test_a_population_with_a_replay_buffer(ray, tmp_path):
    arguments = ["dqn", "--env-id", "CartPole-v1", "--total-timesteps", "1500"]
    arguments += ["--execution", "eager", "--hidden-sizes", "8", "--learning-starts", "100"]
    arguments += ["--report-interval", "100"]
    args = ["sweep", *arguments, "learning_rate=log:1e-4,1e-1", "--sampler", "pbt"]
    args += ["--trials", "3", *RAY]
    path = tmp_path / "one.sqlite"
    assert main([*args, "--generations", "3", "--file", str(path)]) == 0
    results = Results(path)
    trials = results.trials()
    results.close()
    assert len(trials) == 3
    assert any("," in trial.options(1500)["learning_rate"] for trial in trials)
    for trial in trials:
        again = tmp_path / f"again_{trial.number}"
        rate = trial.options(1500)["learning_rate"]
        options = ["--learning-rate", rate, "--run-dir", str(again), "--seed", "1"]
        assert main(["train", *arguments, *options]) == 0
        run_dir = tmp_path / "one" / f"trial_{trial.number:04}__seed_1__1500"
        assert final_policy(again) == final_policy(run_dir)


@pytest.mark.slow
@pytest.mark.timeout(240)
def test_failed_and_stopped_trials_are_reported(ray, tmp_path, capsys):
    path = tmp_path / "one.sqlite"
    space = ("learning_rate=1e-3,1e-9,2e-9,3e-9,1e30", "--sampler", "grid", "--pruner", "asha")
    args = ("--total-timesteps", "8192", "--num-steps", "64")
    sweep(path, *space, *args, *RAY, "--jobs", "1", code=1)
    output = capsys.readouterr()
    assert "trial 5 failed with seed 1: NaN: " in output.err
    results = Results(path)
    states = {run.trial: (run.state, run.reason) for run in results.runs()}
    results.close()
    assert states[1][0] == "done"
    assert [states[n][0] for n in (2, 3, 4)].count("pruned") >= 1
    assert any("stopped by Ray Tune's asha" in reason for _, reason in states.values())


@pytest.mark.slow
@pytest.mark.timeout(240)
def test_a_trial_with_a_killed_process_is_retried(ray, tmp_path):
    path, killed = tmp_path / "one.sqlite", []

    def kill():
        while not killed:
            time.sleep(0.05)
            lines = [*(tmp_path / "one").glob("trial_*/metrics.jsonl")]
            if any(path.stat().st_size for path in lines):
                killed.extend(pids_of("-f", "ray::ImplicitFunc.train"))
                for pid in killed:
                    os.kill(pid, signal.SIGKILL)

    thread = threading.Thread(target=kill, daemon=True)
    thread.start()
    sweep(path, "learning_rate=1e-3", "--sampler", "grid", "--total-timesteps", "65536", *RAY)
    thread.join()
    assert killed
    assert [state for state, _, _ in table(path)[1].values()] == ["done"]


@pytest.mark.slow
@pytest.mark.timeout(240)
def test_trials_with_workers_get_cores_for_them(ray, tmp_path, capsys):
    path = tmp_path / "one.sqlite"
    args = ("learning_rate=1e-3,1e-4", "--sampler", "grid", *RAY)
    sweep(path, *args, "--workers", "2")
    configs = [json.loads(p.read_text()) for p in (tmp_path / "one").glob("trial_*/config.json")]
    assert [config["config"]["workers"] for config in configs] == [2, 2]
    sweep(tmp_path / "two.sqlite", *args, "--workers", "4", code=2)
    errors = capsys.readouterr().err
    assert "a trial needs `num_cpus` 5, but no node has that much (at most CPU 3" in errors


@pytest.mark.slow
@pytest.mark.timeout(240)
def test_a_generation_continues_if_its_last_member_fails(ray, tmp_path):
    """Trials run one at a time, and the last one learns NaN."""
    space = parse({"learning_rate": "1e-4,1e-3,1e30"}, ppo.Config)

    def rates(seed):
        return [draw(space, seed, number)["learning_rate"] for number in (1, 2, 3)]

    seed = next(n for n in range(1000) if rates(n)[2] == 1e30 and 1e30 not in rates(n)[:2])
    path = tmp_path / "one.sqlite"
    args = ("learning_rate=1e-4,1e-3,1e30", "--sampler", "pbt", "--sampler-seed", str(seed))
    args += ("--trials", "3", "--generations", "2", "--trial-resources", '{"num_cpus": 3}')
    sweep(path, *args, *RAY, code=1)
    states = [state for state, _, _ in table(path)[1].values()]
    assert states[2] == "failed"
    assert "done" in states[:2]
    assert "running" not in states


@pytest.mark.slow
@pytest.mark.timeout(240)
def test_the_median_pruner_stops_trials_for_good(ray, tmp_path):
    path = tmp_path / "one.sqlite"
    space = ("learning_rate=1e-3,2e-3,3e-3,4e-3,1e-9,2e-9,3e-9", "--sampler", "grid")
    args = ("--total-timesteps", "8192", "--num-steps", "64", "--pruner", "median")
    sweep(path, *space, *args, *RAY)
    runs = table(path)[1]
    assert {state for state, _, _ in runs.values()} == {"done", "pruned"}
    assert all(curve == sorted(curve) for _, _, curve in runs.values())
    for directory in (tmp_path / "one").glob("trial_*"):
        assert json.loads((directory / "config.json").read_text())["resumed"] == []
