"""Errors of agents and environments that a user has written."""

from __future__ import annotations

from hotloop.errors import BanditError


def arm_error(name: str, num_arms: int, arm: float, run: int, step: int) -> BanditError:
    """An agent took an arm that is not there."""
    return BanditError(
        f"agent '{name}' took arm {arm:g} at step {step} of run {run}, but arms go from 0 to "
        f"{num_arms - 1}: mend its `choose`"
    )


def raised_error(what: str, name: str, run: int, step: int) -> BanditError:
    """A function of a user's raised something in compiled code, where what it was is lost."""
    return BanditError(
        f"a function of {what} '{name}' raised an exception at step {step} of run {run}; compiled "
        "code can't say which: call its functions' plain Python (`.py_func`) with such arguments"
    )


def range_error(name: str, reward: float, run: int, step: int) -> BanditError:
    """An environment gave a reward that one of the agents can't take."""
    return BanditError(
        f"environment '{name}' gave the reward {reward!r} at step {step} of run {run}, and an "
        "agent that plays there needs rewards from 0 to 1: scale them, or play another agent"
    )


def reward_error(
    name: str, reward: float, run: int, step: int, arm: int | None = None
) -> BanditError:
    """An environment gave NaN or infinity."""
    which = "" if arm is None else f" for arm {arm}"
    return BanditError(
        f"environment '{name}' gave the reward {reward:g}{which} at step {step} of run {run}: a "
        "reward must be a finite number (of float32's range); mend its `reward`"
    )
