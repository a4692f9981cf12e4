"""Options of recurrent networks."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, ClassVar

from hotloop.errors import ConfigError
from hotloop.policies.recurrent_layer import parse_memory
from hotloop.training.options.base import SET, Options, RequirementTable
from hotloop.training.options.constraints import DATA, Count, Natural
from hotloop.training.options.groups import OnPolicyOptions, ReplayOptions

if TYPE_CHECKING:
    from hotloop.replay import Sampler

# Default lengths of sequences from replay, also given in their help.
_LENGTH, _BURN_IN = 20, 10


@dataclass(frozen=True, kw_only=True)
class MemoryOptions(Options):
    """The recurrent layer."""

    memory: Annotated[str | None, DATA] = None
    """A recurrent layer after the encoder: lstm:UNITS or gru:UNITS, such as lstm:128. None: no
    recurrent layer. Set it if single observations do not show the full state."""

    def check(self) -> None:
        """Check the recurrent layer."""
        if self.memory is not None:
            parse_memory(self.memory)

    @property
    def is_recurrent(self) -> bool:
        """Whether the networks have a recurrent layer."""
        return self.memory is not None


@dataclass(frozen=True, kw_only=True)
class SequenceOptions(MemoryOptions, OnPolicyOptions):
    """On-policy learning, from sequences if the network is recurrent."""

    sequence_length: Count | None = None
    """memory: steps of a training sequence, a divisor of `num_steps`. None: `num_steps`."""

    requires: ClassVar[RequirementTable] = {"sequence_length": {"memory": SET}}

    def check(self) -> None:
        """Check that fragments and minibatches consist of whole sequences."""
        length = self.sequence_length
        if self.memory is None:
            return
        if length is not None and self.num_steps % length:
            raise ConfigError(
                f"`sequence_length` must divide a fragment, `num_steps` = {self.num_steps}, got "
                f"{length}: choose both as powers of two"
            )
        if self.num_sequences % self.num_minibatches:
            raise ConfigError(
                f"`num_minibatches` must divide the number of sequences, {self.num_sequences}, as "
                f"a minibatch holds whole ones, got {self.num_minibatches}: use more environments "
                "(`num_envs`), a shorter `sequence_length`, or fewer minibatches"
            )
        if self.schedule == "variable":
            raise ConfigError(
                "`memory` needs sequences of one length, and `schedule` 'variable' collects "
                "different numbers of steps: choose 'barrier'"
            )

    @property
    def num_sequences(self) -> int:
        """Return the number of sequences in one iteration."""
        return self.total_envs * (self.num_steps // self.sequence_steps)

    @property
    def sequence_steps(self) -> int:
        """Return the number of steps of a training sequence."""
        return self.sequence_length or self.num_steps


@dataclass(frozen=True, kw_only=True)
class ReplaySequenceOptions(MemoryOptions, ReplayOptions):
    """Learning from a replay buffer, from sequences if the network is recurrent."""

    sequence_length: Count | None = None
    """memory: transitions of a training sequence, fewer at an episode's end. None: 20. A batch
    holds `batch_size` sequences."""
    burn_in: Natural | None = None
    """memory: transitions before a sequence that only refresh the stored hidden state. None: 10.
    Raise it if stored hidden states become outdated."""

    requires: ClassVar[RequirementTable] = {
        "sequence_length": {"memory": SET},
        "burn_in": {"memory": SET},
    }

    def check(self) -> None:
        """Check that sequences have a recurrent network and can be drawn."""
        if self.memory is None:
            return
        for name, required in (("replay", "uniform"), ("n_step", 1), ("hindsight", None)):
            if getattr(self, name) != required:
                raise ConfigError(
                    "`memory` learns from sequences: it needs uniform replay and `n_step` 1, "
                    f"without `hindsight`: leave `{name}` out, or `memory`"
                )
        if self.replay_replacement is False:
            raise ConfigError(
                "`memory` draws sequences with replacement: leave `replay_replacement` out"
            )
        if self.buffer_size < self.sequence_steps:
            raise ConfigError(
                f"`buffer_size` must hold a sequence, {self.sequence_steps} transitions with its "
                f"burn-in, got {self.buffer_size}: raise it"
            )

    @property
    def sequence_steps(self) -> int:
        """Return the number of rows of a sequence with its burn-in, 1 without recurrence."""
        if self.memory is None:
            return 1
        burn_in = _BURN_IN if self.burn_in is None else self.burn_in
        return burn_in + (self.sequence_length or _LENGTH)

    def sampler(self) -> Sampler:
        """Return how batches are drawn."""
        if self.memory is None:
            return super().sampler()
        from hotloop.replay import Sequences

        length = self.sequence_length or _LENGTH
        return Sequences(length=length, burn_in=self.sequence_steps - length)
