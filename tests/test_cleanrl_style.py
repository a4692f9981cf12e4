"""Scripts in CleanRL's style learn the same with hotloop's replay and updates as without."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Any

import gymnasium as gym
import pytest
import torch

from bench.cleanrl import difference
from hotloop import learner, timing
from hotloop.learner import artifacts
from hotloop.replay import ReplayBuffer

FOLDER = Path(__file__).parent.parent / "examples" / "cleanrl_style"
# Each makes 100 updates.
OPTIONS: dict[str, dict[str, Any]] = {
    "ppo": {"total_timesteps": 320, "num_steps": 16, "num_minibatches": 5},
    "dqn": {
        "total_timesteps": 351,
        "learning_starts": 250,
        "train_frequency": 1,
        "target_network_frequency": 30,
    },
    # Steps of 1e-3 make rounding grow tenfold in 20 updates, also in double precision.
    "sac": {
        "total_timesteps": 301,
        "learning_starts": 200,
        "policy_lr": 1e-4,
        "q_lr": 1e-4,
        "env_id": "RandomSteps-v0",
    },
}
# Its observations do not depend on actions, so that rounding does not change them.
gym.register("RandomSteps-v0", "tests.accelerate.random_env:RandomEnv")


class SameBatches:
    """The interface of the scripts' own buffer, with the batches of hotloop's."""

    def __init__(self, env: Any, size: int, seed: int) -> None:
        self._buffer = ReplayBuffer.for_env(env, size, seed=seed)

    def add(self, obs: Any, action: Any, reward: Any, next_obs: Any, terminated: bool) -> None:
        """Store a transition."""
        self._buffer.add(
            obs=obs,
            action=action,
            reward=reward,
            next_obs=next_obs,
            terminated=terminated,
            truncated=False,
        )

    def sample(self, batch_size: int) -> Any:
        """Return a batch of tensors."""
        return self._buffer.sample(batch_size).torch()


@pytest.mark.parametrize("name", OPTIONS)
def test_a_script_learns_the_same(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(FOLDER)
    scripts = [importlib.import_module(name), importlib.import_module(f"{name}_hotloop")]
    if name != "ppo":
        monkeypatch.setattr(scripts[0], "ReplayBuffer", SameBatches)
    updates = count_updates(monkeypatch)
    vectors = []
    for script in scripts:
        initial = script.Args(**{**OPTIONS[name], "total_timesteps": 0})
        vectors.append(
            [flat(script.main(script.Args(**(OPTIONS[name])))), flat(script.main(initial))]
        )
    timing.stop()
    (expected, initial), (actual, _) = vectors
    assert sum(update.num_calls for update in updates) >= 100
    assert (actual - expected).norm() <= 1e-4 * expected.norm()
    assert (expected - initial).norm() > 1e-2 * expected.norm()
    for update in updates:
        update.assert_compilable()


def flat(module: torch.nn.Module) -> torch.Tensor:
    """Return the parameters as one vector."""
    return torch.nn.utils.parameters_to_vector(module.parameters()).detach().clone()


def count_updates(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Return a list to which each `BoundUpdate` of a script is added, with its number of calls."""
    updates: list[Any] = []

    class CountedUpdate(learner.BoundUpdate):
        num_calls = 0

        def __init__(self, *args: Any) -> None:
            super().__init__(*args)
            updates.append(self)

        def __call__(self, *args: Any) -> Any:
            self.num_calls += 1
            self.arguments = (self._state_and_hyper, *args)
            return super().__call__(*args)

        def assert_compilable(self) -> None:
            """Check that the operations do not depend on the values of tensors."""
            if self.num_calls:
                assert len(artifacts.record(self.run_packed, self.arguments).key) == 64

    monkeypatch.setattr(learner, "BoundUpdate", CountedUpdate)
    return updates


@pytest.mark.parametrize("name", OPTIONS)
def test_the_page_shows_the_difference(name: str) -> None:
    page = (FOLDER.parent.parent / "docs" / "from-cleanrl.md").read_text()
    assert difference(name) in page
