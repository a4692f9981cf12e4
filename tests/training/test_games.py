"""One policy learns to play for all agents of a game."""

from __future__ import annotations

import json

import pytest

from hotloop.algorithms import ppo
from tests.toy_games import Hiding


def train(tmp_path, **options):
    defaults = {"num_envs": 8, "num_steps": 64, "hidden_sizes": (32, 32), "execution": "eager"}
    config = ppo.Config(run_dir=str(tmp_path / "run"), **{**defaults, **options})
    return ppo.algorithm.train(config)


@pytest.mark.parametrize("workers", [0, pytest.param(2, marks=pytest.mark.slow)])
def test_two_agents_learn_to_choose_each_others_numbers(tmp_path, workers):
    result = train(
        tmp_path,
        env_id="pettingzoo:tests.toy_games",
        total_timesteps=16_384,
        learning_rate=3e-3,
        workers=workers,
    )
    assert result.mean_return > 6  # of 8, and 2 for random choices
    last = json.loads((result.run_dir / "metrics.jsonl").read_text().splitlines()[-1])
    teams = last["episode_info"]["team_return"]
    assert teams == [2 * total for total in last["episode_returns"]]


def test_rows_without_a_living_agent_do_not_count(tmp_path):
    result = train(tmp_path, env_id=Hiding, total_timesteps=512, update_epochs=1)
    accounting = result.accounting
    assert accounting["collected"] == accounting["trained"] + accounting["dropped"]["reset"]
    assert accounting["trained"] == result.timesteps
    assert accounting["dropped"]["reset"] > 0.3 * accounting["collected"]


def test_absent_agents_are_the_same_in_workers(tmp_path):
    options = {"env_id": Hiding, "total_timesteps": 1024, "update_epochs": 1, "workers": 2}
    options["num_steps"] = 20  # a run ends in the middle of games
    ends = []
    for backend in ("inline", "processes"):
        result = train(tmp_path / backend, backend=backend, **options)
        assert set(result.accounting["dropped"]) == {"reset"}
        state = json.loads((result.run_dir / "checkpoints/last/state.json").read_text())
        state["progress"].pop("elapsed_s")
        state.pop("digest")  # of the whole file
        ends.append((result.accounting["dropped"], state))
    assert ends[0] == ends[1]
