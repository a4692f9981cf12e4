"""The parser of a command's arguments, whose errors are one line."""

from __future__ import annotations

import argparse
from typing import NoReturn

from hotloop.errors import ConfigError


class CommandParser(argparse.ArgumentParser):
    """An `argparse.ArgumentParser` that raises `ConfigError` where that one prints and exits."""

    def error(self, message: str) -> NoReturn:
        """See `argparse.ArgumentParser.error`."""
        raise ConfigError(f"{message}: `{self.prog} --help` lists the options")
