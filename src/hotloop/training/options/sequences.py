"""Options of networks with memory."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from hotloop.errors import ConfigError
from hotloop.policies.memory import parse_memory
from hotloop.training.options.base import Options
from hotloop.training.options.constraints import Count, Natural
from hotloop.training.options.groups import OnPolicyOptions, ReplayOptions

if TYPE_CHECKING:
    from hotloop.replay import Sampler

# Of sequences from replay; their help says so too.
_LENGTH, _BURN_IN = 20, 10


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


@dataclass(frozen=True, kw_only=True)
class ReplaySequenceOptions(MemoryOptions, ReplayOptions):
    """Learning from a replay buffer, in sequences where the network has memory."""

    sequence_length: Count | None = None
    """memory: transitions in a row that are learned from, fewer at an episode's end; None: 20. A
    batch holds `batch_size` sequences."""
    burn_in: Natural | None = None
    """memory: transitions before them, through which the network only brings what was remembered
    when they were stored up to date; None: 10."""

    def check(self) -> None:
        """Refuse sequences of networks without memory, and what they can't be drawn by."""
        if self.memory is None:
            for name in ("sequence_length", "burn_in"):
                if getattr(self, name) is not None:
                    raise ConfigError(
                        f"`{name}` is of networks with memory: set `memory`, or leave it out"
                    )
            return
        for name, only in (("replay", "uniform"), ("n_step", 1), ("hindsight", None)):
            if getattr(self, name) != only:
                raise ConfigError(
                    f"`memory` learns from sequences, which are drawn uniformly and with rewards "
                    f"of one step: leave `{name}` out, or `memory`"
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
        """Return how many rows a sequence has, with its burn-in; 1 without memory."""
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
