"""One policy learns to play for all agents of a game."""

from __future__ import annotations

import json

import pytest

from hotloop.algorithms import ppo
from tests.toy_games import Hiding


def train(tmp_path, **options):
    config = ppo.Config(
        num_envs=8,
        num_steps=64,
        hidden_sizes=(32, 32),
        execution="eager",
        run_dir=str(tmp_path / "run"),
        **options,
    )
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
