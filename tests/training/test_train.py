"""Training around an algorithm's loop: resume, evaluation, the best checkpoint, bad input."""

import contextlib
import dataclasses
import gc
import itertools
import json
import os
import shutil
import signal
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from hotloop.algorithms import ppo
from hotloop.cli import main
from hotloop.envs import EnvSpec, closing, make_vec
from hotloop.errors import (
    CheckpointError,
    ConfigError,
    EnvironmentFailure,
    RunDirectoryError,
    SpaceError,
)
from hotloop.policies import ActingPolicy, actor_critic
from hotloop.rollouts.evaluation import evaluate
from hotloop.runs import RunDirectory
from hotloop.training.resume import check_network
from tests import toy_envs
from tests.policies import nets
from tests.policies.test_policies import DISCRETE, obs_spec

FILE_EVENTS = {"open", "os.rename", "os.symlink", "os.remove", "os.mkdir", "os.rmdir"}
SMALL = {
    "num_envs": 4,
    "num_steps": 32,
    "num_minibatches": 2,
    "update_epochs": 2,
    "total_timesteps": 1500,
    "checkpoint_interval": 300,
}
NORMALIZED = {
    "normalize_obs": True,
    "normalize_reward": True,
    "clip_obs": 5.0,
    "clip_reward": 5.0,
    "eval_interval": 400,
    "eval_episodes": 3,
}


def config(tmp_path, name="run", **options):
    return ppo.Config(run_dir=str(tmp_path / name), **{**SMALL, **options})


def assert_same_run(first, second):
    """Compare checkpoints and metrics bit for bit, except for elapsed times."""
    a, b = (RunDirectory.open(path).checkpoints.load() for path in (first, second))
    for name, array in a.snapshot.params.items():
        np.testing.assert_array_equal(array, b.snapshot.params[name], name)
    first_arrays, second_arrays = a.arrays(), b.arrays()
    assert first_arrays.keys() == second_arrays.keys()
    for name, array in first_arrays.items():
        np.testing.assert_array_equal(array, second_arrays[name], name)
    links = [[os.readlink(link) for link in links_of(path)] for path in (first, second)]
    assert links[0] == links[1]
    for state in (a.state, b.state):
        state["progress"].pop("elapsed_s")
    assert a.state == b.state
    lines = [RunDirectory.open(path).metrics() for path in (first, second)]
    for line in lines[0] + lines[1]:
        line.pop("elapsed_s")
    assert lines[0] == lines[1]
    assert lines[0]


def links_of(path):
    return sorted(p for p in (path / "checkpoints").iterdir() if p.is_symlink())


# --- resume --------------------------------------------------------------------------------------


needs_compiler = pytest.mark.skipif(shutil.which("g++") is None, reason="no C++ compiler")


@pytest.mark.slow
@needs_compiler
def test_fresh_and_cached_compilations_give_the_same_bits(tmp_path, monkeypatch):
    monkeypatch.setenv("HOTLOOP_CACHE", str(tmp_path / "cache"))
    activities = []

    def stop_halfway(report):
        activities.append(report.activity)
        return report.timesteps >= 700

    ppo.train(config(tmp_path, "parts", execution="compile"), on_report=stop_halfway)  # compiles
    assert any("once on this machine" in activity for activity in activities)
    assert len(list((tmp_path / "cache").glob("*.so"))) == 1
    reports = []
    for name, resumed in (("parts", tmp_path / "parts"), ("whole", None)):  # load from the cache
        options = config(tmp_path, name, execution="compile")
        ppo.train(options, resume_from=resumed, on_report=reports.append)
    assert not any(report.activity for report in reports)
    assert_same_run(tmp_path / "parts", tmp_path / "whole")


@pytest.mark.slow
@needs_compiler
def test_resume_keeps_the_execution_of_auto(tmp_path, monkeypatch):
    monkeypatch.setenv("HOTLOOP_CACHE", str(tmp_path / "cache"))
    ppo.train(config(tmp_path, "eager"))
    ppo.train(config(tmp_path, "parts"), on_report=lambda report: report.timesteps >= 700)
    ppo.train(config(tmp_path, "on", execution="compile", total_timesteps=128))
    result = ppo.train(config(tmp_path, "parts"), resume_from=tmp_path / "parts")
    assert result.execution.startswith("update: eager, as before the run was resumed")
    assert_same_run(tmp_path / "parts", tmp_path / "eager")
    # A new run uses the cached code, and so does its continuation.
    results = [
        ppo.train(config(tmp_path, "new"), on_report=lambda report: report.timesteps >= 700),
        ppo.train(config(tmp_path, "new"), resume_from=tmp_path / "new"),
    ]
    assert "an earlier run has compiled it" in results[0].execution
    assert "compiled, as before the run was resumed" in results[1].execution


def test_a_resumed_run_ends_as_an_uninterrupted_one(tmp_path):
    options = {"env_id": "Pendulum-v1", "memory": "lstm:6", **NORMALIZED}
    whole = config(tmp_path, "whole", **options)
    ppo.train(whole)
    parts = config(tmp_path, "parts", **options)
    ppo.train(parts, on_report=lambda report: report.timesteps >= 500)
    ppo.train(parts, on_report=lambda r: r.timesteps >= 900, resume_from=tmp_path / "parts")
    reports = []
    result = ppo.train(parts, on_report=reports.append, resume_from=tmp_path / "parts")
    assert_same_run(tmp_path / "whole", tmp_path / "parts")
    assert reports[0].timesteps == 1024
    assert reports[0].resumed == "resumed at 1,024 steps"
    assert result.status == "finished"
    assert result.timesteps == 1536
    content = json.loads((tmp_path / "parts" / "config.json").read_text())
    assert len(content["resumed"]) == 2


def test_interrupted_iteration_is_repeated(tmp_path):
    """Ctrl-C within a fragment saves the last whole iteration."""
    kwargs = {"how": "well", "at": 100}
    ppo.train(config(tmp_path, "whole", env_kwargs=kwargs), env=toy_envs.Misbehaves)
    parts = config(tmp_path, "parts", env_kwargs=kwargs)

    def interrupted(**kwargs):
        return toy_envs.Misbehaves(**{**kwargs, "how": "interrupt"})

    interrupted.__module__, interrupted.__qualname__ = "tests.toy_envs", "Misbehaves"
    with pytest.raises(KeyboardInterrupt):
        ppo.train(parts, env=interrupted)
    run = RunDirectory.open(tmp_path / "parts")
    assert [line["timesteps"] for line in run.metrics()] == [128, 256, 384]
    _, snapshot, state = run.load_policy()
    assert (snapshot.version, state["timesteps"]) == (3, 384)
    ppo.train(parts, env=toy_envs.Misbehaves, resume_from=tmp_path / "parts")
    assert_same_run(tmp_path / "whole", tmp_path / "parts")


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """Train a run that is not interrupted, and return its directory."""
    return ppo.train(config(tmp_path_factory.mktemp("runs"), "whole")).run_dir


def test_resume_from_an_earlier_checkpoint(tmp_path, whole):
    parts = config(tmp_path, "parts")
    ppo.train(parts, on_report=lambda report: report.timesteps >= 1000)
    run = RunDirectory.open(tmp_path / "parts")
    assert "step-000000000640" in run.checkpoints.names()
    ppo.train(parts, resume_from=run.path / "checkpoints" / "step-000000000640")
    assert_same_run(whole, tmp_path / "parts")


def test_run_killed_before_its_first_checkpoint_restarts(tmp_path, whole):
    parts = config(tmp_path, "parts")
    ppo.train(parts, on_report=lambda report: report.timesteps >= 256)
    RunDirectory.open(tmp_path / "parts").checkpoints.clear()
    ppo.train(parts, resume_from=tmp_path / "parts")
    assert_same_run(whole, tmp_path / "parts")


def test_resume_with_more_steps(tmp_path):
    first = config(tmp_path, learning_rate=1e-3)
    ppo.train(first)
    with pytest.raises(
        ConfigError, match=r"is finished: it has 1,536 of 1,500 steps; set a larger"
    ):
        ppo.train(first, resume_from=tmp_path / "run")
    more = dataclasses.replace(first, total_timesteps=2500)
    assert ppo.train(more, resume_from=tmp_path / "run").timesteps == 2560
    ppo.train(dataclasses.replace(more, run_dir=str(tmp_path / "whole")))
    assert_same_run(tmp_path / "whole", tmp_path / "run")
    reports = []
    longer = dataclasses.replace(more, total_timesteps=3000)
    ppo.train(longer, resume_from=tmp_path / "run", on_report=reports.append)
    assert "the run now has 3,000 steps instead of 2,500" in reports[0].resumed


def test_unrepeatable_environments_are_reported(tmp_path):
    options = config(tmp_path)
    ppo.train(options, env=toy_envs.RandomOffset, on_report=lambda r: r.timesteps >= 500)
    reports = []
    ppo.train(
        options, env=toy_envs.RandomOffset, resume_from=tmp_path / "run", on_report=reports.append
    )
    assert reports[0].resumed.startswith(
        "resumed at 512 steps; the episodes of 4 of 4 environments can't be replayed and restart: "
    )
    assert reports[-1].timesteps == 1536


@pytest.mark.slow
def test_envpool_resumes_with_new_episodes(tmp_path):
    options = config(tmp_path, env_id="envpool:CartPole-v1")
    ppo.train(options, on_report=lambda report: report.timesteps >= 500)
    reports = []
    result = ppo.train(options, resume_from=tmp_path / "run", on_report=reports.append)
    assert "4 of 4 environments can't be replayed" in reports[0].resumed
    assert result.status == "finished"


def test_invalid_resumes_are_refused(tmp_path):
    options = config(tmp_path)
    ppo.train(options, on_report=lambda report: report.timesteps >= 700)
    path = tmp_path / "run"

    def assert_refused(match, error, **changes):
        env = changes.pop("env", None)
        with pytest.raises(error, match=match):
            ppo.train(dataclasses.replace(options, **changes), env=env, resume_from=path)

    assert_refused(
        "a run on 'CartPole-v1', got 'Pendulum-v1'", CheckpointError, env_id="Pendulum-v1"
    )
    other = str(tmp_path / "other")  # it would be ignored
    assert_refused(
        f"own directory, expected `runs_dir` '.*', got '{other}'", ConfigError, runs_dir=other
    )
    assert_refused("got seed: 1 → 2; gamma: 0.99 → 0.9: restore", ConfigError, gamma=0.9, seed=2)
    with pytest.raises(RunDirectoryError, match="expected a run directory"):
        ppo.train(options, resume_from=tmp_path / "rn")
    with pytest.raises(CheckpointError, match="no checkpoint 'best': it has last"):
        ppo.train(options, resume_from=path / "checkpoints" / "best")
    run = RunDirectory.open(path)
    tensors = path / "checkpoints" / "last" / "learner.safetensors"
    tensors.write_bytes(tensors.read_bytes()[:100])
    before = (path / "metrics.jsonl").read_text()
    damaged = r"is cut short or damaged.*newest intact one is step-\d+, use it with"
    assert_refused(damaged, CheckpointError)
    assert (path / "metrics.jsonl").read_text() == before
    older = next(name for name in run.checkpoints.names() if name.startswith("step-"))
    ppo.train(options, resume_from=path / "checkpoints" / older)


def test_a_checkpoint_of_other_spaces_is_refused(tmp_path):
    """The environment keeps its name and changes its spaces."""
    env_options = {"length": 10}

    def factory():
        env = toy_envs.ConstantReward(env_options["length"])
        if env_options["length"] == 11:
            env.action_space = toy_envs.spaces.Discrete(3)
        return env

    options = config(tmp_path)
    ppo.train(options, env=factory, on_report=lambda report: report.timesteps >= 700)
    env_options["length"] = 11
    run = RunDirectory.open(tmp_path / "run")
    before = run.checkpoints.names(), run.metrics()
    for path in (run.path, run.path / "checkpoints" / before[0][1]):
        with pytest.raises(CheckpointError, match=r"the checkpoint's action_spec is .*resume with"):
            ppo.train(options, env=factory, resume_from=path)
        assert (run.checkpoints.names(), run.metrics()) == before  # the run is unchanged


@pytest.mark.slow
def test_killed_at_every_file_operation(tmp_path):
    """Kill the run at each creation, rename, link and removal of a file."""
    options = {**SMALL, "total_timesteps": 384, "checkpoint_interval": 128, "keep_checkpoints": 1}
    options |= {"eval_interval": 200, "eval_episodes": 2, "execution": "eager"}

    def train(name, kill_at=None, *, is_resumed=False):
        pid = os.fork()
        if pid:
            return os.waitpid(pid, 0)[1]
        # The parent collects the garbage of other tests: EnvPool's end waits for threads, which a
        # fork does not have.
        gc.freeze()
        count = 0

        def hook(event, args):
            nonlocal count
            if event in FILE_EVENTS and any(str(tmp_path / name) in str(arg) for arg in args):
                count += 1
                if count == kill_at:
                    os.kill(os.getpid(), signal.SIGKILL)

        sys.addaudithook(hook)
        try:
            if is_resumed:  # by the command, which also works after the last step
                os._exit(main(["resume", str(tmp_path / name)]))
            ppo.train(ppo.Config(run_dir=str(tmp_path / name), **options))
        except BaseException as error:
            print(error, flush=True)
            os._exit(1)
        os._exit(0)

    assert train("whole") == 0
    kill_at = 0
    while True:
        kill_at += 1
        name = f"part{kill_at}"
        if train(name, kill_at) == 0:
            break
        if (tmp_path / name / "config.json").exists():
            assert train(name, is_resumed=True) == 0, kill_at
            assert_same_run(tmp_path / "whole", tmp_path / name)
    assert kill_at > 40


# --- evaluation ----------------------------------------------------------------------------------


def test_evaluations_during_training_and_the_best_checkpoint(tmp_path):
    reports = []
    ppo.train(
        config(tmp_path, eval_interval=300, eval_episodes=5, keep_checkpoints=99),
        on_report=reports.append,
    )
    run = RunDirectory.open(tmp_path / "run")
    evaluations = [r.evaluation for r in reports if r.evaluation is not None]
    assert [e.timesteps for e in evaluations] == [384, 640, 1024, 1280, 1536]
    lines = [line["evaluation"] for line in run.metrics() if "evaluation" in line]
    assert [line["mean_return"] for line in lines] == [e.mean_return for e in evaluations]
    best = max(evaluations, key=lambda e: (e.mean_return, -e.timesteps))
    assert best.is_best
    network, snapshot, state = run.load_policy("best")
    assert state["timesteps"] == best.timesteps
    # `hotloop eval` plays the same episodes, so only learning makes a difference.
    envs = make_vec(EnvSpec("CartPole-v1", seed=1, stream="evaluation"), 4)
    again = evaluate(envs, ActingPolicy(network, snapshot), num_episodes=5)
    assert [episode.undiscounted_return for episode in again] == best.returns


def test_evaluation_does_not_change_the_weights(tmp_path, whole):
    evaluated = ppo.train(config(tmp_path, "a", eval_interval=200)).run_dir
    a, b = (RunDirectory.open(path).load_policy()[1].params for path in (evaluated, whole))
    for name, array in a.items():
        np.testing.assert_array_equal(array, b[name])


def test_learner_gets_clipped_rewards(tmp_path, monkeypatch):
    rewards = []
    gae = ppo.gae
    monkeypatch.setattr(
        ppo, "gae", lambda r, *args, **kw: (rewards.append(r), gae(r, *args, **kw))[1]
    )
    result = ppo.train(config(tmp_path, env_id="Pendulum-v1", clip_reward=0.5))
    assert min(reward.min() for reward in rewards) == -0.5
    assert result.mean_return < -300  # reported returns are raw


def test_an_evaluation_that_fails_loses_nothing(tmp_path):
    created = []

    def factory():
        created.append(1)
        return toy_envs.Misbehaves("nan_reward" if len(created) > 4 else "well", at=5)

    with pytest.raises(EnvironmentFailure, match="must be finite"):
        ppo.train(config(tmp_path, eval_interval=200), env=factory)
    run = RunDirectory.open(tmp_path / "run")
    assert run.load_policy()[2]["timesteps"] == run.metrics()[-1]["timesteps"] == 256


# --- networks and factories without a name --------------------------------------------------------


def test_unnamed_network_and_factory_must_be_passed_again(tmp_path, capsys):
    def network(obs_shape, head_size):
        return nets.Net(obs_shape, head_size)

    env = partial(toy_envs.ConstantReward, length=7)
    options = config(tmp_path, execution="eager")
    objects = {"env": env, "network": network}
    ppo.train(options, on_report=lambda report: report.timesteps >= 500, **objects)
    assert main(["resume", str(tmp_path / "run")]) == 2
    assert "a factory that cannot be imported" in capsys.readouterr().err
    result = ppo.train(options, resume_from=tmp_path / "run", **objects)
    assert result.status == "finished"
    ppo.train(config(tmp_path, "whole", execution="eager"), **objects)
    assert_same_run(tmp_path / "whole", tmp_path / "run")


# --- how a run ends -------------------------------------------------------------------------------


class ClosingHook(toy_envs.Misbehaves):
    """An environment that calls `at_close()` when it is closed. Tests set `at_close`."""

    def __init__(self, how="well", at=5):
        super().__init__(how, at)

    @staticmethod
    def at_close():
        pass

    def close(self):
        self.at_close()


@pytest.fixture
def at_close(monkeypatch):
    """Set what environments do when they are closed."""
    return lambda function: monkeypatch.setattr(ClosingHook, "at_close", staticmethod(function))


@pytest.fixture
def short_limit(monkeypatch):
    monkeypatch.setattr(closing, "CLOSE_S", 0.2)
    monkeypatch.setattr(closing, "_REPEAT_S", 0.1)


def hang():
    time.sleep(1000)


def hang_twice():
    with contextlib.suppress(BaseException):
        hang()
    hang()


def test_environments_are_closed_after_the_last_write(tmp_path, at_close):
    events = []
    at_close(lambda: events.append("closed"))

    def on_end(result):
        events.append(result)
        run = RunDirectory.open(result.run_dir)
        assert run.load_policy()[2]["timesteps"] == 1536
        assert (run.path / "accounting.json").exists()
        assert list((run.path / "timing").iterdir())
        with pytest.raises(RunDirectoryError, match="is in use by another training"):
            run.lock()

    options = config(tmp_path, eval_interval=500, eval_episodes=2, workers=1, backend="inline")
    result = ppo.train(options, env=ClosingHook, on_end=on_end)
    assert events == [result, *["closed"] * 8]  # those of evaluations too


def test_environments_of_different_spaces_are_closed(tmp_path, at_close):
    def factory():
        env = ClosingHook()
        env.action_space = toy_envs.spaces.Discrete(2 + next(numbers) // 2)
        return env

    numbers, closed = itertools.count(), []
    at_close(lambda: closed.append(1))
    options = config(tmp_path, workers=2, backend="inline")
    with pytest.raises(SpaceError, match="must have the same action space"):
        ppo.train(options, env=factory)
    assert len(closed) == 4


def test_error_of_on_end_is_raised(tmp_path, at_close):
    closed = []
    at_close(lambda: closed.append(1))

    def on_end(_):
        raise ArithmeticError

    with pytest.raises(ArithmeticError):
        ppo.train(config(tmp_path), env=ClosingHook, on_end=on_end)
    assert len(closed) == 4


@pytest.mark.parametrize("how", [hang, hang_twice])
def test_closing_has_a_limit(tmp_path, at_close, short_limit, how):
    """Also if the first interruption is swallowed. An existing alarm is restored."""
    at_close(how)

    def alarm(*_):
        pass

    handler, timer = signal.signal(signal.SIGALRM, alarm), signal.setitimer(signal.ITIMER_REAL, 500)
    try:
        options = config(tmp_path, eval_interval=500, eval_episodes=2)
        with pytest.warns(UserWarning, match=r"closing the environments took longer than 0\.2 s"):
            result = ppo.train(options, env=ClosingHook)
        assert signal.getsignal(signal.SIGALRM) is alarm
        assert 400 < signal.getitimer(signal.ITIMER_REAL)[0] < 500
    finally:
        signal.setitimer(signal.ITIMER_REAL, *timer)
        signal.signal(signal.SIGALRM, handler)
    assert result.status == "finished"


@pytest.mark.parametrize(
    ("how", "error"), [("raises", EnvironmentFailure), ("interrupt", KeyboardInterrupt)]
)
def test_closing_has_a_limit_after_an_error(tmp_path, at_close, short_limit, how, error):
    at_close(hang)
    results = []
    kwargs = {"how": how, "at": 200}
    with pytest.warns(UserWarning, match="took longer"), pytest.raises(error):
        ppo.train(config(tmp_path, env_kwargs=kwargs), env=ClosingHook, on_end=results.append)
    assert results == [None]
    run = RunDirectory.open(tmp_path / "run")
    run.lock()
    run.close()


def test_error_of_closing_is_a_warning(tmp_path, at_close):
    """The training runs off the main thread, where closing has no limit."""

    def fail():
        raise RuntimeError("can't be closed")

    at_close(fail)
    with (
        pytest.warns(UserWarning, match="closing the environments raised.*can't be closed"),
        ThreadPoolExecutor() as executor,
    ):
        result = executor.submit(ppo.train, config(tmp_path), env=ClosingHook).result()
    assert result.status == "finished"


# --- the command ---------------------------------------------------------------------------------


def test_hotloop_resume(tmp_path, capsys):
    path = tmp_path / "run"
    ppo.train(config(tmp_path), on_report=lambda report: report.timesteps >= 700)
    assert main(["resume", str(path)]) == 0
    out = capsys.readouterr().out
    assert "resumed at 768 steps" in out
    assert "1,536/1,500 steps" in out
    assert main(["resume", str(path)]) == 0
    assert "run is finished, with 1,536 steps; learning curve: " in capsys.readouterr().out
    assert main(["resume", str(path), "--total-timesteps", "2000"]) == 0
    assert main(["resume", str(path), "--checkpoint", "best"]) == 1
    assert "no checkpoint 'best': it has last" in capsys.readouterr().err


def test_thread_times_are_saved(tmp_path):
    result = ppo.train(config(tmp_path, total_timesteps=256))
    times = json.loads((result.run_dir / "cores.json").read_text())
    assert times["seconds"] > 0.0
    assert 0.0 <= times["longest_s"] <= times["queued_s"] + 1e-9
    assert times["on_core_s"] > 0.0
    assert (times["torch_threads"], times["workers"]) == (1, 0)


@pytest.mark.gpu
def test_windows_on_a_gpu_are_in_the_report(tmp_path):
    import torch

    from hotloop.profiler import read
    from hotloop.profiler.session.gpu import gpu_use

    if not torch.cuda.is_available():
        pytest.skip("there is no GPU")
    options = {"device": "cuda", "gpu_window_ms": 100, "total_timesteps": 10_000_000}
    result = ppo.train(
        config(tmp_path, **options),
        on_report=lambda report: report.elapsed_s > 6.0,
        progress=False,
    )
    use = gpu_use(read(result.run_dir))
    assert use is not None
    assert use.num_updates
    assert use.busy_share > 0


def test_a_checkpoint_without_newer_fields_of_spaces_fits():
    network = actor_critic(nets.Spaces(obs_spec(3), DISCRETE))
    stored = network.to_json()
    for part in stored["obs_spec"]["layout"]:
        del part["byte_bounds"]
    del stored["action_spec"]["space_dtype"]
    snapshot = SimpleNamespace(params=network.initial_parameters(0))
    resumed = SimpleNamespace(checkpoint=SimpleNamespace(network=stored, snapshot=snapshot))
    check_network(network, resumed, Path("run"))
    for part, field, value in (("obs_spec", "shape", [4]), ("action_spec", "num_actions", 5)):
        changed = {**stored, part: {**stored[part], field: value}}
        resumed.checkpoint.network = changed
        with pytest.raises(CheckpointError, match=f"the checkpoint's {part} is"):
            check_network(network, resumed, Path("run"))
