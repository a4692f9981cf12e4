"""Options of self-play."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal

from hotloop.training.options.base import SET, Options, RequirementTable
from hotloop.training.options.constraints import Count, Fraction, Names, between


@dataclass(frozen=True, kw_only=True)
class SelfPlayOptions(Options):
    """Self-play, in PettingZoo games."""

    self_play: Literal["uniform", "latest", "prioritized"] | None = None
    """Play against snapshots of the run's own policy, drawn uniformly, the latest alone, or more
    often the ones that the policy beats less (prioritized)."""
    self_play_interval: Count = 10_000
    """self_play: transitions between two snapshots. Lower it for more and closer opponents."""
    self_play_pool: Annotated[int, between(1, 1_000)] = 20
    """self_play: number of latest snapshots to draw from. Raise it if the policy forgets how to
    beat earlier ones."""
    self_play_keep: Annotated[int, between(1, 1_000)] = 80
    """self_play: number of older snapshots to keep and rate, evenly spread over the run. Raise it
    for a finer history of ratings."""
    self_play_epsilon: Fraction = 0.0
    """self_play: probability that a snapshot's move is random. Raise it if the policy loses to
    moves that its snapshots avoid. Near 1 it learns to hope for mistakes."""
    opponents: Names = ()
    """self_play: further opponents to draw: random, a run directory, or `module:function` with the
    arguments (observation, mask, generator)."""
    eval_opponent: str | None = None
    """self_play: the opponent in evaluations, named as in `opponents`. None: random."""

    requires: ClassVar[RequirementTable] = {
        "self_play": {"workers": (0,)},
        "self_play_interval": {"self_play": SET},
        "self_play_pool": {"self_play": SET},
        "self_play_keep": {"self_play": SET},
        "self_play_epsilon": {"self_play": SET},
        "opponents": {"self_play": SET},
        "eval_opponent": {"self_play": SET, "eval_interval": SET},
    }
