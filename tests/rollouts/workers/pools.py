"""Rollouts by workers and beside them the same by the process of the test."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import signal
import time
import warnings
from pathlib import Path

import numpy as np

from hotloop.envs import make_vec
from hotloop.policies import ActingPolicy, PolicySnapshot, actor_critic
from hotloop.rollouts import CollectionOptions, InlineEnvironments
from hotloop.rollouts.workers.pool import WorkerPool
from hotloop.types import Fragment

# Every process that a test starts, and every one that those start, has this in its environment.
MARK = "HOTLOOP_TEST_MARK"

SCRIPTED = "tests.worker_envs:Scripted"
LENGTH = 10


def marked_processes(mark):
    """The numbers of the living processes of a test."""
    found = []
    for path in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if f"{MARK}={mark}".encode() in (path / "environ").read_bytes().split(b"\0"):
                found.append(int(path.name))
    return [pid for pid in found if pid != os.getpid()]


def wait_until(condition, timeout_s=20.0):
    """Look again and again until something is so."""
    until = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < until, "it did not come to pass"
        time.sleep(0.002)


def num_descriptors():
    """Open files of this process."""
    return len(os.listdir("/proc/self/fd"))


def kill(worker, number=signal.SIGKILL):
    """Send a signal to a worker's process, if it lives."""
    with contextlib.suppress(ProcessLookupError):
        os.kill(worker.pid, number)


def make_network(envs):
    """A small one, for any environment."""
    return actor_critic(envs, hidden_sizes=(8,))


def snapshot_of(network, version):
    """Other parameters for every version."""
    return PolicySnapshot(version, network.initial_parameters(version + 1))


def make_policy(network, exploration=None):
    return ActingPolicy(network, snapshot_of(network, 0), exploration=exploration)


@contextlib.contextmanager
def open_pool(env, num_workers=2, num_envs=1, *, seed=5, **options):
    """A pool that is closed whatever happens."""
    pool = WorkerPool(env, num_workers=num_workers, envs_per_worker=num_envs, seed=seed, **options)
    try:
        yield pool
    finally:
        pool.close()


def make_inline(env, num_workers, num_envs, *, seed=5, stagger=0, **options):
    """What `open_pool` has, in this process."""
    return InlineEnvironments(
        [
            make_vec(env, num_envs, seed=seed, first_env=w * num_envs, stagger=stagger, **options)
            for w in range(num_workers)
        ]
    )


def begin(pool, num_steps=8, *, seed=5, make=make_network, exploration=None, **plan):
    """A rollout, of whatever environments."""
    network = make(pool)
    plan = CollectionOptions(num_steps=num_steps, seed=seed, **plan)
    return pool.rollout(make_policy(network, exploration), plan)


def assert_same_fragments(ours, theirs):
    assert len(ours) == len(theirs)
    for a, b in zip(ours, theirs, strict=True):
        for field in dataclasses.fields(Fragment):
            if field.name == "versions":  # of workers' rows alone; `policy_version` is compared
                continue
            np.testing.assert_array_equal(
                getattr(a, field.name), getattr(b, field.name), err_msg=field.name
            )


def assert_same_states(ours, theirs):
    assert ours.position() == theirs.position()
    arrays, others = ours.to_arrays(), theirs.to_arrays()
    assert arrays.keys() == others.keys()
    for name, array in arrays.items():
        np.testing.assert_array_equal(array, others[name], err_msg=name)


def assert_adds_up(account):
    """collected = trained + dropped + in flight, and nothing below 0."""
    assert account.collected == account.trained + sum(account.dropped.values()) + account.in_flight
    assert min(account.trained, account.in_flight, *account.dropped.values()) >= 0


class Trace:
    """Joins the fragments of `Scripted` environments, and says what they must satisfy."""

    def __init__(self, num_envs):
        self.num_envs = num_envs
        self.rows = [[] for _ in range(num_envs)]

    def add(self, fragments):
        for fragment in fragments:
            for i in range(fragment.num_envs):
                rows = self.rows[fragment.first_env + i]
                if i in fragment.restarted_envs:
                    assert rows, "nothing was before it"
                    rows[-1]["is_cut"] = True
                for t in range(fragment.num_steps):
                    rows.append(
                        {
                            "obs": fragment.obs[t, i],
                            "next_obs": fragment.next_obs[t, i],
                            "reward": float(fragment.reward[t, i]),
                            "terminated": bool(fragment.terminated[t, i]),
                            "truncated": bool(fragment.truncated[t, i]),
                            "valid": bool(fragment.valid[t, i]),
                            "is_cut": False,
                        }
                    )

    def check(self, length):
        """What an environment's rows must satisfy; gives the episodes that came to their end.

        Each of these is (environment, return, length), of episodes that ended by themselves.
        """
        episodes = []
        for env, rows in enumerate(self.rows):
            seen = set()
            for k, row in enumerate(rows):
                if not row["valid"]:
                    assert (row["reward"], row["terminated"]) == (0, False)
                    if k + 1 < len(rows) and rows[k + 1]["valid"]:
                        assert rows[k + 1]["obs"][0] == 0
                    continue
                # A step of an episode follows on itself alone.
                assert row["next_obs"][0] == row["obs"][0] + 1 == row["reward"]
                assert row["next_obs"][1] == row["obs"][1]
                is_end = row["next_obs"][0] == length
                ends = row["terminated"] or row["truncated"] or row["is_cut"]
                assert ends >= is_end, "the recursion goes on over an end"
                if is_end:
                    episodes.append((env, length * (length + 1) / 2, length))
                if k + 1 < len(rows):
                    following = rows[k + 1]["obs"]
                    if not ends:
                        if not rows[k + 1]["valid"]:
                            assert row["truncated"], "an advantage runs across a failure"
                        np.testing.assert_array_equal(following, row["next_obs"])
                    elif rows[k + 1]["valid"]:
                        assert following[0] == 0
                if row["obs"][0] == 0:
                    assert row["obs"][1] not in seen, "an episode was played twice"
                    seen.add(row["obs"][1])
        return episodes


class Played:
    """What a rollout of `Scripted` environments gave until it was closed.

    Attributes:
        account: its last one.
        trace: its rows.
        episodes: that it told of.
        warned: what it warned of.
    """

    def __init__(self, tmp_path, num_fragments, num_envs, faults, *, env, between, plan, options):
        kwargs = {"directory": str(tmp_path), "faults": faults, "length": LENGTH}
        num_steps = plan.pop("num_steps", 8)
        self.trace = Trace(2 * num_envs)
        self.episodes = []
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            with open_pool(env, 2, num_envs, env_kwargs=kwargs, **options) as pool:
                rollout = begin(pool, num_steps, **plan)
                for k in range(num_fragments):
                    fragments = rollout.collect()
                    self.trace.add(fragments)
                    self.episodes += rollout.pop_episodes()
                    assert_adds_up(rollout.accounting(with_workers=False))
                    rollout.publish(snapshot_of(rollout.policy.network, k + 1))
                    between(k, pool)
                self.check_state(rollout, num_envs, num_steps, tmp_path)
            self.account = rollout.accounting()
        self.warned = [str(one.message) for one in caught]
        assert_adds_up(self.account)
        assert self.account.in_flight == 0
        ended = [(e.env, e.undiscounted_return, e.length) for e in self.episodes]
        assert sorted(ended) == sorted(self.trace.check(LENGTH))
        numbers = [(e.env, e.episode) for e in self.episodes]
        assert len(set(numbers)) == len(numbers)

    def check_state(self, rollout, num_envs, num_steps, tmp_path):
        """Every episode is known: fresh environments can be brought to where these are."""
        kwargs = {"directory": str(tmp_path / "inline"), "length": LENGTH}
        (tmp_path / "inline").mkdir(exist_ok=True)
        state = rollout.state()
        inline = make_inline(SCRIPTED, 2, num_envs, env_kwargs=kwargs)
        other = begin(inline, num_steps)
        restarted_envs = other.restore(state.to_arrays(), state.position())
        inline.close()
        # Of an environment whose very first reset in a new process fails, the number is known once
        # an episode of it has ended.
        if not any(worker.restarts and worker.env_failures for worker in self.workers_of(rollout)):
            assert restarted_envs == []

    @staticmethod
    def workers_of(rollout):
        return rollout.accounting().workers


def play(
    tmp_path, num_fragments, num_envs, faults, *, env=SCRIPTED, between=lambda k, pool: None, **plan
):
    """Collect so many fragments by two workers; see `Played`."""
    names = ("step_timeout_s", "max_failures", "inference")
    options = {name: plan.pop(name) for name in names if name in plan}
    return Played(
        *(tmp_path, num_fragments, num_envs, faults),
        env=env,
        between=between,
        plan=plan,
        options=options,
    )
