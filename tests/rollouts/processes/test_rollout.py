import dataclasses
import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hotloop.algorithms import dqn, ppo, sac
from hotloop.errors import ConfigError
from hotloop.rollouts import CollectionOptions, environment_weights
from hotloop.rollouts.processes.shared_memory import BEGUN, DONE
from hotloop.rollouts.schedules import fair_shares
from hotloop.types import Fragment
from tests.attempts import attempts
from tests.reference import rollouts as reference
from tests.rollouts.processes.pools import (
    Trace,
    assert_adds_up,
    begin,
    make_inline,
    open_pool,
    snapshot_of,
    wait_until,
)
from tests.worker_envs import count_calls

SCRIPTED = "tests.worker_envs:Scripted"
WAITS = "tests.worker_envs:Waits"

pytestmark = pytest.mark.usefixtures("mark")


# --- the same as without workers ------------------------------------------------------------------


def test_a_logged_info_value_that_is_no_number_ends_the_run():
    options = {"env_kwargs": {"info": {"bad": [1, 2]}}, "log_info": ["bad"]}
    with open_pool("tests.episode_info_envs:make", 2, 1, **options) as pool:
        rollout = begin(pool, 4)
        with pytest.raises(ConfigError, match=r"`log_info` must name numbers, but `info\['bad'\]`"):
            rollout.collect()


TINY_PPO = {
    "env_id": "CartPole-v1",
    "total_timesteps": 256,
    "num_envs": 4,
    "workers": 2,
    "num_steps": 16,
    "num_minibatches": 2,
    "update_epochs": 2,
    "hidden_sizes": (8,),
    "normalize_obs": True,
    "normalize_reward": True,
    "execution": "eager",
}
TINY_REPLAY = {
    "total_timesteps": 120,
    "num_envs": 4,
    "workers": 2,
    "learning_starts": 40,
    "batch_size": 16,
    "buffer_size": 200,
    "train_frequency": 2,
    "update_to_data": 0.25,
    "hidden_sizes": (8,),
    "execution": "eager",
    "report_interval": 40,
    "save_replay": True,
}
TRAININGS = {
    "ppo": (ppo, TINY_PPO),
    "sac": (sac, {"env_id": "Pendulum-v1", **TINY_REPLAY}),
    "dqn": (dqn, {"env_id": "CartPole-v1", **TINY_REPLAY}),
}


def train(tmp_path, name, run, *, on_report=None, resume_from=None, **options):
    module, config = TRAININGS[name]
    config = module.Config(**{**config, "run_dir": str(tmp_path / run), **options})
    return module.train(config, on_report=on_report, resume_from=resume_from)


def assert_same_result(actual, expected):
    assert actual.timesteps == expected.timesteps
    actual_params, expected_params = actual.policy.snapshot.params, expected.policy.snapshot.params
    assert actual_params.keys() == expected_params.keys()
    for name, array in actual_params.items():
        np.testing.assert_array_equal(array, expected_params[name], err_msg=name)
    checkpoints = [
        json.loads((result.run_dir / "checkpoints" / "last" / "state.json").read_text())
        for result in (actual, expected)
    ]
    assert checkpoints[0]["rollout"] == checkpoints[1]["rollout"]


@pytest.mark.parametrize("name", TRAININGS)
def test_a_training_has_the_same_weights_wherever_its_workers_run(tmp_path, name):
    processes = train(tmp_path, name, "processes")
    inline = train(tmp_path, name, "inline", backend="inline")
    assert_same_result(processes, inline)
    # Another seed gives other weights.
    other = train(tmp_path, name, "other", backend="inline", seed=2)
    with pytest.raises(AssertionError):
        assert_same_result(processes, other)


@pytest.mark.parametrize("name", ["ppo", "dqn"])
def test_a_resumed_training_ends_with_the_same_weights(tmp_path, name):
    whole = train(tmp_path, name, "whole", backend="inline")
    middle = whole.timesteps // 2
    stopped = train(tmp_path, name, "parts", on_report=lambda report: report.timesteps >= middle)
    assert 0 < stopped.timesteps < whole.timesteps
    resumed = train(tmp_path, name, "parts", resume_from=stopped.run_dir)
    assert_same_result(resumed, whole)


def test_collected_fragments_are_not_overwritten():
    with open_pool("CartPole-v1") as pool:
        rollout = begin(pool, overlap=True)
        first = rollout.collect()
        copies = [
            Fragment(**{f.name: np.copy(getattr(x, f.name)) for f in dataclasses.fields(x)})
            for x in first
        ]
        for _ in range(4):
            rollout.collect()
        for fragment, copy in zip(first, copies, strict=True):
            np.testing.assert_array_equal(fragment.obs, copy.obs)
            np.testing.assert_array_equal(fragment.reward, copy.reward)
            np.testing.assert_array_equal(fragment.last_obs, copy.last_obs)


@pytest.mark.parametrize(
    "plan", [{"schedule": "variable"}, {"schedule": "async"}, {"overlap": True}]
)
def test_plans_that_need_workers_are_refused_inline(plan):
    inline = make_inline("CartPole-v1", 2, 1)
    with pytest.raises(ConfigError, match="needs workers"):
        inline.rollout(None, CollectionOptions(num_steps=8, seed=0, **plan))
    inline.close()


# --- barrier and accounting -----------------------------------------------------------------------


def test_resets_of_vector_environments_are_no_transitions():
    # Each episode is one step, and each reset takes a call: of 8 rows, 4 are transitions.
    kwargs = {"num_envs": 3}
    with open_pool("tests.worker_envs:vector_of_signs", 2, 3, env_kwargs=kwargs) as pool:
        rollout = begin(pool)
        rollout.collect()
        account = rollout.accounting()
        assert (account.collected, account.trained, account.dropped) == (48, 24, {"reset": 24})
        assert rollout.num_transitions == 24


def test_the_accounting_of_each_workers_time(tmp_path):
    pauses = {"0": 0.01, "1": 0.002}

    def measure(number):
        directory = tmp_path / str(number)
        directory.mkdir()
        kwargs = {"directory": str(directory), "pause_s": pauses}
        with open_pool(SCRIPTED, env_kwargs=kwargs) as pool:
            rollout = begin(pool)
            for _ in range(4):
                rollout.collect()
        return rollout.accounting()

    for account, attempt in attempts(measure):
        slow, fast = account.workers
        assert (slow.worker, slow.steps, slow.restarts, slow.env_failures) == (0, 32, 0, 0)
        assert (fast.worker, fast.steps, fast.restarts, fast.env_failures) == (1, 32, 0, 0)
        assert slow.step_share * slow.lived_s >= 0.32
        assert 0.01 <= slow.step_p50_s <= slow.step_p99_s
        for worker in (slow, fast):
            shares = (worker.step_share, worker.reset_share, worker.act_share, worker.wait_share)
            assert min(shares) > 0
            assert sum(shares) <= 1
        json.dumps(account.to_json())
        with attempt:
            assert 0.002 <= fast.step_p50_s < slow.step_p50_s
            assert fast.wait_share > slow.wait_share


# --- variable -------------------------------------------------------------------------------------


@given(
    st.lists(st.integers(0, 12), min_size=1, max_size=6).flatmap(
        lambda available: st.tuples(st.just(available), st.integers(0, sum(available)))
    )
)
def test_shares_are_as_even_as_they_can_be(case):
    available, total = case
    shares = fair_shares(available, total)
    assert sum(shares) == total
    assert all(0 <= share <= limit for share, limit in zip(shares, available, strict=True))
    # Among workers with equal numbers of rows, any may get the extra row.
    assert sorted(shares) == sorted(reference.fair_shares(available, total))


def test_fair_shares_of_examples():
    assert fair_shares([8, 2, 8], 12) == [5, 2, 5]
    assert fair_shares([3, 16], 16) == [3, 13]
    assert fair_shares([4, 4], 8) == [4, 4]


@given(st.lists(st.tuples(st.integers(1, 9), st.integers(1, 4)), min_size=1, max_size=5))
def test_weights_give_every_environment_the_same_share(sizes):
    fragments = [
        Fragment.allocate(*size, obs_shape=(1,), obs_dtype="f4", action_shape=(), action_dtype="i8")
        for size in sizes
    ]
    weights = environment_weights(fragments)
    steps, envs = zip(*sizes, strict=True)
    np.testing.assert_allclose(weights, reference.environment_weights(steps, envs), rtol=1e-5)
    np.testing.assert_allclose(weights.mean(), 1.0, rtol=1e-5)
    offset, sums = 0, []
    for num_steps, num_envs in sizes:
        part = weights[offset : offset + num_steps * num_envs].reshape(num_steps, num_envs)
        sums += part.sum(0).tolist()
        offset += part.size
    np.testing.assert_allclose(sums, sums[0], rtol=1e-5)


def test_variable_takes_whole_batches_in_uneven_shares(tmp_path):
    pauses = {"0": 0.0, "1": 0.03}
    trace = Trace(2)
    kwargs = {"directory": str(tmp_path), "pause_s": pauses}
    with open_pool(SCRIPTED, env_kwargs=kwargs) as pool:
        rollout = begin(pool, 10, schedule="variable")
        shares = []
        for k in range(1, 7):
            fragments = rollout.collect()
            assert [fragment.first_env for fragment in fragments] == [0, 1]
            shares.append([fragment.num_steps for fragment in fragments])
            trace.add(fragments)
            assert_adds_up(rollout.accounting())
            assert rollout.num_transitions == 20 * k
            rollout.publish(snapshot_of(rollout.policy.network, k))
    assert all(sum(share) == 20 for share in shares)
    fast, slow = np.sum(shares, 0)
    assert fast > slow > 0
    episodes = trace.check(10)
    finished = [(e.env, e.undiscounted_return, e.length) for e in rollout.pop_episodes()]
    assert sorted(finished) == sorted(episodes)
    assert len(episodes) > 6
    assert count_calls(tmp_path, "step") == rollout.accounting().collected


def test_variable_acts_with_the_published_policy_if_no_worker_is_slow(tmp_path):
    # The published policy acts, so values are of the right version.
    with open_pool(SCRIPTED, env_kwargs={"directory": str(tmp_path)}) as pool:
        rollout = begin(pool, 6, schedule="variable")
        policy = rollout.policy
        for _ in range(5):
            for fragment in rollout.collect():
                want = policy.value(fragment.obs.reshape(-1, 2)).reshape(fragment.value.shape)
                np.testing.assert_allclose(fragment.value, want, rtol=1e-5, atol=1e-6)
                want = policy.value(fragment.next_obs.reshape(-1, 2)).reshape(want.shape)
                np.testing.assert_allclose(fragment.next_value, want, rtol=1e-5, atol=1e-6)
                assert not fragment.terminated.any()


@pytest.mark.parametrize("call", ["step", "reset"])
def test_variable_waits_for_a_row_of_every_worker(tmp_path, call):
    kwargs = {"directory": str(tmp_path), "blocked_call": call}
    with open_pool(WAITS, env_kwargs=kwargs) as pool:
        rollout = begin(pool, 8, schedule="variable")
        rollout.set_up()
        rollout._grant()
        # The fast worker takes all rows while the other is still in its first step or reset.
        total = 16 if call == "reset" else 15
        wait_until(lambda: rollout.transport.memory[0].words[DONE] >= total)
        (tmp_path / "open").touch()
        for _ in range(3):
            fragments = rollout.collect()
            assert sum(fragment.num_steps for fragment in fragments) == 16
            assert [fragment.first_env for fragment in fragments] == [0, 1]


# --- async ----------------------------------------------------------------------------------------


def collect_until_closed(rollout):
    """Collect until worker 1 waits in its second step and its first row is collected."""
    wait_until(lambda: rollout.transport.memory[1].words[BEGUN] == 2)
    while rollout._groups[1].next_row < 1:
        rollout.collect()


def test_async_returns_available_rows(tmp_path):
    kwargs = {"directory": str(tmp_path), "num_free": 1}
    with open_pool(WAITS, env_kwargs=kwargs) as pool:
        rollout = begin(pool, 4, schedule="async", min_transitions=5)
        rollout.collect()
        collect_until_closed(rollout)
        num_rows = 0
        while num_rows < 30:  # the waiting worker blocks no other
            fragments = rollout.collect()
            assert [fragment.first_env for fragment in fragments] == [0]
            # At least the minimum, and never more than its two slots hold.
            assert 5 <= fragments[0].num_steps <= 8
            num_rows += fragments[0].num_steps
        (tmp_path / "open").touch()
        firsts = []
        while 1 not in firsts:
            firsts += [fragment.first_env for fragment in rollout.collect()]
        assert_adds_up(rollout.accounting())
    account = rollout.accounting()
    assert account.collected == count_calls(tmp_path, "step")


def test_async_limits_the_age_of_rows(tmp_path):
    bound, ages = 3, []
    kwargs = {"directory": str(tmp_path), "num_free": 1}
    with open_pool(WAITS, env_kwargs=kwargs) as pool:
        rollout = begin(pool, 4, schedule="async", max_policy_age=bound)
        version = 0
        rollout.collect()
        # Worker 1 is in a step with version 0, which limits the number of updates.
        collect_until_closed(rollout)
        while rollout.updates_allowed():
            version += 1
            rollout.publish(snapshot_of(rollout.policy.network, version))
            if rollout.updates_allowed():
                rollout.collect()
        assert version == bound
        (tmp_path / "open").touch()
        for _ in range(40):
            for fragment in rollout.collect():
                ages.append(version - fragment.policy_version)
            allowed = rollout.updates_allowed()
            assert 0 <= allowed <= bound
            if allowed:
                version += allowed
                rollout.publish(snapshot_of(rollout.policy.network, version))
        mean, greatest = rollout.accounting().policy_age
    assert max(ages) == greatest == bound
    assert 0 < mean < bound


def test_only_async_limits_updates():
    with open_pool("CartPole-v1", 1) as pool:
        rollout = begin(pool)
        rollout.collect()
        assert rollout.updates_allowed() is None
