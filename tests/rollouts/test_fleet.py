"""The same accounting, warnings, errors and fragments on every transport, after every fault."""

import contextlib
import os
import re
import signal
import threading
import time
from functools import partial
from itertools import product
from pathlib import Path
from typing import NamedTuple

import pytest
from threadpoolctl import threadpool_limits

from hotloop.errors import (
    ConfigError,
    EnvironmentFailure,
    HotloopError,
    MissingExtraError,
    SpaceError,
    UnknownNameError,
)
from hotloop.policies import EpsilonGreedy, GaussianNoise, actor, actor_critic
from hotloop.policies.heads import Deterministic, Greedy, SquashedGaussian
from tests import worker_envs
from tests.attempts import attempted, attempts
from tests.rollouts import threads_transport
from tests.rollouts.conftest import marked_children
from tests.rollouts.processes.pools import (
    SCRIPTED,
    assert_adds_up,
    assert_same_fragments,
    assert_same_states,
    begin,
    make_inline,
    open_pool,
    play,
    snapshot_of,
    wait_until,
)
from tests.worker_envs import count_calls

SCHEDULES = {
    "barrier": {},
    "lag:1": {"overlap": True},
    "variable": {"schedule": "variable"},
    "async": {"schedule": "async", "max_policy_age": 2},
    "async in fragments": {"schedule": "async", "in_fragments": True, "max_policy_age": 2},
}
ON_RAY = (pytest.mark.outside, pytest.mark.xdist_group("ray"))
WORKERS = ["processes", pytest.param("ray", marks=ON_RAY)]

pytestmark = pytest.mark.filterwarnings("ignore:.*similar failures are only counted:RuntimeWarning")


@contextlib.contextmanager
def prepare(request, transport):
    """Start what the workers of a transport need, and check that none remains."""
    with pytest.MonkeyPatch.context() as patch:
        if transport == "ray":
            request.getfixturevalue("cluster")
            # Notice a stopped actor soon.
            patch.setattr("hotloop.rollouts.ray.transport._SILENT_S", 0.5)
            with threadpool_limits(1, user_api="blas"):
                yield transport
        else:
            with marked_children(patch, request.getfixturevalue("warm_start")):
                yield transport


@pytest.fixture
def transport(request):
    with prepare(request, request.param) as name:
        yield name


def over(*transports):
    return pytest.mark.parametrize("transport", transports, indirect=True)


def test_a_transport_fits_in_one_short_file():
    lines = Path(threads_transport.__file__).read_text(encoding="utf-8").splitlines()
    assert len(lines) <= 150


# --- without faults -------------------------------------------------------------------------------


@pytest.mark.parametrize("schedule", SCHEDULES)
@over("threads", "central", *WORKERS)
def test_every_transition_is_counted(tmp_path, transport, schedule):
    result = play(tmp_path, 4, 3, {}, transport=transport, **SCHEDULES[schedule])
    account, num_steps = result.account, count_calls(tmp_path, "step")
    assert account.trained == sum(map(len, result.trace.rows))
    max_age = {"barrier": 0, "lag:1": 1}.get(schedule, 2)
    assert account.policy_age[1] <= max_age
    assert set(account.dropped) <= {"run ended"}
    assert [worker.restarts + worker.env_failures for worker in account.workers] == [0, 0]
    assert result.warnings == []
    if schedule in ("barrier", "lag:1"):
        assert account.trained == 4 * 48
        assert account.collected <= num_steps <= account.trained + 48
    if transport in ("processes", "central") or schedule == "barrier":
        assert account.collected == num_steps


@over("threads", *WORKERS)
def test_a_fragment_that_is_collected_ahead_is_in_flight(tmp_path, transport):
    with open_pool(
        SCRIPTED, 2, 3, transport=transport, env_kwargs={"directory": str(tmp_path)}
    ) as pool:
        rollout = begin(pool, overlap=True)
        for _ in range(3):
            rollout.collect()

        def in_flight():
            rollout.watch()
            return rollout.accounting(with_workers=False).in_flight

        wait_until(lambda: in_flight() == 48)
        account = rollout.accounting()
        assert (account.collected, account.trained, account.dropped) == (192, 144, {})
    account = rollout.accounting()
    assert (account.collected, account.trained, account.in_flight) == (192, 144, 0)
    assert account.dropped == {"run ended": 48}
    assert count_calls(tmp_path, "step") == 192


def make_actor(head):
    return partial(actor, head=head, hidden_sizes=(8,))


EPSILON = EpsilonGreedy(start=1.0, end=0.1, num_steps=60, random_steps=5)
EXPLORING = {
    "CartPole-v1": {"make": make_actor(Greedy()), "exploration": EPSILON},
    "Pendulum-v1": {
        "make": make_actor(Deterministic()),
        "exploration": GaussianNoise(std=0.2, random_steps=7),
    },
}


CASES = [
    # The length of a fragment does not divide 256, the steps for which noise is drawn ahead.
    ("CartPole-v1", 20, {"stagger": 4}),
    ("Pendulum-v1", 50, {"stagger": 4, "env_kwargs": {"g": 9.0}}),
    ("CartPole-v1", 10, EXPLORING["CartPole-v1"]),
    ("Pendulum-v1", 50, EXPLORING["Pendulum-v1"]),
    ("Pendulum-v1", 50, {"make": make_actor(SquashedGaussian())}),
    ("CartPole-v1", 9, {"make": partial(actor_critic, hidden_sizes=(6,), memory="lstm:4")}),
    ("tests.worker_envs:vector_of_signs", 30, {"env_kwargs": {"num_envs": 2}}),
    ("tests.worker_envs:same_step_cartpoles", 30, {"env_kwargs": {"num_envs": 2}}),
    # Episodes of 3 steps in fragments of 4, which go around both slots of a worker.
    ("tests.episode_info_envs:make", 4, {"log_info": ("is_success", "x")}),
]


@pytest.mark.parametrize(
    ("schedule", "env", "num_steps", "options"),
    [("barrier", *case) for case in CASES] + [("lag:1", *case) for case in CASES[:2]],
)
@over("threads", *WORKERS)
def test_deterministic_schedules_return_the_fragments_of_this_process(
    transport, schedule, env, num_steps, options
):
    is_late, options = schedule == "lag:1", dict(options)
    plan = {name: options.pop(name) for name in ("make", "exploration") if name in options}
    inline = make_inline(env, 2, 2, **options)
    num_episodes, versions = 0, []
    with open_pool(env, 2, 2, transport=transport, **options) as pool:
        assert (pool.obs_spec, pool.action_spec) == (inline.obs_spec, inline.action_spec)
        assert (pool.num_envs, pool.can_replay) == (inline.num_envs, inline.can_replay)
        actual = begin(pool, num_steps, **plan, **SCHEDULES[schedule])
        expected = begin(inline, num_steps, **plan)
        for k in range(15 if num_steps <= 20 else 6):
            fragments = actual.collect()
            assert_same_fragments(fragments, expected.collect())
            assert actual.num_transitions == expected.num_transitions
            episodes = actual.pop_episodes()
            assert episodes == expected.pop_episodes()
            num_episodes += len(episodes)
            assert_same_states(actual.state(), expected.state())
            versions += [fragment.policy_version for fragment in fragments]
            # This process publishes after the overlapping fragment was begun.
            actual.publish(snapshot_of(actual.policy.network, k + 1))
            expected.publish(snapshot_of(expected.policy.network, max(0, k + 1 - is_late)))
        account = actual.accounting()
        assert account.trained == expected.accounting().trained
        mean_age = (len(versions) // 2 - 1) / (len(versions) // 2) if is_late else 0.0
        assert account.policy_age == (pytest.approx(mean_age), int(is_late))
    inline.close()
    assert num_episodes >= 4


# --- faults that are replaced ---------------------------------------------------------------------


class Fault(NamedTuple):
    """A fault of each of two workers.

    Attributes:
        calls: The failing call of each worker.
        causes: Pattern of the warning of each worker.
        num_failures: Numbers of failed environments and of restarts of each worker.
        dropped: Reason for which transitions may be dropped.
        signal_number: Signal that worker 1 gets after the first fragment. None: no signal.
    """

    calls: tuple[dict[str, str], dict[str, str]]
    causes: tuple[str, str]
    num_failures: tuple[int, int]
    dropped: str
    signal_number: int | None = None


DIED, STALLED = r"its (process|actor) ", r".*0\.5 s.*\(`step_timeout_s`\)"
RAISED = r"tests.worker_envs:Scripted, environment "
FAULTS = {
    "raises": Fault(
        ({"step 5": "raise"}, {"reset 2": "raise"}),
        (
            RAISED + "0, episode 0, step 4: `step` raised RuntimeError: the simulator diverged",
            RAISED + "1, episode 1, at its reset: `reset` raised RuntimeError: the simulator",
        ),
        (1, 0),
        "environment failed",
    ),
    "dies": Fault(({"step 5": "exit"}, {}), (DIED, DIED), (0, 1), "worker died", signal.SIGKILL),
    "stalls": Fault(
        ({"step 5": "hang"}, {}), (STALLED, STALLED), (0, 1), "worker died", signal.SIGSTOP
    ),
}


@pytest.fixture(scope="module")
def played(request, tmp_path_factory):
    """Play with a fault of each worker; return the transport, the fault, the result and steps."""
    transport, schedule, name = request.param
    fault = FAULTS[name]
    calls = {str(worker): faults for worker, faults in enumerate(fault.calls)}

    def hook(k, pool):
        if k == 0 and fault.signal_number is not None:
            os.kill(int((directory / "1.pid").read_text()), fault.signal_number)

    def should_go_on(rollout, trace):
        account = rollout.accounting()
        assert time.monotonic() < deadline_s, account
        # Failures and restarts are counted before the learner takes the rows.
        is_missing = account.dropped.get("environment failed", 0) < fault.num_failures[0]
        is_missing |= len(trace.rows[0]) < 4
        counts = [(worker.env_failures, worker.restarts) for worker in account.workers]
        return is_missing or min(counts) < fault.num_failures

    with prepare(request, transport):
        step_timeout_s = 0.5 if name == "stalls" else 100.0
        plan = {"transport": transport, "step_timeout_s": step_timeout_s, **SCHEDULES[schedule]}
        # On a busy machine, workers may stall more often than a run allows.
        for directory, attempt in attempts(lambda _: tmp_path_factory.mktemp("played")):
            deadline_s = time.monotonic() + 90.0
            with attempt:
                result = play(directory, 3, 1, calls, hook=hook, should_go_on=should_go_on, **plan)
    return transport, fault, result, count_calls(directory, "step")


def over_faults():
    """Return the mark that runs a test over transports × schedules × faults."""
    params = []
    for transport, schedule, fault in product(("processes", "central", "ray"), SCHEDULES, FAULTS):
        marks = ON_RAY if transport == "ray" else ()
        name = f"{transport}-{schedule}-{fault}"
        params.append(pytest.param((transport, schedule, fault), marks=marks, id=name))
    return pytest.mark.parametrize("played", params, indirect=True)


@over_faults()
def test_faults_are_counted(played):
    transport, fault, result, num_steps = played
    account = result.account
    num_failures = [(x.env_failures, x.restarts) for x in account.workers]
    if fault.signal_number == signal.SIGSTOP:  # a busy machine may stall a worker, too
        assert min(num_failures) >= fault.num_failures
    else:
        assert num_failures == [fault.num_failures] * 2
    assert set(account.dropped) <= {fault.dropped, "run ended"}
    assert account.dropped.get("environment failed", 0) == fault.num_failures[0]
    assert account.dropped.get("worker died", 0) <= 2 * 8
    assert account.trained == sum(row["valid"] for rows in result.trace.rows for row in rows)
    assert account.trained <= num_steps
    if transport != "ray":  # a signal may arrive between the count and the step
        assert 0 <= account.collected - num_steps <= (fault.signal_number is not None)
        # The rows before the fault are not lost.
        assert [row["obs"][0] for row in result.trace.rows[0][:4]] == [0, 1, 2, 3]


@over(*WORKERS)
@attempted
def test_a_worker_that_stops_in_its_first_fragment_is_replaced(tmp_path, transport):
    faults = {"1": {"step 5": "stop"}}
    plan = {"transport": transport, "step_timeout_s": 0.5}
    result = play(tmp_path, 2, 1, faults, **plan)
    assert [worker.restarts for worker in result.account.workers] == [0, 1]
    assert result.account.trained == 32


@over_faults()
def test_faults_are_reported_once_with_their_place(played):
    _, fault, result, _ = played
    end = ": replaced; similar failures are only counted"
    replaced = sorted(text for text in result.warnings if text.endswith(end))
    # A dying process may leave no cause that differs between workers.
    assert len(replaced) == 2 or (len(replaced) == 1 and fault.dropped == "worker died")
    for text in replaced:
        assert "\n" not in text
        assert re.match("|".join(f"worker {n}: {x}" for n, x in enumerate(fault.causes)), text)
    if len(replaced) == 2:
        assert result.last_failure + end in replaced


@over(*WORKERS)
def test_rows_that_are_too_old_are_dropped_on_request(tmp_path, transport):
    kwargs, gate = {"directory": str(tmp_path), "num_free": 1}, tmp_path / "open"
    with open_pool("tests.worker_envs:Waits", transport=transport, env_kwargs=kwargs) as pool:
        plan = {**SCHEDULES["async in fragments"], "max_policy_age": 1, "drops_too_old": True}
        rollout = begin(pool, 4, **plan)
        timer = threading.Timer(60.0, gate.touch)  # for a rollout that waits for worker 1
        timer.start()
        for k in range(4):
            fragments = rollout.collect()
            rollout.publish(snapshot_of(rollout.policy.network, k + 1))
        assert {fragment.first_env for fragment in fragments} == {0}
        gate.touch()
        version = 4
        while "too old" not in rollout.accounting().dropped:
            rollout.collect()
            version += 2  # worker 1 may have begun with the last version
            rollout.publish(snapshot_of(rollout.policy.network, version))
            assert_adds_up(rollout.accounting())
        timer.cancel()
    assert rollout.accounting().dropped["too old"] >= 4
    assert rollout.accounting().policy_age[1] <= 1


# --- errors ---------------------------------------------------------------------------------------


def fail(env, *, transport, num_fragments=4, plan=None, **options):
    """Return the error that ends a rollout of two workers."""
    try:
        with open_pool(env, transport=transport, **options) as pool:
            rollout = begin(pool, **(plan or {}))
            for _ in range(num_fragments):
                rollout.collect()
                assert_adds_up(rollout.accounting(with_workers=False))
    except HotloopError as caught:
        error = caught
    else:
        pytest.fail("no error")
    assert "\n" not in str(error)
    return error


@pytest.mark.parametrize(
    ("fault", "schedule"),
    [
        *(("nan obs", schedule) for schedule in SCHEDULES),
        ("nan reward", "barrier"),
        ("no action", "barrier"),
        ("no action", "async"),
        ("long mask", "variable"),
    ],
)
@over(*WORKERS)
def test_invalid_numbers_and_masks_end_the_run(tmp_path, transport, fault, schedule):
    """The error is that of this process, with its worker, and names the place."""
    env, masks = SCRIPTED, {}
    if "nan" not in fault:
        env, masks = "tests.worker_envs:Masked", {"action_masks": True}
    # Both groups of this process count their calls in the same files.
    faults = {"1": {"step 5": fault}, "": {"step 13": fault}}
    options = {"env_kwargs": {"directory": str(tmp_path), "faults": faults}, **masks}
    expected = fail(env, transport="inline", **options)
    plan = SCHEDULES[schedule]
    actual = fail(env, transport=transport, num_fragments=400, plan=plan, **options)
    assert type(actual) is type(expected)
    assert str(actual) == f"worker 1: {expected}"
    place = "environment 1, step 4 " if "nan" in fault else "environment 1, episode 0, step 4: "
    assert place in str(actual)


@pytest.mark.parametrize("space", ["observation", "action"])
@over("inline", *WORKERS)
def test_spaces_that_differ_between_workers_are_refused(tmp_path, transport, space):
    kwargs = {"directory": str(tmp_path), "space": space}
    error = fail(worker_envs.DependsOnWorker, transport=transport, env_kwargs=kwargs)
    assert type(error) is SpaceError
    message = rf"all workers must have the same {space} space, but worker 0 has .*3.* and worker 1"
    assert re.match(message, str(error))


@pytest.mark.parametrize("fault", ["raise", "exit"])
@over(*WORKERS)
def test_too_many_failures_end_the_run(tmp_path, transport, fault):
    faults = {"1": {f"step {k}": fault for k in range(1, 400)}}
    kwargs = {"directory": str(tmp_path), "faults": faults}
    error = fail(SCRIPTED, transport=transport, max_failures=3, env_kwargs=kwargs)
    assert type(error) is EnvironmentFailure
    cause = ".* the simulator diverged" if fault == "raise" else DIED
    assert re.match(
        "environments and workers failed 4 times, but at most 3 failures are allowed "
        rf"\(`max_failures`\); the last was worker 1: {cause}",
        str(error),
    )
    if fault == "raise":  # `--debug` shows the traceback
        assert 'raise RuntimeError("the simulator diverged")' in str(error.__cause__)


@over("inline", *WORKERS)
def test_environments_that_cannot_be_made_are_named_with_their_worker(transport):
    prefix = "" if transport == "inline" else "worker 0: "
    cases = [
        (EnvironmentFailure, worker_envs.CannotBeMade, {}, "no licence for the simulator"),
        (UnknownNameError, "CartPool-v1", {}, "did you mean 'CartPole-v1'"),
        (MissingExtraError, worker_envs.NeedsALibrary, {}, "needs a library that is not installed"),
        (ConfigError, "CartPole-v1", {"env_kwargs": {"wrong": 1}}, "with env_kwargs .*wrong"),
    ]
    for kind, env, options, message in cases:
        error = fail(env, transport=transport, **options)
        assert type(error) is kind, error
        assert re.match(f"{prefix}.*{message}", str(error))


@over(*WORKERS)
def test_factories_that_workers_cannot_import_are_refused(transport):
    error = fail(lambda: None, transport=transport)
    assert type(error) is ConfigError
    assert re.match(
        "a worker can't import the factory .*<lambda>: put it at the top level", str(error)
    )


@over(*WORKERS)
def test_a_closed_rollout_is_refused(transport):
    with open_pool("CartPole-v1", transport=transport) as pool:
        rollout = begin(pool)
        rollout.collect()
        rollout.close()
        rollout.close()
        with pytest.raises(EnvironmentFailure, match="closed: create a new one"):
            rollout.collect()
        assert rollout.accounting().trained == 16


# --- resuming -------------------------------------------------------------------------------------


@over("inline", "threads", *WORKERS)
def test_a_restored_rollout_continues_where_the_other_stopped(transport):
    whole = begin(make_inline("CartPole-v1", 2, 2), 16)
    for _ in range(3):
        whole.collect()
    state = whole.state()
    with open_pool("CartPole-v1", 2, 2, transport=transport) as pool:
        rollout = begin(pool, 16)
        assert rollout.state().position().episodes == ()
        assert rollout.restore(state.to_arrays(), state.position()) == []
        assert rollout.num_transitions == 192
        assert_same_fragments(rollout.collect(), whole.collect())
        assert_same_states(rollout.state(), whole.state())
        account = rollout.accounting()
        assert (account.collected, account.trained) == (64, 64)  # since it was restored
    whole.close()


@over("inline", *WORKERS)
def test_unrepeatable_episodes_are_not_resumed(transport):
    env = "tests.toy_envs:RandomOffset"
    first = begin(make_inline(env, 2, 2), 7)
    first.collect()
    state = first.state()
    first.close()
    with open_pool(env, 2, 2, transport=transport) as pool:
        rollout = begin(pool, 7)
        assert rollout.restore(state.to_arrays(), state.position()) == [0, 1, 2, 3]
        fragments = rollout.collect()
        # ConstantReward's observation is 0, but for an offset ≤ 0.5, at the start alone.
        assert all((fragment.obs[0] <= 0.5).all() for fragment in fragments)
        assert [episode for episode, _ in rollout.state().position().episodes] == [1, 1, 1, 1]
