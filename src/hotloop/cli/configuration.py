"""Configurations in files: `--config FILE` reads one, `--save-config FILE` writes one.

A file is a table of options in TOML. TOML has no null: "none" stands for it.
"""

from __future__ import annotations

import sys
from dataclasses import fields
from pathlib import Path
from typing import Any

from hotloop.errors import ConfigError, UnknownNameError, nearest
from hotloop.system.files import read_regular, written_whole

_NONE = "none"


def toml_loads(text: str) -> dict[str, Any]:
    """Return what a text in TOML holds.

    Raises:
        ValueError: it is none.
    """
    if sys.version_info >= (3, 11):
        import tomllib as toml
    else:
        import tomli as toml  # pyright: ignore[reportMissingImports]

    return toml.loads(text)


def read(path: str, config_class: type, algorithm: str) -> dict[str, Any]:
    """Return the options that a file has.

    Args:
        path: a TOML file.
        config_class: whose options they must be.
        algorithm: that they are for, by its name on the command line.

    Raises:
        ConfigError: there is no such file, it is damaged, it is of another algorithm, or has
            options that this one lacks, or values that they can't have.
    """
    from hotloop.training.options.constraints import check_value, type_hints

    try:
        options = toml_loads(read_regular(Path(path)).decode("utf-8"))
    except OSError as error:
        raise ConfigError(
            f"`--config` must be a TOML file, got {path} ({error.strerror or error}): `hotloop "
            f"train {algorithm} --save-config FILE.toml` writes one"
        ) from error
    except ValueError as error:
        raise ConfigError(
            f"{path} is no TOML ({error}): expected lines such as `learning_rate = 0.001`"
        ) from error
    stored = options.pop("algorithm", algorithm)
    if not isinstance(stored, str):
        raise ConfigError(
            f'`algorithm` of {path} must be a name such as "{algorithm}", got {stored!r}'
        )
    if stored != algorithm:
        raise ConfigError(
            f"{path} is a configuration of {stored}, got {algorithm}: write `hotloop train "
            f"{stored} --config {path}`"
        )
    known = [field.name for field in fields(config_class)]
    for name in options:
        if name not in known and isinstance(options[name], dict):
            raise ConfigError(
                f"{path} has a table [{name}]: options stand in none, leave its heading out"
            )
        if name not in known:
            hint = nearest(name, known) or f": `hotloop train {algorithm} --help` lists them"
            raise ConfigError(f"{path} has `{name}`, which is no option of {algorithm}{hint}")
    hints = type_hints(config_class)
    for name, value in options.items():
        value = None if value == _NONE else value
        options[name] = tuple(value) if isinstance(value, list) else value
        try:
            check_value(name, hints[name], options[name])
        except (ConfigError, UnknownNameError) as error:
            raise type(error)(f"{path}: {error}") from error
    return options


def save(path: str, config: Any, algorithm: str) -> None:
    """Write a configuration, as `read` reads it.

    Args:
        path: where to; what is there is replaced.
        config: the configuration.
        algorithm: that it is for, by its name on the command line.

    Raises:
        ConfigError: the name does not end with .toml, or an option has no form in TOML.
        OutputError: it can't be written.
    """
    import tomli_w

    from hotloop.training.options import to_json

    if Path(path).suffix != ".toml":
        raise ConfigError(f"`--save-config` must be a name that ends with .toml, got {path}")
    options = {
        name: _NONE if value is None else value
        for name, value in to_json(config).items()
        if name != "run_dir"  # of one run alone
    }
    try:
        text = tomli_w.dumps({"algorithm": algorithm, **options})
    except TypeError as error:
        raise ConfigError(
            f"{path} can't hold this configuration: TOML has no null, and `env_kwargs` has one; "
            "leave it out of there"
        ) from error
    with written_whole(Path(path)) as made:
        made.write_text(text, encoding="utf-8")
