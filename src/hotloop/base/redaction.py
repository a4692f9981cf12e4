"""Removal of secrets from command lines, options and messages before they are stored or printed."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping
from typing import Any

_MASK = "***"
# Names of variables and options whose values are secrets. Tokens of language models are none, as in
# MAX_TOKENS, tokenizer and tiktoken.
_TOKEN = r"(?<!tik)token(?!s|i[sz])|(?:api|auth|access)[_-]tokens"
_KEY = r"(?:api|access|private|signing|encryption)_?-?key"
# Whole words, unlike those in PWD, patience and cookiecutter.
_WORD = r"(?<=[_-])(?:pwd|pat|dsn)(?![a-z])|(?<![a-z])(?:jwt|cookie|webhook)(?![a-z])"
_NAME = rf"[\w.-]*(?:{_KEY}|secret|{_TOKEN}|passw|passphrase|credential|{_WORD})[\w.-]*"
_SECRET_NAME = re.compile(_NAME, re.IGNORECASE)
_OPTION = re.compile(f"--?{_NAME}", re.IGNORECASE)
# NAME=value, NAME: value, and the same in JSON. Only whole words can start it: trying every letter
# of a word of 4,000 would take a second.
_ASSIGNMENT = re.compile(
    rf"""((?<![\w.-]){_NAME}["']?\s*[=:]\s*["']?)([^\s"',}}&]+)""", re.IGNORECASE
)
# The same without the colon, which separates a module from its class in options.
_EQUATION = re.compile(_ASSIGNMENT.pattern.replace("[=:]", "=(?!=)"), re.IGNORECASE)
# A password, or a token in place of a user.
_URL_PASSWORD = re.compile(r"(://[^/\s:@]*:)[^/\s@]+@|(://)[^/\s:@]{16,}@")
_BEARER = re.compile(r"(authorization\W+(?:\w+\s+)?|bearer\s+)[\w.~+/=-]{16,}", re.IGNORECASE)
# Variables named like secrets that hold none, such as PASSWORD_STORE_DIR.
_NO_SECRET_NAME = re.compile(r".*_(dir|file|home|host|mode|path|type)", re.IGNORECASE)
# Shorter values of variables are words that texts may contain anyway, and so are numbers.
_MIN_LENGTH, _MIN_LETTERS = 8, 16


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
                key: mask(item, is_secret or _is_secret_name(str(key)))
                for key, item in value.items()
            }
        return [mask(item, is_secret) for item in value] if isinstance(value, list) else value

    return mask(options, False)


def without_secrets(text: str) -> str:
    """Return a message with a mask in place of passwords in URLs and of secret variables' values.

    These are environment variables of this process that are named like secrets.
    """
    return _masked(text, _environment_secrets())


def secret_variable(text: str) -> str | None:
    """Return the name of a secret environment variable whose value the text contains, or None."""
    secrets = _environment_secrets()
    return next((name for secret, name in secrets.items() if secret in text), None)


def _environment_secrets() -> dict[str, str]:
    """Return value → name of environment variables that are named like secrets, longest first."""
    secrets = {
        value: name
        for name, value in os.environ.items()
        if len(value) >= (_MIN_LETTERS if value.isalpha() else _MIN_LENGTH)
        and not value.isdecimal()
        and _is_secret_name(name)
    }
    return dict(sorted(secrets.items(), key=lambda item: -len(item[0])))


def _is_secret_name(name: str) -> bool:
    return bool(_SECRET_NAME.fullmatch(name)) and not _NO_SECRET_NAME.fullmatch(name)


def _masked(text: str, secrets: Iterable[str], assignment: re.Pattern[str] | None = None) -> str:
    # No templates like r"\1": for them, Python imports `re` by name, and a profiled program may
    # have a module of that name.
    for secret in secrets:
        text = text.replace(secret, _MASK)
    text = _URL_PASSWORD.sub(lambda match: f"{match[1] or match[2]}{_MASK}@", text)
    text = _BEARER.sub(lambda match: f"{match[1]}{_MASK}", text)
    if assignment is None:
        return text
    return assignment.sub(lambda match: f"{match[1]}{_MASK}", text)
