"""RecurrentPPO of sb3-contrib with hotloop's update and acting."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import sb3_contrib
import torch
from sb3_contrib.common.recurrent.buffers import (
    RecurrentDictRolloutBuffer,
    RecurrentRolloutBuffer,
)
from sb3_contrib.common.recurrent.policies import RecurrentActorCriticPolicy
from sb3_contrib.common.recurrent.type_aliases import RNNStates
from torch import Tensor, nn

from hotloop.accelerate.acceleration import Unsupported
from hotloop.accelerate.acting_recurrent import check_lstms, recurrent_twin
from hotloop.accelerate.module_calls import replaced_attribute
from hotloop.accelerate.on_policy import OnPolicyModel, PolicyUpdate
from hotloop.accelerate.ppo import ClippedPolicyModel
from hotloop.types import Array

_STATES = ("hidden_states_pi", "cell_states_pi", "hidden_states_vf", "cell_states_vf")


class SequenceRows(NamedTuple):
    """A minibatch of B rows: sequences one after another, without padding.

    Attributes:
        hidden_states_pi, cell_states_pi, hidden_states_vf, cell_states_vf: states of the LSTMs
            before each of S sequences, 0 if it begins with an episode, float32, (layers, S, H).
        starts: whether a sequence starts at the row, bool, (B,).
    """

    observations: Any
    actions: Tensor
    old_values: Tensor
    old_log_prob: Tensor
    advantages: Tensor
    returns: Tensor
    hidden_states_pi: Tensor
    cell_states_pi: Tensor
    hidden_states_vf: Tensor
    cell_states_vf: Tensor
    starts: Tensor


class RecurrentPolicyUpdate(PolicyUpdate):
    """One gradient step of a policy with LSTMs.

    The original calls an LSTM for each step of the sequences. One call for all steps takes a
    twentieth of the time.
    """

    eager_reason = "its minibatches differ in the lengths of their sequences"

    def evaluate(
        self,
        params: Tensor,
        constants: dict[str, Tensor],
        observations: Any,
        actions: Tensor,
        fields: dict[str, Tensor],
    ) -> Any:
        hidden_pi, cell_pi, hidden_vf, cell_vf = (fields[name] for name in _STATES)
        states = RNNStates((hidden_pi, cell_pi), (hidden_vf, cell_vf))
        with replaced_attribute(self.policy, "_process_sequence", lstm_rows):
            return self._evaluate(
                params, constants, observations, actions, states, fields["starts"]
            )


def lstm_rows(
    features: Tensor, states: tuple[Tensor, Tensor], starts: Tensor, lstm: nn.LSTM
) -> tuple[Tensor, None]:
    """Return the outputs of an LSTM, (B, H), in place of `_process_sequence` of the original.

    Args:
        features: its inputs, float32, (B, F).
        states: hidden states and cells before each sequence, see `SequenceRows`.
        starts: see `SequenceRows`.
        lstm: the layers.
    """
    # Pad the sequences: the row of each step of each sequence, (L, S), B after its end.
    count = len(starts)
    order = torch.arange(count)
    first_rows = order[starts]
    sequence = starts.cumsum(0) - 1
    step = order - first_rows[sequence]
    rows = torch.full((int(step.max()) + 1, len(first_rows)), count)
    rows[step, sequence] = order
    padded = torch.cat([features, features.new_zeros((1, features.shape[1]))])[rows]
    # `lstm` itself would use its own parameters, not those that replace them for a gradient.
    weights = [getattr(lstm, name) for name in lstm._flat_weights_names]
    options = lstm.bias, lstm.num_layers, 0.0, lstm.training, False, False
    outputs, _, _ = torch.lstm(padded, states, weights, *options)
    return outputs[step, sequence], None


def sequence_rows(buffer: Any, indices: Array, env_change: Array) -> SequenceRows:
    """Return a minibatch of a recurrent rollout buffer, in place of its `_get_samples`.

    Args:
        buffer: the buffer.
        indices: rows of the buffer, int64, (B,).
        env_change: whether the rows of an environment begin, for all rows of the buffer, (R, 1).
    """
    begins = buffer.episode_starts[indices].reshape(-1)
    starts = np.logical_or(begins, env_change[indices].reshape(-1))
    starts[0] = True
    rows = indices[starts]
    continues = (begins[starts] == 0.0).reshape(1, -1, 1).astype(np.float32)
    states = {
        name: torch.from_numpy(getattr(buffer, name)[rows].swapaxes(0, 1) * continues)
        for name in _STATES
    }
    observations = buffer.observations
    if isinstance(observations, dict):
        obs: Any = {name: torch.from_numpy(x[indices]) for name, x in observations.items()}
    else:
        obs = torch.from_numpy(observations[indices])
    scalars = (buffer.values, buffer.log_probs, buffer.advantages, buffer.returns)
    return SequenceRows(
        obs,
        torch.from_numpy(buffer.actions[indices]),
        *(torch.from_numpy(x[indices].reshape(-1)) for x in scalars),
        starts=torch.from_numpy(starts),
        **states,
    )


class RecurrentPPO(ClippedPolicyModel, sb3_contrib.RecurrentPPO):  # pyright: ignore
    """`sb3_contrib.RecurrentPPO` with hotloop's update and acting."""

    _fields = (*OnPolicyModel._fields, *_STATES, "starts")
    _update_class = RecurrentPolicyUpdate

    def _check_policy(self) -> None:
        policy: Any = self.policy
        for name in ("evaluate_actions", "_process_sequence"):
            original = getattr(RecurrentActorCriticPolicy, name)
            if getattr(type(policy), name) is not original or name in vars(policy):
                raise Unsupported(f"its {type(policy).__name__} has its own {name}")
        kinds = RecurrentRolloutBuffer, RecurrentDictRolloutBuffer
        if type(self.rollout_buffer) not in kinds:
            raise Unsupported(f"its rollout buffer is {type(self.rollout_buffer).__name__}")
        check_lstms(policy)
        if any("running_" in name for name, _ in policy.named_buffers()):
            raise Unsupported("its running statistics contain the original's padding")

    def _minibatches(self, size: int) -> Iterator[Any]:
        buffer: Any = self.rollout_buffer
        with replaced_attribute(buffer, "_get_samples", partial(sequence_rows, buffer)):
            yield from buffer.get(size)

    def _acting_twin(self) -> Any:
        return recurrent_twin(self.policy)
