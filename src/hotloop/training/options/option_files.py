"""Configuration files: `--config FILE` reads one, `--save-config FILE` writes one.

A file is a TOML table of options. TOML has no null, so the string "none" replaces it.
"""

from __future__ import annotations

import sys
from collections.abc import Collection, Mapping
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hotloop.base.files import atomic_write, read_regular
from hotloop.base.importing import enable_local_imports
from hotloop.errors import ConfigError, UnknownNameError, UntrustedError, nearest, shortened

if TYPE_CHECKING:
    from hotloop.training.options.groups import AlgorithmOptions

_NONE = "none"


def toml_loads(text: str) -> dict[str, Any]:
    """Return the content of a TOML text.

    Raises:
        ValueError: The text is not valid TOML.
    """
    if sys.version_info >= (3, 11):
        import tomllib as toml
    else:
        import tomli as toml  # pyright: ignore[reportMissingImports]

    try:
        return toml.loads(text)
    except RecursionError as error:
        raise ValueError("it is nested too deeply") from error


def read(
    path: str,
    config_class: type,
    algorithm: str,
    *,
    is_trusted: bool = False,
    overridden: Collection[str] = (),
) -> dict[str, Any]:
    """Return the options stored in a TOML file.

    Args:
        path: The file.
        config_class: The configuration class that has the options.
        algorithm: The algorithm's name on the command line.
        is_trusted: Whether the file may name code.
        overridden: Options that the command line sets.

    Raises:
        UntrustedError: An option may run code, and the file is not trusted.
        ConfigError: The file is missing or damaged, is for another algorithm, or has an unknown
            option or an invalid value.
    """
    from hotloop.ops.schedules import names_function
    from hotloop.training.options.constraints import as_whole, is_scheduled, type_hints
    from hotloop.training.options.other_names import translate

    # Read the file.
    try:
        options = toml_loads(read_regular(Path(path)).decode("utf-8"))
    except OSError as error:
        raise ConfigError(
            f"`--config` must be a TOML file, got {path} ({error.strerror or error}): `hotloop "
            f"train {algorithm} --save-config FILE.toml` writes one"
        ) from error
    except ValueError as error:
        raise ConfigError(
            f"{path} is not valid TOML ({error}): expected lines such as `learning_rate = 0.001`"
        ) from error
    # Check the algorithm and the names.
    stored = options.pop("algorithm", algorithm)
    if not isinstance(stored, str):
        raise ConfigError(
            f'`algorithm` in {path} must be a name such as "{algorithm}", got {stored!r}'
        )
    if stored != algorithm:
        raise ConfigError(
            f"{path} is a configuration of {stored}, got {algorithm}: run `hotloop train "
            f"{stored} --config {path}`"
        )
    known = [field.name for field in fields(config_class)]
    for name in options:
        if name not in known and isinstance(options[name], dict):
            raise ConfigError(
                f"{path} has a table [{name}]: options must be at the top level, remove the heading"
            )
        if name not in known:
            hint = translate(name, known) or nearest(name, known)
            hint = hint or f": `hotloop train {algorithm} --help` lists them"
            raise ConfigError(f"{path} has `{name}`, which is not an option of {algorithm}{hint}")
    # Convert and check the values, except for functions, which are not imported yet.
    hints, functions = type_hints(config_class), []
    for name, value in options.items():
        value = as_whole(hints[name], None if value == _NONE else value)
        options[name] = tuple(value) if isinstance(value, list) else value
        if is_scheduled(hints[name]) and isinstance(value, str) and names_function(value):
            functions.append(name)
        else:
            _check(path, name, hints[name], options[name])
    # A file is data, no matter who wrote it: only the command line names code.
    used = {name: value for name, value in options.items() if name not in overridden}
    untrusted = _untrusted(config_class, used)
    if untrusted and not is_trusted:
        raise UntrustedError(
            f"{path} could run code by {shortened(', '.join(untrusted))}: check the file, and pass "
            "--trust, or set these options on the command line"
        )
    if untrusted:
        enable_local_imports()
    for name in functions:
        if name in overridden:
            del options[name]
        else:
            _check(path, name, hints[name], options[name])
    return options


def _check(path: str, name: str, hint: Any, value: Any) -> None:
    from hotloop.training.options.constraints import check_value

    try:
        check_value(name, hint, value)
    except (ConfigError, UnknownNameError) as error:
        raise type(error)(f"{path}: {error}") from error


def trust_option(config: AlgorithmOptions) -> str:
    """Return the option ` --trust` if a file with this configuration needs it, else ""."""
    from hotloop.training.options import to_json

    return " --trust" if _untrusted(type(config), to_json(config)) else ""


def _untrusted(config_class: type, options: Mapping[str, Any]) -> list[str]:
    from hotloop.runs.trust import imported_environment
    from hotloop.training.options import untrusted_options

    environment = {"env_id": options.get("env_id", ""), "config": options}
    return [*imported_environment(environment), *untrusted_options(config_class, dict(options))]


def names_code(options: Mapping[str, Any]) -> bool:
    """Return whether a file with these options, as JSON values, would need `--trust`.

    An algorithm's own options are unknown here, since its module needs torch.
    """
    from hotloop.ops.schedules import names_function
    from hotloop.runs.trust import imported_environment
    from hotloop.training.options import OnPolicyOptions, ReplayOptions, untrusted_options
    from hotloop.training.options.groups import NetworkOptions

    environment = {"env_id": options.get("env_id", ""), "config": options}
    texts = (x for name, x in options.items() if name != "env_id" and isinstance(x, str))
    groups = (OnPolicyOptions, ReplayOptions, NetworkOptions)
    return (
        any(imported_environment(environment))
        or any(map(names_function, texts))
        or any(untrusted_options(group, dict(options)) for group in groups)
    )


def save(path: str, config: AlgorithmOptions, algorithm: str) -> None:
    """Write a configuration in the format of `read`. See `write`."""
    from hotloop.training.options import to_json

    if Path(path).suffix != ".toml":
        raise ConfigError(f"`--save-config` must end with .toml, got {path}")
    write(path, to_json(config), algorithm)


def write(path: str, options: Mapping[str, Any], algorithm: str) -> None:
    """Write options, as JSON values, in the format of `read`.

    Args:
        path: The file to write. An existing file is replaced.
        options: The options.
        algorithm: The algorithm's name on the command line.

    Raises:
        ConfigError: TOML can't express an option.
        OutputError: The file can't be written.
    """
    import tomli_w

    values = {
        name: _NONE if value is None else value
        for name, value in options.items()
        if name != "run_dir"  # specific to one run
    }
    try:
        text = tomli_w.dumps({"algorithm": algorithm, **values})
    except TypeError as error:
        raise ConfigError(
            f"TOML can't express this configuration: an option such as `env_kwargs` holds a null, "
            f"which TOML lacks. Remove it to write {path}"
        ) from error
    with atomic_write(Path(path)) as temporary:
        temporary.write_text(text, encoding="utf-8")
