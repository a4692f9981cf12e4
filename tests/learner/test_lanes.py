"""Lanes: several learners whose updates are made as one."""

from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

import numpy as np
import pytest
import torch
from torch import Tensor

from hotloop.errors import ConfigError
from hotloop.learner import AdamState, Learner, UpdateRule, adam_step, move_towards, value_and_grad
from hotloop.learner.lanes import Lanes
from hotloop.learner.state import tensors
from hotloop.policies import actor_critic
from hotloop.policies.learned import LearnedNetwork
from tests.policies.nets import Spaces
from tests.policies.test_policies import DISCRETE, obs_spec


class Hyper(NamedTuple):
    learning_rate: float


class Batch(NamedTuple):
    obs: Tensor
    target: Tensor
    weight: Tensor | None = None


@dataclass(slots=True)
class State:
    params: Tensor
    adam: AdamState
    target: Tensor


def loss(params, batch, noise, nets):
    outputs, _ = nets.outputs(params, batch.obs)
    error = (outputs.mean(1) - batch.target + 0.1 * noise[:, 0]).square()
    return error.mean(), error.detach().sqrt()


def update(state, batch, noise, hyper, *, nets):
    value, error, grad = value_and_grad(loss, state.params, batch, noise, nets)
    adam_step(state.params, grad, state.adam, learning_rate=hyper.learning_rate)
    move_towards(state.target, state.params, 0.05)
    return {"loss": value, "norm": grad.norm()}, error


def rarely(state, batch, noise, hyper, *, nets):
    move_towards(state.target, state.params, 1.0)
    return {"moved": state.target.sum()}


def learner(seed, *, learning_rate=1e-2, hidden_sizes=(8,), execution="eager"):
    network = actor_critic(Spaces(obs_spec(3), DISCRETE), hidden_sizes=hidden_sizes)
    nets = LearnedNetwork(network)
    params = nets.initial(seed)
    return Learner(
        State(params, AdamState.zeros(params), params.clone()),
        Hyper(learning_rate),
        [
            UpdateRule(function=partial(update, nets=nets), noise_shape=(16, 1)),
            UpdateRule(function=partial(rarely, nets=nets), name="rare", every=3, times=2),
        ],
        network=nets,
        acting="params",
        device=torch.device("cpu"),
        seed=(seed, 1),
        execution=execution,
        num_batches=10,
        batch_size=16,
    )


def batches(seed, count):
    rng = torch.Generator().manual_seed(seed)
    for _ in range(count):
        yield Batch(torch.randn(16, 3, generator=rng), torch.randn(16, generator=rng))


def assert_like(ours, alone):
    for name, x in tensors(alone.state).items():
        torch.testing.assert_close(tensors(ours.state)[name], x, rtol=1e-4, atol=1e-6, msg=name)


@pytest.mark.parametrize("mode", ["eager", pytest.param("compile", marks=pytest.mark.slow)])
def test_each_learns_what_it_learns_alone(mode):
    """Noise, two kinds of updates, a learning rate of its own, published parameters."""
    rates = [1e-2, 3e-3, 3e-2]
    together = [learner(k, learning_rate=x, execution=mode) for k, x in enumerate(rates)]
    lanes = Lanes(together)
    alone = [learner(k, learning_rate=x, execution=mode) for k, x in enumerate(rates)]
    for given in zip(*(batches(k, 7) for k in range(3)), strict=True):
        errors = lanes.update(dict(enumerate(given)))
        for k, (one, batch) in enumerate(zip(alone, given, strict=True)):
            torch.testing.assert_close(errors[k], one.update(batch), rtol=1e-4, atol=1e-6)
    for ours, one in zip(together, alone, strict=True):
        assert_like(ours, one)
        assert ours.num_updates == one.num_updates == 7
        means, theirs = ours.metrics.means(), one.metrics.means()
        assert means.keys() == theirs.keys() == {"loss", "norm", "moved"}
        np.testing.assert_allclose([*means.values()], [*theirs.values()], rtol=1e-4)
        params = ours.publish(1).params
        for name, theirs in one.publish(1).params.items():
            np.testing.assert_allclose(params[name], theirs, rtol=1e-4, atol=1e-6)


def test_lanes_that_do_not_learn_stay_as_they_are():
    """One falls behind by two batches, so that its rare updates come later than the others'."""
    together, alone = [learner(k) for k in range(3)], [learner(k) for k in range(3)]
    lanes = Lanes(together)
    given = [list(batches(k, 6)) for k in range(3)]
    for step in range(6):
        some = {k: given[k][step] for k in (0, 2)} | ({1: given[1][step]} if step >= 2 else {})
        lanes.update(some)
        for k, batch in some.items():
            alone[k].update(batch)
        for ours, one in zip(together, alone, strict=True):
            assert_like(ours, one)
    assert [one.num_updates for one in together] == [6, 4, 6]


def test_a_lane_that_is_nan_leaves_the_others_alone():
    together, alone = [learner(k) for k in range(2)], learner(1)
    lanes = Lanes(together)
    together[0].state.params.fill_(torch.nan)
    for given in zip(batches(0, 3), batches(1, 3), strict=True):
        lanes.update(dict(enumerate(given)))
        alone.update(given[1])
    assert together[0].non_finite()
    assert_like(together[1], alone)
    # What has left may be written over.
    lanes.leave(0)
    lanes.update({1: next(batches(2, 1))})
    assert together[1].num_updates == 4
    assert not together[1].non_finite()


def test_a_checkpoint_of_a_lane_is_that_of_a_run():
    """It is loaded into a learner that goes on alone, and into a lane."""
    together = [learner(k) for k in range(2)]
    lanes = Lanes(together)
    for given in zip(batches(0, 3), batches(1, 3), strict=True):
        lanes.update(dict(enumerate(given)))
    kept, random_state = together[1].kept_state(), together[1].random_state()
    arrays = {name: x.copy() for name, x in kept().items()}
    more = next(batches(5, 1))
    lanes.update({0: more, 1: more})
    np.testing.assert_array_equal(kept()["state.params"], arrays["state.params"])
    after = together[1].state.params.clone()

    alone = learner(1)
    alone.load(arrays, random_state, 3, {})
    alone.update(more)
    torch.testing.assert_close(alone.state.params, after, rtol=1e-4, atol=1e-6)
    together[1].load(arrays, random_state, 3, {})
    lanes.update({1: more})
    assert torch.equal(together[1].state.params, after)


def test_other_shapes_are_refused():
    with pytest.raises(ConfigError, match=r"one shape, but `0.params` is .* vary only numbers"):
        Lanes([learner(0), learner(1, hidden_sizes=(9,))])


def test_updates_without_a_rule_for_vmap_are_made_one_after_another():
    """An operation of one's own has none; the summary says so."""

    @torch.library.custom_op("hotloop_tests::halved", mutates_args=())
    def halved(x: Tensor) -> Tensor:
        return x / 2

    halved.register_autograd(lambda ctx, grad: grad / 2)
    halved.register_fake(torch.empty_like)

    def with_own(state, batch, noise, hyper, *, nets):
        value, _, grad = value_and_grad(
            lambda x, *rest: (lambda a: (halved(a[0]), a[1]))(loss(x, *rest)),
            *(state.params, batch, noise, nets),
        )
        state.params.sub_(hyper.learning_rate * grad)
        return {"loss": value}

    def made(seed):
        one = learner(seed)
        nets = LearnedNetwork(actor_critic(Spaces(obs_spec(3), DISCRETE), hidden_sizes=(8,)))
        return Learner(
            one.state,
            Hyper(0.01),
            [UpdateRule(function=partial(with_own, nets=nets), noise_shape=(16, 1))],
            network=nets,
            acting="params",
            device=torch.device("cpu"),
            seed=(seed, 1),
            execution="eager",
            num_batches=10,
            batch_size=16,
        )

    together, alone = [made(0), made(1)], made(1)
    lanes = Lanes(together)
    for given in zip(batches(0, 2), batches(1, 2), strict=True):
        lanes.update(dict(enumerate(given)))
        alone.update(given[1])
    assert_like(together[1], alone)
    assert "one after another, since `vmap` can't" in lanes.executions[0].summary()
