"""Windows of n steps on the host, which turn steps into transitions in the order of `ReplayBuffer`.

A step waits for the end of its window: n steps, or the end of its episode. Its transition has the
reward Σ_{k<m} γ^k r_{t+k} of the window's m steps, and the next observation of the last one.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from hotloop.types import Array

# Fields of a transition that come from the last step of its window.
_LAST_STEP_FIELDS = ("next_obs", "next_mask", "terminated", "truncated")


class NStepWindows:
    """The steps of each environment whose windows are not complete.

    Args:
        num_envs: N, number of environments.
        n_step: n, steps per window.
        gamma: γ, discount per step.

    Attributes:
        waiting: steps of each environment, oldest first, as arrays of one row by field.
        num_steps: int64, (N,), number of steps of each environment.
    """

    def __init__(self, num_envs: int, n_step: int, gamma: float) -> None:
        self._n_step, self._gamma = n_step, gamma
        self.waiting: list[list[dict[str, Array]]] = [[] for _ in range(num_envs)]
        self.num_steps = np.zeros(num_envs, np.int64)

    def add(self, steps: Mapping[str, Array], envs: Array | None) -> dict[str, Array]:
        """Add steps, and return the transitions that they complete.

        Args:
            steps: arrays by field, (B, …), in the order of time, including `reward`, `next_obs`,
                `terminated` and `truncated`.
            envs: int, (B,), the environment of each; None: 0, 1, … N − 1, 0, 1, …

        Returns:
            The same fields, (E, …), and `discount`, float32, (E,): γ^m, or 0 after termination. If
            n is 1, it is 1 or 0.
        """
        count, num_envs = len(steps["reward"]), len(self.num_steps)
        if envs is None:
            self.num_steps += count // num_envs
        else:
            self.num_steps += np.bincount(envs, minlength=num_envs)
        if self._n_step == 1:
            return {**steps, "discount": np.logical_not(steps["terminated"]).astype(np.float32)}
        if envs is None:
            envs = np.arange(count) % num_envs
        complete: list[dict[str, Array]] = []
        for row, env in enumerate(envs.tolist()):
            window = self.waiting[env]
            # Copy, since a fragment's arrays are reused.
            window.append({name: array[row : row + 1].copy() for name, array in steps.items()})
            if steps["terminated"][row] or steps["truncated"][row]:
                complete += self._close(env)
            elif len(window) == self._n_step:
                complete.append(self._first_transition(window))
                del window[0]
        return self._concatenate(complete, steps)

    def cut(self, env: int) -> dict[str, Array] | None:
        """Close the windows of an environment, and return their transitions, if any."""
        first_step = self.waiting[env][:1]
        return self._concatenate(self._close(env), first_step[0]) if first_step else None

    def _close(self, env: int) -> list[dict[str, Array]]:
        window = self.waiting[env]
        complete = [self._first_transition(window[start:]) for start in range(len(window))]
        window.clear()
        return complete

    def _first_transition(self, window: list[dict[str, Array]]) -> dict[str, Array]:
        """Return the transition of a window's first step, summing rewards from the last one."""
        reward, discount = 0.0, 1.0
        for step in reversed(window):
            reward = float(step["reward"][0]) + self._gamma * reward
            discount *= self._gamma
        last = window[-1]
        return {
            **window[0],
            **{name: last[name] for name in _LAST_STEP_FIELDS if name in last},
            "reward": np.array([reward], np.float32),
            "discount": np.array([0.0 if last["terminated"][0] else discount], np.float32),
        }

    @staticmethod
    def _concatenate(rows: list[dict[str, Array]], like: Mapping[str, Array]) -> dict[str, Array]:
        if rows:
            return {name: np.concatenate([row[name] for row in rows]) for name in rows[0]}
        empty = {name: array[:0] for name, array in like.items()}
        return {**empty, "discount": np.zeros(0, np.float32)}
