"""Options of the command `hotloop train` itself, and the configuration that arguments define."""

from __future__ import annotations

import contextlib
import io
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from hotloop.errors import ConfigError

if TYPE_CHECKING:
    from hotloop.training.algorithm import Algorithm

# Options of the command itself → placeholder and help.
COMMAND_OPTIONS = {
    "--seeds": ("SEEDS", "one run per seed, such as 1-5 or 1,3,7-9, in one directory"),
    "--jobs": ("N", "number of parallel processes (default: as the cores allow)"),
    "--vary": ("NAME=V,V…", "one run per value of an option, may be repeated"),
    "--lanes": ("on|off", "on: train several runs in one process with one batched update"),
    "--config": ("FILE", "read options from a TOML file; the command line overrides them"),
    "--save-config": ("FILE", "write the options to a TOML file and do not train"),
    "--trust": ("", "let the file of --config name code, such as environments"),
}


def split_command_options(args: list[str]) -> tuple[dict[str, Any], list[str]]:
    """Split into values of the command's own options, and the other arguments.

    A missing option has the value None. The value of `--vary` is a list.

    Raises:
        ConfigError: An option is repeated, or has no value.
    """
    values: dict[str, Any] = {**dict.fromkeys(COMMAND_OPTIONS), "--vary": []}
    config_args: list[str] = []
    following, command_option = iter(args), ""
    for arg in following:
        name, has_value, value = arg.partition("=")
        name = name.replace("_", "-") if name.startswith("--") else name
        if command_option and not name.startswith("-"):
            raise ConfigError(
                f"`{command_option}` takes one value, got '{name}' after it: separate values by "
                "commas, without spaces"
            )
        if arg == "--trust":
            values[arg], command_option = "yes", ""
            continue
        command_option = name if name in COMMAND_OPTIONS else ""
        if not command_option:
            config_args.append(arg)
            continue
        if not has_value:
            value = next(following, "")
        if not value or value.startswith("--"):
            raise ConfigError(f"`{name}` needs a value: {COMMAND_OPTIONS[name][1]}")
        if name == "--vary":
            values[name].append(value)
            continue
        if values[name] is not None:
            raise ConfigError(f"`{name}` is set twice: remove one of them")
        values[name] = value
    return values, config_args


def build_config(
    algorithm: Algorithm, args: Sequence[str], name: str, extra_args: Sequence[str] = ()
) -> Any:
    """Return the configuration that arguments of `hotloop train` define.

    Args:
        algorithm: The algorithm.
        args: The arguments after its name.
        name: The algorithm's name on the command line.
        extra_args: Arguments that override others. With them, the preset is not printed.

    Raises:
        ConfigError: the configuration is inconsistent.
        SystemExit: an option is unknown or malformed (with a message), or help was asked for.
    """
    from hotloop.training.options import arguments, option_files

    options, config_args = split_command_options([*args, *extra_args])
    file_options = {}
    if options["--config"] is not None:
        file_options = option_files.read(
            options["--config"],
            algorithm.config,
            name,
            is_trusted=options["--trust"] is not None,
            overridden={
                arg.partition("=")[0].removeprefix("--").replace("-", "_")
                for arg in config_args
                if arg.startswith("--")  # a value may be equal to an option's name
            },
        )
    help_lines = (
        f"  {f'{name} {value}'.strip()}: {text}" for name, (value, text) in COMMAND_OPTIONS.items()
    )
    with contextlib.redirect_stdout(io.StringIO()) if extra_args else contextlib.nullcontext():
        return arguments.parse(
            algorithm.config,
            config_args,
            prog=f"hotloop train {name}",
            presets=algorithm.presets,
            defaults=file_options,
            epilog="\n".join(["Options of the command itself:", *help_lines]),
        )
