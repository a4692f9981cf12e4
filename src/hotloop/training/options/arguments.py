"""Command-line arguments of a configuration: one option per field of an algorithm's Config."""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from itertools import pairwise
from types import NoneType
from typing import TYPE_CHECKING, Annotated, Any, Literal, get_args, get_origin

from hotloop.base import documents
from hotloop.errors import ConfigError, UnknownNameError, shortened

if TYPE_CHECKING:
    from tyro.constructors import ConstructorRegistry

_MIN_COLUMNS = 40


def parse(
    config_class: type,
    args: list[str],
    *,
    prog: str,
    presets: Mapping[str, Mapping[str, Any]] | None = None,
    defaults: Mapping[str, Any] | None = None,
    epilog: str = "",
) -> Any:
    """Parse a configuration from command-line options, one per field.

    Args:
        config_class: The algorithm's configuration class.
        args: The options.
        prog: The name of the command in help texts.
        presets: Default options by environment. Options taken from a preset are printed.
        defaults: Options from a file or a run, which override a preset.
        epilog: Text after the description in the help.

    Raises:
        ConfigError: the configuration is inconsistent.
        SystemExit: an option is unknown or malformed (with a message), or help was asked for.
    """
    import tyro

    # Parse without the checks of the class, so that their errors are printed like all others.
    unchecked = type(config_class.__name__, (config_class,), {"__post_init__": lambda _: None})
    if {"-h", "--help"} & set(args):
        unchecked.__annotations__ = _hints_with_help(config_class)
    presets = presets or {}
    description = config_class.__doc__ or ""
    if presets:
        description += "\n\nThe environment's preset replaces defaults: `hotloop presets`."
    if epilog:
        description += f"\n\n{epilog}"
    args = _checked_arguments(args, config_class, prog)
    options: dict[str, Any] = {"args": args, "prog": prog, "registry": _type_rules()}
    if defaults:
        options["default"] = unchecked(**defaults)
    with _adapt_tyro():
        config = tyro.cli(unchecked, description=description, **options)
    from hotloop.training.algorithm import preset_of, without_layers
    from hotloop.training.options import with_values

    preset = without_layers(preset_of(presets, config.env_id), config_class, vars(config))
    if preset:
        # Parse again with the preset as defaults. Values that change come from the preset.
        before = config
        with _adapt_tyro():
            options["default"] = unchecked(**{**preset, **(defaults or {})})
            config = tyro.cli(unchecked, **options)
        applied = {x: preset[x] for x in preset if vars(config)[x] != vars(before)[x]}
        if applied:
            texts = _format_options(applied)
            print(f"preset for {config.env_id}: {texts}; options you set override it")
    if "default" not in options:
        return config_class(**vars(config))
    flags = {arg.partition("=")[0].lstrip("-").replace("-", "_") for arg in args if arg[:2] == "--"}
    names = flags | {flag.removeprefix("no_") for flag in flags}
    values = {name: value for name, value in vars(config).items() if name in names}
    return with_values(config_class, vars(options["default"]), values)


def _hints_with_help(config_class: type) -> dict[str, Any]:
    """Return the types of all options with their help. Tyro would keep the source's line breaks."""
    import tyro

    from hotloop.base.field_docs import field_docs
    from hotloop.training.options.constraints import type_hints

    hints, texts = type_hints(config_class), {}
    for parent in config_class.__mro__[-2::-1]:  # without `object`
        texts.update(field_docs(parent))
    return {
        name: Annotated[hint, tyro.conf.arg(help=texts[name])] if name in texts else hint
        for name, hint in hints.items()
    }


def _checked_arguments(args: Sequence[str], config_class: type, prog: str) -> list[str]:
    """Return the options as tyro reads them: `1e5` becomes 100000, and `64,64` two values.

    Tyro's own errors fill a screen, so this function finds the usual mistakes first.

    Raises:
        UnknownNameError: An option does not exist.
        ConfigError: An option has too many or too few values, or an invalid one.
    """
    from hotloop.training.options.base import unknown_option_message
    from hotloop.training.options.constraints import leaf_types, type_hints

    if {"-h", "--help"} & set(args):
        return list(args)
    hints, checked = type_hints(config_class), []
    starts = [k for k, arg in enumerate(args) if k == 0 or arg.startswith("--")]
    for start, end in pairwise([*starts, len(args)]):
        option, *values = args[start:end]
        if not option.startswith("--"):
            raise ConfigError(
                f"expected an option such as `--seed 1`, got '{option}': write `--env-id {option}` "
                f"if it is the environment; `{prog} --help` lists the options"
            )
        option, has_value, value = option.partition("=")
        values = [value, *values] if has_value else values
        name = option.removeprefix("--").replace("-", "_")
        hint = hints.get(name)
        if hint is None and leaf_types(hints.get(name.removeprefix("no_"))) == {bool}:
            hint = hints[name.removeprefix("no_")]
        if hint is None:
            raise UnknownNameError(unknown_option_message(name, config_class))
        checked += [option, *_checked_values(option, hint, values)]
    return checked


def _checked_values(option: str, hint: Any, values: list[str]) -> list[str]:
    """Return an option's values as tyro reads them, or raise ConfigError."""
    from hotloop.training.options.constraints import check_value, leaf_types

    name, kinds = option.removeprefix("--").replace("-", "_"), leaf_types(hint)
    if kinds == {bool}:
        if values:
            raise ConfigError(
                f"`{option}` takes no value, got '{values[0]}': write `--{name.replace('_', '-')}` "
                "to turn it on, or put `no-` before the name to turn it off"
            )
        return []
    sequences = [kind for kind in kinds if get_origin(kind) is tuple and kind != tuple[str, ...]]
    if sequences and not (NoneType in kinds and [x.lower() for x in values] == ["none"]):
        parts = [part for value in values for part in value.split(",") if part]
        items = tuple(_as_number(part, {get_args(sequences[0])[0]}) for part in parts)
        check_value(name, hint, items)
        return list(map(str, items))
    if not values:
        raise ConfigError(f"`{option}` needs a value")
    if tuple[str, ...] in kinds:
        return [",".join(values)]
    if any(get_origin(kind) is dict for kind in kinds):
        text = " ".join(values)  # a space ends an argument unless it is quoted
        try:
            _json_object(text)
        except ConfigError as error:
            raise ConfigError(f"`{option}`: {error}") from None
        return [text]
    parts = [part for value in values for part in value.split(",")]
    are_numbers = not any(isinstance(_as_number(part, kinds), str) for part in parts)
    if kinds <= {int, float, NoneType} or are_numbers:  # a schedule has a colon
        values = parts
    if name == "seed" and re.fullmatch(r"\d+-\d+", values[0]):
        raise ConfigError(
            f"`{option}` takes one number, got {values[0]}: to train a run for each, write "
            f"`--seeds {values[0]}`"
        )
    if len(values) > 1:
        joined = ",".join(values[:9])
        example = f"`--seeds {joined}`" if name == "seed" else f"`--vary {name}={joined}`"
        raise ConfigError(
            f"`{option}` takes one value, got {len(values)} ({' '.join(values[:9])}): to train a "
            f"run for each, write {example}"
        )
    if values[0].lower() == "none" and NoneType in kinds:
        return ["None"]
    if not all(x in (int, float, NoneType) or get_origin(x) is Literal for x in kinds):
        return values
    number = _as_number(values[0], kinds)
    check_value(name, hint, number)
    return [str(number)]


def _as_number(text: str, kinds: Set[Any]) -> int | float | str:
    """Return a number, if the option takes one and the text is one. `1e5` is an integer."""
    if not kinds & {int, float}:
        return text
    for kind in (int, float):
        with contextlib.suppress(ValueError):
            number = kind(text)
            is_whole = isinstance(number, float) and float not in kinds and number.is_integer()
            return int(number) if is_whole else number
    return text


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


def _format_options(options: Mapping[str, Any]) -> str:
    return ", ".join(f"{name} {value}" for name, value in options.items())


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
    add(lambda kind: kind == Factory, "NAME|MODULE:NAME", str)
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
    value = documents.parse_object(text)
    if value is None:
        text = shortened(text)
        raise ConfigError(f"expected a JSON object such as '{{\"g\": 1.62}}', got '{text}'")
    return value
