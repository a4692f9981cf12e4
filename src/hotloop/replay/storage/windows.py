"""Windows of n steps, on the host: steps in, transitions out, in the order of `ReplayBuffer`.

A step waits until its window is complete: n steps on, or where its episode ends. Its transition has
the reward Σ_{k<m} γ^k r_{t+k} of the window's m steps, and what follows the last of them.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from hotloop.types import Array

# What a transition takes from the last step of its window.
_OF_LAST = ("next_obs", "terminated", "truncated")


class Windows:
    """The steps that wait, by environment.

    Args:
        num_envs: N.
        n_step: n.
        gamma: γ.

    Attributes:
        waiting: for each environment its steps, oldest first, arrays of one row by field.
        num_steps: how many steps each has made.
    """

    def __init__(self, num_envs: int, n_step: int, gamma: float) -> None:
        self._n_step, self._gamma = n_step, gamma
        self.waiting: list[list[dict[str, Array]]] = [[] for _ in range(num_envs)]
        self.num_steps = np.zeros(num_envs, np.int64)

    def add(self, steps: Mapping[str, Array], envs: Array | None) -> dict[str, Array]:
        """Return the transitions that are complete with some steps.

        Args:
            steps: by field, (B, …), in the order of time; `reward`, `next_obs`, `terminated` and
                `truncated` among them.
            envs: int, (B,), the environment of each; None: 0, 1, … N − 1, 0, 1, …

        Returns:
            The same fields, (E, …), and `discount`, float32, (E,): γ^m, 0 where it terminated;
            1 and 0 if n is 1.
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
            # Copies: the arrays may be a fragment's, which is written to again.
            window.append({name: array[row : row + 1].copy() for name, array in steps.items()})
            if steps["terminated"][row] or steps["truncated"][row]:
                complete += self._closed(env)
            elif len(window) == self._n_step:
                complete.append(self._first(window))
                del window[0]
        return self._joined(complete, steps)

    def cut(self, env: int) -> dict[str, Array] | None:
        """Close the windows of an environment as they are; return their transitions, if any."""
        like = self.waiting[env][:1]
        return self._joined(self._closed(env), like[0]) if like else None

    def _closed(self, env: int) -> list[dict[str, Array]]:
        window = self.waiting[env]
        complete = [self._first(window[place:]) for place in range(len(window))]
        window.clear()
        return complete

    def _first(self, window: list[dict[str, Array]]) -> dict[str, Array]:
        """The transition of a window's first step; sums go from the last reward to the first."""
        reward, discount = 0.0, 1.0
        for step in reversed(window):
            reward = float(step["reward"][0]) + self._gamma * reward
            discount *= self._gamma
        last = window[-1]
        return {
            **window[0],
            **{name: last[name] for name in _OF_LAST},
            "reward": np.array([reward], np.float32),
            "discount": np.array([0.0 if last["terminated"][0] else discount], np.float32),
        }

    @staticmethod
    def _joined(rows: list[dict[str, Array]], like: Mapping[str, Array]) -> dict[str, Array]:
        if rows:
            return {name: np.concatenate([row[name] for row in rows]) for name in rows[0]}
        none = {name: array[:0] for name, array in like.items()}
        return {**none, "discount": np.zeros(0, np.float32)}
