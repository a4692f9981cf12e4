"""Removal of secrets from command lines and options before they are stored or printed."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping
from typing import Any

_MASK = "***"
# Names of variables and options whose values are secrets.
_NAME = r"[\w.-]*(?:api_?-?key|access_?-?key|secret|token|passw|passphrase|credential)[\w.-]*"
_SECRET_NAME = re.compile(_NAME, re.IGNORECASE)
_OPTION = re.compile(f"--?{_NAME}", re.IGNORECASE)
# NAME=value, NAME: value, and the same in JSON.
_ASSIGNMENT = re.compile(rf"""({_NAME}["']?\s*[=:]\s*["']?)([^\s"',}}&]+)""", re.IGNORECASE)
# The same without the colon, which separates a module from its class in options.
_EQUATION = re.compile(_ASSIGNMENT.pattern.replace("[=:]", "="), re.IGNORECASE)
_URL_PASSWORD = re.compile(r"(://[^/\s:@]*:)[^/\s@]+@")
# Shorter values of variables are words that texts may contain anyway.
_MIN_LENGTH = 8


def redacted(arguments: Iterable[str]) -> list[str]:
    """Return a command line with a mask in place of secrets.

    These are passwords in URLs, values of options and variables that are named like secrets, and
    the values of such environment variables of this process wherever they appear.
    """
    secrets = _environment_secrets()
    texts: list[str] = []
    is_secret = False
    for argument in arguments:
        text = _MASK if is_secret else argument
        is_secret = _OPTION.fullmatch(argument) is not None
        texts.append(_masked(text, secrets, _ASSIGNMENT))
    return texts


def redacted_options(options: Mapping[str, Any]) -> dict[str, Any]:
    """Return JSON values with a mask in place of secrets.

    These are texts under keys that are named like secrets, and what `redacted` removes from other
    texts.
    """
    secrets = _environment_secrets()

    def mask(value: Any, is_secret: bool) -> Any:
        if isinstance(value, str):
            return _MASK if is_secret else _masked(value, secrets, _EQUATION)
        if isinstance(value, Mapping):
            return {
                key: mask(item, is_secret or _SECRET_NAME.fullmatch(key) is not None)
                for key, item in value.items()
            }
        return [mask(item, is_secret) for item in value] if isinstance(value, list) else value

    return mask(options, False)


def _environment_secrets() -> list[str]:
    """Return the values of environment variables that are named like secrets, longest first."""
    values = (
        value
        for name, value in os.environ.items()
        if len(value) >= _MIN_LENGTH and _SECRET_NAME.fullmatch(name)
    )
    return sorted(values, key=len, reverse=True)


def _masked(text: str, secrets: Iterable[str], assignment: re.Pattern[str]) -> str:
    # No templates like r"\1": for them, Python imports `re` by name, and a profiled program may
    # have a module of that name.
    for secret in secrets:
        text = text.replace(secret, _MASK)
    text = _URL_PASSWORD.sub(lambda match: f"{match[1]}{_MASK}@", text)
    return assignment.sub(lambda match: f"{match[1]}{_MASK}", text)
