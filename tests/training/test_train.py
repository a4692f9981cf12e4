"""What surrounds an algorithm's loop: resume, evaluation, the best checkpoint, bad input."""

import contextlib
import dataclasses
import gc
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import numpy as np
import pytest

from hotloop.algorithms import ppo
from hotloop.cli import main
from hotloop.envs import closing, make_vec
from hotloop.errors import (
    CheckpointError,
    ConfigError,
    EnvironmentFailure,
    RunDirectoryError,
)
from hotloop.policies import ActingPolicy
from hotloop.rollouts.evaluation import evaluate
from hotloop.runs import RunDirectory
from tests import toy_envs
from tests.policies import nets

TOUCHES = {"open", "os.rename", "os.symlink", "os.remove", "os.mkdir", "os.rmdir"}
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
    """All that a checkpoint and the metrics hold, to the last bit, but for the time it took."""
    a, b = (RunDirectory.open(path).checkpoints.load() for path in (first, second))
    for name, array in a.snapshot.params.items():
        np.testing.assert_array_equal(array, b.snapshot.params[name], name)
    mine, theirs = a.arrays(), b.arrays()
    assert mine.keys() == theirs.keys()
    for name, array in mine.items():
        np.testing.assert_array_equal(array, theirs[name], name)
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
def test_compiled_just_now_and_kept_from_before_give_the_same_bits(tmp_path, monkeypatch):
    monkeypatch.setenv("HOTLOOP_CACHE", str(tmp_path / "cache"))
    doing = []

    def half(report):
        doing.append(report.doing)
        return report.timesteps >= 700

    ppo.train(config(tmp_path, "parts", execution="compile"), on_report=half)  # compiles
    assert any("once on this machine" in one for one in doing)
    assert len(list((tmp_path / "cache").glob("*.so"))) == 1
    reports = []
    for name, resumed in (("parts", tmp_path / "parts"), ("whole", None)):  # load what is kept
        options = config(tmp_path, name, execution="compile")
        ppo.train(options, resume_from=resumed, on_report=reports.append)
    assert not any(report.doing for report in reports)
    assert_same_run(tmp_path / "parts", tmp_path / "whole")


@pytest.mark.slow
@needs_compiler
def test_what_auto_has_chosen_stays(tmp_path, monkeypatch):
    monkeypatch.setenv("HOTLOOP_CACHE", str(tmp_path / "cache"))
    ppo.train(config(tmp_path, "eager"))
    ppo.train(config(tmp_path, "parts"), on_report=lambda report: report.timesteps >= 700)
    ppo.train(config(tmp_path, "on", execution="compile", total_timesteps=128))
    result = ppo.train(config(tmp_path, "parts"), resume_from=tmp_path / "parts")
    assert result.execution.startswith("update: eager, as the run began")
    assert_same_run(tmp_path / "parts", tmp_path / "eager")
    # One that begins now takes what there is, and so does what goes on with it.
    results = [
        ppo.train(config(tmp_path, "new"), on_report=lambda report: report.timesteps >= 700),
        ppo.train(config(tmp_path, "new"), resume_from=tmp_path / "new"),
    ]
    assert "an earlier run has compiled it" in results[0].execution
    assert "compiled, as the run began" in results[1].execution


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


def test_an_interrupted_iteration_is_done_again(tmp_path):
    """Ctrl-C in the middle of a fragment: the last whole iteration is what is saved."""
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


def test_going_on_from_an_earlier_checkpoint(tmp_path):
    ppo.train(config(tmp_path, "whole"))
    parts = config(tmp_path, "parts")
    ppo.train(parts, on_report=lambda report: report.timesteps >= 1000)
    run = RunDirectory.open(tmp_path / "parts")
    assert "step-000000000640" in run.checkpoints.names()
    ppo.train(parts, resume_from=run.path / "checkpoints" / "step-000000000640")
    assert_same_run(tmp_path / "whole", tmp_path / "parts")


def test_a_run_killed_before_its_first_checkpoint_begins_anew(tmp_path):
    ppo.train(config(tmp_path, "whole"))
    parts = config(tmp_path, "parts")
    ppo.train(parts, on_report=lambda report: report.timesteps >= 256)
    RunDirectory.open(tmp_path / "parts").checkpoints.clear()
    ppo.train(parts, resume_from=tmp_path / "parts")
    assert_same_run(tmp_path / "whole", tmp_path / "parts")


def test_more_steps_may_be_asked_for(tmp_path):
    first = config(tmp_path, learning_rate=1e-3)
    ppo.train(first)
    with pytest.raises(
        ConfigError, match=r"is finished: it has 1,536 of 1,500 steps; ask for more"
    ):
        ppo.train(first, resume_from=tmp_path / "run")
    more = dataclasses.replace(first, total_timesteps=2500)
    assert ppo.train(more, resume_from=tmp_path / "run").timesteps == 2560
    ppo.train(dataclasses.replace(more, run_dir=str(tmp_path / "whole")))
    assert_same_run(tmp_path / "whole", tmp_path / "run")
    reports = []
    longer = dataclasses.replace(more, total_timesteps=3000)
    ppo.train(longer, resume_from=tmp_path / "run", on_report=reports.append)
    assert "the run is 3,000 steps long now and not 2,500" in reports[0].resumed


def test_environments_that_do_not_repeat_themselves_are_told_of(tmp_path):
    options = config(tmp_path)
    ppo.train(options, env=toy_envs.Unrepeatable, on_report=lambda r: r.timesteps >= 500)
    reports = []
    ppo.train(
        options, env=toy_envs.Unrepeatable, resume_from=tmp_path / "run", on_report=reports.append
    )
    assert reports[0].resumed == (
        "resumed at 512 steps; the episodes of 4 of 4 environments can't be replayed, and new "
        "ones began"
    )
    assert reports[-1].timesteps == 1536


@pytest.mark.slow
def test_envpool_goes_on_with_new_episodes(tmp_path):
    options = config(tmp_path, env_id="envpool:CartPole-v1")
    ppo.train(options, on_report=lambda report: report.timesteps >= 500)
    reports = []
    result = ppo.train(options, resume_from=tmp_path / "run", on_report=reports.append)
    assert "4 of 4 environments can't be replayed" in reports[0].resumed
    assert result.status == "finished"


def test_what_can_not_be_resumed(tmp_path):
    options = config(tmp_path)
    ppo.train(options, on_report=lambda report: report.timesteps >= 700)
    path = tmp_path / "run"

    def resume(match, error, **changes):
        env = changes.pop("env", None)
        with pytest.raises(error, match=match):
            ppo.train(dataclasses.replace(options, **changes), env=env, resume_from=path)

    resume("a run on 'CartPole-v1', got 'Pendulum-v1'", CheckpointError, env_id="Pendulum-v1")
    resume("got seed: 1 → 2; gamma: 0.99 → 0.9: leave", ConfigError, gamma=0.9, seed=2)
    with pytest.raises(RunDirectoryError, match="expected a run directory"):
        ppo.train(options, resume_from=tmp_path / "rn")
    with pytest.raises(CheckpointError, match="no checkpoint 'best'; it has last"):
        ppo.train(options, resume_from=path / "checkpoints" / "best")
    run = RunDirectory.open(path)
    tensors = path / "checkpoints" / "last" / "learner.safetensors"
    tensors.write_bytes(tensors.read_bytes()[:100])
    before = (path / "metrics.jsonl").read_text()
    damaged = r"is cut short or damaged.*newest one that is whole is step-\d+, take it with"
    resume(damaged, CheckpointError)
    assert (path / "metrics.jsonl").read_text() == before
    older = next(name for name in run.checkpoints.names() if name.startswith("step-"))
    ppo.train(options, resume_from=path / "checkpoints" / older)


def test_a_checkpoint_of_other_spaces_is_refused(tmp_path):
    """The environment has changed under its name."""
    made = {"length": 10}

    def factory():
        env = toy_envs.ConstantReward(made["length"])
        if made["length"] == 11:
            env.action_space = toy_envs.spaces.Discrete(3)
        return env

    options = config(tmp_path)
    ppo.train(options, env=factory, on_report=lambda report: report.timesteps >= 700)
    made["length"] = 11
    run = RunDirectory.open(tmp_path / "run")
    before = run.checkpoints.names(), run.metrics()
    for path in (run.path, run.path / "checkpoints" / before[0][1]):
        with pytest.raises(CheckpointError, match=r"the checkpoint's action_spec is .*resume with"):
            ppo.train(options, env=factory, resume_from=path)
        assert (run.checkpoints.names(), run.metrics()) == before  # nothing is lost by trying


@pytest.mark.slow
@pytest.mark.parametrize("options", [[], ["--normalize-obs", "--normalize-reward"]])
def test_killed_at_ten_random_moments(tmp_path, options):
    """SIGKILL, wherever it strikes: resumed each time, the run ends as if it had never been."""
    hotloop = [sys.executable, "-m", "hotloop"]
    arguments = ["--total-timesteps", "60000", "--checkpoint-interval", "1000", "--seed", "3"]
    train = [*hotloop, "train", "ppo", *arguments, *options, "--execution", "eager", "--run-dir"]
    whole, parts = str(tmp_path / "whole"), str(tmp_path / "parts")
    subprocess.run([*train, whole], check=True, capture_output=True)
    moments, kills = random.Random(7), 0
    command = [*train, parts]
    while True:
        process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
        try:
            # Start-up takes about 2 s: some before it, most in the middle of the training.
            process.wait(timeout=moments.uniform(0.5, 3.5) if kills < 10 else 120)
        except subprocess.TimeoutExpired:
            process.send_signal(signal.SIGKILL)
            process.wait()
            kills += 1
            if (tmp_path / "parts" / "config.json").exists():
                command = [*hotloop, "resume", parts]
            continue
        assert process.returncode == 0, process.stderr.read()
        break
    assert kills >= 10
    assert_same_run(Path(whole), Path(parts))


@pytest.mark.slow
def test_killed_at_every_touch_of_a_file(tmp_path):
    """Where files are made, renamed, linked and removed, one after another."""
    options = {**SMALL, "total_timesteps": 600, "checkpoint_interval": 128, "keep_checkpoints": 1}
    options |= {"eval_interval": 200, "eval_episodes": 2, "execution": "eager"}

    def train(name, kill_at=None, *, is_resumed=False):
        pid = os.fork()
        if pid:
            return os.waitpid(pid, 0)[1]
        # What other tests have left is the parent's to collect: EnvPool ends by waiting for threads
        # that a fork does not have.
        gc.freeze()
        count = 0

        def hook(event, args):
            nonlocal count
            if event in TOUCHES and any(str(tmp_path / name) in str(arg) for arg in args):
                count += 1
                if count == kill_at:
                    os.kill(os.getpid(), signal.SIGKILL)

        sys.addaudithook(hook)
        try:
            if is_resumed:  # by the command, which has something to do after the last step, too
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
    # The same episodes as `hotloop eval` plays: only learning makes a difference.
    envs = make_vec("CartPole-v1", 4, seed=1, stream="evaluation")
    again = evaluate(envs, ActingPolicy(network, snapshot), num_episodes=5)
    assert [episode.undiscounted_return for episode in again] == best.returns


def test_evaluating_changes_nothing_that_is_learned(tmp_path):
    with_it = ppo.train(config(tmp_path, "a", eval_interval=200))
    without = ppo.train(config(tmp_path, "b"))
    a, b = (RunDirectory.open(r.run_dir).load_policy()[1].params for r in (with_it, without))
    for name, array in a.items():
        np.testing.assert_array_equal(array, b[name])


def test_rewards_are_clipped_where_they_are_learned_from(tmp_path, monkeypatch):
    seen = []
    gae = ppo.gae
    monkeypatch.setattr(ppo, "gae", lambda r, *rest, **kw: (seen.append(r), gae(r, *rest, **kw))[1])
    result = ppo.train(config(tmp_path, env_id="Pendulum-v1", clip_reward=0.5))
    assert min(reward.min() for reward in seen) == -0.5
    assert result.mean_return < -300  # what is reported is raw


@pytest.mark.parametrize("how", ["nan_reward", "endless"])
def test_an_evaluation_that_fails_loses_nothing(tmp_path, how, monkeypatch):
    made = []

    def factory():
        made.append(1)
        is_evaluation = len(made) > 4
        if how == "endless":
            return toy_envs.ConstantReward(10**9 if is_evaluation else 10)
        return toy_envs.Misbehaves(how if is_evaluation else "well", at=5)

    evaluate_briefly = partial(evaluate, max_episode_steps=300)
    monkeypatch.setattr("hotloop.training.evaluation.evaluate", evaluate_briefly)
    with pytest.raises(
        EnvironmentFailure, match=r"must be finite|must end, but one did not within"
    ):
        ppo.train(config(tmp_path, eval_interval=200), env=factory)
    run = RunDirectory.open(tmp_path / "run")
    assert run.load_policy()[2]["timesteps"] == run.metrics()[-1]["timesteps"] == 256


# --- networks and factories without a name --------------------------------------------------------


def test_what_has_no_name_is_resumed_by_who_has_it(tmp_path, capsys):
    def network(obs_shape, head_size):
        return nets.Net(obs_shape, head_size)

    env = partial(toy_envs.ConstantReward, length=7)
    options = config(tmp_path, execution="eager")
    with_them = {"env": env, "network": network}
    ppo.train(options, on_report=lambda report: report.timesteps >= 500, **with_them)
    assert main(["resume", str(tmp_path / "run")]) == 2
    assert "a factory that can't be imported" in capsys.readouterr().err
    result = ppo.train(options, resume_from=tmp_path / "run", **with_them)
    assert result.status == "finished"
    ppo.train(config(tmp_path, "whole", execution="eager"), **with_them)
    assert_same_run(tmp_path / "whole", tmp_path / "run")


# --- how a run ends -------------------------------------------------------------------------------


class Closing(toy_envs.Misbehaves):
    """Does `at_close()` when it is closed, which the test sets."""

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
    return lambda function: monkeypatch.setattr(Closing, "at_close", staticmethod(function))


@pytest.fixture
def short_limit(monkeypatch):
    monkeypatch.setattr(closing, "CLOSE_S", 0.2)
    monkeypatch.setattr(closing, "_AGAIN_S", 0.1)


def hang():
    time.sleep(1000)


def hang_twice():
    with contextlib.suppress(BaseException):
        hang()
    hang()


def test_environments_are_closed_when_all_is_written(tmp_path, at_close):
    events = []
    at_close(lambda: events.append("closed"))

    def on_end(result):
        events.append(result)
        run = RunDirectory.open(result.run_dir)
        assert run.load_policy()[2]["timesteps"] == 1536
        assert (run.path / "accounting.json").exists()
        assert list((run.path / "timing").iterdir())
        with pytest.raises(RunDirectoryError, match="is being trained already"):
            run.lock()

    options = config(tmp_path, eval_interval=500, eval_episodes=2, workers=1, backend="inline")
    result = ppo.train(options, env=Closing, on_end=on_end)
    assert events == [result, *["closed"] * 8]  # those of evaluations too


def test_what_on_end_raises_is_not_lost(tmp_path, at_close):
    closed = []
    at_close(lambda: closed.append(1))

    def on_end(_):
        raise ArithmeticError

    with pytest.raises(ArithmeticError):
        ppo.train(config(tmp_path), env=Closing, on_end=on_end)
    assert len(closed) == 4


@pytest.mark.timeout(60)
@pytest.mark.parametrize("how", [hang, hang_twice])
def test_closing_has_a_limit(tmp_path, at_close, short_limit, how):
    """Also where the first interruption is swallowed; the alarm of somebody else is put back."""
    at_close(how)

    def alarm(*_):
        pass

    handler, timer = signal.signal(signal.SIGALRM, alarm), signal.setitimer(signal.ITIMER_REAL, 500)
    try:
        options = config(tmp_path, eval_interval=500, eval_episodes=2)
        with pytest.warns(UserWarning, match=r"closing the environments took longer than 0\.2 s"):
            result = ppo.train(options, env=Closing)
        assert signal.getsignal(signal.SIGALRM) is alarm
        assert 400 < signal.getitimer(signal.ITIMER_REAL)[0] < 500
    finally:
        signal.setitimer(signal.ITIMER_REAL, *timer)
        signal.signal(signal.SIGALRM, handler)
    assert result.status == "finished"


@pytest.mark.timeout(60)
@pytest.mark.parametrize(
    ("how", "error"), [("raises", EnvironmentFailure), ("interrupt", KeyboardInterrupt)]
)
def test_the_limit_holds_where_an_error_ends_it(tmp_path, at_close, short_limit, how, error):
    at_close(hang)
    ended = []
    kwargs = {"how": how, "at": 200}
    with pytest.warns(UserWarning, match="took longer"), pytest.raises(error):
        ppo.train(config(tmp_path, env_kwargs=kwargs), env=Closing, on_end=ended.append)
    assert ended == [None]
    run = RunDirectory.open(tmp_path / "run")
    run.lock()
    run.close()


def test_what_closing_raises_is_a_warning(tmp_path, at_close):
    """Off the main thread too, where there is no limit."""

    def fail():
        raise RuntimeError("can't be closed")

    at_close(fail)
    with (
        pytest.warns(UserWarning, match="closing the environments raised.*can't be closed"),
        ThreadPoolExecutor() as executor,
    ):
        result = executor.submit(ppo.train, config(tmp_path), env=Closing).result()
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
    assert "run is finished, with 1,500 steps; learning curve: " in capsys.readouterr().out
    assert main(["resume", str(path), "--total-timesteps", "2000"]) == 0
    assert main(["resume", str(path), "--checkpoint", "best"]) == 1
    assert "no checkpoint 'best'; it has last" in capsys.readouterr().err


def test_the_times_of_threads_are_kept(tmp_path):
    result = ppo.train(config(tmp_path, total_timesteps=256))
    told = json.loads((result.run_dir / "cores.json").read_text())
    assert told["seconds"] > 0.0
    assert 0.0 <= told["longest_s"] <= told["queued_s"] + 1e-9
    assert told["on_core_s"] > 0.0
    assert (told["torch_threads"], told["workers"]) == (1, 0)


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
    assert use.busy > 0
