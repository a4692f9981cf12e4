"""Every exception that hotloop raises on purpose.

    HotloopError
    ├── ConfigError        an option or a combination of options makes no sense (ValueError)
    ├── UnknownNameError   no environment, algorithm or option of that name (ValueError)
    ├── ShapeError         arrays whose shapes or dtypes do not fit together (ValueError)
    ├── SpaceError         an observation or action space that is not supported (ValueError)
    ├── MissingExtraError  a library that an optional extra brings is not installed (ImportError)
    ├── EnvironmentFailure an environment raised, or gave what its spaces rule out (RuntimeError)
    │   ├── NonFiniteStep  it gave NaN or infinity, in steps that may have followed each other
    │   └── MaskError      it tells no action mask, or a wrong one
    ├── RunDirectoryError  a run directory exists, is missing, or can't be written (OSError)
    ├── UntrustedError     a run directory of somebody else names modules to import (OSError)
    ├── OutputError        a file that was asked for can't be written (OSError)
    ├── ReplayError        what a replay buffer can't take or give (ValueError)
    ├── BanditError        an agent or an arm of a user's, or a file of results (ValueError)
    ├── ProfileError       a profile that holds nothing, or can't be read or written (ValueError)
    ├── CheckpointError    a checkpoint is cut short, too new, or of another kind (ValueError)
    └── NonFiniteError     NaN or infinity in a loss or a gradient (ArithmeticError)
        └── NonFiniteUpdate  with the update's number and its batch

`hotloop.timing` depends on nothing of ours, so its `RecordingError` (a ValueError) stands there.

A message gives what was expected, what came, and the next step. The command line prints it as one
line and keeps the traceback for `--debug`.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping, Sequence
from typing import Any


class HotloopError(Exception):
    """Base of all errors that hotloop raises on purpose."""


class ConfigError(HotloopError, ValueError):
    """An option, or a combination of options, makes no sense."""


class UnknownNameError(HotloopError, ValueError):
    """No environment, algorithm, command or option has that name."""


class ShapeError(HotloopError, ValueError):
    """Arrays whose shapes or dtypes do not fit together."""


class SpaceError(HotloopError, ValueError):
    """An observation or action space that is not supported."""


class MissingExtraError(HotloopError, ImportError):
    """A library that an optional extra brings is not installed."""


class EnvironmentFailure(HotloopError, RuntimeError):
    """An environment raised, or gave what its own spaces rule out."""


class NonFiniteStep(EnvironmentFailure):
    """An environment's step gave NaN or infinity: nothing that follows can be learned from."""


class MaskError(EnvironmentFailure):
    """An environment tells no action mask, or a wrong one: another of its kind does no better."""


class RunDirectoryError(HotloopError, OSError):
    """A run directory exists already, is missing, or can't be written."""


class UntrustedError(HotloopError, OSError):
    """A run directory that somebody else wrote names what would be imported and called."""


class OutputError(HotloopError, OSError):
    """A plot, a video or an export can't be written where it was asked for."""


class ReplayError(HotloopError, ValueError):
    """A replay buffer can't take what it was given, or give what was asked for."""


class BanditError(HotloopError, ValueError):
    """What a user's agent or arm gives is impossible, or a file of results can't be read."""


class ProfileError(HotloopError, ValueError):
    """A profile that holds nothing, or that can't be read or written."""


class CheckpointError(HotloopError, ValueError):
    """A checkpoint is cut short, of a newer version, or of another environment."""


class NonFiniteError(HotloopError, ArithmeticError):
    """NaN or infinity turned up in a loss or a gradient."""


class NonFiniteUpdate(NonFiniteError):
    """An update gave NaN or infinity; who catches it keeps the batch and says which it was.

    Attributes:
        names: what was not finite.
        update: which update of the iteration, from 1.
        batch: what it learned from, arrays by field.
    """

    def __init__(self, names: Sequence[str], update: int, batch: Mapping[str, Any]) -> None:
        super().__init__(f"update {update} gave NaN or infinity in {', '.join(names)}")
        self.names = names
        self.update = update
        self.batch = batch


def shortened(text: str, most: int = 200) -> str:
    """A text of somebody else's, as far as a sentence has room for it."""
    return text if len(text) <= most else f"{text[:most]}… ({len(text):,} characters)"


def nearest(name: str, known: Iterable[str], *, at_most: int = 3) -> str:
    """The known names that look most like `name`, as the end of a message.

    Returns:
        `"; did you mean 'CartPole-v1'?"`, or the empty string where nothing is near.
    """
    candidates = list(known)
    lowered = {candidate.lower(): candidate for candidate in candidates}
    close = difflib.get_close_matches(name.lower(), list(lowered), n=at_most, cutoff=0.6)
    if not close:
        return ""
    return "; did you mean " + " or ".join(f"'{lowered[match]}'" for match in close) + "?"
