"""Actors that fail, are lost or never start: the transport with actors in this process."""

import dataclasses
import types

import pytest

from hotloop.envs import EnvSpec
from hotloop.errors import ConfigError, EnvironmentFailure
from hotloop.rollouts import CollectionOptions
from hotloop.rollouts.env_calls import EnvCall
from hotloop.rollouts.failures import Failures
from hotloop.rollouts.fleet import FleetRollout
from hotloop.rollouts.ray import transport
from hotloop.rollouts.ray.actor import Actor, ActorOptions
from tests.rollouts.processes.pools import (
    assert_adds_up,
    assert_same_fragments,
    begin,
    make_inline,
    make_network,
    make_policy,
)

REPLACED = "ignore:.*similar failures are only counted:RuntimeWarning"


class RayError(Exception):
    cause = None


NAMES = "ActorUnavailableError ActorDiedError RayTaskError ObjectLostError OutOfDiskError"
ERRORS = {name: type(name, (RayError,), {}) for name in NAMES.split()}


class Ray:
    """The calls of the transport. A reference is the list of its result or error."""

    exceptions = types.SimpleNamespace(RayError=RayError, **ERRORS)

    put = kill = staticmethod(lambda x: x)

    @staticmethod
    def get(ref):
        if isinstance(ref.result, Exception):
            raise ref.result
        return ref.result

    @staticmethod
    def wait(refs, *, num_returns, timeout):
        ready = [ref for ref in refs if ref.result is not None]
        return ready[:num_returns], []


class Remote:
    """An actor in this process, with the results of its first calls by their names."""

    def __init__(self, options, results):
        self.actor, self.results = Actor(options), results

    def __getattr__(self, name):
        return types.SimpleNamespace(remote=lambda *args: self.call(name, args))

    def call(self, name, args):
        try:
            result = self.results.pop(name) if name in self.results else None
            if isinstance(result, EnvironmentFailure):
                self.actor._parts.collect = lambda num_rows: self.fail(result)
            if result is None or isinstance(result, EnvironmentFailure):
                result = getattr(self.actor, name)(*args)
        except Exception as error:
            result = ERRORS["RayTaskError"](str(error))
            result.cause = error
        return Reference(result if result != "pending" else None)

    @staticmethod
    def fail(error):
        raise error


@dataclasses.dataclass(eq=False)
class Reference:
    result: object


class Environments:
    """One worker. `results` are those of each of its actors, one after the other."""

    num_workers, envs_per_worker, can_replay, timing_dir = 1, 2, True, ""
    step_timeout_s, max_step_s, start_timeout_s = 300.0, 600.0, 300.0

    def __init__(self, results, max_failures=9):
        inline = make_inline("CartPole-v1", 1, 2)
        self.obs_spec, self.action_spec = inline.obs_spec, inline.action_spec
        inline.close()
        self.ray, self.failures, self.results = Ray(), Failures(max_failures), list(results)
        self.watches = types.SimpleNamespace(add_node=str, poll=list, state=lambda *_: "S")
        self.first_episodes = []
        self.actors = [self.start(0)]

    def start(self, worker, first_episode=None):
        self.first_episodes.append(first_episode)
        options = ActorOptions(
            worker=worker,
            spec=EnvSpec("CartPole-v1", seed=5),
            num_envs=2,
            timeout_s=None,
            max_failures=9,
            recording=None,
            paths=[],
        )
        return Remote(options, self.results.pop(0) if self.results else {})

    def inference_of(self, worker):
        return None


@pytest.fixture(autouse=True)
def without_ray(monkeypatch):
    monkeypatch.setenv("HOTLOOP_WORKER", "0")
    monkeypatch.setattr("hotloop.rollouts.ray.actor.start_recording", lambda options: "node")
    monkeypatch.setattr(transport, "check_store", lambda *_: None)
    monkeypatch.setattr(transport, "ClusterHead", lambda _: types.SimpleNamespace(check=list))
    monkeypatch.setattr(transport, "_POLL_S", 0.0)


def begin_with(*results, plan=None, **options):
    """Begin a rollout whose actors return the results."""
    envs = Environments(results, **options)
    policy = make_policy(make_network(envs))
    options = CollectionOptions(num_steps=8, seed=5, **(plan or {}))
    actors = transport.ActorTransport(envs, policy, options)
    return envs, FleetRollout(actors, policy, options, close=lambda: None)


@pytest.mark.filterwarnings(REPLACED)
@pytest.mark.parametrize("name", ["ActorDiedError", "ActorUnavailableError"])
@pytest.mark.parametrize("is_resumed", [False, True])
def test_an_actor_that_is_lost_in_its_first_setup_is_replaced(name, is_resumed):
    whole = begin(make_inline("CartPole-v1", 1, 2))
    envs, rollout = begin_with({"set_up": ERRORS[name]("lost")})
    if is_resumed:
        whole.collect()
        state = whole.state()
        assert rollout.restore(state.to_arrays(), state.position()) == []
    assert_same_fragments(rollout.collect(), whole.collect())
    account = rollout.accounting()
    assert_adds_up(account)
    assert (account.workers[0].restarts, account.dropped) == (1, {})
    assert len(envs.first_episodes) == 2
    whole.close()


@pytest.mark.filterwarnings(REPLACED)
@pytest.mark.parametrize("name", ["ActorDiedError", "ActorUnavailableError"])
def test_a_call_of_the_environments_is_repeated(name, monkeypatch):
    monkeypatch.setattr(transport, "_RETRY_S", 0.0)
    envs, rollout = begin_with({"call_envs": ERRORS[name]("lost")})
    rollout.collect()
    assert rollout.call_groups([EnvCall("call", "gravity")]) == [(9.8, 9.8)]
    # An actor that only could not be reached keeps its environments.
    assert len(envs.first_episodes) == (2 if name == "ActorDiedError" else 1)
    assert len(rollout.collect()) == 1
    assert_adds_up(rollout.accounting())


def test_a_failed_call_names_the_worker():
    _, rollout = begin_with()  # before the first rows
    with pytest.raises(
        ConfigError, match=r"worker 0: the environment .* has no attribute `garvity`"
    ):
        rollout.call_groups([EnvCall("call", "garvity")])


def test_the_traceback_of_a_worker_is_the_cause_of_the_error():
    error = EnvironmentFailure("the simulator diverged")
    _, rollout = begin_with({"collect": error}, max_failures=0)
    with pytest.raises(EnvironmentFailure, match="worker 0: the simulator diverged") as caught:
        rollout.collect()
    assert "raise error" in str(caught.value.__cause__)


def test_the_step_timeout_watches_the_replay_of_episodes(monkeypatch):
    whole = begin(make_inline("CartPole-v1", 1, 2))
    whole.collect()
    state, calls = whole.state(), []
    whole.close()
    timeout = types.SimpleNamespace(
        on_step_start=lambda: calls.append("start"), stop=lambda: calls.append("stop")
    )
    monkeypatch.setattr("hotloop.rollouts.ray.actor.StepTimeout", lambda _: timeout)
    _, rollout = begin_with()
    rollout.restore(state.to_arrays(), state.position())
    assert calls[0] == "start"
    assert calls.count("start") > 8
    assert calls.index("stop") == len(calls) - 1


@pytest.mark.filterwarnings(REPLACED, "ignore:worker 0. it is not ready")
def test_an_actor_that_never_starts_is_reported_and_replaced(monkeypatch):
    monkeypatch.setattr(transport, "_SLOW_START_S", 0.0)
    monkeypatch.setattr(Environments, "start_timeout_s", 0.01)
    died = ERRORS["ActorDiedError"]("lost")
    envs, rollout = begin_with({}, {"set_up": "pending"})
    rollout.collect()
    envs.actors[0].results["collect"] = died
    with pytest.warns(RuntimeWarning, match="worker 0: it is not ready after 0 s; waiting"):
        rollout.collect()
    assert "worker 0: it was not ready within 0.01 s" in rollout.last_failure
    account = rollout.accounting()
    assert_adds_up(account)
    assert account.workers[0].restarts == 2
    # The actor that did not start had begun no rows.
    assert account.dropped == {"worker died": 16}
    assert envs.first_episodes[0] is None
    assert envs.first_episodes[1] == envs.first_episodes[2] > 0


@pytest.mark.parametrize(("is_overlapped", "num_requests"), [(False, 0), (True, 4)])
def test_parts_for_the_time_of_learning_are_requested_ahead(
    monkeypatch, is_overlapped, num_requests
):
    """With overlap, two parts more if learning takes a fifth of the time of eight parts."""
    now_s = [0.0]
    clock = types.SimpleNamespace(monotonic=lambda: now_s[0], sleep=lambda _: None)
    monkeypatch.setattr(transport, "time", clock)
    _, rollout = begin_with(plan={"schedule": "variable", "overlap": is_overlapped})
    receive = rollout.transport._receive

    def receive_slowly(timeout_s):
        now_s[0] += 0.1
        receive(timeout_s)

    monkeypatch.setattr(rollout.transport, "_receive", receive_slowly)
    for _ in range(3):
        before_s = now_s[0]
        rollout.collect()
        actor = rollout.transport._actors[0]
        num_ahead = len(actor.requests)
        now_s[0] += 0.25 * (now_s[0] - before_s)  # the learner is away
    assert num_ahead == num_requests
    assert actor.requested_row <= actor.next_row + 16
    assert_adds_up(rollout.accounting(with_workers=False))
