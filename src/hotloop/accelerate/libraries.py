"""The libraries whose classes are accelerated, with the supported versions."""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, version

from hotloop.errors import MissingExtraError, install_command

OLDEST, NEWEST = (2, 4), (3, 0)
"""Supported versions of Stable-Baselines3 and sb3-contrib: from `OLDEST`, below `NEWEST`."""


def check_libraries(*, needs_contrib: bool = False) -> None:
    """Check that Stable-Baselines3 is installed in a supported version.

    Raises:
        MissingExtraError: a library is missing, or its version is not supported.
    """
    names = ["stable-baselines3", *(["sb3-contrib"] if needs_contrib else [])]
    for name in names:
        try:
            installed = version(name)
        except PackageNotFoundError as error:
            raise MissingExtraError(
                f"hotloop.accelerate needs {name}, which is not installed: {install_command('sb3')}"
            ) from error
        if not OLDEST <= _release(installed) < NEWEST:
            oldest, newest = (".".join(map(str, x)) for x in (OLDEST, NEWEST))
            raise MissingExtraError(
                f"hotloop.accelerate supports {name} from {oldest} to below {newest}, got "
                f"{installed}: {install_command('sb3')}, or run the script without it"
            )


def _release(text: str) -> tuple[int, int]:
    """Return the first two numbers of a version."""
    major, minor = [*text.split("."), "0"][:2]
    return int(major), int(minor.rstrip("abcdefghijklmnopqrstuvwxyz") or 0)
