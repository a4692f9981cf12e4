"""Updates that are compiled before the first run are those that the run needs."""

import pytest

from hotloop.algorithms import dqn, ppo, sac, td3
from hotloop.learner import artifacts
from hotloop.training.precompile import precompile

OFF_POLICY = {"batch_size": 8, "learning_starts": 20, "hidden_sizes": (4,)}
TRAININGS = {
    "ppo": (ppo, {"num_envs": 2, "num_steps": 8, "hidden_sizes": (4,)}, 1),
    "dqn": (dqn, OFF_POLICY, 1),
    "dqn with rare updates": (dqn, {**OFF_POLICY, "update_to_data": 1 / 128}, 1),
    "sac": (sac, {**OFF_POLICY, "env_id": "Pendulum-v1"}, 2),
    "td3": (td3, {**OFF_POLICY, "env_id": "Pendulum-v1"}, 2),
}


@pytest.fixture
def keys(monkeypatch):
    """Return the list of the keys of compiled updates, which are run eagerly instead."""
    keys = []

    def build(recorded, on_progress):
        keys.append(recorded.key)
        return lambda state, args, leaves: recorded.update(state, *args)

    monkeypatch.setattr(artifacts, "build", build)
    return keys


@pytest.mark.parametrize("name", TRAININGS)
def test_a_run_needs_the_updates_that_were_compiled_before(name, keys, tmp_path):
    algorithm, options, num_updates = TRAININGS[name]
    config = algorithm.Config(**{"env_id": "CartPole-v1", **options}, torch_threads=1)
    assert precompile(algorithm.algorithm, config).count("compiled") >= num_updates
    compiled = list(keys)
    assert len(set(compiled)) == len(compiled) == num_updates
    keys.clear()
    algorithm.train(
        algorithm.Config(
            **{"env_id": "CartPole-v1", **options},
            total_timesteps=200,
            execution="compile",
            torch_threads=1,
            run_dir=str(tmp_path / "run"),
        ),
        progress=False,
    )
    assert set(keys) == set(compiled)
