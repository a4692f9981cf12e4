"""Errors about agents and environments of users."""

from __future__ import annotations

from hotloop.errors import BanditError


def arm_error(name: str, num_arms: int, arm: float, run: int, step: int) -> BanditError:
    """Return the error for an agent that chose an arm out of range."""
    return BanditError(
        f"agent '{name}' took arm {arm:g} at step {step} of run {run}, but arms go from 0 to "
        f"{num_arms - 1}: correct its `choose`"
    )


def exception_error(role: str, name: str, run: int, step: int) -> BanditError:
    """Return the error for an exception in a compiled function, which loses the exception."""
    return BanditError(
        f"a function of {role} '{name}' raised an exception at step {step} of run {run}; compiled "
        "code loses its type and text: call the plain Python function (`.py_func`) with the same "
        "arguments"
    )


def range_error(name: str, reward: float, run: int, step: int) -> BanditError:
    """Return the error for a reward outside [0, 1], where an agent needs this range."""
    return BanditError(
        f"environment '{name}' returned the reward {reward!r} at step {step} of run {run}, but "
        "an agent needs rewards from 0 to 1: scale them, or play another agent"
    )


def reward_error(
    name: str, reward: float, run: int, step: int, arm: int | None = None
) -> BanditError:
    """Return the error for a reward that is NaN or infinite."""
    arm_text = "" if arm is None else f" for arm {arm}"
    return BanditError(
        f"environment '{name}' returned the reward {reward:g}{arm_text} at step {step} of run "
        f"{run}: a reward must be a finite number in the range of float32; correct its `reward`"
    )
