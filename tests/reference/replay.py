"""A replay buffer as a dictionary: every transition copied, every law a sum over all entries."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from hotloop.replay import Prioritized, Proportional, RankBased, Sampler, Sequences, Uniform

Fields = dict[str, np.ndarray]


@dataclass
class Step:
    """A transition as it was added, with its weight (None: no weight was passed)."""

    fields: Fields
    weight: float | None

    @property
    def reward(self) -> float:
        return float(self.fields["reward"])

    @property
    def terminated(self) -> bool:
        return bool(self.fields["terminated"])

    @property
    def is_end(self) -> bool:
        return self.terminated or bool(self.fields.get("truncated", False))


@dataclass
class Entry:
    """An entry that can be sampled."""

    fields: Fields
    weight: float


class Replay:
    """Entries by number. The oldest is deleted beyond `capacity`.

    Args:
        capacity: number of entries.
        sampler: sampler that defines the weights.
        num_envs: number of environments, each with a window and a running episode.
        n_step: steps per window.
        gamma: γ.
        weight_from: return that sets the weight of an entry, if any.
        running_weight: weight of an entry until its episode has ended.
    """

    def __init__(
        self,
        capacity: int,
        sampler: Sampler,
        *,
        num_envs: int = 1,
        n_step: int = 1,
        gamma: float = 0.99,
        weight_from: str | None = None,
        running_weight: float | str = "mean",
    ) -> None:
        self.capacity = capacity
        self.sampler = sampler
        self.num_envs = num_envs
        self.n_step = n_step
        self.gamma = gamma
        self.weight_from = weight_from
        self.running_weight = running_weight
        self.entries: dict[int, Entry] = {}
        self.num_added = 0
        self.stale_updates = 0
        self.windows: list[list[Step]] = [[] for _ in range(num_envs)]
        self.episodes: list[list[tuple[int, float]]] = [[] for _ in range(num_envs)]
        self.finished_episodes: list[list[int]] = []  # entry numbers

    # Writing.

    def add(self, fields: Mapping[str, Any], *, env: int = 0, weight: float | None = None) -> None:
        self.extend([fields], envs=[env], weights=None if weight is None else [weight])

    def extend(
        self,
        steps: Sequence[Mapping[str, Any]],
        *,
        envs: Sequence[int] | None = None,
        weights: Sequence[float] | None = None,
        valid: Sequence[bool] | None = None,
    ) -> None:
        default_weight = self.default_weight()
        for row, fields in enumerate(steps):
            env = row % self.num_envs if envs is None else envs[row]
            if valid is not None and not valid[row]:
                if isinstance(self.sampler, Sequences):  # an invalid row ends them
                    self.cut(env)
                continue
            step = Step(
                {name: np.array(value) for name, value in fields.items()},
                None if weights is None else self.weight_of(weights[row]),
            )
            window = self.windows[env]
            window.append(step)
            if "terminated" in fields and step.is_end:
                while window:
                    self._complete(env, default_weight)
            elif len(window) == self.n_step:
                self._complete(env, default_weight)

    def cut(self, env: int | None = None) -> None:
        default_weight = self.default_weight()
        for number in range(self.num_envs) if env is None else [env]:
            while self.windows[number]:
                self._complete(number, default_weight)
            self._end_episode(number)

    def update_weights(self, numbers: Sequence[int], weights: Sequence[float]) -> int:
        applied = 0
        for number, weight in zip(numbers, weights, strict=True):
            if int(number) in self.entries:
                self.entries[int(number)].weight = self.weight_of(weight)
                applied += 1
            else:
                self.stale_updates += 1
        return applied

    def _complete(self, env: int, default_weight: float) -> None:
        """Turn the first step of an environment's window into an entry."""
        window = self.windows[env]
        first, last = window[0], window[-1]
        fields = dict(first.fields)
        if self.n_step > 1:
            reward, discount = 0.0, 1.0
            for step in reversed(window):
                reward = step.reward + self.gamma * reward
                discount *= self.gamma
            fields["reward"] = np.float32(reward)
            fields["discount"] = np.float32(0.0 if last.terminated else discount)
            for name in last.fields:
                if name.split(".")[0] in ("next_obs", "terminated", "truncated"):
                    fields[name] = last.fields[name]
        window.pop(0)
        number = self.num_added
        self.num_added += 1
        weight = default_weight if first.weight is None else first.weight
        self.entries[number] = Entry(fields, self._clamp(weight))
        self.entries.pop(number - self.capacity, None)
        if "terminated" not in first.fields:
            return
        episode = self.episodes[env]
        episode.append((number, first.reward))
        if self.weight_from == "return_so_far":
            self._weigh(number, sum(reward for _, reward in episode))
        if first.is_end:
            self._end_episode(env)

    def _end_episode(self, env: int) -> None:
        """Set the weights of an episode's remaining entries from all of its rewards."""
        episode = self.episodes[env]
        if self.weight_from == "episode_return":
            for number, _ in episode:
                self._weigh(number, sum(reward for _, reward in episode))
        if self.weight_from == "return_to_go":
            to_go = 0.0
            for number, reward in reversed(episode):
                to_go = reward + self.gamma * to_go
                self._weigh(number, to_go)
        self.finished_episodes.append([number for number, _ in episode])
        self.episodes[env] = []

    # Weights.

    def weight_of(self, value: float) -> float:
        """Return the weight of an entry for a passed weight or priority."""
        if isinstance(self.sampler, Prioritized):
            return (float(value) + self.sampler.epsilon) ** self.sampler.alpha
        return self._clamp(float(value))

    def default_weight(self) -> float:
        """Return the current weight of a new entry without a passed weight."""
        weights = [entry.weight for entry in self.entries.values()]
        if isinstance(self.sampler, (Prioritized, RankBased)):
            return max(weights, default=1.0)
        if self.weight_from is None:
            return 0.0
        if self.running_weight == "mean":
            return math.fsum(weights) / len(weights) if weights else 0.0
        return float(self.running_weight)

    def _clamp(self, weight: float) -> float:
        if isinstance(self.sampler, Proportional) and self.sampler.shift != "min":
            return max(weight, -float(self.sampler.shift))
        return weight

    def _weigh(self, number: int, weight: float) -> None:
        if number in self.entries:
            self.entries[number].weight = self._clamp(weight)

    # Reading.

    @property
    def numbers(self) -> list[int]:
        """The numbers of the live entries, oldest first."""
        return sorted(self.entries)

    def sequence(self, first: int) -> tuple[list[int], list[bool]]:
        """Return the numbers and the mask of the sequence to learn from `first` on."""
        assert isinstance(self.sampler, Sequences)
        running = [[number for number, _ in episode] for episode in self.episodes]
        episode = next(
            candidate for candidate in [*self.finished_episodes, *running] if first in candidate
        )
        position = episode.index(first)
        before = episode[max(position - self.sampler.burn_in, 0) : position]
        before = [number for number in before if number in self.entries]
        learned = episode[position : position + self.sampler.length]
        num_padding = self.sampler.burn_in + self.sampler.length - len(before) - len(learned)
        numbers = before + learned + learned[-1:] * num_padding
        return numbers, [False] * len(before) + [True] * len(learned) + [False] * num_padding

    def law(self, weights: Mapping[int, float] | None = None) -> dict[int, float]:
        """Return the probability of each live entry in one draw.

        Args:
            weights: weights by number, instead of those of the entries.
        """
        if weights is None:
            weights = {number: self.entries[number].weight for number in self.numbers}
        numbers, values = list(weights), list(weights.values())
        if isinstance(self.sampler, (Uniform, Sequences)):
            shares = uniform(len(numbers))
        elif isinstance(self.sampler, Proportional):
            shares = proportional(values, self.sampler.shift)
        elif isinstance(self.sampler, Prioritized):
            shares = proportional(values, 0.0)
        else:
            slots = [number % self.capacity for number in numbers]
            shares = rank_based(values, slots, self.sampler.alpha)
        return dict(zip(numbers, shares, strict=True))


# The probability of each entry in one draw.


def uniform(count: int) -> list[float]:
    """Return 1/n."""
    return [1.0 / count] * count


def proportional(weights: Sequence[float], shift: float | str = "min") -> list[float]:
    """Return (B_i + c) / Σ_j (B_j + c), or 1/n if that is 0/0."""
    c = max(-min(weights), 0.0) if shift == "min" else float(shift)
    shifted = [max(weight + c, 0.0) for weight in weights]
    total = math.fsum(shifted)
    if total == 0.0:
        return uniform(len(weights))
    return [weight / total for weight in shifted]


def prioritized(priorities: Sequence[float], *, alpha: float, epsilon: float) -> list[float]:
    """Return (p_i + ε)^α / Σ_j (p_j + ε)^α."""
    return proportional([(priority + epsilon) ** alpha for priority in priorities], 0.0)


def ranks(priorities: Sequence[float], slots: Sequence[int]) -> list[int]:
    """Return the ranks: 1 for the greatest priority, and lower slots first among equals."""
    order = sorted(range(len(priorities)), key=lambda i: (-priorities[i], slots[i]))
    result = [0] * len(order)
    for place, i in enumerate(order):
        result[i] = place + 1
    return result


def rank_based(priorities: Sequence[float], slots: Sequence[int], alpha: float) -> list[float]:
    """Return rank(i)^−α / Σ_r r^−α."""
    return proportional([rank**-alpha for rank in ranks(priorities, slots)], 0.0)


def importance(
    sampled: Sequence[float], law: Sequence[float], *, beta: float, normalize: str
) -> list[float]:
    """Return (N P)^−β over its greatest value among the entries of the buffer or the batch.

    Args:
        drawn: P of the batch's entries.
        law: P of all entries.
        beta: β.
        normalize: "buffer" or "batch".
    """
    raw = [(len(law) * share) ** -beta for share in sampled]
    normalizers = law if normalize == "buffer" else sampled
    greatest = max((len(law) * share) ** -beta for share in normalizers)
    return [value / greatest for value in raw]
