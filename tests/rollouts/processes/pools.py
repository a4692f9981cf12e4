"""Rollouts by workers, and the same rollouts in the test's process."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import signal
import time
import warnings
from pathlib import Path

import numpy as np

from hotloop.envs import EnvSpec, make_vec
from hotloop.policies import ActingPolicy, PolicySnapshot, actor_critic
from hotloop.rollouts import CollectionOptions, InlineEnvironments
from hotloop.rollouts.processes.pool import WorkerPool
from hotloop.types import Fragment
from tests.rollouts.threads_transport import ThreadEnvironments

# Every process that a test starts, directly or not, has this in its environment.
MARK = "HOTLOOP_TEST_MARK"

SCRIPTED = "tests.worker_envs:Scripted"
LENGTH = 10


def marked_processes(value):
    """Return the IDs of a test's living processes."""
    pids = []
    for path in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if f"{MARK}={value}".encode() in (path / "environ").read_bytes().split(b"\0"):
                pids.append(int(path.name))
    return [pid for pid in pids if pid != os.getpid()]


def wait_until(condition, timeout_s=100.0):
    """Poll until the condition is true."""
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline, "the condition did not become true"
        time.sleep(0.002)


def num_descriptors():
    """Return the number of open files of this process."""
    return len(os.listdir("/proc/self/fd"))


def kill(worker, signal_number=signal.SIGKILL):
    """Send a signal to a worker's process, if it lives."""
    with contextlib.suppress(ProcessLookupError):
        os.kill(worker.pid, signal_number)


def make_network(envs):
    """Make a small network for any environment."""
    return actor_critic(envs, hidden_sizes=(8,))


def snapshot_of(network, version):
    """Make a snapshot whose parameters depend on the version."""
    return PolicySnapshot(version, network.initial_parameters(version + 1))


def make_policy(network, exploration=None):
    return ActingPolicy(network, snapshot_of(network, 0), exploration=exploration)


def make_spec(env, options, **fields):
    """Return a specification with the fields that are in `options`, and remove them there."""
    names = {field.name for field in dataclasses.fields(EnvSpec)} & options.keys()
    return EnvSpec(env, **{name: options.pop(name) for name in names}, **fields)


@contextlib.contextmanager
def open_pool(env, num_workers=2, num_envs=1, *, transport="processes", seed=5, **options):
    """Open environments of workers, and close them at the end in any case."""
    spec = make_spec(env, options, seed=seed)
    sizes = {"num_workers": num_workers, "envs_per_worker": num_envs}
    if transport == "inline":
        pool = make_inline(spec, num_workers, num_envs)
    elif transport in ("processes", "central"):
        inference = options.pop("inference", "central" if transport == "central" else "worker")
        pool = WorkerPool(spec, **sizes, inference=inference, **options)
    elif transport == "threads":
        pool = ThreadEnvironments(spec, **sizes, **options)
    else:
        from hotloop.rollouts.ray.environments import RayEnvironments, RayOptions

        pool = RayEnvironments(spec, RayOptions(), **sizes, **options)
    try:
        yield pool
    finally:
        pool.close()


def make_inline(env, num_workers, num_envs, *, seed=5, **fields):
    """Make the environments of `open_pool` in this process."""
    spec = env if isinstance(env, EnvSpec) else EnvSpec(env, seed=seed, **fields)
    groups = range(num_workers)
    return InlineEnvironments(
        [make_vec(dataclasses.replace(spec, first_env=w * num_envs), num_envs) for w in groups]
    )


def begin(pool, num_steps=8, *, seed=5, make=make_network, exploration=None, **plan):
    """Begin a rollout of a pool or of inline environments."""
    network = make(pool)
    plan = CollectionOptions(num_steps=num_steps, seed=seed, **plan)
    return pool.rollout(make_policy(network, exploration), plan)


def assert_same_fragments(actual, expected):
    assert len(actual) == len(expected)
    for a, b in zip(actual, expected, strict=True):
        for field in dataclasses.fields(Fragment):
            if field.name == "versions":  # only set by workers; `policy_version` is compared
                continue
            np.testing.assert_array_equal(
                getattr(a, field.name), getattr(b, field.name), err_msg=field.name
            )


def assert_same_states(actual, expected):
    assert actual.position() == expected.position()
    actual_arrays, expected_arrays = actual.to_arrays(), expected.to_arrays()
    assert actual_arrays.keys() == expected_arrays.keys()
    for name, array in actual_arrays.items():
        np.testing.assert_array_equal(array, expected_arrays[name], err_msg=name)


def assert_adds_up(account):
    """Check collected = trained + dropped + in flight, and that no number is negative."""
    assert account.collected == account.trained + sum(account.dropped.values()) + account.in_flight
    assert min(account.trained, account.in_flight, *account.dropped.values()) >= 0


class Trace:
    """Joins the fragments of `Scripted` environments and checks their rows."""

    def __init__(self, num_envs):
        self.num_envs = num_envs
        self.rows = [[] for _ in range(num_envs)]

    def add(self, fragments):
        for fragment in fragments:
            for i in range(fragment.num_envs):
                rows = self.rows[fragment.first_env + i]
                if i in fragment.restarted_envs:
                    assert rows, "a restart without a row before it"
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
        """Check all rows; return (environment, return, length) of each finished episode."""
        episodes = []
        for env, rows in enumerate(self.rows):
            tokens = set()
            for k, row in enumerate(rows):
                if not row["valid"]:
                    assert (row["reward"], row["terminated"]) == (0, False)
                    if k + 1 < len(rows) and rows[k + 1]["valid"]:
                        assert rows[k + 1]["obs"][0] == 0
                    continue
                # A step continues its own episode.
                assert row["next_obs"][0] == row["obs"][0] + 1 == row["reward"]
                assert row["next_obs"][1] == row["obs"][1]
                is_end = row["next_obs"][0] == length
                ends = row["terminated"] or row["truncated"] or row["is_cut"]
                assert ends >= is_end, "the recursion continues across an end"
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
                    assert row["obs"][1] not in tokens, "an episode was played twice"
                    tokens.add(row["obs"][1])
        return episodes


class CheckedRollout:
    """Runs and checks a rollout of `Scripted` environments until it is closed.

    Attributes:
        account: The final accounting.
        trace: All rows.
        episodes: Episodes that the rollout reported.
        warnings: Messages of its warnings.
        last_failure: Text of its last failure.
    """

    def __init__(
        self, tmp_path, num_fragments, num_envs, faults, *, env, hook, should_go_on, plan, options
    ):
        kwargs = {"directory": str(tmp_path), "faults": faults, "length": LENGTH}
        num_steps = plan.pop("num_steps", 8)
        self.trace = Trace(2 * num_envs)
        self.episodes = []
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            with open_pool(env, 2, num_envs, env_kwargs=kwargs, **options) as pool:
                rollout = begin(pool, num_steps, **plan)
                k = version = 0
                while k < num_fragments or should_go_on(rollout, self.trace):
                    fragments = rollout.collect()
                    self.trace.add(fragments)
                    self.episodes += rollout.pop_episodes()
                    assert_adds_up(rollout.accounting(with_workers=False))
                    if rollout.updates_allowed() != 0:
                        version += 1
                        rollout.publish(snapshot_of(rollout.policy.network, version))
                    hook(k, pool)
                    k += 1
                self.check_state(rollout, num_envs, num_steps, tmp_path)
                self.last_failure = rollout.last_failure
        self.account = rollout.accounting()
        self.warnings = [str(warning.message) for warning in caught]
        assert_adds_up(self.account)
        assert self.account.in_flight == 0
        finished = [(e.env, e.undiscounted_return, e.length) for e in self.episodes]
        assert sorted(finished) == sorted(self.trace.check(LENGTH))
        numbers = [(e.env, e.episode) for e in self.episodes]
        assert len(set(numbers)) == len(numbers)

    def check_state(self, rollout, num_envs, num_steps, tmp_path):
        """Check that new environments can be restored to the rollout's state."""
        kwargs = {"directory": str(tmp_path / "inline"), "length": LENGTH}
        (tmp_path / "inline").mkdir(exist_ok=True)
        state = rollout.state()
        inline = make_inline(SCRIPTED, 2, num_envs, env_kwargs=kwargs)
        restored = begin(inline, num_steps)
        restarted_envs = restored.restore(state.to_arrays(), state.position())
        inline.close()
        # If an environment's very first reset in a new process fails, its episode number is known
        # only after an episode has ended.
        if not any(worker.restarts and worker.env_failures for worker in self.workers_of(rollout)):
            assert restarted_envs == []

    @staticmethod
    def workers_of(rollout):
        return rollout.accounting().workers


def play(
    tmp_path,
    num_fragments,
    num_envs,
    faults,
    *,
    env=SCRIPTED,
    hook=lambda k, pool: None,
    should_go_on=lambda rollout, trace: False,
    **plan,
):
    """Collect fragments with two workers and check them."""
    names = ("step_timeout_s", "max_failures", "inference", "transport")
    options = {name: plan.pop(name) for name in names if name in plan}
    return CheckedRollout(
        *(tmp_path, num_fragments, num_envs, faults),
        env=env,
        hook=hook,
        should_go_on=should_go_on,
        plan=plan,
        options=options,
    )
