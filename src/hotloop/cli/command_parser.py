"""The parser of a command's arguments, whose errors are one line, and types of options."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import NoReturn

from hotloop.errors import ConfigError


class CommandParser(argparse.ArgumentParser):
    """An `argparse.ArgumentParser` that raises `ConfigError` where that one prints and exits."""

    def error(self, message: str) -> NoReturn:
        """See `argparse.ArgumentParser.error`."""
        raise ConfigError(f"{message}: `{self.prog} --help` lists the options")

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
            raise ConfigError(
                f"expected an option of `{self.prog}` before the script, got '{unknown[0]}': "
                f"options of the script must follow the script; `{self.prog} --help` lists ours"
            )
        return options


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
