"""Callbacks: their events, their errors, their state, and the built-in ones that stop a run."""

import contextlib
import json
import math
import os
import signal

import pytest

from hotloop.algorithms import dqn, ppo
from hotloop.errors import CallbackError, ConfigError
from hotloop.runs import Evaluation, Report, RunDirectory
from hotloop.runs.run_status import read_status
from hotloop.runs.summary import summarize
from hotloop.training import (
    Callback,
    StopAfterHours,
    StopAtReturn,
    StopOnFile,
    StopWithoutImprovement,
)
from hotloop.training.callbacks import CallbackList, stopping_rules
from hotloop.training.progress_display import describe_stop
from tests import toy_envs

STEPS = 16  # of an iteration
SMALL = {
    "num_envs": 2,
    "num_steps": STEPS // 2,
    "num_minibatches": 1,
    "update_epochs": 1,
    "hidden_sizes": (4,),
    "execution": "eager",
    "total_timesteps": 3 * STEPS,
}


def train(path, *callbacks, resume_from=None, on_report=None, **options):
    config = ppo.Config(**{"env_id": toy_envs.ChooseTheSign, "run_dir": path, **SMALL, **options})
    kwargs = {"resume_from": resume_from, "on_report": on_report, "progress": False}
    return ppo.train(config, callbacks=list(callbacks), **kwargs)


def report(mean_return=math.nan, *, num_episodes=100, evaluation=None, is_best=False):
    if evaluation is not None:
        evaluation = Evaluation(timesteps=1, returns=[evaluation], lengths=[1], is_best=is_best)
    return Report(
        run_dir=None,
        timesteps=1,
        total_timesteps=2,
        elapsed_s=1.0,
        mean_return=mean_return,
        num_episodes=num_episodes,
        metrics={},
        evaluation=evaluation,
    )


class Recorder(Callback):
    """A callback that records all events."""

    def __init__(self):
        self.events = []

    def on_start(self, report):
        self.events.append(("start", report.timesteps))

    def on_rollout(self, fragments):
        self.events.append(("rollout", sum(fragment.reward.size for fragment in fragments)))

    def on_update(self, report):
        assert report.metrics["loss_policy" if "loss_policy" in report.metrics else "entropy"]
        self.events.append(("update", report.timesteps))

    def on_evaluation(self, report):
        self.events.append(("evaluation", report.evaluation.timesteps))

    def on_checkpoint(self, path):
        assert (path / "state.json").exists()
        self.events.append(("checkpoint", int(path.name.rpartition("-")[2])))

    def on_end(self, result):
        self.events.append(("end", None if result is None else result.timesteps))


class RaisingCallback(Callback):
    """A callback that raises at an event."""

    def __init__(self, event):
        def fail(*_):
            raise ValueError("no such file")

        setattr(self, event, fail)

    # Only methods that a class overrides are called.
    def on_start(self, report): ...
    def on_rollout(self, fragments): ...
    def on_update(self, report): ...
    def on_evaluation(self, report): ...
    def on_checkpoint(self, path): ...
    def on_end(self, result): ...


def test_events_in_order(tmp_path):
    recorder = Recorder()
    result = train(
        tmp_path / "run", recorder, eval_interval=2 * STEPS, eval_episodes=1, checkpoint_interval=32
    )
    assert result.status == "finished"
    assert result.stop_reason == ""
    steps = [name for name, _ in recorder.events]
    assert [x for x in steps if x != "checkpoint"] == [
        *("start", "rollout", "update", "rollout", "update", "evaluation"),
        *("rollout", "update", "evaluation", "end"),
    ]
    assert recorder.events[1] == ("rollout", STEPS)
    assert ("evaluation", 2 * STEPS) in recorder.events
    assert recorder.events[-1] == ("end", 3 * STEPS)
    checkpoints = [value for name, value in recorder.events if name == "checkpoint"]
    assert checkpoints[-1] == 3 * STEPS
    status = read_status(result.run_dir)
    assert (status.status, status.reason) == ("finished", "")


OFF_POLICY = {"num_envs": 2, "hidden_sizes": (4,), "execution": "eager", "progress": False}


def test_rollouts_of_an_off_policy_algorithm(tmp_path):
    recorder = Recorder()
    recorder.on_update = lambda _: None
    options = {"total_timesteps": 40, "learning_starts": 8, "batch_size": 8, "train_frequency": 2}
    options |= {"run_dir": tmp_path / "run", "callbacks": [recorder]}
    dqn.train(toy_envs.ChooseTheSign, **options, **OFF_POLICY)
    counts = [value for name, value in recorder.events if name == "rollout"]
    assert sum(counts) == 40
    assert set(counts) <= {4, 8}


@pytest.mark.parametrize(
    ("event", "steps"),
    [
        ("on_start", None),
        ("on_rollout", None),
        ("on_update", STEPS),
        ("on_evaluation", STEPS),
        ("on_checkpoint", STEPS),
        ("on_end", 3 * STEPS),
    ],
)
def test_a_callback_that_raises_is_named_and_the_run_is_saved(tmp_path, event, steps):
    path = tmp_path / "run"
    options = {"eval_interval": STEPS, "eval_episodes": 1, "checkpoint_interval": STEPS}
    with pytest.raises(CallbackError) as caught:
        train(path, RaisingCallback(event), **options)
    message = f"the callback RaisingCallback raised in `{event}`: ValueError: no su"
    assert message in str(caught.value)
    assert isinstance(caught.value.__cause__, ValueError)
    if steps is None:  # before the first iteration: nothing to save
        assert not path.exists()
        return
    run = RunDirectory.open(path)
    assert run.checkpoints.load().state["timesteps"] == run.metrics()[-1]["timesteps"] == steps
    status = read_status(path)
    assert status.status == "failed"
    assert "RaisingCallback" in status.reason


@pytest.mark.parametrize(("reply", "reason"), [("it is noon", "it is noon"), (True, None)])
def test_a_reply_stops_the_run(tmp_path, reply, reason):
    class Stop(Callback):
        def on_update(self, report):
            return reply

    result = train(tmp_path / "run", Stop())
    assert (result.status, result.timesteps) == ("stopped", STEPS)
    assert result.stop_reason == (reason or "Stop.on_update returned True")
    summary = summarize(result.run_dir)
    assert (summary.status, summary.stop_reason) == ("stopped", result.stop_reason)
    # A resumed run has no old status.
    train(result.run_dir, resume_from=result.run_dir)
    assert summarize(result.run_dir).stop_reason is None


def test_a_list_of_callbacks_is_needed():
    for callbacks in (StopAfterHours(1), 3):
        with pytest.raises(ConfigError, match=r"must be a list, got .*: write `\[callback\]`"):
            CallbackList(callbacks)
    with pytest.raises(ConfigError, match=r"a callback must be an instance of .*as `on_report`"):
        CallbackList([print])
    for callbacks in (StopAfterHours(1), None):
        with pytest.raises(ConfigError, match=r"must be a list, got .*: write `\[callback\]`"):
            ppo.train(ppo.Config(**SMALL), callbacks=callbacks, progress=False)


def test_methods_that_are_no_events_get_a_warning():
    class Ported(Callback):
        def _on_step(self): ...
        def on_update(self, report): ...

    with pytest.warns(UserWarning, match=r"`Ported._on_step` is no event .* on_start, on_rollout"):
        CallbackList([Ported()])


def test_state_is_kept_in_checkpoints(tmp_path):
    class Counter(Callback):
        count = 0

        def on_update(self, report):
            self.count += 1
            return self.count == 2

        def state(self):
            return {"count": self.count}

        def load(self, state):
            self.count = state["count"]

    result = train(tmp_path / "run", Counter(), Counter())
    state = RunDirectory.open(result.run_dir).checkpoints.load().state
    assert state["callbacks"] == {"Counter": {"count": 2}, "Counter-2": {"count": 2}}
    counter = Counter()
    train(result.run_dir, counter, resume_from=result.run_dir)
    assert counter.count == 3


def test_a_resumed_run_keeps_the_states_of_missing_callbacks(tmp_path):
    class StateAndStop(State):
        def on_update(self, report):
            return True

    result = train(tmp_path / "run", StateAndStop({"count": 1}))
    reports = []
    options = {"resume_from": result.run_dir, "on_report": reports.append}
    train(result.run_dir, State({"count": 2}), **options)
    expected = "the callback StateAndStop is missing, and its state stays in checkpoints"
    assert reports[0].resumed.endswith(f"; {expected}")
    state = RunDirectory.open(result.run_dir).checkpoints.load().state
    assert state["callbacks"] == {"StateAndStop": {"count": 1}, "State": {"count": 2}}


class State(Callback):
    """A callback with a state and nothing else."""

    def __init__(self, values):
        self.values = values

    def state(self):
        return self.values


@pytest.mark.parametrize(
    ("values", "problem"),
    [
        ({"set": {1, 2}}, r"`set` is \{1, 2\}"),
        ({"a": [{"limits": (1, 2)}]}, r"`a\[0\].limits` is \(1, 2\)"),
        ({"counts": {3: 1}}, "`counts`'s key 3 is not a text"),
        ([1], r"it is \[1\]"),
    ],
)
def test_state_must_be_json(values, problem):
    expected = f"the callback State must return a dictionary that JSON .*, but {problem}: convert"
    with pytest.raises(CallbackError, match=expected):
        CallbackList([State(values)]).states()


def test_a_state_is_copied_and_may_have_nan():
    values = {"best": math.nan, "steps": [1, {"": None}]}
    states = CallbackList([State(values)]).states()
    values["steps"].append(2)
    assert states["State"]["steps"] == [1, {"": None}]
    assert math.isnan(states["State"]["best"])


def test_all_callbacks_get_the_end_and_the_first_error_is_raised():
    recorder = Recorder()
    first, second = RaisingCallback("on_end"), RaisingCallback("on_end")
    callbacks = CallbackList([first, second, recorder])
    callbacks.start(report())
    with pytest.raises(CallbackError, match="the callback RaisingCallback raised in `on_end`"):
        callbacks.end(None)
    callbacks.end(None)
    assert recorder.events[1:] == [("end", None)]


def test_a_signal_in_a_callback_saves_the_states_of_its_iteration(tmp_path):
    """With the immediate interrupts of on-policy algorithms."""

    class Counter(Callback):
        count = 0

        def on_update(self, report):
            self.count += 1
            if self.count == 2:
                signal.raise_signal(signal.SIGTERM)

        def state(self):
            return {"count": self.count}

    with pytest.raises(KeyboardInterrupt):
        train(tmp_path / "run", Counter())
    state = RunDirectory.open(tmp_path / "run").checkpoints.load().state
    assert state["callbacks"]["Counter"] == {"count": state["iteration"]} == {"count": 2}


def test_an_error_of_on_checkpoint_does_not_hide_the_signal(tmp_path):
    callbacks = Signal(signal.SIGTERM), RaisingCallback("on_checkpoint")
    with (
        pytest.raises(KeyboardInterrupt, match="SIGTERM"),
        pytest.warns(UserWarning, match="the callback RaisingCallback raised in `on_checkpoint`"),
    ):
        train(tmp_path / "run", *callbacks)
    assert read_status(tmp_path / "run").reason == "SIGTERM"


def test_stop_at_return():
    rule = StopAtReturn(10)
    assert not rule.on_update(report())
    assert not rule.on_update(report(10.0, num_episodes=99))
    assert not rule.on_update(report(9.9))
    assert not rule.on_evaluation(report(10.0, evaluation=10.0))
    expected = "the mean return of the last 100 training episodes, 10, reached 10"
    assert rule.on_update(report(10.0)) == expected
    rule = StopAtReturn(10, metric="evaluation")
    assert not rule.on_update(report(10.0))
    assert not rule.on_evaluation(report(evaluation=9.9))
    assert rule.on_evaluation(report(evaluation=12.0)) == (
        "the mean return of the evaluation, 12, reached 10"
    )


def test_stop_without_improvement_continues_to_count():
    rule = StopWithoutImprovement(2)
    assert not rule.on_evaluation(report(evaluation=1.0, is_best=True))
    assert not rule.on_evaluation(report(evaluation=0.5))
    resumed = StopWithoutImprovement(2)
    resumed.load(json.loads(json.dumps(rule.state())))
    assert resumed.on_evaluation(report(evaluation=0.5)) == "no evaluation was better in the last 2"
    assert not rule.on_evaluation(report(evaluation=2.0, is_best=True))
    assert not rule.on_evaluation(report(evaluation=0.5))


def test_stop_after_hours(monkeypatch):
    now = 1000.0
    monkeypatch.setattr("hotloop.training.callbacks.time.monotonic", lambda: now)
    rule = StopAfterHours(0.5)
    now = 5000.0
    rule.on_start(report())
    now = 6799.0
    assert not rule.on_update(report())
    now = 6800.0
    assert rule.on_update(report()) == "0.5 hours have passed"


def test_stop_on_file(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    rule = StopOnFile("STOP")
    monkeypatch.chdir("/")
    assert not rule.on_update(report())
    (tmp_path / "STOP").touch()
    assert rule.on_update(report()) == f"the file {tmp_path / 'STOP'} exists"


def test_options_become_rules(tmp_path):
    config = ppo.Config(
        stop_at_return=475,
        stop_without_improvement=3,
        eval_interval=1000,
        stop_after_hours=2,
        stop_on_file="STOP",
    )
    rules = stopping_rules(config, has_evaluations=True)
    kinds = [StopAtReturn, StopWithoutImprovement, StopAfterHours, StopOnFile]
    assert [type(rule) for rule in rules] == kinds
    assert rules[0].on_evaluation(report(evaluation=475.0))
    assert not stopping_rules(ppo.Config(), has_evaluations=False)
    with pytest.raises(ConfigError, match="`stop_without_improvement` 3 needs `eval_interval`"):
        ppo.Config(stop_without_improvement=3)
    (tmp_path / "STOP").touch()
    result = train(tmp_path / "run", stop_on_file=str(tmp_path / "STOP"))
    assert result.stop_reason.endswith("STOP exists")
    assert describe_stop(result).endswith("change the --stop option if its condition still holds")
    assert result.timesteps == STEPS


def test_rules_with_wrong_arguments():
    for rule, arguments in (
        (StopAfterHours, {"hours": 0}),
        (StopWithoutImprovement, {"evaluations": 0}),
        (StopAtReturn, {"mean_return": 1, "metric": "x"}),
    ):
        with pytest.raises(ConfigError, match="must be"):
            rule(**arguments)


class Signal(Callback):
    """A callback that sends a signal to the process after the first iteration."""

    def __init__(self, number):
        self.number = number

    def on_update(self, report):
        os.kill(os.getpid(), self.number)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGUSR1])
def test_a_signal_ends_an_evaluation_and_the_run_is_saved(tmp_path, number):
    """Without a handler of the caller, SIGTERM and SIGUSR1 would end the process."""
    path = tmp_path / "run"
    handler = signal.getsignal(number)
    with pytest.raises(KeyboardInterrupt):
        train(path, Signal(number), eval_interval=STEPS, eval_episodes=100_000)
    assert signal.getsignal(number) is handler
    run = RunDirectory.open(path)
    assert run.checkpoints.load().state["timesteps"] == STEPS
    assert "evaluation" not in run.metrics()[-1]
    status = read_status(path)
    assert (status.status, status.reason) == ("stopped", number.name)


def test_a_signal_ends_an_evaluation_of_an_off_policy_algorithm(tmp_path):
    """Its rounds delay signals, and a long evaluation must not."""
    options = {"total_timesteps": 20_000, "report_interval": STEPS, "eval_interval": STEPS}
    options |= {"eval_episodes": 1_000_000, "callbacks": [Signal(signal.SIGTERM)]}
    with pytest.raises(KeyboardInterrupt):
        dqn.train(toy_envs.ChooseTheSign, run_dir=tmp_path / "run", **options, **OFF_POLICY)
    run = RunDirectory.open(tmp_path / "run")
    assert run.checkpoints.load().state["timesteps"] == run.metrics()[-1]["timesteps"] == 20
    assert read_status(run.path).reason == "SIGTERM"


def test_a_handler_of_the_caller_stays(tmp_path):
    arrived = []
    old_handler = signal.signal(signal.SIGUSR1, lambda number, _: arrived.append(number))
    try:
        result = train(tmp_path / "run", Signal(signal.SIGUSR1))
    finally:
        signal.signal(signal.SIGUSR1, old_handler)
    assert result.status == "finished"
    assert arrived == [signal.SIGUSR1] * 3


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_that_user_code_swallows_ends_the_run(tmp_path, number):
    class Swallow(Callback):
        def on_update(self, report):
            with contextlib.suppress(BaseException):
                signal.raise_signal(number)

    with pytest.raises(KeyboardInterrupt):
        train(tmp_path / "run", Swallow())
    assert RunDirectory.open(tmp_path / "run").checkpoints.load().state["timesteps"] == STEPS
