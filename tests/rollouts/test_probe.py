"""`workers` 'auto': forecasts worked out by hand, what is measured, and that a choice is kept."""

import json
import math
import time
from functools import partial

import gymnasium
import numpy as np
import pytest

from hotloop.algorithms import ppo, sac
from hotloop.envs import make_vec
from hotloop.errors import ConfigError, EnvironmentFailure
from hotloop.policies import actor_critic
from hotloop.rollouts import environment_weights, probe
from hotloop.rollouts import forecast as model
from hotloop.rollouts.forecast import Measured, Task, choose, expected_maximum, forecast
from hotloop.runs import RunDirectory
from hotloop.training import on_policy
from tests import toy_envs
from tests.policies import nets

TEN_MS = Measured(step_s=0.01)
WAITING = Measured(step_s=0.01, busy_share=0.01)
# E[max] of four standard normal variables.
MAX_OF_4 = 1.029375373


# --- the model -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("count", "expected"),
    [
        (1, 0.0),
        (2, 1 / math.sqrt(math.pi)),
        (3, 1.5 / math.sqrt(math.pi)),
        (4, MAX_OF_4),
        (24, 1.947674),
    ],
)
def test_the_expected_maximum_of_normal_variables(count, expected):
    assert expected_maximum(count) == pytest.approx(expected, abs=1e-5)


def rate(measured, workers, schedule="barrier", **task):
    task = Task(**{"num_envs": 4, "num_steps": 10, "num_cores": 4, **task})
    return forecast(measured, task, workers, schedule).steps_per_s


def test_inline_steps_one_environment_after_another():
    assert rate(TEN_MS, 0) == pytest.approx(100)
    # A reset of 1 s in every hundredth step: 20 ms on average.
    assert rate(Measured(step_s=0.01, reset_s=1.0, reset_share=0.01), 0) == pytest.approx(50)
    # 5 ms for a group, and 5 ms for acting: 50 ms for four.
    own = Measured(step_s=0.01, loop_s=0.005, act_s={1: 0.002, 4: 0.005})
    assert rate(own, 0) == pytest.approx(80)


def test_acting_lies_on_straight_lines_between_what_was_measured():
    measured = Measured(step_s=1.0, act_s={1: 1.0, 2: 2.0, 4: 3.0})
    assert [measured.acting_s(n) for n in (1, 2, 3, 4)] == [1.0, 2.0, 2.5, 3.0]


def test_workers_step_side_by_side_and_pay_for_each_fragment():
    # Ten rows of 10.005 ms, 0.4 ms for the fragment, four times 0.05 ms: 100.65 ms for 40 steps.
    assert rate(TEN_MS, 4) == pytest.approx(40 / 0.10065)
    # Two environments each: ten rows of 20.005 ms, 0.4 and 0.1 ms.
    assert rate(TEN_MS, 2) == pytest.approx(40 / 0.20055)
    # Copying takes 1 ms each: 40 ms more.
    assert rate(Measured(step_s=0.01, copy_s=0.001), 4) == pytest.approx(40 / 0.14065)


def test_the_slowest_worker_is_waited_for():
    uneven = Measured(step_s=0.01, step_sd_s=0.003)
    # A worker's ten steps vary by 3 ms √10, a row by 3 ms.
    waited_s = MAX_OF_4 * 0.003 * math.sqrt(10)
    assert rate(uneven, 4) == pytest.approx(40 / (0.10065 + waited_s), rel=1e-5)
    assert rate(uneven, 4, "variable") == pytest.approx(40 / (0.10065 + MAX_OF_4 * 0.003), rel=1e-5)
    assert rate(uneven, 4, "async") == pytest.approx(40 / (10 * 4 * 0.010005 / 3), rel=1e-5)
    one = forecast(uneven, Task(num_envs=4, num_steps=10, num_cores=4), 4, "barrier")
    assert one.wait_share == pytest.approx(waited_s / (0.10065 + waited_s), rel=1e-5)


def test_resets_vary_too():
    # p (1 − p) 1 s² with p = 0.01, and 0.02² of the steps.
    measured = Measured(step_s=0.01, step_sd_s=0.02, reset_s=1.0, reset_share=0.01)
    assert measured.sd_s == pytest.approx(math.sqrt(0.0004 + 0.0099))


def test_cores_bound_what_computes_and_not_what_waits():
    # Four workers on two cores: 20.01 ms a row; on one, as the learner has the other: 40.02.
    assert rate(TEN_MS, 4, num_cores=2) == pytest.approx(40 / (0.2001 + 0.0006))
    assert rate(TEN_MS, 4, num_cores=2, overlap=True) == pytest.approx(40 / (0.4002 + 0.0006))
    assert rate(TEN_MS, 4, num_cores=1, overlap=True) == pytest.approx(40 / (0.4002 + 0.0006))
    # 0.1 of 10 ms is computing.
    half = Measured(step_s=0.01, busy_share=0.1)
    assert rate(half, 4, num_cores=2) == pytest.approx(40 / 0.10065)


def test_starting_is_counted():
    task = Task(num_envs=4, num_steps=10, num_cores=2, num_left=1000)
    made = Measured(step_s=0.01, make_s=0.25)
    assert forecast(made, task, 0, "barrier").total_s == pytest.approx(1.0 + 10.0)
    # The first worker, then three in two turns: three times 0.5 and 0.25 s.
    one = forecast(made, task, 4, "barrier")
    assert one.start_s == pytest.approx(2.25)
    assert one.total_s == pytest.approx(2.25 + 1000 / one.steps_per_s)
    # Importing what an environment needs takes a second in each turn; here it has been done.
    made = Measured(step_s=0.01, make_s=0.25, import_s=1.0)
    assert forecast(made, task, 0, "barrier").start_s == pytest.approx(1.0)
    assert forecast(made, task, 4, "barrier").start_s == pytest.approx(5.25)


# --- the choice ----------------------------------------------------------------------------------


def chosen(measured, **task):
    task = {"num_envs": 8, "num_steps": 10, "num_cores": 2, **task}
    taken = choose(measured, Task(**task)).taken
    return taken.workers, taken.envs_per_worker, taken.schedule


def test_what_computes_gets_no_more_workers_than_cores():
    assert chosen(TEN_MS) == (2, 4, "barrier")
    assert chosen(TEN_MS, num_cores=8) == (8, 1, "barrier")
    assert chosen(TEN_MS, num_envs=9) == (0, 9, "barrier")  # only one worker divides 9 so
    # One that computes on two cores by itself.
    assert chosen(Measured(step_s=0.01, busy_share=2.0)) == (0, 8, "barrier")


def test_what_waits_gets_as_many_as_there_are_environments():
    assert chosen(WAITING) == (8, 1, "barrier")
    assert chosen(WAITING, max_workers=7) == (4, 2, "barrier")
    # 2 / 0.4 = 5 workers at most.
    assert chosen(Measured(step_s=0.01, busy_share=0.4)) == (4, 2, "barrier")


def test_the_fewest_of_what_is_as_fast():
    # Acting for a group takes all of the time: eight workers on eight cores hardly help.
    acts = Measured(step_s=1e-6, act_s={1: 0.01, 8: 0.0101})
    assert chosen(acts, num_cores=8) == (0, 8, "barrier")
    assert chosen(acts, num_cores=8, overlap=True) == (1, 8, "barrier")


def test_without_a_gain_there_are_no_workers():
    # 10 ms inline and 5.0025 ms + 0.025 ms a step with two; started in 1 s. Over n steps that is
    # 10 n against 1 s + 5.0275 n: two seconds less from n = 604 on.
    task = {"num_envs": 2, "num_steps": 10, "num_cores": 2}
    assert chosen(TEN_MS, **task, num_left=595) == (0, 2, "barrier")
    assert chosen(TEN_MS, **task, num_left=612) == (2, 1, "barrier")
    # Acting for two takes nearly all of the time, and twice that of one: 12 ms a row against
    # 11.005 and 0.05, which saves seconds in the end, but is only 1.09 times as fast.
    acts = Measured(step_s=0.001, act_s={1: 0.01, 2: 0.01})
    assert chosen(acts, **task, num_left=100_000) == (0, 2, "barrier")


def test_another_schedule_only_where_waiting_is_the_reason():
    varying = Measured(step_s=0.01, step_sd_s=0.03, busy_share=0.01)
    # Of one step each: the slowest of eight takes 1.42 · 30 ms longer than the mean of 10.
    assert chosen(varying, num_steps=1, uneven="async") == (8, 1, "async")
    # Sums of 1,000 steps differ by 1.42 · 0.95 s of 10 s.
    assert chosen(varying, num_steps=1000) == (8, 1, "barrier")
    # Of 10: 1.42 · 95 ms of 100 ms and more; `variable` waits for the last row.
    assert chosen(varying, num_steps=10) == (8, 1, "variable")
    # Nobody asked for another one.
    assert chosen(WAITING, num_steps=1, uneven="async") == (8, 1, "barrier")
    # Cheap steps, whose cost is waking each other: no reason for another schedule.
    cheap = Measured(step_s=1e-5)
    assert chosen(cheap, num_steps=1, num_cores=8, uneven="async") == (0, 8, "barrier")


def test_what_the_user_has_set_stays():
    varying = Measured(step_s=0.01, step_sd_s=0.03, busy_share=0.01)
    assert chosen(varying, schedule="variable")[2] == "variable"
    assert chosen(varying, schedule="async", uneven="async")[2] == "async"
    # These need workers, though none would be faster.
    cheap = Measured(step_s=1e-6)
    for options in ({"overlap": True}, {"schedule": "variable"}, {"schedule": "async"}):
        assert chosen(cheap, **options, num_left=100)[0] == 1


def test_fragments_of_async_last_for_a_pause_of_the_learner():
    varying = Measured(step_s=0.001, step_sd_s=0.003, busy_share=0.001)
    task = Task(num_envs=8, num_steps=1, num_cores=2, uneven="async")
    # 1.005 ms a row: 50 of them in 0.05 s, so 64.
    assert choose(varying, task).fragment_steps == 64
    assert choose(WAITING, task).fragment_steps is None
    # Who has set `async` has set its fragments too.
    task = Task(num_envs=8, num_steps=64, num_cores=2, schedule="async", uneven="async")
    assert choose(varying, task).fragment_steps is None


def test_vector_environments_keep_their_size():
    four = Measured(step_s=0.01, steps_together=4, busy_share=0.01)
    assert chosen(four) == (2, 4, "barrier")
    eight = Measured(step_s=0.01, steps_together=8)
    assert chosen(eight) == (0, 8, "barrier")
    assert chosen(eight, overlap=True) == (1, 8, "barrier")


def test_a_choice_is_told_in_one_line():
    measured = Measured(step_s=0.01, step_p99_s=0.0125, busy_share=0.01, act_s={1: 6e-6})
    assert choose(measured, Task(num_envs=4, num_steps=10, num_cores=2)).summary() == (
        "4 × 1 environments, barrier (auto): 397 steps/s of collecting forecast, 100 without "
        "workers; a step takes 10 ms (sd 0 µs, p99 12.5 ms, 1% of it computing), acting for one "
        "6 µs"
    )
    none = choose(TEN_MS, Task(num_envs=2, num_steps=10, num_cores=2, num_left=20))
    assert none.summary().startswith(
        "none, the learner's process steps all environments (auto): 100 steps/s of collecting "
        "forecast, 199 with 2, which would take 1.0 s to start; "
    )


# --- what is measured ----------------------------------------------------------------------------


class Clock:
    """Stands in for the module `time`: only environments, and looking at it, let time pass."""

    now_s = busy_s = 0.0

    def perf_counter(self):
        self.now_s += 1e-6
        return self.now_s

    def process_time(self):
        return self.busy_s

    def advance(self, seconds, *, computes=False):
        self.now_s += seconds
        self.busy_s += seconds * computes


@pytest.fixture
def clock(monkeypatch):
    def no_file(path):
        raise OSError

    clock = Clock()
    monkeypatch.setattr(probe, "time", clock)
    monkeypatch.setattr(probe, "Path", no_file)  # of the time that this process waits for a core
    monkeypatch.setattr(Paced, "clock", clock)
    return clock


class Paced(toy_envs.ConstantReward):
    """Each step takes 2 ms, each reset 20, by sleeping or by computing."""

    clock = Clock()

    def __init__(self, computes=False, length=5):
        super().__init__(length=length)
        self.computes = computes

    def pass_time(self, seconds):
        self.clock.advance(seconds, computes=self.computes)

    def reset(self, **options):
        self.pass_time(0.02)
        return super().reset(**options)

    def step(self, action):
        self.pass_time(0.002)
        return super().step(action)


@pytest.fixture
def short(monkeypatch):
    """Less time than a user has."""
    monkeypatch.setattr(probe, "_ENOUGH_S", 0.3)
    monkeypatch.setattr(probe, "_LONG_S", 0.5)


def measure(env, num_envs=4, **options):
    return probe.measure(env, actor_critic, num_envs=num_envs, **options)


def test_what_only_the_first_environment_takes_is_told_apart(clock):
    class Heavy(toy_envs.ConstantReward):
        is_first = True

        def __init__(self):
            super().__init__()
            clock.advance(0.3 if Heavy.is_first else 0.03)
            Heavy.is_first = False

    measured = measure(Heavy, num_envs=1)
    assert measured.make_s == pytest.approx(0.03, rel=0.01)
    assert measured.import_s == pytest.approx(0.27, rel=0.01)


@pytest.mark.parametrize("computes", [False, True])
def test_times_of_an_environment(computes, clock):
    measured = measure(Paced, env_kwargs={"computes": computes})
    assert clock.now_s < 4
    assert measured.step_s == pytest.approx(0.002, rel=0.01)
    assert measured.reset_s == pytest.approx(0.02, rel=0.01)
    assert measured.reset_share == pytest.approx(0.2, abs=0.02)
    assert measured.busy_share == pytest.approx(float(computes), abs=0.01)
    assert set(measured.act_s) == {1, 2, 4}
    assert all(seconds == pytest.approx(1e-6) for seconds in measured.act_s.values())
    assert 0 < measured.copy_s < 1e-5
    assert measured.num_steps >= 20
    assert measured.steps_together is None


def test_computing_is_seen_by_the_real_clock(short):
    """Also where others take the core in between: waiting for one is computing."""

    class Computes(Paced):
        def pass_time(self, seconds):
            until = time.thread_time() + seconds
            while time.thread_time() < until:
                pass

    measured = measure(Computes, num_envs=1)
    assert measured.step_s >= 0.002
    assert measured.busy_share > 0.6


def test_resets_that_are_not_seen_come_with_the_time_limit(clock):
    env = partial(gymnasium.wrappers.TimeLimit, Paced(length=10**9), 10**6)
    measured = measure(env, num_envs=1)
    assert measured.reset_share == 1e-6
    assert measured.reset_s == pytest.approx(0.02, rel=0.01)
    assert measure(partial(Paced, length=10**9), num_envs=1).reset_share == 0.0


def test_a_group_of_cheap_environments_shares_its_loop(short):
    measured = measure("CartPole-v1", num_envs=8)
    assert measured.step_s > 0
    assert measured.loop_s >= 0
    assert measured.reset_share == pytest.approx(1 / 22, rel=0.3)  # of a random policy


def test_a_short_run_is_not_looked_at_for_long(clock):
    """Not longer than a small part of what collecting it takes."""
    long, short = (measure(Paced, num_left=n).num_steps for n in (10**7, 100))
    assert 10 <= short < long / 2


def test_vector_environments_are_stepped_as_they_are(clock):
    measured = measure(partial(gymnasium.vector.SyncVectorEnv, [Paced] * 3), num_envs=3)
    assert measured.steps_together == 3
    # 6 ms of steps and 12 of resets in a row of three (next-step autoreset: every sixth call).
    assert 0.002 < measured.step_s < 0.008


def test_an_environment_that_fails_now_and_then_is_made_anew(clock):
    class FailsOnce(Paced):
        has_failed = False

        def step(self, action):
            if self.count == 3 and not FailsOnce.has_failed:
                FailsOnce.has_failed = True
                raise RuntimeError("the simulator diverged")
            return super().step(action)

    assert measure(FailsOnce, num_envs=1).num_steps > 20
    assert FailsOnce.has_failed


def test_an_environment_that_always_fails_is_told_of():
    with pytest.raises(EnvironmentFailure, match="the simulator diverged"):
        measure(partial(toy_envs.Misbehaves, "raises", at=1))


# --- runs ----------------------------------------------------------------------------------------

SMALL = {
    "env_id": "CartPole-v1",
    "num_envs": 4,
    "num_steps": 32,
    "num_minibatches": 2,
    "update_epochs": 2,
    "total_timesteps": 1024,
    "checkpoint_interval": 256,
    "execution": "eager",
}


@pytest.fixture
def two_workers(monkeypatch):
    """What is measured makes two workers the best; counts how often it was."""
    calls = []

    def measured(*args, **options):
        calls.append(options)
        return WAITING

    monkeypatch.setattr(probe, "measure", measured)
    monkeypatch.setattr(probe, "available_memory", lambda: 4 * probe._WORKER_BYTES)
    return calls


def params_of(run_dir):
    return RunDirectory.open(run_dir).checkpoints.load().snapshot.params


def test_a_resumed_run_keeps_what_was_chosen(tmp_path, mark, two_workers):
    def config(name, **options):
        return ppo.Config(**{**SMALL, "run_dir": str(tmp_path / name), **options})

    def stop_at_512(report):
        return report.timesteps >= 512

    told = []
    auto = config("auto", workers="auto")
    ppo.train(auto, on_report=lambda report: told.append(report.workers) or stop_at_512(report))
    assert told[0].startswith("2 × 2 environments, barrier (auto): ")
    stored = json.loads((tmp_path / "auto" / "config.json").read_text())
    assert (stored["config"]["workers"], stored["config"]["num_envs"]) == (2, 4)
    assert stored["auto"]["asked"] == {"workers": "auto", "schedule": "barrier"}
    assert stored["auto"]["chosen"] == {"workers": 2, "schedule": "barrier"}
    assert stored["auto"]["measured"]["step_s"] == 0.01

    result = ppo.train(auto, resume_from=tmp_path / "auto", on_report=told.append)
    assert told[-1].workers == told[0]
    assert len(two_workers) == 1  # measured once
    assert len(result.accounting["workers"]) == 2

    ppo.train(config("whole", workers=2))
    for name, array in params_of(tmp_path / "whole").items():
        np.testing.assert_array_equal(array, params_of(tmp_path / "auto")[name], name)

    # The number may be given as well, but no other.
    ppo.train(config("auto", workers=2, total_timesteps=1100), resume_from=tmp_path / "auto")
    with pytest.raises(ConfigError, match="workers: 2 → 4"):
        ppo.train(config("auto", workers=4, total_timesteps=1300), resume_from=tmp_path / "auto")
    with pytest.raises(ConfigError, match="workers: 2 → auto"):
        ppo.train(
            config("auto", workers="auto", schedule="variable", total_timesteps=1300),
            resume_from=tmp_path / "auto",
        )


def test_a_run_that_was_given_a_number_is_not_resumed_with_auto(tmp_path):
    config = ppo.Config(**SMALL, run_dir=str(tmp_path / "run"))
    ppo.train(config, on_report=lambda report: report.timesteps >= 512)
    auto = ppo.Config(**SMALL, run_dir=str(tmp_path / "run"), workers="auto")
    with pytest.raises(ConfigError, match="workers: 0 → auto"):
        ppo.train(auto, resume_from=tmp_path / "run")


def test_inline_needs_no_probe(tmp_path, two_workers):
    run_dir = tmp_path / "run"
    config = ppo.Config(**SMALL, run_dir=str(run_dir), workers="auto", backend="inline")
    result = ppo.train(config)
    assert not two_workers
    assert RunDirectory.open(run_dir).config["config"]["workers"] == 0
    assert result.accounting["collected"] == result.accounting["trained"] == 1024


def test_an_algorithm_with_replay_is_measured_with_its_own_network(tmp_path, monkeypatch, mark):
    networks = []

    def measured(env, make_network, **options):
        networks.append(make_network(make_vec(env, 1)))
        return Measured(step_s=1.0, step_sd_s=3.0, busy_share=0.01)

    monkeypatch.setattr(probe, "measure", measured)
    monkeypatch.setattr(probe, "available_memory", lambda: 4 * probe._WORKER_BYTES)
    config = sac.Config(
        env_id="Pendulum-v1",
        num_envs=2,
        workers="auto",
        total_timesteps=200,
        learning_starts=100,
        batch_size=8,
        hidden_sizes=(8,),
        execution="eager",
        run_dir=str(tmp_path / "run"),
    )
    result = sac.train(config)
    assert networks[0].body.hidden_sizes == (8,)
    assert networks[0].head == "squashed_gaussian"
    stored = RunDirectory.open(tmp_path / "run").config["config"]
    assert (stored["workers"], stored["schedule"], stored["fragment_steps"]) == (2, "async", 8)
    line = RunDirectory.open(tmp_path / "run").metrics()[-1]
    assert 0 <= line["policy_age_mean"] <= line["policy_age_max"] <= 1000
    accounting = result.accounting
    assert accounting["collected"] == (
        accounting["trained"] + sum(accounting["dropped"].values()) + accounting["in_flight"]
    )
    # At the end nothing is in flight: what was, is dropped.
    told = json.loads((tmp_path / "run" / "accounting.json").read_text())
    assert told["in_flight"] == 0
    assert told["trained"] == accounting["trained"] == result.timesteps
    assert told["collected"] == told["trained"] + sum(told["dropped"].values())
    assert told["forecast_per_s"] > 0
    assert told["collected_per_s"] > 0


def test_ppo_is_measured_with_the_users_network(tmp_path, monkeypatch):
    networks = []

    def measured(env, make_network, **options):
        networks.append(make_network(make_vec(env, 1)))
        return TEN_MS

    monkeypatch.setattr(probe, "measure", measured)
    config = ppo.Config(**SMALL, workers="auto", run_dir=str(tmp_path / "run"))
    ppo.train(config, network=nets.Net, on_report=lambda report: True)
    assert networks[0].to_json()["body"]["name"] == "tests.policies.nets:Net"


def test_ppo_weighs_what_a_chosen_schedule_gives(tmp_path, monkeypatch, mark):
    varying = Measured(step_s=1.0, step_sd_s=9.0, busy_share=0.01)
    monkeypatch.setattr(probe, "measure", lambda *args, **options: varying)
    monkeypatch.setattr(probe, "available_memory", lambda: 4 * probe._WORKER_BYTES)
    weighed = []
    monkeypatch.setattr(
        on_policy, "environment_weights", lambda x: weighed.append(len(x)) or environment_weights(x)
    )
    config = ppo.Config(**SMALL, workers="auto", run_dir=str(tmp_path / "run"))
    ppo.train(config, on_report=lambda report: report.timesteps >= 256)
    run = RunDirectory.open(tmp_path / "run")
    assert run.config["config"]["schedule"] == "variable"
    assert weighed == [2, 2]
    assert "policy_age_max" in run.metrics()[-1]


def test_the_model_is_kept_as_json():
    kept = json.loads(json.dumps(model.to_json(choose(WAITING, Task(num_envs=4, num_steps=10)))))
    assert kept["taken"]["workers"] == 4
    assert kept["forecast_steps_per_s"] == kept["taken"]["steps_per_s"]
    assert [one["workers"] for one in kept["candidates"]] == [1, 2, 4, 0]
