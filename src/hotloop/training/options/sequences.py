"""Options of networks with memory."""

from __future__ import annotations

from dataclasses import dataclass

from hotloop.errors import ConfigError
from hotloop.policies.memory import parse_memory
from hotloop.training.options.base import Options
from hotloop.training.options.constraints import Count
from hotloop.training.options.groups import OnPolicyOptions


@dataclass(frozen=True, kw_only=True)
class MemoryOptions(Options):
    """Remembering what was observed before."""

    memory: str | None = None
    """A recurrent layer behind the encoder: lstm:UNITS or gru:UNITS, such as lstm:128; None: only
    what is observed now counts."""

    def check(self) -> None:
        """Refuse what is no recurrent layer."""
        if self.memory is not None:
            parse_memory(self.memory)


@dataclass(frozen=True, kw_only=True)
class SequenceOptions(MemoryOptions, OnPolicyOptions):
    """Learning from what the policy does now, in sequences where it has memory."""

    sequence_length: Count | None = None
    """memory: steps that are learned from in a row; must divide `num_steps`; None: all of them."""

    def check(self) -> None:
        """Refuse sequences that fragments or minibatches are not made of."""
        length = self.sequence_length
        if self.memory is None:
            if length is not None:
                raise ConfigError(
                    "`sequence_length` is of networks with memory: set `memory`, or leave it out"
                )
            return
        if length is not None and length > self.num_steps:
            raise ConfigError(
                f"`sequence_length` must not exceed a fragment, `num_steps` = {self.num_steps}, "
                f"got {length}: raise `num_steps`, or lower it"
            )
        if length is not None and self.num_steps % length:
            raise ConfigError(
                f"`sequence_length` must divide `num_steps` = {self.num_steps}, got {length}: "
                "choose both as powers of two"
            )
        if self.num_sequences % self.num_minibatches:
            raise ConfigError(
                f"`num_minibatches` must divide the number of sequences, {self.num_sequences}, as "
                f"a minibatch holds whole ones, got {self.num_minibatches}: take more environments "
                "(`num_envs`), a shorter `sequence_length`, or fewer minibatches"
            )
        if self.schedule == "variable":
            raise ConfigError(
                "`memory` learns from sequences of one length, and `schedule` 'variable' takes "
                "different numbers of steps: choose 'barrier'"
            )

    @property
    def num_sequences(self) -> int:
        """Return how many sequences the fragments of an iteration hold."""
        return self.total_envs * (self.num_steps // (self.sequence_length or self.num_steps))
