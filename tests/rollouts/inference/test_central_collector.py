"""Requests of `CentralCollector`, step by step in one process."""

import os

import numpy as np
import pytest

from hotloop.envs import EnvSpec, make_double_buffered
from hotloop.policies import EpsilonGreedy, actor, actor_critic
from hotloop.policies.heads import Dueling, Greedy
from hotloop.rollouts.inference.central_collector import CentralCollector
from hotloop.rollouts.inference.server import InferenceServer
from hotloop.rollouts.processes.messages import InferenceSetup
from hotloop.rollouts.processes.shared_memory import (
    ACTING,
    EVALUATION,
    FIRST,
    NEWEST,
    PUBLICATION,
    SERIAL,
    VERSION,
    create_shared_memory,
)
from tests.rollouts.processes.pools import snapshot_of

NUM_STEPS = 4


class Rig:
    """A worker's collector and the inference server in this process, with a log of events.

    Args:
        num_envs: Environments of the worker.
        memory: Memory of the network.
        head: Head of an actor. None makes an actor-critic.
        exploration: An `Exploration`.

    Attributes:
        events: ("request", kind, row), ("begin",), ("pause",) and ("end", t).
        room: Whether there is room for another row.
    """

    def __init__(self, num_envs, memory=None, head=None, exploration=None):
        self.envs = make_double_buffered(EnvSpec("CartPole-v1", seed=1), num_envs)
        layers = {"hidden_sizes": (8,), "memory": memory}
        if head is None:
            self.network = actor_critic(self.envs, **layers)
        else:
            self.network = actor(self.envs, head, **layers)
        sizes = {"num_steps": NUM_STEPS, "num_workers": 1}
        fd, self.shared = create_shared_memory(self.network, **sizes, num_envs=num_envs)
        self.shared.weights.write(snapshot_of(self.network, 5))
        setup = InferenceSetup(
            network=self.network.to_json(),
            exploration=exploration and exploration.to_json(),
            num_envs=num_envs,
            seed=2,
            **sizes,
        )
        self.wakeup = os.eventfd(0)
        self.inference = InferenceServer(None, setup, fd, [self.wakeup, self.wakeup], 0)
        self.events, self.serials, self.room = [], [0, 0, 0], False
        self.stepper = self.make_stepper(0)
        self.stepper.begin()

    def make_stepper(self, first_row):
        return CentralCollector(
            *(self.envs, self.shared, 0),
            first_row=first_row,
            has_value=self.network.has_value,
            wake_inference=self.log_requests,
            wait=self.inference.answer,
        )

    def log_requests(self):
        for kind, request in enumerate(self.shared.requests[0]):
            if request[SERIAL] != self.serials[kind]:
                self.serials[kind] = request[SERIAL]
                self.events.append(("request", kind, int(request[FIRST])))

    def on_step_start(self):
        self.events.append(("begin",))

    def on_half_step(self):
        self.events.append(("pause",))

    def has_room(self):
        return self.room

    def on_step_end(self, t):
        self.events.append(("end", t))

    def pop(self):
        events, self.events = self.events, []
        return events


@pytest.fixture
def make_rig():
    rigs = []

    def make(*args, **options):
        rigs.append(Rig(*args, **options))
        return rigs[-1]

    yield make
    for rig in rigs:
        rig.envs.close()
        os.close(rig.wakeup)


def test_a_half_steps_while_the_other_waits(make_rig):
    rig = make_rig(3)
    rig.stepper.load(1)
    rig.stepper.collect(0, 0, 2, rig)
    assert rig.pop() == [
        *(("request", 0, 0), ("request", 1, 0)),
        *(("begin",), ("pause",), ("request", 0, 1), ("begin",), ("request", 1, 1), ("end", 0)),
        *(("begin",), ("pause",), ("begin",), ("end", 1)),
    ]
    rig.stepper.evaluate(0, 0, 2)
    assert rig.pop() == [("request", EVALUATION, 0)]
    assert rig.shared.workers[0].versions[0].tolist() == [5, 5, 0, 0]


def test_one_environment_has_no_half_to_wait_for(make_rig):
    rig = make_rig(1)
    rig.stepper.load(1)
    rig.stepper.collect(0, 0, 2, rig)
    assert rig.pop() == [
        *(("request", 0, 0), ("begin",), ("request", 0, 1), ("end", 0)),
        *(("begin",), ("end", 1)),
    ]


@pytest.mark.parametrize("memory", [None, "lstm:4"])
def test_a_row_is_requested_ahead_across_the_end_of_a_slot(make_rig, memory):
    rig = make_rig(2, memory=memory)
    words = rig.shared.words[0]
    rig.stepper.load_newest()
    assert words[ACTING] == 5
    rig.room = True
    rig.stepper.collect(0, 0, NUM_STEPS, rig)
    assert rig.pop()[-5:] == [
        ("pause",),
        ("request", 0, 4),
        ("begin",),
        ("request", 1, 4),
        ("end", 3),
    ]
    assert rig.stepper.requested_version == 5
    first, second = (slot.fragment for slot in rig.shared.workers[0].slots)
    np.testing.assert_array_equal(second.obs[0], first.last_obs)
    np.testing.assert_array_equal(second.memory[0], first.last_memory)
    assert (memory is None) or first.last_memory.any()
    # A publication after the request is not reported as the acting version.
    rig.shared.weights.write(snapshot_of(rig.network, 9))
    words[ACTING] = rig.stepper.requested_version
    rig.stepper.load_newest()
    assert words[ACTING] == 5
    rig.inference.answer()
    rig.room = False
    rig.stepper.collect(1, 0, 1, rig)
    assert rig.pop() == [("begin",), ("pause",), ("begin",), ("end", 0)]
    assert rig.stepper.requested_version == -1
    assert rig.shared.workers[0].versions[1][0] == 9
    assert rig.shared.requests[0, 0, PUBLICATION] == NEWEST


@pytest.mark.parametrize("order", [(0, 1), (1, 0)])
def test_a_row_of_two_versions_counts_as_the_older_one(make_rig, order):
    rig = make_rig(2)

    def wait():
        rig.inference._act([(0, order[0])])
        rig.shared.weights.write(snapshot_of(rig.network, 9))
        rig.inference._act([(0, order[1])])

    rig.stepper._wait = wait
    rig.stepper.load_newest()
    rig.stepper.collect(0, 0, 1, rig)
    assert sorted(rig.shared.answers[0, :2, VERSION].tolist()) == [5, 9]
    assert rig.shared.workers[0].versions[0][0] == 5


def test_a_replacement_worker_waits_for_pending_requests(make_rig):
    rig = make_rig(2)
    rig.stepper.load(1)
    rig.stepper._request_actions(0)  # then the worker is killed
    assert rig.shared.requests[0, 0, SERIAL] != rig.shared.answers[0, 0, SERIAL]
    replacement = rig.make_stepper(0)
    assert rig.shared.requests[0, 0, SERIAL] == rig.shared.answers[0, 0, SERIAL] == 1
    replacement.begin(first_episode=3)
    replacement.load(1)
    replacement.collect(0, 0, NUM_STEPS, rig)
    assert rig.shared.requests[0, :2, SERIAL].tolist() == [5, 4]
    fragment = rig.shared.workers[0].slots[0].fragment
    assert (fragment.log_prob < 0).all()


def test_requests_for_different_publications_are_no_batch(make_rig):
    rig = make_rig(2)
    rig.shared.weights.write(snapshot_of(rig.network, 8))
    for half_index, number in ((0, 2), (1, 1)):
        rig.stepper.load(number)
        rig.stepper._request_actions(half_index)
    assert rig.inference.answer()
    assert rig.inference.answer()
    assert not rig.inference.answer()
    assert rig.shared.answers[0, :2, VERSION].tolist() == [8, 5]


@pytest.mark.parametrize("head", [Greedy(), Dueling()])
def test_halves_at_different_steps_explore_by_their_own_step(make_rig, head):
    # All actions of the first four rows are random, and none of the others, with this ε.
    exploration = EpsilonGreedy(start=0.0, end=0.0, random_steps=NUM_STEPS)
    rig = make_rig(4, head=head, exploration=exploration)
    rig.stepper.load(1)
    rig.stepper.collect(0, 0, NUM_STEPS, rig)
    rig.stepper._request_actions(1)  # row 4
    rig.stepper.vector_steps -= 1
    rig.stepper._request_actions(0)  # row 3, the first one of the batch
    rig.inference.answer()
    first, second = rig.shared.workers[0].slots
    policy = rig.inference._policy
    want = policy.greedy(second.fragment.obs[0, 2:])
    np.testing.assert_array_equal(second.fragment.action[0, 2:], want)
    noise = policy.draw_noise(2, first_step=3, num_steps=1, num_envs=4)[0]
    np.testing.assert_array_equal(first.fragment.action[3, :2], noise[:2, 0])
