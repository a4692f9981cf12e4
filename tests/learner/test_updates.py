"""Updates: their contract and its error messages; equality of eager and compiled updates."""

import math
import shutil
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch

from hotloop.algorithms import dqn, find, ppo
from hotloop.envs.spaces import ActionSpec
from hotloop.errors import ConfigError
from hotloop.learner import ExecutionChoice, UpdateRule
from hotloop.learner.state import clone, tensors
from hotloop.learner.updates import BoundUpdate
from hotloop.ops.schedules import linear
from hotloop.training import ReplayBatch
from hotloop.training.learners import make_learner as make_declared_learner
from tests.policies.nets import Spaces
from tests.policies.test_policies import DISCRETE, obs_spec

needs_compiler = pytest.mark.skipif(shutil.which("g++") is None, reason="no C++ compiler")

# --- the contract --------------------------------------------------------------------------------


@dataclass(slots=True)
class State:
    params: torch.Tensor
    step: torch.Tensor


class Hyper(NamedTuple):
    learning_rate: Any


class Rows(NamedTuple):
    x: Any
    weight: Any = None


def bind_update(function, is_compiled=False):
    state = State(torch.zeros(3), torch.tensor(0.0))
    hyper = Hyper(torch.tensor(0.5))
    choice = ExecutionChoice(is_compiled, "as requested")
    return state, BoundUpdate(function, state, hyper, choice, "update of the critics")


def valid_update(state, batch, noise, hyper):
    state.params.add_(hyper.learning_rate * batch.x.mean(0))
    state.step.add_(1.0)
    loss = batch.x.square().mean()
    return {"loss": loss, "count": torch.tensor(3), "noise": 0.0 * loss if noise is None else noise}


def update_with_error(state, batch, noise, hyper):
    return valid_update(state, batch, noise, hyper), batch.x.abs().sum(1)


BATCH = Rows(torch.tensor([[1.0, 2.0, 3.0], [3.0, 2.0, 1.0]]))


def test_metrics_come_in_one_tensor():
    state, update = bind_update(valid_update)
    assert update.names == ()
    row, td_error = update(BATCH, torch.tensor(7.0))
    assert update.names == ("loss", "count", "noise")
    assert row.tolist() == [pytest.approx(28 / 6), 3.0, 7.0]
    assert (row.dtype, row.requires_grad) == (torch.float32, False)
    assert td_error is None
    assert update(BATCH, None)[0][2] == 0.0
    # The first run on copies changed nothing.
    assert state.step.item() == 2.0
    assert state.params.tolist() == [2.0, 2.0, 2.0]
    assert BATCH.x[0].tolist() == [1.0, 2.0, 3.0]


def test_update_may_return_an_error_per_row():
    _, update = bind_update(update_with_error)
    row, td_error = update(BATCH, None)
    assert row.shape == (3,)
    assert td_error.tolist() == [6.0, 6.0]


@pytest.mark.parametrize(
    ("metrics", "got"),
    [
        (None, "a NoneType"),
        ({}, "a dict"),
        (torch.tensor(1.0), r"a tensor of shape \(\)"),
        ([torch.tensor(1.0)], "a list"),
        ((torch.tensor(1.0), None), r"a tensor of shape \(\)"),
        ((torch.tensor(1.0),) * 3, "a tuple"),
    ],
)
def test_missing_metrics_are_refused(metrics, got):
    state, update = bind_update(lambda state, batch, noise, hyper: metrics)
    message = (
        "the update of the critics must return its metrics, a dictionary of 0-d tensors by name, "
        f"got {got}: return at least the loss"
    )
    with pytest.raises(ConfigError, match=message):
        update(BATCH, None)
    assert state.step.item() == 0.0


@pytest.mark.parametrize(
    ("value", "got"),
    [
        (torch.ones(2), r"a tensor of shape \(2,\): take its mean"),
        (torch.ones(1), r"a tensor of shape \(1,\): take its mean"),
        (0.5, "a float: leave it a tensor, without `.item"),
        (np.float32(0.5), "a float32: leave it a tensor, without `.item"),
    ],
)
def test_metrics_that_are_not_0_d_are_refused(value, got):
    def update(state, batch, noise, hyper):
        return {"loss": batch.x.mean(), "each": value}

    message = rf"must return 0-d tensors as metrics, but `each` is {got}"
    with pytest.raises(ConfigError, match=message):
        bind_update(update)[1](BATCH, None)


def test_second_output_must_be_a_tensor():
    def update(state, batch, noise, hyper):
        return {"loss": batch.x.mean()}, [1.0, 2.0]

    message = r"metrics and \|TD error\|, \(B,\), got metrics and a list: leave it out"
    with pytest.raises(ConfigError, match=message):
        bind_update(update)[1](BATCH, None)


@pytest.mark.parametrize("later", [("loss",), ("loss", "entropy", "kl"), ("entropy", "loss")])
def test_changing_metric_names_are_refused(later):
    names = iter([("loss", "entropy"), ("loss", "entropy"), later])

    def update(state, batch, noise, hyper):
        return {name: batch.x.mean() for name in next(names)}

    _, changing = bind_update(update)
    assert changing(BATCH, None)[0].shape == (2,)  # on copies, and for real
    message = rf"\['loss', 'entropy'\] first, then \[{', '.join(map(repr, later))}\]: always return"
    with pytest.raises(ConfigError, match=message):
        changing(BATCH, None)


@pytest.mark.parametrize("is_compiled", [False, True])
@pytest.mark.parametrize("name", ["params", "step"])
def test_replaced_state_tensor_is_refused(name, is_compiled):
    def update(state, batch, noise, hyper):
        setattr(state, name, getattr(state, name) + 1.0)
        return {"loss": batch.x.mean()}

    state, replacing = bind_update(update, is_compiled)
    before = tensors(state)
    message = rf"in place, but replaces `{name}`: write `state\.{name}\.copy_\(…\)`"
    with pytest.raises(ConfigError, match=message):
        replacing(BATCH, None)
    assert all(tensors(state)[x] is before[x] for x in before)  # only a copy was changed
    assert replacing.execution.compile_s == 0.0  # refused before compilation


def test_resized_state_tensor_is_refused():
    def update(state, batch, noise, hyper):
        state.params.resize_(4)
        return {"loss": batch.x.mean()}

    with pytest.raises(ConfigError, match="replaces `params`"):
        bind_update(update)[1](BATCH, None)


def test_dropped_state_tensor_is_refused():
    def update(state, batch, noise, hyper):
        state.step = None
        return {"loss": batch.x.mean()}

    with pytest.raises(ConfigError, match="replaces `step`"):
        bind_update(update)[1](BATCH, None)


# --- eager and compiled --------------------------------------------------------------------------

BOX = ActionSpec(kind="box", shape=(2,), dtype="float32", low=(-2.0, 0.0), high=(2.0, 1.0))
SIZE = 16
SMALL = {"hidden_sizes": (12, 8), "torch_threads": 1}
OFF_POLICY = {**SMALL, "batch_size": SIZE, "tau": linear(0.1, 0.01)}
# Every option that supports a schedule changes at each step.
OPTIONS = {
    "ppo": {
        **SMALL,
        "num_envs": 1,
        "num_steps": 4 * SIZE,
        "learning_rate": linear(3e-3, 1e-4),
        "clip_range": linear(0.3, 0.1),
        "entropy_coef": linear(0.05, 0.0),
        "value_coef": linear(0.2, 0.8),
        "max_grad_norm": linear(0.1, 5.0),
        "clip_value_loss": True,
    },
    "sac": {
        **OFF_POLICY,
        "policy_learning_rate": linear(3e-3, 1e-4),
        "critic_learning_rate": linear(1e-3, 3e-3),
        "target_entropy": linear(-1.0, -3.0),
    },
    "tqc": {
        **OFF_POLICY,
        "num_quantiles": 5,
        "policy_learning_rate": linear(3e-3, 1e-4),
        "critic_learning_rate": linear(1e-3, 3e-3),
    },
    "crossq": {
        **SMALL,
        "batch_size": SIZE,
        "critic_hidden_sizes": (10,),
        "batch_norm_updates": 10,
        "statistics_rate": linear(0.1, 0.01),
        "policy_learning_rate": linear(3e-3, 1e-4),
        "critic_learning_rate": linear(1e-3, 3e-3),
    },
    "sac_discrete": {
        **OFF_POLICY,
        "policy_learning_rate": linear(3e-3, 1e-4),
        "critic_learning_rate": linear(1e-3, 3e-3),
        "target_entropy_share": linear(0.9, 0.2),
    },
    "td3": {
        **OFF_POLICY,
        "learning_rate": linear(3e-3, 1e-4),
        "policy_noise": linear(0.3, 0.1),
        "noise_clip": linear(0.5, 0.2),
    },
    "dqn": {
        **OFF_POLICY,
        "learning_rate": linear(3e-3, 1e-4),
        "max_grad_norm": linear(0.1, 5.0),
        "dueling": True,
    },
}


def make_learner(name, execution, device="cpu"):
    """Return an algorithm's learner, built as in training."""
    algorithm = find(name)
    config = algorithm.config(**OPTIONS[name], execution=execution)
    device = torch.device(device)
    spaces = Spaces(obs_spec(3), DISCRETE if name in ("ppo", "dqn", "sac_discrete") else BOX)
    nets = algorithm.networks(config, spaces, device)
    if name == "ppo":
        rules = [UpdateRule(function=partial(algorithm.update, nets=nets, config=config))]
    else:
        rules = [update.rule(nets, config) for update in algorithm.updates]
    sizes = {"num_batches": 100, "batch_size": SIZE}
    return make_declared_learner(algorithm, config, nets, rules, device=device, stream=1, **sizes)


def make_batch(name, seed):
    rng = np.random.default_rng(seed)

    def floats(*shape):
        return torch.from_numpy(rng.standard_normal((SIZE, *shape), np.float32))

    action = torch.from_numpy(rng.integers(0, 3, SIZE))
    if name == "ppo":
        return ppo.Batch(
            floats(3), action, -1.0 + 0.1 * floats(), floats(), floats(), floats(), floats().exp()
        )
    if name not in ("dqn", "sac_discrete"):
        action = torch.from_numpy(rng.uniform((-2.0, 0.0), (2.0, 1.0), (SIZE, 2)))
        action = action.to(torch.float32)
    discount = torch.from_numpy(rng.random(SIZE) > 0.1).to(torch.float32)
    return ReplayBatch(
        floats(3), action, floats(), floats(3), discount, floats().exp(), floats().exp()
    )


@needs_compiler
@pytest.mark.slow  # quick tests of execution compile PPO's update
@pytest.mark.parametrize(
    "name",
    ["crossq", "dqn", "ppo", "sac", "sac_discrete", "td3", "tqc"],
)
def test_eager_equals_compiled(name):
    """40 batches from the same noise, while every hyper-parameter changes: compiled once."""
    learners = [make_learner(name, mode) for mode in ("eager", "compile")]
    eager, compiled = learners
    initial_state = clone(eager.state)
    for k in range(40):
        errors = []
        for learner in learners:
            learner.hyper.set(k / 40)
            errors.append(learner.update(make_batch(name, k)))
        if name != "ppo":
            torch.testing.assert_close(errors[1], errors[0], rtol=1e-3, atol=1e-3)
            assert errors[0].shape == (SIZE,)
        if name == "dqn" and k % 10 == 9:
            for learner in learners:
                dqn.move_target(learner.state, 1, learner.hyper.tensors)
    states = [tensors(learner.state) for learner in learners]
    assert states[0].keys() == states[1].keys()
    for part, x in states[0].items():
        got, want, before = (
            y.to(torch.float32) for y in (states[1][part], x, tensors(initial_state)[part])
        )
        atol = 2e-3 * float(want.abs().max())  # so that tiny moments count
        torch.testing.assert_close(got, want, rtol=2e-3, atol=atol, msg=part)
        assert part == "active" or not torch.allclose(want, before, rtol=0.1, atol=atol), part
    means = [learner.metrics.means() for learner in learners]
    assert means[1] == pytest.approx(means[0], rel=1e-3, abs=1e-4)
    assert eager.rng.bit_generator.state == compiled.rng.bit_generator.state
    changing = compiled.hyper.reported_values()
    num_changing = len(OPTIONS[name].keys() & changing.keys())
    assert num_changing == sum(not math.isclose(*ends) for ends in schedule_ends(name))
    for learner in learners:
        for execution in learner.executions:
            assert execution.choice.is_compiled == (learner is compiled)
            assert (execution.compile_s > 0) == (learner is compiled)
            assert execution.num_recompilations == 0


def schedule_ends(name):
    """Return the first and last values of the options that are schedules."""
    schedules = [x for x in OPTIONS[name].values() if callable(x)]
    return [(schedule(0.0), schedule(1.0)) for schedule in schedules]
