"""The parser of a command's arguments, with errors of one line, and types of options."""

from __future__ import annotations

import argparse
import math
import re
from collections.abc import Callable
from typing import Any, NoReturn

from hotloop.errors import ConfigError, nearest, shortened


class CommandParser(argparse.ArgumentParser):
    """An `argparse.ArgumentParser` that raises `ConfigError` instead of printing and exiting."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        # By default argparse takes -1e3 and -1/8 for options, not for negative numbers.
        self._negative_number_matcher = re.compile(r"-\.?\d")

    def error(self, message: str) -> NoReturn:
        """See `argparse.ArgumentParser.error`."""
        message = re.sub(r"^argument (-[^:/]*): (?=must )", r"`\1` ", message)
        unknown = re.match(r"unrecognized arguments: (--[^ =]+)", message)
        hint = nearest(unknown[1], self._option_string_actions) if unknown else ""
        raise ConfigError(message + (hint or f": `{self.prog} --help` lists the options"))

    def split_program(self, args: list[str]) -> tuple[list[str], list[str]]:
        """Split into options of this command and a program with its arguments, without a `--`."""
        actions = self._option_string_actions
        index = 0
        while index < len(args) and args[index].startswith("-") and args[index] not in ("-m", "--"):
            action = actions.get(args[index])
            index += 2 if action is not None and action.nargs is None else 1
        return args[:index], args[index + (args[index : index + 1] == ["--"]) :]

    def parse_own(self, args: list[str]) -> argparse.Namespace:
        """Return the options of a command that runs a program, see `split_program`.

        Raises:
            ConfigError: An option is unknown or has an invalid value.
        """
        options, unknown = self.parse_known_args(args)
        if unknown:
            advice = nearest(unknown[0], self._option_string_actions) or (
                f": options of the script must follow the script; `{self.prog} --help` lists them"
            )
            raise ConfigError(
                f"expected an option of `{self.prog}` before the script, got '{unknown[0]}'{advice}"
            )
        return options


def _number(kind: type, expected: str, accepts: Callable[[Any], bool]) -> Callable[[str], Any]:
    """Return the type of an option: a number that `accepts` accepts."""

    def parse(text: str) -> Any:
        try:
            value = kind(text)
        except ValueError:
            value = math.nan
        if not accepts(value):
            raise argparse.ArgumentTypeError(f"must be {expected}, got {shortened(text, 40)}")
        return value

    return parse


count = _number(int, "a positive integer", lambda x: 1 <= x < 2**63)
natural = _number(int, "an integer of at least 0", lambda x: 0 <= x < 2**63)
positive = _number(float, "a positive number up to 1e15", lambda x: 1e-9 <= x <= 1e15)
share = _number(float, "a number from 0 to 1", lambda x: 0 <= x <= 1)


def milliseconds(*, least: int, auto_s: float | None = None) -> Callable[[str], float]:
    """Return the type of an option: seconds, from a text in milliseconds."""

    def seconds(text: str) -> float:
        if text == "auto" and auto_s is not None:
            return auto_s
        try:
            value = float(text) / 1e3
        except ValueError:
            value = -1.0
        if not (value == 0 or least / 1e3 <= value <= 10):
            raise argparse.ArgumentTypeError(
                f"expected 0, or {least} to 10,000 milliseconds, got '{text}'"
            )
        return value

    return seconds


def add_trust_option(parser: argparse.ArgumentParser) -> None:
    """Add `--trust`, for commands that import code named in a run directory."""
    parser.add_argument(
        "--trust",
        action="store_true",
        help="import and run the code that the run names (environment and its arguments, network, "
        "algorithm, schedules), even if it was not trained on this machine",
    )
