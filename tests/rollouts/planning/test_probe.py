"""`workers` 'auto': forecasts computed by hand, measurements, and the stored choice."""

import json
import math
import time
from functools import partial
from typing import ClassVar

import gymnasium
import numpy as np
import pytest

from hotloop.algorithms import ppo, sac
from hotloop.envs import EnvSpec, make_vec
from hotloop.errors import ConfigError, EnvironmentFailure
from hotloop.policies import actor_critic
from hotloop.policies.heads import SquashedGaussian
from hotloop.rollouts import environment_weights
from hotloop.rollouts.planning import probe
from hotloop.rollouts.planning.forecast import (
    CollectionTask,
    EnvTiming,
    choose_collection,
    expected_maximum,
    forecast,
)
from hotloop.runs import RunDirectory
from hotloop.training import on_policy
from tests import toy_envs
from tests.attempts import attempts
from tests.policies import nets

TEN_MS = EnvTiming(step_s=0.01)
WAITING = EnvTiming(step_s=0.01, busy_share=0.01)
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
def test_the_expected_maximum_of_normal_variables(count, expected, monkeypatch):
    monkeypatch.delattr(np, "trapezoid", raising=False)  # NumPy 1 has none
    assert expected_maximum(count) == pytest.approx(expected, abs=1e-5)


def rate(measured, workers, schedule="barrier", **task):
    task = CollectionTask(**{"num_envs": 4, "num_steps": 10, "num_cores": 4, **task})
    return forecast(measured, task, workers, schedule).steps_per_s


def test_inline_steps_one_environment_after_another():
    assert rate(TEN_MS, 0) == pytest.approx(100)
    # A reset of 1 s in every hundredth step: 20 ms on average.
    assert rate(EnvTiming(step_s=0.01, reset_s=1.0, reset_share=0.01), 0) == pytest.approx(50)
    # 5 ms for a group, and 5 ms for acting: 50 ms for four.
    grouped = EnvTiming(step_s=0.01, loop_s=0.005, act_s={1: 0.002, 4: 0.005})
    assert rate(grouped, 0) == pytest.approx(80)


def test_acting_times_are_interpolated_linearly():
    measured = EnvTiming(step_s=1.0, act_s={1: 1.0, 2: 2.0, 4: 3.0})
    assert [measured.acting_s(n) for n in (1, 2, 3, 4)] == [1.0, 2.0, 2.5, 3.0]


def test_workers_step_side_by_side_and_pay_for_each_fragment():
    # Ten rows of 10.005 ms, 0.4 ms for the fragment, four times 0.05 ms: 100.65 ms for 40 steps.
    assert rate(TEN_MS, 4) == pytest.approx(40 / 0.10065)
    # Two environments each: ten rows of 20.005 ms, 0.4 and 0.1 ms.
    assert rate(TEN_MS, 2) == pytest.approx(40 / 0.20055)
    # Copying takes 1 ms each: 40 ms more.
    assert rate(EnvTiming(step_s=0.01, copy_s=0.001), 4) == pytest.approx(40 / 0.14065)


def test_the_slowest_worker_is_waited_for():
    uneven = EnvTiming(step_s=0.01, step_sd_s=0.003)
    # A worker's ten steps vary by 3 ms √10, a row by 3 ms.
    wait_s = MAX_OF_4 * 0.003 * math.sqrt(10)
    assert rate(uneven, 4) == pytest.approx(40 / (0.10065 + wait_s), rel=1e-5)
    assert rate(uneven, 4, "variable") == pytest.approx(40 / (0.10065 + MAX_OF_4 * 0.003), rel=1e-5)
    assert rate(uneven, 4, "async") == pytest.approx(40 / (10 * 4 * 0.010005 / 3), rel=1e-5)
    forecasted = forecast(
        uneven, CollectionTask(num_envs=4, num_steps=10, num_cores=4), 4, "barrier"
    )
    assert forecasted.wait_share == pytest.approx(wait_s / (0.10065 + wait_s), rel=1e-5)


def test_resets_vary_too():
    # p (1 − p) 1 s² with p = 0.01, and 0.02² of the steps.
    measured = EnvTiming(step_s=0.01, step_sd_s=0.02, reset_s=1.0, reset_share=0.01)
    assert measured.sd_s == pytest.approx(math.sqrt(0.0004 + 0.0099))


def test_cores_limit_computing_and_not_waiting():
    # Four workers on two cores: 20.01 ms a row; on one, as the learner has the other: 40.02.
    assert rate(TEN_MS, 4, num_cores=2) == pytest.approx(40 / (0.2001 + 0.0006))
    assert rate(TEN_MS, 4, num_cores=2, overlap=True) == pytest.approx(40 / (0.4002 + 0.0006))
    assert rate(TEN_MS, 4, num_cores=1, overlap=True) == pytest.approx(40 / (0.4002 + 0.0006))
    # 0.1 of 10 ms is computing.
    half = EnvTiming(step_s=0.01, busy_share=0.1)
    assert rate(half, 4, num_cores=2) == pytest.approx(40 / 0.10065)


def test_starting_is_counted():
    task = CollectionTask(num_envs=4, num_steps=10, num_cores=2, num_remaining=1000)
    measured = EnvTiming(step_s=0.01, make_s=0.25)
    assert forecast(measured, task, 0, "barrier").total_s == pytest.approx(1.0 + 10.0)
    # The first worker, then three in two turns: three times 0.5 and 0.25 s.
    with_workers = forecast(measured, task, 4, "barrier")
    assert with_workers.start_s == pytest.approx(2.25)
    assert with_workers.total_s == pytest.approx(2.25 + 1000 / with_workers.steps_per_s)
    # Importing an environment's modules takes a second in each turn. This process has done it.
    measured = EnvTiming(step_s=0.01, make_s=0.25, import_s=1.0)
    assert forecast(measured, task, 0, "barrier").start_s == pytest.approx(1.0)
    assert forecast(measured, task, 4, "barrier").start_s == pytest.approx(5.25)


# --- the choice ----------------------------------------------------------------------------------


def choose(measured, **task):
    task = {"num_envs": 8, "num_steps": 10, "num_cores": 2, **task}
    choice = choose_collection(measured, CollectionTask(**task)).chosen
    return choice.workers, choice.envs_per_worker, choice.schedule


def test_computing_environments_get_no_more_workers_than_cores():
    assert choose(TEN_MS) == (2, 4, "barrier")
    assert choose(TEN_MS, num_cores=8) == (8, 1, "barrier")
    assert choose(TEN_MS, num_envs=9) == (0, 9, "barrier")  # only one worker divides 9 so
    # An environment that computes on two cores by itself.
    assert choose(EnvTiming(step_s=0.01, busy_share=2.0)) == (0, 8, "barrier")


def test_waiting_environments_get_one_worker_each():
    assert choose(WAITING) == (8, 1, "barrier")
    assert choose(WAITING, max_workers=7) == (4, 2, "barrier")
    # 2 / 0.4 = 5 workers at most.
    assert choose(EnvTiming(step_s=0.01, busy_share=0.4)) == (4, 2, "barrier")


def test_the_fewest_workers_of_equal_speed_are_chosen():
    # Acting for a group takes all of the time: eight workers on eight cores hardly help.
    acts = EnvTiming(step_s=1e-6, act_s={1: 0.01, 8: 0.0101})
    assert choose(acts, num_cores=8) == (0, 8, "barrier")
    assert choose(acts, num_cores=8, overlap=True) == (1, 8, "barrier")


def test_without_a_gain_no_workers_are_chosen():
    # 10 ms inline and 5.0025 ms + 0.025 ms a step with two; started in 1 s. Over n steps that is
    # 10 n against 1 s + 5.0275 n: two seconds less from n = 604 on.
    task = {"num_envs": 2, "num_steps": 10, "num_cores": 2}
    assert choose(TEN_MS, **task, num_remaining=595) == (0, 2, "barrier")
    assert choose(TEN_MS, **task, num_remaining=612) == (2, 1, "barrier")
    # Acting for two takes nearly all of the time, and twice that of one: 12 ms a row against
    # 11.005 and 0.05, which saves seconds in the end, but is only 1.09 times as fast.
    acts = EnvTiming(step_s=0.001, act_s={1: 0.01, 2: 0.01})
    assert choose(acts, **task, num_remaining=100_000) == (0, 2, "barrier")


def test_another_schedule_is_chosen_only_to_avoid_waiting():
    varying = EnvTiming(step_s=0.01, step_sd_s=0.03, busy_share=0.01)
    # One step each: the slowest of eight takes 1.42 · 30 ms longer than the mean of 10.
    assert choose(varying, num_steps=1, nonblocking_schedule="async") == (8, 1, "async")
    # Sums of 1,000 steps differ by 1.42 · 0.95 s of 10 s.
    assert choose(varying, num_steps=1000) == (8, 1, "barrier")
    # Sums of 10 steps: 1.42 · 95 ms of 100 ms and more. `variable` waits for the last row.
    assert choose(varying, num_steps=10) == (8, 1, "variable")
    # No need for another schedule.
    assert choose(WAITING, num_steps=1, nonblocking_schedule="async") == (8, 1, "barrier")
    # Cheap steps spend their time on wake-ups, which is no reason for another schedule.
    cheap = EnvTiming(step_s=1e-5)
    assert choose(cheap, num_steps=1, num_cores=8, nonblocking_schedule="async") == (
        0,
        8,
        "barrier",
    )


def test_options_set_by_the_user_stay():
    varying = EnvTiming(step_s=0.01, step_sd_s=0.03, busy_share=0.01)
    assert choose(varying, schedule="variable")[2] == "variable"
    assert choose(varying, schedule="async", nonblocking_schedule="async")[2] == "async"
    # These options need workers, even if none would be faster.
    cheap = EnvTiming(step_s=1e-6)
    for options in ({"overlap": True}, {"schedule": "variable"}, {"schedule": "async"}):
        assert choose(cheap, **options, num_remaining=100)[0] == 1


def test_async_fragments_cover_a_pause_of_the_learner():
    varying = EnvTiming(step_s=0.001, step_sd_s=0.003, busy_share=0.001)
    task = CollectionTask(num_envs=8, num_steps=1, num_cores=2, nonblocking_schedule="async")
    # 1.005 ms a row: 50 of them in 0.05 s, so 64.
    assert choose_collection(varying, task).fragment_steps == 64
    assert choose_collection(WAITING, task).fragment_steps is None
    # A user who has set `async` has set its fragments too.
    task = CollectionTask(
        num_envs=8, num_steps=64, num_cores=2, schedule="async", nonblocking_schedule="async"
    )
    assert choose_collection(varying, task).fragment_steps is None


def test_vector_environments_keep_their_size():
    four = EnvTiming(step_s=0.01, steps_together=4, busy_share=0.01)
    assert choose(four) == (2, 4, "barrier")
    eight = EnvTiming(step_s=0.01, steps_together=8)
    assert choose(eight) == (0, 8, "barrier")
    assert choose(eight, overlap=True) == (1, 8, "barrier")


def test_a_choice_is_summarized_in_one_line():
    measured = EnvTiming(step_s=0.01, step_p99_s=0.0125, busy_share=0.01, act_s={1: 6e-6})
    assert choose_collection(
        measured, CollectionTask(num_envs=4, num_steps=10, num_cores=2)
    ).summary() == (
        "4 × 1 environments, barrier (auto): forecast 397 steps/s, 100 without workers; a step "
        "takes 10.0 ms (sd 0 ns, p99 12.5 ms, 1% computing), acting for one environment 6.00 µs"
    )
    no_workers = choose_collection(
        TEN_MS, CollectionTask(num_envs=2, num_steps=10, num_cores=2, num_remaining=20)
    )
    assert no_workers.summary().startswith(
        "none, the learner's process steps all environments (auto): forecast 100 steps/s, 199 "
        "with 2, which take 1.0 s to start; "
    )


# --- measurements -------------------------------------------------------------------------------


class Clock:
    """A stand-in for the module `time`: environments and reading it let time pass."""

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
    clock = Clock()
    monkeypatch.setattr(probe, "time", clock)
    # This process waits for no core.
    monkeypatch.setattr(probe.ThreadTimes, "read", lambda self, thread: None)
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
def short_measurement(monkeypatch):
    """Shorten the measurement."""
    monkeypatch.setattr(probe, "_TARGET_S", 0.3)
    monkeypatch.setattr(probe, "_EXTENDED_S", 0.5)


def measure(env, num_envs=4, env_kwargs=None, **options):
    spec = EnvSpec(env, env_kwargs or {})
    return probe.measure(spec, actor_critic, num_envs=num_envs, **options)


def test_import_time_is_separated_from_construction_time(clock):
    class Heavy(toy_envs.ConstantReward):
        is_first = True

        def __init__(self):
            super().__init__()
            clock.advance(0.3 if Heavy.is_first else 0.03)
            Heavy.is_first = False

    measured = measure(Heavy, num_envs=1)
    assert measured.make_s == pytest.approx(0.03, rel=0.01)
    assert measured.import_s == pytest.approx(0.27, rel=0.01)


def test_the_first_environment_is_closed_if_the_second_fails(clock):
    class Single(toy_envs.ConstantReward):
        events: ClassVar = []

        def __init__(self):
            if Single.events:
                raise OSError("the simulator runs already")
            super().__init__()
            clock.advance(0.3)
            Single.events.append("made")

        def close(self):
            Single.events.append("closed")

    with pytest.raises(EnvironmentFailure, match="the simulator runs already"):
        measure(Single, num_envs=1)
    assert Single.events == ["made", "closed"]


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


def test_the_real_clock_measures_computing(short_measurement):
    """Waiting for a core that other processes use counts as computing."""

    class Computes(Paced):
        def pass_time(self, seconds):
            until = time.thread_time() + seconds
            while time.thread_time() < until:
                pass

    for measured, attempt in attempts(lambda _: measure(Computes, num_envs=1)):
        assert measured.step_s >= 0.002
        with attempt:
            assert measured.busy_share > 0.6


def test_unobserved_resets_are_estimated_from_the_time_limit(clock):
    env = partial(gymnasium.wrappers.TimeLimit, Paced(length=10**9), 10**6)
    measured = measure(env, num_envs=1)
    assert measured.reset_share == 1e-6
    assert measured.reset_s == pytest.approx(0.02, rel=0.01)
    assert measure(partial(Paced, length=10**9), num_envs=1).reset_share == 0.0


def test_a_group_of_cheap_environments_shares_its_loop(short_measurement):
    for measured, attempt in attempts(lambda _: measure("CartPole-v1", num_envs=8)):
        assert measured.step_s > 0
        assert measured.loop_s >= 0
        with attempt:
            assert measured.reset_share == pytest.approx(1 / 22, rel=0.3)  # of a random policy


def test_a_short_run_is_measured_briefly(clock):
    """Measuring takes at most a small part of the time to collect the run."""
    long, short = (measure(Paced, num_remaining=n).num_steps for n in (10**7, 100))
    assert 10 <= short < long / 2


def test_vector_environments_are_stepped_as_they_are(clock):
    measured = measure(partial(gymnasium.vector.SyncVectorEnv, [Paced] * 3), num_envs=3)
    assert measured.steps_together == 3
    # 6 ms of steps and 12 of resets in a row of three (next-step autoreset: every sixth call).
    assert 0.002 < measured.step_s < 0.008


def test_an_environment_that_fails_once_is_created_again(clock):
    class FailsOnce(Paced):
        has_failed = False

        def step(self, action):
            if self.count == 3 and not FailsOnce.has_failed:
                FailsOnce.has_failed = True
                raise RuntimeError("the simulator diverged")
            return super().step(action)

    assert measure(FailsOnce, num_envs=1).num_steps > 20
    assert FailsOnce.has_failed


def test_an_environment_that_always_fails_is_reported():
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
    """Return the calls of `measure`, which is replaced so that two workers are the best choice."""
    calls = []

    def measure(*args, **options):
        calls.append(options)
        return WAITING

    monkeypatch.setattr(probe, "measure", measure)
    monkeypatch.setattr(probe, "available_memory", lambda: 4 * probe._WORKER_BYTES)
    return calls


def load_params(run_dir):
    return RunDirectory.open(run_dir).checkpoints.load().snapshot.params


def test_a_resumed_run_keeps_the_choice(tmp_path, mark, two_workers):
    def config(name, **options):
        return ppo.Config(**{**SMALL, "run_dir": str(tmp_path / name), **options})

    def stop_at_512(report):
        return report.timesteps >= 512

    reports = []
    auto = config("auto", workers="auto")
    ppo.train(auto, on_report=lambda report: reports.append(report.workers) or stop_at_512(report))
    assert reports[0].startswith("2 × 2 environments, barrier (auto): ")
    stored = json.loads((tmp_path / "auto" / "config.json").read_text())
    assert (stored["config"]["workers"], stored["config"]["num_envs"]) == (2, 4)
    assert stored["auto"]["asked"] == {"workers": "auto", "schedule": "barrier"}
    assert stored["auto"]["chosen"] == {"workers": 2, "schedule": "barrier"}
    assert stored["auto"]["measured"]["step_s"] == 0.01

    result = ppo.train(auto, resume_from=tmp_path / "auto", on_report=reports.append)
    assert reports[-1].workers == reports[0]
    assert len(two_workers) == 1  # measured once
    assert len(result.accounting["workers"]) == 2

    ppo.train(config("whole", workers=2))
    for name, array in load_params(tmp_path / "whole").items():
        np.testing.assert_array_equal(array, load_params(tmp_path / "auto")[name], name)

    # The chosen number may be set explicitly, but no other.
    ppo.train(config("auto", workers=2, total_timesteps=1100), resume_from=tmp_path / "auto")
    with pytest.raises(ConfigError, match="workers: 2 → 4"):
        ppo.train(config("auto", workers=4, total_timesteps=1300), resume_from=tmp_path / "auto")
    with pytest.raises(ConfigError, match="workers: 2 → auto"):
        ppo.train(
            config("auto", workers="auto", schedule="variable", total_timesteps=1300),
            resume_from=tmp_path / "auto",
        )


def test_a_run_with_a_fixed_number_is_not_resumed_with_auto(tmp_path):
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

    def measure(env, make_network, **options):
        networks.append(make_network(make_vec(env, 1)))
        return EnvTiming(step_s=1.0, step_sd_s=3.0, busy_share=0.01)

    monkeypatch.setattr(probe, "measure", measure)
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
    assert networks[0].hidden_sizes == (8,)
    assert networks[0].head == SquashedGaussian()
    stored = RunDirectory.open(tmp_path / "run").config["config"]
    assert (stored["workers"], stored["schedule"], stored["fragment_steps"]) == (2, "async", 8)
    line = RunDirectory.open(tmp_path / "run").metrics()[-1]
    assert 0 <= line["policy_age_mean"] <= line["policy_age_max"] <= 1000
    accounting = result.accounting
    assert accounting["collected"] == (
        accounting["trained"] + sum(accounting["dropped"].values()) + accounting["in_flight"]
    )
    # The end drops all rows in flight.
    stored_accounting = json.loads((tmp_path / "run" / "accounting.json").read_text())
    assert stored_accounting["in_flight"] == 0
    assert stored_accounting["trained"] == accounting["trained"] == result.timesteps
    assert stored_accounting["collected"] == stored_accounting["trained"] + sum(
        stored_accounting["dropped"].values()
    )
    assert stored_accounting["forecast_per_s"] > 0
    assert stored_accounting["collected_per_s"] > 0


def test_ppo_is_measured_with_the_users_network(tmp_path, monkeypatch):
    networks = []

    def measure(env, make_network, **options):
        networks.append(make_network(make_vec(env, 1)))
        return TEN_MS

    monkeypatch.setattr(probe, "measure", measure)
    config = ppo.Config(**SMALL, workers="auto", run_dir=str(tmp_path / "run"))
    ppo.train(config, network=nets.Net, on_report=lambda report: True)
    assert networks[0].to_json()["body"]["name"] == "tests.policies.nets:Net"


def test_ppo_weighs_fragments_of_a_chosen_schedule(tmp_path, monkeypatch, mark):
    varying = EnvTiming(step_s=1.0, step_sd_s=9.0, busy_share=0.01)
    monkeypatch.setattr(probe, "measure", lambda *args, **options: varying)
    monkeypatch.setattr(probe, "available_memory", lambda: 4 * probe._WORKER_BYTES)
    fragment_counts = []
    monkeypatch.setattr(
        on_policy,
        "environment_weights",
        lambda x: fragment_counts.append(len(x)) or environment_weights(x),
    )
    config = ppo.Config(**SMALL, workers="auto", run_dir=str(tmp_path / "run"))
    ppo.train(config, on_report=lambda report: report.timesteps >= 256)
    run = RunDirectory.open(tmp_path / "run")
    assert run.config["config"]["schedule"] == "variable"
    assert fragment_counts == [2, 2]
    assert "policy_age_max" in run.metrics()[-1]


def test_the_choice_is_stored_as_json():
    stored = json.loads(
        json.dumps(choose_collection(WAITING, CollectionTask(num_envs=4, num_steps=10)).to_json())
    )
    assert stored["taken"]["workers"] == 4
    assert stored["forecast_steps_per_s"] == stored["taken"]["steps_per_s"]
    assert [candidate["workers"] for candidate in stored["candidates"]] == [1, 2, 4, 0]
