"""One process acts for all workers: the same as each of them would by itself."""

import dataclasses
import os
import select
from functools import partial

import numpy as np
import pytest
import torch

from hotloop import timing
from hotloop.policies import Exploration, actor, actor_critic
from hotloop.rollouts.inference.bells import hush, new_bell, ring
from hotloop.types import Fragment
from tests.rollouts.workers.pools import (
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
from tests.worker_envs import count_calls

pytestmark = pytest.mark.usefixtures("mark")

CATCH = "tests.toy_images:Catch"
SMALL = {"places": 5, "scale": 8}


@pytest.fixture
def one_thread():
    """As in a training: two threads of torch on a core that others use wait for each other."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def assert_close(ours, theirs):
    """Actions and all that follows are the same; of what is computed, all but the last bits."""
    for a, b in zip(ours, theirs, strict=True):
        for field in dataclasses.fields(Fragment):
            if field.name == "versions":  # of workers' rows alone; `policy_version` is compared
                continue
            x, y = getattr(a, field.name), getattr(b, field.name)
            if np.asarray(x).dtype.kind == "f":
                np.testing.assert_allclose(x, y, rtol=1e-4, atol=1e-4, err_msg=field.name)
            else:
                np.testing.assert_array_equal(x, y, err_msg=field.name)


def check(env, num_workers, num_envs, compare, *, num_steps=12, num_fragments=3, **options):
    """Central inference gives what this process gives, over several publications."""
    kept = {name: options.pop(name) for name in ("make", "exploration") if name in options}
    with open_pool(env, num_workers, num_envs, inference="central", **options) as pool:
        inline = make_inline(env, num_workers, num_envs, **options)
        ours, theirs = begin(pool, num_steps, **kept), begin(inline, num_steps, **kept)
        episodes = []
        for k in range(num_fragments):
            compare(ours.collect(), theirs.collect())
            more = ours.pop_episodes()
            assert [(e.env, e.episode, e.length) for e in more] == [
                (e.env, e.episode, e.length) for e in theirs.pop_episodes()
            ]
            episodes += more
            if compare is assert_same_fragments:
                assert_same_states(ours.state(), theirs.state())
            for rollout in (ours, theirs):
                rollout.publish(snapshot_of(rollout.policy.network, k + 1))
        a, b = ours.accounting(), theirs.accounting()
        assert (a.collected, a.trained, a.dropped) == (b.collected, b.trained, b.dropped)
        inline.close()
    return len(episodes)


@pytest.mark.usefixtures("one_thread")
def test_one_environment_is_acted_for_to_the_last_bit():
    # Batches are of one observation, here as there.
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
def test_batches_are_acted_for_alike(env, num_envs, memory, options):
    make = partial(actor_critic, hidden_sizes=(8,), memory=memory)
    assert check(env, 2, num_envs, assert_close, make=make, **options) > 2


@pytest.mark.parametrize(
    ("env", "head", "exploration"),
    [
        (
            "CartPole-v1",
            "greedy",
            Exploration(epsilon=(1.0, 0.1), epsilon_steps=30, random_steps=5),
        ),
        ("Pendulum-v1", "squashed_gaussian", Exploration(random_steps=7)),
        ("Pendulum-v1", "deterministic", Exploration(random_steps=7, noise_std=0.2)),
    ],
)
def test_actors_explore_the_same(env, head, exploration):
    options = {"make": partial(actor, head=head, hidden_sizes=(8,)), "exploration": exploration}
    check(env, 2, 2, assert_close, **options)


@pytest.mark.usefixtures("cold_start")
def test_workers_do_without_torch_and_without_the_network(tmp_path):
    kwargs = {"directory": str(tmp_path)}
    make = partial(actor_critic, network="tests.policies.nets:Net")
    with open_pool(
        "tests.worker_envs:TellsImports", env_kwargs=kwargs, inference="central"
    ) as pool:
        begin(pool, make=make).collect()
    told = sorted(path.read_text() for path in tmp_path.glob("*.imports"))
    assert told == ["", ""]


# --- schedules ------------------------------------------------------------------------------------


@pytest.mark.parametrize(("num_envs", "memory"), [(1, None), (2, "lstm:6")])
def test_variable_takes_the_whole_of_it_with_values_of_what_acted(tmp_path, num_envs, memory):
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
                goes_on = ~ends[:-1]
                following = fragment.value[1:][goes_on]
                given = fragment.next_value[:-1][goes_on]
                np.testing.assert_allclose(given, following, rtol=1e-4, atol=1e-5)
                assert np.isfinite(fragment.next_value).all()
                assert (fragment.log_prob < 0).all()
                if memory is not None:
                    assert not fragment.memory[1:][ends[:-1]].any()
                    assert fragment.memory[1:][goes_on].any(-1).all()
    assert all(sum(share) == 20 for share in shares)
    fast, slow = np.sum(shares, 0)
    assert fast > slow > 0
    assert len(trace.check(10)) >= 4
    assert count_calls(tmp_path, "step") == rollout.accounting().collected


def test_a_rollout_goes_on_where_another_stood():
    whole = begin(make_inline("CartPole-v1", 2, 2), 16)
    for _ in range(3):
        whole.collect()
    state = whole.state()
    want = whole.collect()
    with open_pool("CartPole-v1", 2, 2, inference="central") as pool:
        rollout = begin(pool, 16)
        assert rollout.restore(state.to_arrays(), state.position()) == []
        assert_close(rollout.collect(), want)
        assert rollout.accounting().collected == 64  # of this run of it
    whole.close()


# --- parts ----------------------------------------------------------------------------------------


def test_a_bell_is_heard_once_however_often_it_was_rung():
    bell = new_bell()
    hush(bell)  # nobody has rung
    ring(bell)
    ring(bell)
    assert select.select([bell], [], [], 0)[0] == [bell]
    hush(bell)
    assert select.select([bell], [], [], 0)[0] == []
    os.close(bell)


def test_what_it_did_is_in_its_timing(tmp_path):
    with open_pool("CartPole-v1", timing_dir=tmp_path, inference="central") as pool:
        rollout = begin(pool)
        rollout.collect()
    recordings, _ = timing.read_directory(tmp_path)
    trees = {one.component: one.tree() for one in recordings}
    assert sorted(trees) == ["inference-0", "worker-0", "worker-1"]
    inference, worker = (
        {node.name: node for node in trees[name].children.values()}
        for name in ("inference-0", "worker-0")
    )
    assert {"wait", "act"} <= inference.keys()
    assert inference["evaluate"].count == 2
    assert "act" not in worker
    assert "wait_for_inference" in worker
    for account in rollout.accounting().workers:
        assert min(account.act_share, account.wait_share) > 0
        assert account.act_share + account.wait_share < 1
