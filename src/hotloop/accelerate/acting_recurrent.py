"""The twin of a policy of sb3-contrib with LSTMs: its forward pass, computed with NumPy."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from sb3_contrib.common.recurrent.policies import RecurrentActorCriticPolicy
from sb3_contrib.common.recurrent.type_aliases import RNNStates
from torch import Tensor, nn

from hotloop.accelerate.acceleration import Unsupported
from hotloop.accelerate.acting import ActingTwin, action_draw, check_acting
from hotloop.policies.recurrent_layer import NumpyRecurrentLayer, RecurrentLayer
from hotloop.types import Array


class RecurrentTwin(ActingTwin):
    """The forward of a policy with LSTMs, on NumPy."""

    def __init__(self, policy: Any) -> None:
        super().__init__(policy, action_draw(policy))
        self._actor = _Lstm(policy.lstm_actor)
        self._critic = None if policy.lstm_critic is None else _Lstm(policy.lstm_critic)
        # Without an LSTM for the value: a linear layer, or None if the actor's LSTM is shared.
        self._linear: nn.Linear | None = policy.critic

    def refresh(self) -> bool:
        """Read the policy's current parameters. Return whether all of them are finite."""
        are_finite = [x.refresh() for x in (self._actor, self._critic) if x is not None]
        return super().refresh() and all(are_finite)

    def __call__(  # pyright: ignore
        self, obs: Tensor, states: RNNStates, episode_starts: Tensor, deterministic: bool = False
    ) -> tuple[Tensor, Tensor, Tensor, RNNStates]:
        """Return actions, values, log-probabilities and the next states of the LSTMs."""
        if deterministic or torch.is_grad_enabled() or not self.can_act():
            return self._forward(obs, states, episode_starts, deterministic)
        rows = obs.reshape(len(obs), -1).to(torch.float32).numpy()
        keeps = 1.0 - episode_starts.numpy().reshape(-1, 1)
        policy_rows, policy_states = self._actor(rows, states.pi, keeps)
        value_rows, value_states = policy_rows, policy_states
        if self._critic is not None:
            value_rows, value_states = self._critic(rows, states.vf, keeps)
        elif self._linear is not None:
            weight, bias = (x.detach().numpy() for x in self._linear.parameters())
            value_rows = np.dot(rows, weight.T) + bias
        return *self.act(policy_rows, value_rows, None), RNNStates(policy_states, value_states)


def recurrent_twin(policy: Any) -> RecurrentTwin:
    """Return the twin of a policy with LSTMs.

    Raises:
        Unsupported: the policy reads other observations than vectors, or has its own methods.
    """
    check_acting(policy)
    original = RecurrentActorCriticPolicy._process_sequence
    if policy._process_sequence is not original:
        raise Unsupported(f"its {type(policy).__name__} has its own _process_sequence")
    check_lstms(policy)
    return RecurrentTwin(policy)


def check_lstms(policy: Any) -> None:
    """Check that the LSTMs of a policy have no options that hotloop does not compute.

    Raises:
        Unsupported: an LSTM is bidirectional, has dropout or the like.
    """
    for lstm in filter(None, (policy.lstm_actor, policy.lstm_critic)):
        for name in ("batch_first", "bidirectional", "dropout", "proj_size"):
            if getattr(lstm, name):
                raise Unsupported(f"its LSTM's {name} is {getattr(lstm, name)}")


class _Lstm:
    """The layers of an LSTM on copies of its parameters."""

    def __init__(self, lstm: nn.LSTM) -> None:
        self._lstm = lstm
        layer = RecurrentLayer("lstm", lstm.hidden_size)
        self._layers = [NumpyRecurrentLayer(layer) for _ in range(lstm.num_layers)]

    @np.errstate(all="ignore")
    def refresh(self) -> bool:
        """Read the current parameters, and return whether all are finite."""
        is_finite = True
        for k, layer in enumerate(self._layers):
            weight, recurrent = self._parameter("weight_ih", k), self._parameter("weight_hh", k)
            weights = np.concatenate([weight, recurrent], 1)
            bias = np.zeros(len(weight), np.float32)
            if self._lstm.bias:
                bias = self._parameter("bias_ih", k) + self._parameter("bias_hh", k)
            layer.load(weights.T, bias)
            is_finite &= bool(np.isfinite(weights.sum() + bias.sum()))
        return is_finite

    def _parameter(self, name: str, layer: int) -> Array:
        """Return a parameter with torch's gates i, f, g, o in the order i, f, o, g."""
        values = getattr(self._lstm, f"{name}_l{layer}").detach().numpy()
        input_gate, forget_gate, candidate, output_gate = np.split(values, 4)
        return np.concatenate([input_gate, forget_gate, output_gate, candidate])

    @np.errstate(all="ignore")
    def __call__(
        self, rows: Array, states: tuple[Tensor, ...], keeps: Array
    ) -> tuple[Array, tuple[Tensor, Tensor]]:
        """Return the outputs, (N, H), and the next states.

        Args:
            rows: the inputs, float32, (N, inputs).
            states: hidden states and cells, (layers, N, H).
            keeps: 0 where an episode starts, else 1, float32, (N, 1).
        """
        size = self._lstm.hidden_size
        memories = np.concatenate([x.numpy() for x in states], 2) * keeps
        for layer, memory in zip(self._layers, memories, strict=True):
            rows = layer.step(rows, memory)
        hidden, cells = memories[..., :size].copy(), memories[..., size:].copy()
        return rows, (torch.from_numpy(hidden), torch.from_numpy(cells))
