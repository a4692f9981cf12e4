"""Options of `hotloop train`: those of the command, and one per field of an algorithm's Config."""

from __future__ import annotations

import contextlib
import io
import json
import os
import shutil
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import fields
from itertools import pairwise
from typing import TYPE_CHECKING, Any, get_origin

from hotloop.algorithms import ALGORITHMS, find
from hotloop.errors import ConfigError, UnknownNameError

if TYPE_CHECKING:
    from tyro.constructors import ConstructorRegistry

    from hotloop.training.algorithm import Algorithm

_MIN_COLUMNS = 40

# Options of the command itself → placeholder and help.
COMMAND_OPTIONS = {
    "--seeds": ("SEEDS", "one run per seed, such as 1-5 or 1,3,7-9, in one directory"),
    "--jobs": ("N", "number of parallel processes (default: as the cores allow)"),
    "--vary": ("NAME=V,V…", "one run per value of an option (repeat it for more options)"),
    "--lanes": ("on|off", "on: train several runs in one process with one batched update"),
    "--config": ("FILE", "read options from a TOML file (command-line options override them)"),
    "--save-config": ("FILE", "write the options to a TOML file and do not train"),
}


def split_command_options(args: list[str]) -> tuple[dict[str, Any], list[str]]:
    """Split into values of the command's own options, and the other arguments.

    A missing option has the value None. The value of `--vary` is a list.

    Raises:
        ConfigError: An option is repeated, or has no value.
    """
    values: dict[str, Any] = {**dict.fromkeys(COMMAND_OPTIONS), "--vary": []}
    config_args: list[str] = []
    following = iter(args)
    for arg in following:
        name, has_value, value = arg.partition("=")
        name = name.replace("_", "-") if name.startswith("--") else name
        if name not in COMMAND_OPTIONS:
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
    options, config_args = split_command_options([*args, *extra_args])
    file_options = {}
    if options["--config"] is not None:
        from hotloop.cli import configuration

        file_options = configuration.read(options["--config"], algorithm.config, name)
    with contextlib.redirect_stdout(io.StringIO()) if extra_args else contextlib.nullcontext():
        return parse(
            algorithm.config,
            config_args,
            prog=f"hotloop train {name}",
            presets=algorithm.presets,
            defaults=file_options,
        )


def parse(
    config_class: type,
    args: list[str],
    *,
    prog: str,
    presets: Mapping[str, Mapping[str, Any]] | None = None,
    defaults: Mapping[str, Any] | None = None,
) -> Any:
    """Parse a configuration from command-line options, one per field.

    Args:
        config_class: The algorithm's configuration class.
        args: The options.
        prog: The name of the command in help texts.
        presets: Default options by environment. Options taken from a preset are printed.
        defaults: Options from a file or a run, which override a preset.

    Raises:
        ConfigError: the configuration is inconsistent.
        SystemExit: an option is unknown or malformed (with a message), or help was asked for.
    """
    import tyro

    _check_removed(config_class, args)
    # Parse without the checks of the class, so that their errors are printed like all others.
    unchecked = type(config_class.__name__, (config_class,), {"__post_init__": lambda _: None})
    presets = presets or {}
    description = config_class.__doc__ or ""
    if presets:
        description += (
            "\n\nOptions that are not set come from the environment's preset, which exists "
        )
        description += f"for {', '.join(presets)}. The command prints what it takes from there."
    command_help = (f"{name} {value}: {text}" for name, (value, text) in COMMAND_OPTIONS.items())
    description += f"\n\nOptions of the command itself: {'; '.join(command_help)}."
    options: dict[str, Any] = {"args": args, "prog": prog, "registry": _type_rules()}
    _check_names(args, config_class)
    _check_values(args, config_class)
    if defaults:
        options["default"] = unchecked(**defaults)
    with _adapt_tyro():
        config: Any = tyro.cli(unchecked, description=description, **options)
    from hotloop.training.algorithm import preset_of

    preset = preset_of(presets, config.env_id)
    if preset:
        # Parse again with the preset as defaults. Values that change come from the preset.
        before = config
        with _adapt_tyro():
            options["default"] = unchecked(**{**preset, **(defaults or {})})
            config = tyro.cli(unchecked, **options)
        applied = {x: preset[x] for x in preset if getattr(config, x) != getattr(before, x)}
        if applied:
            print(f"preset for {config.env_id}: {_values(applied)}; options you set override it")
    return config_class(**vars(config))


def _check_names(args: Sequence[str], config_class: type) -> None:
    """Raise UnknownNameError for options that only other algorithms have, and name these."""
    known = {field.name for field in fields(config_class)}
    for arg in args:
        name = arg.removeprefix("--").partition("=")[0].replace("-", "_")
        if not arg.startswith("--") or name in known or name == "help":
            continue
        # Import other algorithms only in case of an error.
        if any(name in {x.name for x in fields(find(other).config)} for other in ALGORITHMS):
            from hotloop.training.options.base import unknown_option_message

            raise UnknownNameError(unknown_option_message(name, config_class))


def _check_values(args: Sequence[str], config_class: type) -> None:
    """Raise ConfigError for invalid values of options with hints, which tyro's errors omit."""
    from hotloop.training.options.constraints import check_value, has_hint, type_hints

    hints = {name: hint for name, hint in type_hints(config_class).items() if has_hint(hint)}
    for arg, following in pairwise([*args, "--"]):
        option, has_value, value = arg.partition("=")
        name = option.removeprefix("--").replace("-", "_")
        value = value if has_value else following
        if arg.startswith("--") and name in hints and not value.startswith("--"):
            check_value(name, hints[name], value)


@contextlib.contextmanager
def _adapt_tyro() -> Iterator[None]:
    """Make tyro format help for 40 columns or more, and suppress its warnings."""
    # With 5 columns tyro never returns. It also warns about a number as the default of an option
    # that accepts schedules, and then accepts it.
    columns = os.environ.get("COLUMNS")
    if shutil.get_terminal_size().columns < _MIN_COLUMNS:
        os.environ["COLUMNS"] = str(_MIN_COLUMNS)
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", module="tyro")
            yield
    finally:
        if columns is not None:
            os.environ["COLUMNS"] = columns
        else:
            os.environ.pop("COLUMNS", None)


def _values(options: Mapping[str, Any]) -> str:
    return ", ".join(f"{name} {value}" for name, value in options.items())


def _check_removed(config_class: type, args: list[str]) -> None:
    """Raise ConfigError for options of earlier versions, and name their replacements."""
    flags = {arg.partition("=")[0].replace("_", "-") for arg in args}
    if "--compile" in flags and "compile" not in {field.name for field in fields(config_class)}:
        raise ConfigError(
            "`--compile` was removed: use `--execution compile` or `--execution eager` instead"
        )
    retired = flags & {"--anneal-learning-rate", "--no-anneal-learning-rate"}
    if retired and "anneal_learning_rate" not in {field.name for field in fields(config_class)}:
        raise ConfigError(
            f"`{min(retired)}` was removed: write `--learning-rate linear:1e-3,0` for a decreasing "
            "learning rate, or a number for a constant one"
        )


def _type_rules() -> ConstructorRegistry:
    """Return parsing rules for option types that tyro lacks."""
    from tyro.constructors import (
        ConstructorRegistry,
        PrimitiveConstructorSpec,
        PrimitiveTypeInfo,
    )

    from hotloop.training.options import Factory, Scheduled

    registry = ConstructorRegistry()

    def add(
        matches: Callable[[Any], bool],
        metavar: str,
        read: Callable[[str], Any],
        write: Callable[[Any], str] = str,
    ) -> None:
        @registry.primitive_rule
        def rule(info: PrimitiveTypeInfo) -> PrimitiveConstructorSpec | None:
            if not matches(info.type):
                return None
            return PrimitiveConstructorSpec(
                nargs=1,
                metavar=metavar,
                instance_from_str=lambda texts: read(texts[0]),
                is_instance=lambda value: value is not None,
                str_from_instance=lambda value: [write(value)],
            )

    add(lambda kind: dict in (kind, get_origin(kind)), "JSON", _json_object, json.dumps)
    add(lambda kind: kind == Scheduled, "FLOAT|SCHEDULE", _number_or_text)
    add(lambda kind: kind == tuple[str, ...], "NAME,NAME,…", _names, ",".join)
    add(lambda kind: kind == Factory, "MODULE:NAME", str)
    return registry


def _names(text: str) -> tuple[str, ...]:
    return tuple(name.strip() for name in text.split(",")) if text else ()


def _number_or_text(text: str) -> float | str:
    """Return a number, or the text of a schedule. The configuration checks it."""
    try:
        return float(text)
    except ValueError:
        return text


def _json_object(text: str) -> dict[str, Any]:
    try:
        value = json.loads(text)
    except ValueError:
        value = None
    if not isinstance(value, dict):
        raise ConfigError(f"expected a JSON object such as '{{\"g\": 1.62}}', got '{text}'")
    return value
