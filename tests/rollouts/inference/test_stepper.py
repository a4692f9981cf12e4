"""The workers' side alone: what it asks for and when, in one process and step by step."""

import os

import numpy as np
import pytest

from hotloop.envs import make_halves
from hotloop.policies import actor, actor_critic
from hotloop.rollouts.inference.program import Inference
from hotloop.rollouts.inference.stepper import Stepper
from hotloop.rollouts.workers.messages import InferenceSetup
from hotloop.rollouts.workers.shared_memory import (
    ACTING,
    EVALUATION,
    FIRST,
    NEWEST,
    PUBLICATION,
    SERIAL,
    VERSION,
    create,
)
from tests.rollouts.workers.pools import snapshot_of

NUM_STEPS = 4


class Desk:
    """A worker's stepper and the inference process, here; notes what happens in which order.

    Args:
        num_envs: of the worker.
        memory: of the network.
        head: of an actor; None: of an actor and critic.
        exploration: fields of an `Exploration`.

    Attributes:
        seen: ("ask", line, row), ("begin",), ("pause",) and ("end", t).
        room: whether there is room for a row after the one that is made.
    """

    def __init__(self, num_envs, memory=None, head=None, exploration=None):
        self.envs = make_halves("CartPole-v1", num_envs, seed=1)
        layers = {"hidden_sizes": (8,), "memory": memory}
        if head is None:
            self.network = actor_critic(self.envs, **layers)
        else:
            self.network = actor(self.envs, head, **layers)
        sizes = {"num_steps": NUM_STEPS, "num_workers": 1}
        fd, self.shared = create(self.network, **sizes, num_envs=num_envs)
        self.shared.weights.write(snapshot_of(self.network, 5))
        setup = InferenceSetup(
            network=self.network.to_json(),
            exploration=exploration,
            num_envs=num_envs,
            seed=2,
            **sizes,
        )
        self.bell = os.eventfd(0)
        self.inference = Inference(None, setup, fd, [self.bell, self.bell], 0)
        self.seen, self.serials, self.room = [], [0, 0, 0], False
        self.stepper = self.make_stepper(0)
        self.stepper.begin()

    def make_stepper(self, first_row):
        return Stepper(
            *(self.envs, self.shared, 0),
            first_row=first_row,
            has_value=self.network.has_value,
            ring=self.ring,
            rest=self.inference.answer,
        )

    def ring(self):
        for line, request in enumerate(self.shared.requests[0]):
            if request[SERIAL] != self.serials[line]:
                self.serials[line] = request[SERIAL]
                self.seen.append(("ask", line, int(request[FIRST])))

    def begins(self):
        self.seen.append(("begin",))

    def pauses(self):
        self.seen.append(("pause",))

    def has_room(self):
        return self.room

    def ended(self, t):
        self.seen.append(("end", t))

    def pop(self):
        seen, self.seen = self.seen, []
        return seen


@pytest.fixture
def desk():
    made = []

    def make(*args, **options):
        made.append(Desk(*args, **options))
        return made[-1]

    yield make
    for one in made:
        one.envs.close()
        os.close(one.bell)


def test_a_half_steps_while_the_other_waits(desk):
    one = desk(3)
    one.stepper.load(1)
    one.stepper.collect(0, 0, 2, one)
    assert one.pop() == [
        *(("ask", 0, 0), ("ask", 1, 0)),
        *(("begin",), ("pause",), ("ask", 0, 1), ("begin",), ("ask", 1, 1), ("end", 0)),
        *(("begin",), ("pause",), ("begin",), ("end", 1)),
    ]
    one.stepper.evaluate(0, 0, 2)
    assert one.pop() == [("ask", EVALUATION, 0)]
    assert one.shared.workers[0].versions[0].tolist() == [5, 5, 0, 0]


def test_one_environment_has_no_half_to_wait_for(desk):
    one = desk(1)
    one.stepper.load(1)
    one.stepper.collect(0, 0, 2, one)
    assert one.pop() == [
        *(("ask", 0, 0), ("begin",), ("ask", 0, 1), ("end", 0)),
        *(("begin",), ("end", 1)),
    ]


@pytest.mark.parametrize("memory", [None, "lstm:4"])
def test_a_row_is_asked_for_ahead_over_the_end_of_a_slot(desk, memory):
    one = desk(2, memory=memory)
    words = one.shared.words[0]
    one.stepper.load_newest()
    assert words[ACTING] == 5
    one.room = True
    one.stepper.collect(0, 0, NUM_STEPS, one)
    assert one.pop()[-5:] == [("pause",), ("ask", 0, 4), ("begin",), ("ask", 1, 4), ("end", 3)]
    assert one.stepper.ahead == 5
    first, second = (slot.fragment for slot in one.shared.workers[0].slots)
    np.testing.assert_array_equal(second.obs[0], first.last_obs)
    np.testing.assert_array_equal(second.memory[0], first.last_memory)
    assert (memory is None) or first.last_memory.any()
    # What is published now is none of the learner's business: the row was asked for before.
    one.shared.weights.write(snapshot_of(one.network, 9))
    words[ACTING] = one.stepper.ahead
    one.stepper.load_newest()
    assert words[ACTING] == 5
    one.inference.answer()
    one.room = False
    one.stepper.collect(1, 0, 1, one)
    assert one.pop() == [("begin",), ("pause",), ("begin",), ("end", 0)]
    assert one.stepper.ahead == -1
    assert one.shared.workers[0].versions[1][0] == 9
    assert one.shared.requests[0, 0, PUBLICATION] == NEWEST


@pytest.mark.parametrize("order", [(0, 1), (1, 0)])
def test_a_row_of_two_versions_is_of_the_older_one(desk, order):
    one = desk(2)

    def rest():
        one.inference._act([(0, order[0])])
        one.shared.weights.write(snapshot_of(one.network, 9))
        one.inference._act([(0, order[1])])

    one.stepper._rest = rest
    one.stepper.load_newest()
    one.stepper.collect(0, 0, 1, one)
    assert sorted(one.shared.answers[0, :2, VERSION].tolist()) == [5, 9]
    assert one.shared.workers[0].versions[0][0] == 5


def test_who_takes_a_workers_place_waits_for_what_it_has_asked_for(desk):
    one = desk(2)
    one.stepper.load(1)
    one.stepper._ask(0)  # and then it is killed
    assert one.shared.requests[0, 0, SERIAL] != one.shared.answers[0, 0, SERIAL]
    other = one.make_stepper(0)
    assert one.shared.requests[0, 0, SERIAL] == one.shared.answers[0, 0, SERIAL] == 1
    other.begin(first_episode=3)
    other.load(1)
    other.collect(0, 0, NUM_STEPS, one)
    assert one.shared.requests[0, :2, SERIAL].tolist() == [5, 4]
    fragment = one.shared.workers[0].slots[0].fragment
    assert (fragment.log_prob < 0).all()


def test_requests_for_different_publications_are_no_batch(desk):
    one = desk(2)
    one.shared.weights.write(snapshot_of(one.network, 8))
    for line, number in ((0, 2), (1, 1)):
        one.stepper.load(number)
        one.stepper._ask(line)
    assert one.inference.answer()
    assert one.inference.answer()
    assert not one.inference.answer()
    assert one.shared.answers[0, :2, VERSION].tolist() == [8, 5]


@pytest.mark.parametrize("head", ["greedy", "dueling"])
def test_halves_at_different_steps_explore_each_by_its_own(desk, head):
    # In the first four rows all actions are random; in none of the others, with this ε.
    explores = {"epsilon": (0.0, 0.0), "epsilon_steps": 1, "random_steps": NUM_STEPS}
    one = desk(4, head=head, exploration=explores)
    one.stepper.load(1)
    one.stepper.collect(0, 0, NUM_STEPS, one)
    one.stepper._ask(1)  # row 4
    one.stepper._row -= 1
    one.stepper._ask(0)  # row 3, the first one of the batch
    one.inference.answer()
    first, second = one.shared.workers[0].slots
    policy = one.inference._policy
    want = policy.greedy(second.fragment.obs[0, 2:])
    np.testing.assert_array_equal(second.fragment.action[0, 2:], want)
    noise = policy.draw_noise(2, first_step=3, num_steps=1, num_envs=4)[0]
    np.testing.assert_array_equal(first.fragment.action[3, :2], noise[:2, 0])
