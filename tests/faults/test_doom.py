"""Games, the workers that play them and the process that acts for them, killed a hundred times."""

import os
import random
import signal
import time

import pytest

from hotloop.policies import actor_critic
from tests.envs.test_doom import games_in, is_running
from tests.rollouts.workers.pools import (
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
    pytest.mark.filterwarnings("ignore:.*others like it are only counted:RuntimeWarning"),
]
KILLS = 100


def network_of(envs):
    return actor_critic(envs, hidden_sizes=(), network="impala", memory="lstm:16")


def test_a_hundred_kills_among_games_workers_and_inference(tmp_path, monkeypatch):
    """All transitions are accounted for, and no process and no file is left."""
    monkeypatch.setenv(MARK, f"{os.getpid()}-doom")
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    rng = random.Random(0)
    played: set[int] = set()
    killed = dict.fromkeys(("game", "worker", "inference"), 0)
    num_taken = 0

    def games():
        found = [pid for room in tmp_path.iterdir() for pid in games_in(room)]
        played.update(found)
        return [pid for pid in found if is_running(pid)]

    kwargs = {"resolution": [40, 24]}
    options = {"inference": "central", "env_kwargs": kwargs, "max_failures": 1_000}
    with open_pool("VizdoomBasic-v1", 2, 2, **options) as pool:
        rollout = begin(pool, 8, overlap=True, make=network_of)
        while sum(killed.values()) < KILLS:
            num_taken += sum(int(x.valid.sum()) for x in rollout.collect())
            rollout.pop_episodes()
            assert_adds_up(rollout.accounting(with_workers=False))
            who = rng.choice(list(killed))
            time.sleep(rng.random() * 0.02)
            if who == "game":
                running = games()
                if not running:
                    continue
                os.kill(rng.choice(running), signal.SIGKILL)
            else:
                kill(rng.choice(pool.workers) if who == "worker" else pool.supervisor.inference)
            killed[who] += 1
        for _ in range(3):
            num_taken += sum(int(x.valid.sum()) for x in rollout.collect())
        games()
    account = rollout.accounting()
    assert_adds_up(account)
    assert (account.trained, account.in_flight) == (num_taken, 0)
    assert min(killed.values()) > 20
    assert len(played) > 20
    wait_until(lambda: not any(is_running(pid) for pid in played))
    assert marked_processes(os.environ[MARK]) == []
    wait_until(lambda: not list(tmp_path.iterdir()))
