"""Central inference: one process acts for all workers, with the same results."""

import dataclasses
import os
import select
from functools import partial

import numpy as np
import pytest
import torch

from hotloop import timing
from hotloop.policies import EpsilonGreedy, Exploration, GaussianNoise, actor, actor_critic
from hotloop.policies.heads import Deterministic, Greedy, SquashedGaussian
from hotloop.rollouts.inference.wakeups import clear_wakeup, create_wakeup_fd, wake
from hotloop.types import Fragment
from tests.rollouts.processes.pools import (
    SCRIPTED,
    Trace,
    assert_adds_up,
    assert_same_fragments,
    assert_same_states,
    begin,
    make_inline,
    open_pool,
    snapshot_of,
)
from tests.toy_noise import HeldNoise
from tests.worker_envs import count_calls

pytestmark = pytest.mark.usefixtures("mark")

CATCH = "tests.toy_images:Catch"
SMALL = {"places": 5, "scale": 8}


@pytest.fixture
def one_thread():
    """Limit torch to one thread, as in training: two threads on a busy core wait for each other."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def assert_close(actual, expected):
    """Check that integers are equal and floats close. Batch sizes change the last bits."""
    for a, b in zip(actual, expected, strict=True):
        for field in dataclasses.fields(Fragment):
            if field.name == "versions":  # only set by workers; `policy_version` is compared
                continue
            x, y = getattr(a, field.name), getattr(b, field.name)
            if np.asarray(x).dtype.kind == "f":
                np.testing.assert_allclose(x, y, rtol=1e-4, atol=1e-4, err_msg=field.name)
            else:
                np.testing.assert_array_equal(x, y, err_msg=field.name)


def check(env, num_workers, num_envs, compare, *, num_steps=12, num_fragments=3, **options):
    """Compare central inference with this process, over several publications."""
    plan = {name: options.pop(name) for name in ("make", "exploration") if name in options}
    with open_pool(env, num_workers, num_envs, inference="central", **options) as pool:
        inline = make_inline(env, num_workers, num_envs, **options)
        actual, expected = begin(pool, num_steps, **plan), begin(inline, num_steps, **plan)
        episodes = []
        for k in range(num_fragments):
            compare(actual.collect(), expected.collect())
            finished = actual.pop_episodes()
            assert [(e.env, e.episode, e.length) for e in finished] == [
                (e.env, e.episode, e.length) for e in expected.pop_episodes()
            ]
            episodes += finished
            if compare is assert_same_fragments:
                assert_same_states(actual.state(), expected.state())
            for rollout in (actual, expected):
                rollout.publish(snapshot_of(rollout.policy.network, k + 1))
        a, b = actual.accounting(), expected.accounting()
        assert (a.collected, a.trained, a.dropped) == (b.collected, b.trained, b.dropped)
        inline.close()
    return len(episodes)


@pytest.mark.usefixtures("one_thread")
def test_actions_of_one_environment_are_bitwise_the_same():
    # Both evaluate batches of one observation.
    make = partial(actor_critic, hidden_sizes=(8,), memory="gru:6")
    assert check(CATCH, 1, 1, assert_same_fragments, make=make, env_kwargs=SMALL) > 3


@pytest.mark.parametrize(
    ("env", "num_envs", "memory", "options"),
    [
        (CATCH, 3, None, {"env_kwargs": SMALL}),
        ("CartPole-v1", 2, "lstm:6", {"stagger": 4, "num_steps": 20}),
        ("Pendulum-v1", 2, None, {"stagger": 4, "num_steps": 50}),
        ("tests.worker_envs:vector_of_signs", 3, None, {"env_kwargs": {"num_envs": 3}}),
    ],
)
@pytest.mark.usefixtures("one_thread")
def test_actions_of_batches_are_the_same(env, num_envs, memory, options):
    make = partial(actor_critic, hidden_sizes=(8,), memory=memory)
    assert check(env, 2, num_envs, assert_close, make=make, **options) > 2


@pytest.mark.parametrize(
    ("env", "head", "exploration"),
    [
        (
            "CartPole-v1",
            Greedy(),
            EpsilonGreedy(start=1.0, end=0.1, num_steps=30, random_steps=5),
        ),
        ("Pendulum-v1", SquashedGaussian(), Exploration(random_steps=7)),
        ("Pendulum-v1", Deterministic(), GaussianNoise(random_steps=7, std=0.2)),
    ],
)
def test_actors_explore_the_same(env, head, exploration):
    options = {"make": partial(actor, head=head, hidden_sizes=(8,)), "exploration": exploration}
    check(env, 2, 2, assert_close, **options)


@pytest.mark.usefixtures("cold_start")
def test_workers_import_neither_torch_nor_the_policys_classes(tmp_path):
    kwargs = {"directory": str(tmp_path)}
    make = partial(actor, head=Deterministic(), network="tests.policies.nets:ActorNet")
    with open_pool(
        "tests.worker_envs:RecordsImports", env_kwargs=kwargs, inference="central"
    ) as pool:
        begin(pool, make=make, exploration=HeldNoise(std=0.1)).collect()
    imports = sorted(path.read_text() for path in tmp_path.glob("*.imports"))
    assert imports == ["", ""]


# --- schedules ------------------------------------------------------------------------------------


@pytest.mark.parametrize(("num_envs", "memory"), [(1, None), (2, "lstm:6")])
def test_variable_takes_whole_batches_with_values_of_the_acting_policy(tmp_path, num_envs, memory):
    kwargs = {"directory": str(tmp_path), "pause_s": {"0": 0.0, "1": 0.02}}
    make = partial(actor_critic, hidden_sizes=(8,), memory=memory)
    trace = Trace(2 * num_envs)
    with open_pool(SCRIPTED, 2, num_envs, env_kwargs=kwargs, inference="central") as pool:
        rollout = begin(pool, 10, make=make, schedule="variable")
        shares = []
        for _ in range(5):
            fragments = rollout.collect()
            shares.append([fragment.num_steps for fragment in fragments])
            trace.add(fragments)
            assert_adds_up(rollout.accounting())
            for fragment in fragments:
                memories = None if memory is None else fragment.memory.reshape(-1, 12)
                obs = fragment.obs.reshape(-1, 2)
                want = rollout.policy.value(obs, memories).reshape(fragment.value.shape)
                np.testing.assert_allclose(fragment.value, want, rtol=1e-4, atol=1e-5)
                ends = fragment.terminated | fragment.truncated
                ongoing = ~ends[:-1]
                following = fragment.value[1:][ongoing]
                next_values = fragment.next_value[:-1][ongoing]
                np.testing.assert_allclose(next_values, following, rtol=1e-4, atol=1e-5)
                assert np.isfinite(fragment.next_value).all()
                assert (fragment.log_prob < 0).all()
                if memory is not None:
                    assert not fragment.memory[1:][ends[:-1]].any()
                    assert fragment.memory[1:][ongoing].any(-1).all()
    assert all(sum(share) == 20 for share in shares)
    fast, slow = np.sum(shares, 0)
    assert fast > slow > 0
    assert len(trace.check(10)) >= 4
    assert count_calls(tmp_path, "step") == rollout.accounting().collected


def test_a_restored_rollout_continues_where_the_other_stopped():
    whole = begin(make_inline("CartPole-v1", 2, 2), 16)
    for _ in range(3):
        whole.collect()
    state = whole.state()
    expected = whole.collect()
    with open_pool("CartPole-v1", 2, 2, inference="central") as pool:
        rollout = begin(pool, 16)
        assert rollout.restore(state.to_arrays(), state.position()) == []
        assert_close(rollout.collect(), expected)
        assert rollout.accounting().collected == 64  # since it was restored
    whole.close()


# --- parts ----------------------------------------------------------------------------------------


def test_repeated_wakeups_are_received_once():
    fd = create_wakeup_fd()
    clear_wakeup(fd)  # without a wake-up
    wake(fd)
    wake(fd)
    assert select.select([fd], [], [], 0)[0] == [fd]
    clear_wakeup(fd)
    assert select.select([fd], [], [], 0)[0] == []
    os.close(fd)


def test_the_inference_process_records_its_timing(tmp_path):
    with open_pool("CartPole-v1", timing_dir=tmp_path, inference="central") as pool:
        rollout = begin(pool)
        for _ in range(5):  # an answer may be there before a worker waits for it
            rollout.collect()
    recordings, _ = timing.read_directory(tmp_path)
    trees = {recording.component: recording.tree() for recording in recordings}
    assert sorted(trees) == ["inference-0", "worker-0", "worker-1"]
    inference, worker = (
        {node.name: node for node in trees[name].children.values()}
        for name in ("inference-0", "worker-0")
    )
    assert {"wait", "act"} <= inference.keys()
    assert inference["evaluate"].count == 10
    assert "act" not in worker
    assert "wait_for_inference" in worker
    for account in rollout.accounting().workers:
        assert min(account.act_share, account.wait_share) > 0
        assert account.act_share + account.wait_share < 1
