"""A recurrent layer between encoder and perceptrons: its description, and a version on NumPy."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal

import numpy as np

from hotloop.errors import ConfigError
from hotloop.types import Array

RecurrentKind = Literal["lstm", "gru"]

_GATES: dict[str, int] = {"lstm": 4, "gru": 3}


@dataclass(frozen=True)
class RecurrentLayer:
    """A recurrent layer of H units between the features and the perceptrons.

    With x the features, h the previous output, ⊙ the elementwise product, and W and U the rows of
    `memory.weight` for x and for h:

    `lstm`: i, f, o = σ(W x + U h + b), g = tanh(W x + U h + b), c' = f ⊙ c + i ⊙ g,
    h' = o ⊙ tanh(c'): Gers et al. 2000, "Learning to Forget", without peepholes. The hidden
    state is h and c.

    `gru`: r, z = σ(W x + U h + b), n = tanh(W x + b + r ⊙ (U h)), h' = (1 − z) ⊙ n + z ⊙ h: Cho et
    al. 2014, arXiv:1406.1078, with the reset after the product, as in cuDNN. The hidden state is h.

    Attributes:
        kind: `lstm` or `gru`.
        num_units: H.
    """

    kind: RecurrentKind
    num_units: int

    @property
    def size(self) -> int:
        """Return M, the size of the hidden state of one environment. It starts with h."""
        return self.num_units * (2 if self.kind == "lstm" else 1)

    @property
    def num_gate_values(self) -> int:
        """Return G, the number of gate values of one step.

        The gates of an LSTM are i, f, o and g, those of a GRU r, z and n, in this order.
        """
        return _GATES[self.kind] * self.num_units

    def parameter_shapes(self, num_features: int) -> dict[str, tuple[int, ...]]:
        """Return shapes by name. The weight has the rows for x, then the rows for h."""
        return {
            "memory.weight": (num_features + self.num_units, self.num_gate_values),
            "memory.bias": (self.num_gate_values,),
        }

    def initial_bias(self) -> Array:
        """Return the offset of the initial bias, float32, (G,): 1 for the forget gate of an LSTM.

        The LSTM then keeps its state before it has learned to forget: Józefowicz et al. 2015, "An
        Empirical Exploration of Recurrent Network Architectures".
        """
        bias = np.zeros(self.num_gate_values, np.float32)
        if self.kind == "lstm":
            bias[self.num_units : 2 * self.num_units] = 1.0
        return bias

    def __str__(self) -> str:
        return f"{self.kind}:{self.num_units}"


def parse_memory(text: str) -> RecurrentLayer:
    """Return the layer for a text such as `lstm:128` or `gru:64`.

    Raises:
        ConfigError: the text has another form.
    """
    match = re.fullmatch(r"(lstm|gru):(\d{1,9})", text)
    if match is None or int(match[2]) < 1:
        raise ConfigError(
            f"`memory` must be lstm:UNITS or gru:UNITS, such as lstm:128, got '{text:.80}'"
        )
    kind: RecurrentKind = "lstm" if match[1] == "lstm" else "gru"
    return RecurrentLayer(kind, int(match[2]))


class NumpyRecurrentLayer:
    """A recurrent layer on NumPy, one step of B environments at a time.

    σ(z) is ½ tanh(½ z) + ½, so one call of tanh computes all gates. Halving is exact.
    """

    def __init__(self, layer: RecurrentLayer) -> None:
        self._layer = layer
        self._num_rows = -1

    def load(self, weight: Array, bias: Array) -> None:
        """Replace the parameters. After changing them in place, call `refresh`."""
        self._params = weight, bias
        num_features = len(weight) - self._layer.num_units
        self._scale = np.ones(self._layer.num_gate_values, np.float32)
        self._scale[: -self._layer.num_units] = 0.5
        self._weight, self._bias = np.empty_like(weight, order="C"), np.empty_like(bias)
        self._feature_weight, self._output_weight = np.split(self._weight, [num_features])
        self.refresh()

    def refresh(self) -> None:
        """Read the loaded parameters again after they changed in place."""
        weight, bias = self._params
        np.multiply(weight, self._scale, out=self._weight)
        np.multiply(bias, self._scale, out=self._bias)

    def step(self, features: Array, memory: Array) -> Array:
        """Return the output and update the hidden state.

        Args:
            features: float32, (B, F).
            memory: hidden state, float32, (B, M), changed in place.

        Returns:
            float32, (B, H), contiguous. The next call overwrites it.
        """
        # Allocate the arrays for another number of rows.
        size = self._layer.num_units
        if len(features) != self._num_rows:
            self._num_rows = len(features)
            shape = (self._num_rows, self._layer.num_gate_values)
            self._gates, self._products = np.empty((2, *shape), np.float32)
            self._output, self._buffer = np.empty((2, self._num_rows, size), np.float32)
        gates, products, output, buffer = self._gates, self._products, self._output, self._buffer
        # Compute the gates from the features and the previous output.
        np.copyto(output, memory[:, :size])
        np.dot(features, self._feature_weight, gates)
        np.add(gates, self._bias, gates)
        np.dot(output, self._output_weight, products)
        # Update the state. Every operation writes into an existing array.
        if self._layer.kind == "lstm":
            np.add(gates, products, gates)
            np.tanh(gates, gates)
            _squash(gates[:, : 3 * size])
            cell = memory[:, size:]
            np.multiply(gates[:, :size], gates[:, 3 * size :], buffer)
            np.multiply(cell, gates[:, size : 2 * size], cell)
            np.add(cell, buffer, cell)
            np.tanh(cell, buffer)
            np.multiply(gates[:, 2 * size : 3 * size], buffer, output)
        else:
            sigmoids, new = gates[:, : 2 * size], gates[:, 2 * size :]
            np.add(sigmoids, products[:, : 2 * size], sigmoids)
            np.tanh(sigmoids, sigmoids)
            _squash(sigmoids)
            np.multiply(sigmoids[:, :size], products[:, 2 * size :], buffer)
            np.add(new, buffer, new)
            np.tanh(new, new)
            # (1 − z) ⊙ n + z ⊙ h = n + z ⊙ (h − n)
            np.subtract(output, new, buffer)
            np.multiply(buffer, sigmoids[:, size:], buffer)
            np.add(new, buffer, output)
        np.copyto(memory[:, :size], output)
        return output


def _squash(halved: Array) -> None:
    """Turn tanh(½ z) into σ(z), in place."""
    np.multiply(halved, np.float32(0.5), halved)
    np.add(halved, np.float32(0.5), halved)
