"""Lanes: several learners that are updated together."""

from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

import numpy as np
import pytest
import torch
from torch import Tensor

from hotloop.errors import ConfigError
from hotloop.learner import AdamState, Learner, UpdateRule, adam_step, move_towards, value_and_grad
from hotloop.learner.lanes import Lanes, _LaneUpdate
from hotloop.learner.state import tensors
from hotloop.policies import actor_critic
from hotloop.policies.forward import LearnedNetwork
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


def copy_target(state, batch, noise, hyper, *, nets):
    move_towards(state.target, state.params, 1.0)
    return {"moved": state.target.sum()}


def make_learner(seed, *, learning_rate=1e-2, hidden_sizes=(8,), execution="eager"):
    network = actor_critic(Spaces(obs_spec(3), DISCRETE), hidden_sizes=hidden_sizes)
    nets = LearnedNetwork(network)
    params = nets.initial(seed)
    return Learner(
        State(params, AdamState.zeros(params), params.clone()),
        Hyper(learning_rate),
        [
            UpdateRule(function=partial(update, nets=nets), noise_shape=(16, 1)),
            UpdateRule(function=partial(copy_target, nets=nets), name="rare", every=3, times=2),
        ],
        network=nets,
        acting="params",
        device=torch.device("cpu"),
        seed=(seed, 1),
        execution=execution,
        num_batches=10,
        batch_size=16,
    )


def make_batches(seed, count):
    rng = torch.Generator().manual_seed(seed)
    for _ in range(count):
        yield Batch(torch.randn(16, 3, generator=rng), torch.randn(16, generator=rng))


def assert_same_state(lane, single):
    for name, x in tensors(single.state).items():
        torch.testing.assert_close(tensors(lane.state)[name], x, rtol=1e-4, atol=1e-6, msg=name)


@pytest.mark.parametrize("mode", ["eager", pytest.param("compile", marks=pytest.mark.slow)])
def test_lanes_learn_like_single_learners(mode):
    """With noise, two kinds of updates, several learning rates and published parameters."""
    rates = [1e-2, 3e-3, 3e-2]
    together = [make_learner(k, learning_rate=x, execution=mode) for k, x in enumerate(rates)]
    lanes = Lanes(together)
    alone = [make_learner(k, learning_rate=x, execution=mode) for k, x in enumerate(rates)]
    for step_batches in zip(*(make_batches(k, 7) for k in range(3)), strict=True):
        errors = lanes.update(dict(enumerate(step_batches)))
        for k, (single, batch) in enumerate(zip(alone, step_batches, strict=True)):
            torch.testing.assert_close(errors[k], single.update(batch), rtol=1e-4, atol=1e-6)
    for lane, single in zip(together, alone, strict=True):
        assert_same_state(lane, single)
        assert lane.num_updates == single.num_updates == 7
        means, expected = lane.metrics.means(), single.metrics.means()
        assert means.keys() == expected.keys() == {"loss", "norm", "moved"}
        np.testing.assert_allclose([*means.values()], [*expected.values()], rtol=1e-4)
        params = lane.publish(1).params
        for name, expected in single.publish(1).params.items():
            np.testing.assert_allclose(params[name], expected, rtol=1e-4, atol=1e-6)


def test_lanes_without_a_batch_stay_unchanged():
    """One lane falls behind by two batches, so its rare updates come later."""
    together, alone = [make_learner(k) for k in range(3)], [make_learner(k) for k in range(3)]
    lanes = Lanes(together)
    lane_batches = [list(make_batches(k, 6)) for k in range(3)]
    for step in range(6):
        step_batches = {k: lane_batches[k][step] for k in (0, 2)} | (
            {1: lane_batches[1][step]} if step >= 2 else {}
        )
        lanes.update(step_batches)
        for k, batch in step_batches.items():
            alone[k].update(batch)
        for lane, single in zip(together, alone, strict=True):
            assert_same_state(lane, single)
    assert [lane.num_updates for lane in together] == [6, 4, 6]


def test_lane_with_nan_leaves_the_others_unchanged():
    together, alone = [make_learner(k) for k in range(2)], make_learner(1)
    lanes = Lanes(together)
    together[0].state.params.fill_(torch.nan)
    for step_batches in zip(make_batches(0, 3), make_batches(1, 3), strict=True):
        lanes.update(dict(enumerate(step_batches)))
        alone.update(step_batches[1])
    assert together[0].non_finite()
    assert_same_state(together[1], alone)
    # A released lane may be overwritten.
    lanes.release(0)
    lanes.update({1: next(make_batches(2, 1))})
    assert together[1].num_updates == 4
    assert not together[1].non_finite()


def test_checkpoint_of_a_lane_equals_that_of_a_run():
    """It is loaded into a single learner and into a lane."""
    together = [make_learner(k) for k in range(2)]
    lanes = Lanes(together)
    for step_batches in zip(make_batches(0, 3), make_batches(1, 3), strict=True):
        lanes.update(dict(enumerate(step_batches)))
    snapshot, random_state = together[1].state_snapshot(), together[1].random_state()
    arrays = {name: x.copy() for name, x in snapshot().items()}
    more = next(make_batches(5, 1))
    lanes.update({0: more, 1: more})
    np.testing.assert_array_equal(snapshot()["state.params"], arrays["state.params"])
    after = together[1].state.params.clone()

    alone = make_learner(1)
    alone.load(arrays, random_state, 3, {})
    alone.update(more)
    torch.testing.assert_close(alone.state.params, after, rtol=1e-4, atol=1e-6)
    together[1].load(arrays, random_state, 3, {})
    lanes.update({1: more})
    assert torch.equal(together[1].state.params, after)


def test_other_shapes_are_refused():
    with pytest.raises(ConfigError, match=r"one shape, but `0.params` is .* vary only numbers"):
        Lanes([make_learner(0), make_learner(1, hidden_sizes=(9,))])


def test_updates_without_a_rule_for_vmap_are_made_one_after_another():
    """A custom operation has no rule, and the summary reports it."""

    @torch.library.custom_op("hotloop_tests::halved", mutates_args=())
    def halved(x: Tensor) -> Tensor:
        return x / 2

    halved.register_autograd(lambda ctx, grad: grad / 2)
    halved.register_fake(torch.empty_like)

    def update_with_custom_op(state, batch, noise, hyper, *, nets):
        value, _, grad = value_and_grad(
            lambda x, *args: (lambda a: (halved(a[0]), a[1]))(loss(x, *args)),
            *(state.params, batch, noise, nets),
        )
        state.params.sub_(hyper.learning_rate * grad)
        return {"loss": value}

    def make_custom(seed):
        base = make_learner(seed)
        nets = LearnedNetwork(actor_critic(Spaces(obs_spec(3), DISCRETE), hidden_sizes=(8,)))
        return Learner(
            base.state,
            Hyper(0.01),
            [UpdateRule(function=partial(update_with_custom_op, nets=nets), noise_shape=(16, 1))],
            network=nets,
            acting="params",
            device=torch.device("cpu"),
            seed=(seed, 1),
            execution="eager",
            num_batches=10,
            batch_size=16,
        )

    together, alone = [make_custom(0), make_custom(1)], make_custom(1)
    lanes = Lanes(together)
    for step_batches in zip(make_batches(0, 2), make_batches(1, 2), strict=True):
        lanes.update(dict(enumerate(step_batches)))
        alone.update(step_batches[1])
    assert_same_state(together[1], alone)
    assert "one after another, since `vmap` fails" in lanes.executions[0].summary()


def test_an_interrupted_update_keeps_the_lanes_without_a_batch(monkeypatch):
    together = [make_learner(k) for k in range(2)]
    lanes = Lanes(together)
    before = {name: x.clone() for name, x in tensors(together[1].state).items()}
    update_all = _LaneUpdate.__call__

    def interrupted(self, *args):
        update_all(self, *args)
        raise KeyboardInterrupt

    monkeypatch.setattr(_LaneUpdate, "__call__", interrupted)
    (batch,) = make_batches(0, 1)
    with pytest.raises(KeyboardInterrupt):
        lanes.update({0: batch})
    for name, x in tensors(together[1].state).items():
        assert torch.equal(x, before[name])
