"""Spaces and fixed options among the arguments of `hotloop sweep` and `hotloop train --vary`."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hotloop.base.files import read_regular
from hotloop.errors import ConfigError

if TYPE_CHECKING:
    from hotloop.training.algorithm import Algorithm

_MAX_POINTS = 64  # combinations that are tried to complete fixed options


def split_spaces(
    args: list[str], file: Path | None, config_class: type
) -> tuple[dict[str, Any], list[str]]:
    """Return option → space, of the arguments and the file, and the other arguments.

    Args:
        args: arguments, such as `learning_rate=log:1e-5,1e-2` and `--num-envs 8`.
        file: a file with more spaces.
        config_class: configuration class with the options.

    Raises:
        ConfigError: the file or an argument is malformed, or an option can't be set here.
    """
    from hotloop.experiments.spaces import parse_assignments

    assignments = [arg for arg in args if "=" in arg and arg.partition("=")[0].isidentifier()]
    train_args = [arg for arg in args if arg not in assignments]
    for name in {field.name for field in fields(config_class)} & set(train_args):
        raise ConfigError(
            f"`{name}` needs a space: write its values as `{name}=A,B`, or a range as "
            f"`{name}=log:LOW,HIGH`"
        )
    texts = {**_read_spaces(file, config_class), **parse_assignments(assignments)}
    check_fixed(texts, train_args)
    names = option_names(train_args)
    for name in ("seed", "vary", "run_dir", "runs_dir"):
        if name in names:
            other = "`--file`, which its runs are next to" if "dir" in name else "`--seeds`"
            raise ConfigError(f"a sweep has no `--{name.replace('_', '-')}`: use {other}")
    return texts, train_args


def option_names(args: list[str]) -> set[str]:
    """Return the names of the options that arguments set."""
    return {arg.partition("=")[0].removeprefix("--").replace("-", "_") for arg in args}


def check_fixed(texts: Mapping[str, Any], args: list[str]) -> None:
    """Check that no option has a space and a fixed value.

    Raises:
        ConfigError: an option has both.
    """
    for name in texts.keys() & option_names(args):
        raise ConfigError(f"`{name}` has a space and a fixed value: remove one of them")


def _read_spaces(path: Path | None, config_class: type) -> dict[str, Any]:
    """Return the spaces in a TOML file: a text or a list of values per option."""
    if path is None:
        return {}
    from hotloop.experiments.spaces import options_beyond_data
    from hotloop.training.options.option_files import toml_loads

    try:
        spaces = toml_loads(read_regular(path).decode("utf-8"))
    except OSError as error:
        raise ConfigError(
            f"`--space` must be a TOML file, got {path} ({error.strerror})"
        ) from error
    except ValueError as error:
        raise ConfigError(
            f"{path} is not valid TOML ({error}): expected lines such as "
            '`learning_rate = "log:1e-5,1e-2"`'
        ) from error
    for name in options_beyond_data(spaces, config_class):  # a file is data, whoever wrote it
        raise ConfigError(
            f"`{name}` in {path} may name code, an address or a file: write its space on the "
            f"command line, `{name}=…`"
        )
    return spaces


def base_config(algorithm: Algorithm, name: str, args: list[str], texts: Mapping[str, Any]) -> Any:
    """Return the configuration of all trainings, from fixed options.

    If the fixed options are valid only with certain values of the space, it has the first of these.

    Args:
        algorithm: the algorithm.
        name: its name on the command line.
        args: the fixed options.
        texts: option → its space.

    Raises:
        ConfigError, UnknownNameError: an option or the space is invalid.
    """
    from hotloop.cli.train_options import build_config
    from hotloop.experiments import Choices
    from hotloop.experiments.spaces import parse, parse_domain, value_text

    space = parse(texts, algorithm.config)
    try:
        return build_config(algorithm, args, name)
    except ConfigError:
        if not texts:
            raise
        lists = {
            option: text if isinstance(text, list) else parse_domain(option, text, str).points("")
            for option, text in texts.items()
            if isinstance(space[option], Choices)
        }
        for values in itertools.islice(itertools.product(*lists.values()), _MAX_POINTS):
            options = [_option_args(k, value_text(x)) for k, x in zip(lists, values, strict=True)]
            try:
                return build_config(algorithm, args, name, [*itertools.chain(*options)])
            except ConfigError:
                continue
        raise


def _option_args(name: str, text: str) -> list[str]:
    """Return the arguments that set an option. `64 64` becomes two numbers."""
    flag, numbers = f"--{name.replace('_', '-')}", text.split()
    return [flag, *numbers] if len(numbers) > 1 else [f"{flag}={text}"]
