"""Memory: a recurrent layer between an encoder and the perceptrons, described without torch."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal

import numpy as np

from hotloop.errors import ConfigError
from hotloop.types import Array

MemoryKind = Literal["lstm", "gru"]

_GATES: dict[str, int] = {"lstm": 4, "gru": 3}


@dataclass(frozen=True)
class Memory:
    """A recurrent layer of H units, whose output is what the perceptrons see.

    With x the features, h the output before and ⊙ element by element, W of `memory.weight` split
    into its rows for x and for h:

    `lstm`: i, f, o = σ(W x + U h + b), g = tanh(W x + U h + b), c' = f ⊙ c + i ⊙ g,
    h' = o ⊙ tanh(c'): Gers et al. 2000, "Learning to Forget", without peepholes. It remembers h
    and c.

    `gru`: r, z = σ(W x + U h + b), n = tanh(W x + b + r ⊙ (U h)), h' = (1 − z) ⊙ n + z ⊙ h: Cho et
    al. 2014, arXiv:1406.1078, with the reset after the product, as cuDNN has it. It remembers h.

    Attributes:
        kind: `lstm` or `gru`.
        num_units: H.
    """

    kind: MemoryKind
    num_units: int

    @property
    def size(self) -> int:
        """Return M, how many numbers are remembered of each environment: h comes first."""
        return self.num_units * (2 if self.kind == "lstm" else 1)

    @property
    def num_gate_values(self) -> int:
        """Return how many numbers a step computes from features and output: the gates', in order.

        Those of an LSTM are i, f, o and g, those of a GRU r, z and n.
        """
        return _GATES[self.kind] * self.num_units

    def parameter_shapes(self, num_features: int) -> dict[str, tuple[int, ...]]:
        """Return shapes by name: the weight's first rows are for the features, the others for h."""
        return {
            "memory.weight": (num_features + self.num_units, self.num_gate_values),
            "memory.bias": (self.num_gate_values,),
        }

    def first_bias(self) -> Array:
        """Return what is added to the bias at first, float32, (G,): 1 where an LSTM forgets.

        So it remembers before it has learned what to forget: Józefowicz et al. 2015, "An Empirical
        Exploration of Recurrent Network Architectures".
        """
        bias = np.zeros(self.num_gate_values, np.float32)
        if self.kind == "lstm":
            bias[self.num_units : 2 * self.num_units] = 1.0
        return bias

    def __str__(self) -> str:
        return f"{self.kind}:{self.num_units}"


def parse_memory(text: str) -> Memory:
    """Return what `lstm:128` or `gru:64` means.

    Raises:
        ConfigError: it means nothing.
    """
    match = re.fullmatch(r"(lstm|gru):(\d{1,9})", text)
    if match is None or int(match[2]) < 1:
        raise ConfigError(
            f"`memory` must be lstm:UNITS or gru:UNITS, such as lstm:128, got '{text}'"
        )
    kind: MemoryKind = "lstm" if match[1] == "lstm" else "gru"
    return Memory(kind, int(match[2]))


class MemoryTwin:
    """The torch-free twin of a recurrent layer, one step of B environments at a time.

    σ(z) is ½ tanh(½ z) + ½, so that all gates are one call of tanh: halving is exact.
    """

    def __init__(self, memory: Memory) -> None:
        self._memory = memory
        self._num_rows = -1

    def load(self, weight: Array, bias: Array) -> None:
        """Compute with these parameters from now on; `refresh` takes what they have become."""
        self._given = weight, bias
        num_features = len(weight) - self._memory.num_units
        self._scale = np.ones(self._memory.num_gate_values, np.float32)
        self._scale[: -self._memory.num_units] = 0.5
        self._weight, self._bias = np.empty_like(weight, order="C"), np.empty_like(bias)
        self._of_features, self._of_output = np.split(self._weight, [num_features])
        self.refresh()

    def refresh(self) -> None:
        """Compute with what the parameters have become, which were changed in place."""
        weight, bias = self._given
        np.multiply(weight, self._scale, out=self._weight)
        np.multiply(bias, self._scale, out=self._bias)

    def step(self, features: Array, memory: Array) -> Array:
        """Return the output, (B, H), and change what is remembered.

        Args:
            features: float32, (B, F).
            memory: float32, (B, M), changed in place.

        Returns:
            Float32, (B, H), contiguous; overwritten by the next call.
        """
        size = self._memory.num_units
        if len(features) != self._num_rows:
            self._num_rows = len(features)
            shape = (self._num_rows, self._memory.num_gate_values)
            self._gates, self._more = np.empty((2, *shape), np.float32)
            self._output, self._scratch = np.empty((2, self._num_rows, size), np.float32)
        gates, more, output, scratch = self._gates, self._more, self._output, self._scratch
        np.copyto(output, memory[:, :size])
        np.dot(features, self._of_features, gates)
        np.add(gates, self._bias, gates)
        np.dot(output, self._of_output, more)
        if self._memory.kind == "lstm":
            np.add(gates, more, gates)
            np.tanh(gates, gates)
            _squash(gates[:, : 3 * size])
            cell = memory[:, size:]
            np.multiply(gates[:, :size], gates[:, 3 * size :], scratch)
            np.multiply(cell, gates[:, size : 2 * size], cell)
            np.add(cell, scratch, cell)
            np.tanh(cell, scratch)
            np.multiply(gates[:, 2 * size : 3 * size], scratch, output)
        else:
            sigmoids, new = gates[:, : 2 * size], gates[:, 2 * size :]
            np.add(sigmoids, more[:, : 2 * size], sigmoids)
            np.tanh(sigmoids, sigmoids)
            _squash(sigmoids)
            np.multiply(sigmoids[:, :size], more[:, 2 * size :], scratch)
            np.add(new, scratch, new)
            np.tanh(new, new)
            # (1 − z) ⊙ n + z ⊙ h = n + z ⊙ (h − n)
            np.subtract(output, new, scratch)
            np.multiply(scratch, sigmoids[:, size:], scratch)
            np.add(new, scratch, output)
        np.copyto(memory[:, :size], output)
        return output


def _squash(halved: Array) -> None:
    """Make sigmoids of hyperbolic tangents of halves, in place."""
    np.multiply(halved, np.float32(0.5), halved)
    np.add(halved, np.float32(0.5), halved)
