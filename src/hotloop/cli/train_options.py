"""Options of `hotloop train`: its own, and one for each field of an algorithm's Config."""

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

_LEAST_COLUMNS = 40

# Options of the command itself, and what help says of each.
OWN = {
    "--seeds": ("SEEDS", "one run for each seed, such as 1-5 or 1,3,7-9, in one directory"),
    "--jobs": ("N", "processes at a time; by default as many as the cores have room for"),
    "--vary": ("NAME=V,V…", "one run for each value of an option too; may be given several times"),
    "--lanes": ("on|off", "on: train the runs of a process together, in one update"),
    "--config": ("FILE", "take options from a TOML file; those that you give come first"),
    "--save-config": ("FILE", "write the options to a TOML file, and train nothing"),
}


def own_options(args: list[str]) -> tuple[dict[str, Any], list[str]]:
    """Return the values of the command's own options, None for those not given, and the rest.

    Of `--vary` it is a list.

    Raises:
        ConfigError: one is given twice, or without a value.
    """
    found: dict[str, Any] = {**dict.fromkeys(OWN), "--vary": []}
    rest: list[str] = []
    following = iter(args)
    for arg in following:
        name, has_value, value = arg.partition("=")
        name = name.replace("_", "-") if name.startswith("--") else name
        if name not in OWN:
            rest.append(arg)
            continue
        if not has_value:
            value = next(following, "")
        if not value or value.startswith("--"):
            raise ConfigError(f"`{name}` needs a value: {OWN[name][1]}")
        if name == "--vary":
            found[name].append(value)
            continue
        if found[name] is not None:
            raise ConfigError(f"`{name}` is given twice: give it once")
        found[name] = value
    return found, rest


def configured(
    algorithm: Algorithm, args: Sequence[str], name: str, more: Sequence[str] = ()
) -> Any:
    """Return the configuration that arguments of `hotloop train` come to.

    Args:
        algorithm: what is trained.
        args: the arguments behind its name.
        name: of the algorithm, as it was given.
        more: options that come first, and of which nothing is told.

    Raises:
        ConfigError: the configuration is inconsistent.
        SystemExit: an option is unknown or malformed (with a message), or help was asked for.
    """
    own, rest = own_options([*args, *more])
    filed = {}
    if own["--config"] is not None:
        from hotloop.cli import configuration

        filed = configuration.read(own["--config"], algorithm.config, name)
    with contextlib.redirect_stdout(io.StringIO()) if more else contextlib.nullcontext():
        return parse(
            algorithm.config,
            rest,
            prog=f"hotloop train {name}",
            presets=algorithm.presets,
            filed=filed,
        )


def parse(
    config_class: type,
    args: list[str],
    *,
    prog: str,
    presets: Mapping[str, Mapping[str, Any]] | None = None,
    filed: Mapping[str, Any] | None = None,
) -> Any:
    """A configuration from command-line options, one for each field.

    Args:
        config_class: the algorithm's.
        args: the options.
        prog: what help calls the command.
        presets: by environment, what stands in for options that are not given; what of it was
            taken is printed.
        filed: options from a file, which stand in before a preset's.

    Raises:
        ConfigError: the configuration is inconsistent.
        SystemExit: an option is unknown or malformed (with a message), or help was asked for.
    """
    import tyro

    _refuse_retired(config_class, args)
    # Parsed without its checks, so that a mistake they find is told as every other one is.
    unchecked = type(config_class.__name__, (config_class,), {"__post_init__": lambda _: None})
    presets = presets or {}
    description = config_class.__doc__ or ""
    if presets:
        told = (f"{env_id} has {_values(preset)}" for env_id, preset in presets.items())
        description += "\n\nOptions that are not given come from the environment's preset, if it "
        description += f"has one: {'; '.join(told)}."
    own = (f"{name} {value}: {about}" for name, (value, about) in OWN.items())
    description += f"\n\nOf the command itself: {'; '.join(own)}."
    options: dict[str, Any] = {"args": args, "prog": prog, "registry": _rules()}
    _check_owned(args, config_class)
    _check_hinted(args, config_class)
    filed = dict(filed or {})
    if filed:
        options["default"] = unchecked(**filed)
    with _calm_tyro():
        given: Any = tyro.cli(unchecked, description=description, **options)
    from hotloop.training.algorithm import preset_of

    preset = preset_of(presets, given.env_id)
    if preset:
        # Once more, with the preset's values as defaults: what is another value now was not given.
        without = given
        with _calm_tyro():
            options["default"] = unchecked(**{**preset, **filed})
            given = tyro.cli(unchecked, **options)
        taken = {x: preset[x] for x in preset if getattr(given, x) != getattr(without, x)}
        if taken:
            print(f"preset for {given.env_id}: {_values(taken)}; options that you give come first")
    return config_class(**vars(given))


def _check_owned(args: Sequence[str], config_class: type) -> None:
    """Refuse options that only other algorithms have, and say who.

    Raises:
        UnknownNameError: there is one.
    """
    own = {field.name for field in fields(config_class)}
    for arg in args:
        name = arg.removeprefix("--").partition("=")[0].replace("-", "_")
        if not arg.startswith("--") or name in own or name == "help":
            continue
        # Other algorithms are imported only once something is wrong.
        if any(name in {x.name for x in fields(find(other).config)} for other in ALGORITHMS):
            from hotloop.training.options.base import unknown_option

            raise UnknownNameError(unknown_option(name, config_class))


def _check_hinted(args: Sequence[str], config_class: type) -> None:
    """Refuse words that an option does not know, and give its hint, which tyro does not.

    Raises:
        ConfigError: there is one.
    """
    from hotloop.training.options.constraints import check_value, has_hint, type_hints

    hints = {name: hint for name, hint in type_hints(config_class).items() if has_hint(hint)}
    for arg, following in pairwise([*args, "--"]):
        option, has_value, value = arg.partition("=")
        name = option.removeprefix("--").replace("-", "_")
        value = value if has_value else following
        if arg.startswith("--") and name in hints and not value.startswith("--"):
            check_value(name, hints[name], value)


@contextlib.contextmanager
def _calm_tyro() -> Iterator[None]:
    """Have tyro lay out help for 40 columns where there are fewer, and keep its warnings back.

    With 5 columns it never ends. It warns of numbers as defaults of options that may be schedules,
    and takes them.
    """
    before = os.environ.get("COLUMNS")
    if shutil.get_terminal_size().columns < _LEAST_COLUMNS:
        os.environ["COLUMNS"] = str(_LEAST_COLUMNS)
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", module="tyro")
            yield
    finally:
        if before is not None:
            os.environ["COLUMNS"] = before
        else:
            os.environ.pop("COLUMNS", None)


def _values(options: Mapping[str, Any]) -> str:
    return ", ".join(f"{name} {value}" for name, value in options.items())


def _refuse_retired(config_class: type, args: list[str]) -> None:
    """Answer options of earlier versions.

    Raises:
        ConfigError: says what to write instead.
    """
    flags = {arg.partition("=")[0].replace("_", "-") for arg in args}
    if "--compile" in flags and "compile" not in {field.name for field in fields(config_class)}:
        raise ConfigError(
            "`--compile` is gone: write `--execution compile` for on, `--execution eager` for off"
        )
    retired = flags & {"--anneal-learning-rate", "--no-anneal-learning-rate"}
    if retired and "anneal_learning_rate" not in {field.name for field in fields(config_class)}:
        raise ConfigError(
            f"`{min(retired)}` is gone: write `--learning-rate linear:1e-3,0` to let the learning "
            "rate fall, or a number to keep it"
        )


def _rules() -> ConstructorRegistry:
    """Return how options are read whose types tyro does not know."""
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
                instance_from_str=lambda given: read(given[0]),
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
    """Return a number, or the text of a schedule, which the configuration checks."""
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
