"""A hundred kills of Doom games, workers and the inference process."""

import os
import random
import signal
import time

import pytest

from hotloop.policies import actor_critic
from tests.envs.test_doom import games_in, is_running
from tests.rollouts.processes.pools import (
    MARK,
    assert_adds_up,
    begin,
    kill,
    marked_processes,
    open_pool,
    wait_until,
)

pytestmark = [
    pytest.mark.faults,
    pytest.mark.filterwarnings("ignore:.*similar failures are only counted:RuntimeWarning"),
]
KILLS = 100


def make_network(envs):
    return actor_critic(envs, hidden_sizes=(), network="impala", memory="lstm:16")


def test_a_hundred_kills_among_games_workers_and_inference(tmp_path, monkeypatch):
    """All transitions are counted, and no process or file remains."""
    monkeypatch.setenv(MARK, f"{os.getpid()}-doom")
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    rng = random.Random(0)
    seen_games: set[int] = set()
    killed = dict.fromkeys(("game", "worker", "inference"), 0)
    num_collected = 0

    def living_games():
        pids = [pid for room in tmp_path.iterdir() for pid in games_in(room)]
        seen_games.update(pids)
        return [pid for pid in pids if is_running(pid)]

    kwargs = {"resolution": [40, 24]}
    options = {"inference": "central", "env_kwargs": kwargs, "max_failures": 1_000}
    with open_pool("VizdoomBasic-v1", 2, 2, **options) as pool:
        rollout = begin(pool, 8, overlap=True, make=make_network)
        while sum(killed.values()) < KILLS:
            num_collected += sum(int(x.valid.sum()) for x in rollout.collect())
            rollout.pop_episodes()
            assert_adds_up(rollout.accounting(with_workers=False))
            victim = rng.choice(list(killed))
            time.sleep(rng.random() * 0.02)
            if victim == "game":
                running = living_games()
                if not running:
                    continue
                os.kill(rng.choice(running), signal.SIGKILL)
            else:
                kill(rng.choice(pool.workers) if victim == "worker" else pool.supervisor.inference)
            killed[victim] += 1
        for _ in range(3):
            num_collected += sum(int(x.valid.sum()) for x in rollout.collect())
        living_games()
    account = rollout.accounting()
    assert_adds_up(account)
    assert (account.trained, account.in_flight) == (num_collected, 0)
    assert min(killed.values()) > 20
    assert len(seen_games) > 20
    wait_until(lambda: not any(is_running(pid) for pid in seen_games))
    assert marked_processes(os.environ[MARK]) == []
    wait_until(lambda: not list(tmp_path.iterdir()))
