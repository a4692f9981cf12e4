"""Options that stop a run before its last step."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, ClassVar

from hotloop.training.options.base import SET, Options, RequirementTable
from hotloop.training.options.constraints import MAY_CHANGE, Count, Finite, Positive


@dataclass(frozen=True, kw_only=True)
class StopOptions(Options):
    """Conditions that end the run early. It is saved, and `hotloop resume` continues it."""

    stop_at_return: Annotated[Finite | None, MAY_CHANGE] = None
    """Stop when the mean return reaches this number: of an evaluation if there are evaluations,
    else of the last 100 training episodes."""
    stop_without_improvement: Annotated[Count | None, MAY_CHANGE] = None
    """Stop after this number of evaluations in a row without a new best mean return."""
    stop_after_hours: Annotated[Positive | None, MAY_CHANGE] = None
    """Stop after this time in hours, from each start or resume of the run. Set it a little below
    the time limit of a cluster's job."""
    stop_on_file: Annotated[str | None, MAY_CHANGE] = None
    """Stop after the iteration in which this file appears."""

    requires: ClassVar[RequirementTable] = {
        "stop_without_improvement": {"eval_interval": SET},
    }
