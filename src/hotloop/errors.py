"""The exceptions of hotloop.

    HotloopError
    ├── ConfigError        an option or a combination of options is invalid (ValueError)
    ├── UnknownNameError   no environment, algorithm or option has that name (ValueError)
    ├── ShapeError         arrays with incompatible shapes or dtypes (ValueError)
    ├── SpaceError         an observation or action space that is not supported (ValueError)
    ├── MissingExtraError  a library of an optional extra is not installed (ImportError)
    ├── EnvironmentFailure an environment raised, or left its spaces (RuntimeError)
    │   ├── NonFiniteStep  it returned NaN or infinity
    │   └── MaskError      its action mask is missing or invalid
    ├── CallbackError      a user's callback raised (RuntimeError)
    ├── RunDirectoryError  a run directory exists, is missing, or can't be written (OSError)
    ├── UntrustedError     a run, sweep or file may run code of another user (OSError)
    ├── HubError           a model on the Hugging Face Hub can't be read or written (OSError)
    ├── OutputError        an output file can't be written (OSError)
    ├── ReplayError        an invalid request to a replay buffer (ValueError)
    ├── BanditError        an invalid agent, arm or file of results (ValueError)
    ├── ProfileError       a profile is empty, or can't be read or written (ValueError)
    ├── CheckpointError    a checkpoint is truncated, too new, or of another kind (ValueError)
    └── NonFiniteError     NaN or infinity in a loss or a gradient (ArithmeticError)
        └── NonFiniteUpdate  the same, with the update's number and its batch

`hotloop.timing` imports nothing else of hotloop. It defines its own `RecordingError` (ValueError).

A message has the expected value, the actual value and the next step. The command line prints it as
one line, and prints the traceback with `--debug`.
"""

from __future__ import annotations

import difflib
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any


class HotloopError(Exception):
    """The base class of all exceptions of hotloop."""


class ConfigError(HotloopError, ValueError):
    """An option, or a combination of options, is invalid."""


class UnknownNameError(HotloopError, ValueError):
    """No environment, algorithm, command or option has that name."""


class ShapeError(HotloopError, ValueError):
    """Arrays have incompatible shapes or dtypes."""


class SpaceError(HotloopError, ValueError):
    """An observation or action space is not supported."""


class MissingExtraError(HotloopError, ImportError):
    """A library of an optional extra is not installed."""


class EnvironmentFailure(HotloopError, RuntimeError):
    """An environment raised an exception, or returned a value outside of its spaces."""


class NonFiniteStep(EnvironmentFailure):
    """A step returned NaN or infinity, so that later steps are unusable for learning."""


class MaskError(EnvironmentFailure):
    """An environment's action mask is missing or invalid, which a restart does not cure."""


class CallbackError(HotloopError, RuntimeError):
    """A user's callback raised an exception, or returned an invalid state."""


class RunDirectoryError(HotloopError, OSError):
    """A run directory already exists, is missing, or can't be written."""


class UntrustedError(HotloopError, OSError):
    """A file that another user may have written, or that was changed, could run code."""


class HubError(HotloopError, OSError):
    """The Hugging Face Hub can't be reached, or a repository there can't be read or written."""


class OutputError(HotloopError, OSError):
    """A plot, a video or an export can't be written to its path."""


class ReplayError(HotloopError, ValueError):
    """A replay buffer can't store the given transitions, or return the requested batch."""


class BanditError(HotloopError, ValueError):
    """A user's agent or arm returned an impossible value, or a file of results can't be read."""


class ProfileError(HotloopError, ValueError):
    """A profile is empty or can't be read, or a program's recording can't begin."""


class CheckpointError(HotloopError, ValueError):
    """A checkpoint is truncated, of a newer version, or of another environment."""


class NonFiniteError(HotloopError, ArithmeticError):
    """A loss or a gradient is NaN or infinite."""


class NonFiniteUpdate(NonFiniteError):
    """An update computed NaN or infinity. The handler saves the batch and reports its path.

    Attributes:
        names: The quantities that are not finite.
        update: Number of the update within the iteration, from 1.
        batch: The update's batch, arrays by field name. Empty if it was overwritten.
        stored: Other stored transitions, if the batch was overwritten.
    """

    def __init__(
        self,
        names: Sequence[str],
        update: int,
        batch: Mapping[str, Any],
        stored: Mapping[str, Any] | None = None,
    ) -> None:
        super().__init__(f"update {update} gave NaN or infinity in {', '.join(names)}")
        self.names = names
        self.update = update
        self.batch = batch
        self.stored = stored or {}


def install_command(extras: str) -> str:
    """Return the command that installs extras, such as "train,ray", for an error message.

    pip notes where it found a package (PEP 610). A hotloop from a clone or a wheel is installed
    from there again, since a package index may not have it.
    """
    # Few programs reach this function, and these imports take 10 ms.
    from importlib.metadata import PackageNotFoundError, distribution
    from urllib.parse import unquote, urlsplit

    try:
        origin_text = distribution("hotloop").read_text("direct_url.json")
        origin = json.loads(origin_text) if origin_text else {}
    except (PackageNotFoundError, ValueError):
        origin = {}
    url = urlsplit(origin.get("url", ""))
    path = unquote(url.path)
    source = path if url.scheme == "file" and Path(path).exists() else "hotloop"
    is_editable = source == path and origin.get("dir_info", {}).get("editable", False)
    return f"pip install {'-e ' if is_editable else ''}'{source}[{extras}]'"


@contextmanager
def requires_extra(purpose: str, extras: str, *, note: str = "") -> Iterator[None]:
    """Turn an ImportError of the body into one with the command that installs extras.

    Args:
        purpose: The start of the message, such as "Parquet needs pyarrow".
        extras: The extras, see `install_command`.
        note: The end of the message, such as an alternative.

    Raises:
        MissingExtraError: A library is missing.
    """
    try:
        yield
    except ImportError as error:
        command = install_command(extras)
        raise MissingExtraError(f"{purpose} ({error}): {command}{note}") from error


def first_line(error: BaseException) -> str:
    """Return the first line of an error's message, which libraries may fill with pages.

    A line such as "torch.compile raised:" is skipped.
    """
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    if len(lines) > 1 and lines[0].endswith("raised:"):
        return lines[1]
    return lines[0] if lines else type(error).__name__


def shortened(text: str, max_length: int = 200) -> str:
    """Return a foreign text, cut to a length that fits into an error message."""
    return text if len(text) <= max_length else f"{text[:max_length]}… ({len(text):,} characters)"


def nearest(name: str, known: Iterable[str], *, max_names: int = 3, prefix: str = "") -> str:
    """Return the known names that are most similar to `name`, as the end of a message.

    Args:
        name: The unknown name.
        known: The names to compare it with.
        max_names: The largest number of names to return.
        prefix: Text before each returned name.

    Returns:
        `"; did you mean 'CartPole-v1'?"`, or an empty string if no name is similar.
    """
    candidates = list(known)
    lowered = {candidate.lower(): candidate for candidate in candidates}
    close = difflib.get_close_matches(name.lower(), list(lowered), n=max_names, cutoff=0.6)
    if not close:
        return ""
    return "; did you mean " + " or ".join(f"'{prefix}{lowered[match]}'" for match in close) + "?"
