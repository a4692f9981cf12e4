"""Build run directories without training."""

from __future__ import annotations

import json

from hotloop.algorithms import find
from hotloop.training.options import changeable_options


def make_run(
    path,
    *,
    returns=((10.0, 20.0), (30.0,)),
    seed=1,
    env_id="CartPole-v1",
    algorithm="ppo",
    num_steps=1000,
    evaluations=(),
    total_timesteps=None,
    network=None,
    is_old=False,
    started_at="2026-01-31T12:00:00+0000",
    **options,
):
    """Write a run of one iteration for each entry of `returns`, `num_steps` steps each.

    A run with `is_old` does not list the options that do not affect learning.
    """
    path.mkdir(parents=True)
    total = num_steps * len(returns) if total_timesteps is None else total_timesteps
    identity = {"runs_dir": str(path.parent), "run_dir": str(path), "env_id": env_id, "seed": seed}
    content = {
        "algorithm": algorithm,
        "env_id": env_id,
        "network": network,
        "config": {**identity, "total_timesteps": total, **options},
        "versions": {},
        "started_at": started_at,
    }
    if not is_old:
        content["may_change"] = sorted(changeable_options(find(algorithm).config))
    (path / "config.json").write_text(json.dumps(content))
    with open(path / "metrics.jsonl", "w") as file:
        for k, episode_returns in enumerate(returns):
            line = {
                "iteration": k + 1,
                "timesteps": num_steps * (k + 1),
                "elapsed_s": 0.5 * (k + 1),
                "episode_returns": list(episode_returns),
                "episode_lengths": [10] * len(episode_returns),
                "policy_loss": 0.25,
            }
            if k < len(evaluations) and evaluations[k] is not None:
                line["evaluation"] = {"mean_return": evaluations[k], "std_return": 1.0}
            file.write(json.dumps(line) + "\n")
    return path
