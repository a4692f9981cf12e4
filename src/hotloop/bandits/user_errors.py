"""Errors about agents and environments of users."""

from __future__ import annotations

from hotloop.errors import BanditError


def arm_error(name: str, num_arms: int, arm: float, run: int, step: int) -> BanditError:
    """Return the error for an agent that chose an arm out of range."""
    return BanditError(
        f"agent '{name}' took arm {arm:g} at step {step} of run {run}, but arms go from 0 to "
        f"{num_arms - 1}: correct its `choose`"
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
