"""Two models, an original and its accelerated twin, that learn from the same rollouts."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
import torch
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.logger import Logger

from hotloop.accelerate import accelerate


class Idle(BaseCallback):
    """A callback that does nothing."""

    def _on_step(self) -> bool:
        return True


def set_up(model: Any) -> Any:
    """Give a model a silent logger, and return it with a callback for `collect_rollouts`."""
    model.set_logger(Logger(None, []))
    model._setup_learn(10**6)
    callback = Idle()
    callback.init_callback(model)
    return callback


def twins(cls: Any, env: Any, **options: Any) -> tuple[Any, Any]:
    """Return an original model and an accelerated one with equal parameters and environments."""
    policy = options.pop("policy", "MlpPolicy")
    models = [cls(policy, env(), seed=3, device="cpu", **options) for _ in range(2)]
    return models[0], accelerate(models[1])


def train_both(original: Any, accelerated: Any, num_updates: int, changes: Any = None) -> None:
    """Collect rollouts with the original, and train both models from the same batches.

    Args:
        num_updates: the minimum number of gradient steps.
        changes: called with each model before each `train`, with the number of the call.
    """
    callback = set_up(original)
    set_up(accelerated)
    k = steps = 0
    while steps < num_updates:
        original.collect_rollouts(original.env, callback, original.rollout_buffer, original.n_steps)
        arrays = copied_arrays(original.rollout_buffer)
        for model in (original, accelerated):
            if changes is not None:
                changes(model, k)
            model._current_progress_remaining = 1.0 - k / 20
            vars(model.rollout_buffer).update(copy.deepcopy(arrays))
            model.rollout_buffer.full = True
            model.rollout_buffer.generator_ready = False
            np.random.seed(k)
            torch.manual_seed(k)
            model.train()
        k += 1
        steps = int(max(float(x["step"]) for x in original.policy.optimizer.state.values()))


def copied_arrays(buffer: Any) -> dict[str, Any]:
    """Return copies of a buffer's arrays and dictionaries of arrays, by name."""
    return {
        name: copy.deepcopy(x)
        for name, x in vars(buffer).items()
        if isinstance(x, np.ndarray) or (name == "observations")
    }


def flat(model: Any) -> torch.Tensor:
    """Return all parameters and buffers of a model's policy as one vector."""
    values = model.policy.state_dict().values()
    return torch.cat([x.detach().flatten().to(torch.float32) for x in values])


def assert_equal_learning(original: Any, accelerated: Any, tolerance: float = 1e-4) -> None:
    """Compare parameters, optimizer states and logged values of two models."""
    expected, actual = flat(original), flat(accelerated)
    assert (actual - expected).norm() <= tolerance * expected.norm()
    logs = [
        {k: v for k, v in x.logger.name_to_value.items() if k.startswith("train/")}
        for x in (original, accelerated)
    ]
    assert logs[0].keys() == logs[1].keys()
    for name, value in logs[0].items():
        np.testing.assert_allclose(logs[1][name], value, rtol=1e-2, atol=1e-4, err_msg=name)
        assert isinstance(logs[1][name], float) == isinstance(value, float), name  # for its digits
    states = [
        list(x.policy.optimizer.state_dict()["state"].values()) for x in (original, accelerated)
    ]
    for one, other in zip(*states, strict=True):
        assert one.keys() == other.keys()
        assert float(one["step"]) == float(other["step"])
        for name in one:
            scale = one[name].abs().max() + 1e-12
            torch.testing.assert_close(other[name] / scale, one[name] / scale, rtol=0, atol=1e-2)
