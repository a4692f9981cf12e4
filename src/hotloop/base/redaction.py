"""Removal of secrets from command lines before they are stored or printed."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable

_MASK = "***"
# Names of variables and options whose values are secrets.
_NAME = r"[\w.-]*(?:api_?-?key|access_?-?key|secret|token|passw|passphrase|credential)[\w.-]*"
_SECRET_NAME = re.compile(_NAME, re.IGNORECASE)
_OPTION = re.compile(f"--?{_NAME}", re.IGNORECASE)
# NAME=value, NAME: value, and the same in JSON.
_ASSIGNMENT = re.compile(rf"""({_NAME}["']?\s*[=:]\s*["']?)([^\s"',}}&]+)""", re.IGNORECASE)
_URL_PASSWORD = re.compile(r"(://[^/\s:@]*:)[^/\s@]+@")
# Shorter values of variables are words that texts may contain anyway.
_MIN_LENGTH = 8


def redacted(arguments: Iterable[str]) -> list[str]:
    """Return a command line with a mask in place of secrets.

    These are passwords in URLs, values of options and variables that are named like secrets, and
    the values of such environment variables of this process wherever they appear.
    """
    # No templates like r"\1": for them, Python imports `re` by name, and a profiled program may
    # have a module of that name.
    secrets = sorted(
        (
            value
            for name, value in os.environ.items()
            if len(value) >= _MIN_LENGTH and _SECRET_NAME.fullmatch(name)
        ),
        key=len,
        reverse=True,
    )
    texts: list[str] = []
    is_secret = False
    for argument in arguments:
        text = _MASK if is_secret else argument
        is_secret = _OPTION.fullmatch(argument) is not None
        for secret in secrets:
            text = text.replace(secret, _MASK)
        text = _URL_PASSWORD.sub(lambda match: f"{match[1]}{_MASK}@", text)
        texts.append(_ASSIGNMENT.sub(lambda match: f"{match[1]}{_MASK}", text))
    return texts
