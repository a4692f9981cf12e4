"""Tables of options: names, defaults and help of an algorithm's, and which needs which."""

from __future__ import annotations

import sys
from dataclasses import MISSING, Field, fields

from bench.markdown import table

# Common options with defaults that depend on the algorithm. Other common options are in `--help`.
CHOSEN = ("total_timesteps", "num_envs", "torch_threads", "execution")


def options_table(algorithm: str, beside: str | None = None) -> str:
    """Return a table with one row per option, those specific to the algorithm first.

    Options that the algorithm refuses, in `UNUSED` of its module, are omitted.

    Args:
        algorithm: name of the algorithm.
        beside: another algorithm. Options with the same default there are omitted.
    """
    from hotloop.algorithms import find
    from hotloop.base.field_docs import field_docs
    from hotloop.training.options import RunOptions

    common = {field.name for field in fields(RunOptions)}.difference(CHOSEN)
    config = find(algorithm).config
    common.update(getattr(sys.modules[config.__module__], "UNUSED", ()))
    docs: dict[str, str] = {}
    own_fields: set[str] = set()  # options specific to the algorithm
    for parent in reversed(config.__mro__[:-1]):
        docs.update(field_docs(parent))
        if parent.__module__.startswith("hotloop.algorithms."):
            own_fields.update(parent.__annotations__)
    known = {} if beside is None else {x.name: x for x in fields(find(beside).config)}
    rows = [["option", "default", ""]]
    for field in sorted(fields(config), key=lambda field: field.name not in own_fields):
        other_field = known.get(field.name)
        is_same = other_field is not None and (other_field.default, other_field.type) == (
            field.default,
            field.type,
        )
        if field.name not in common and not is_same:
            description = docs[field.name].replace("|", "\\|")
            rows.append([f"`--{field.name.replace('_', '-')}`", format_default(field), description])
    return table(*rows)


def presets_table() -> str:
    """Return a table with one row per preset and its values."""
    from hotloop.algorithms import ALGORITHMS, find

    rows = [["", "preset"]]
    for name in ALGORITHMS:
        for env_id, options in find(name).presets.items():
            values = {**options}
            if "torch_threads" in values:  # depends on the machine
                values["torch_threads"] = "cores, 4 at most"
            text = ", ".join(f"`{option}` {value}" for option, value in values.items())
            rows.append([f"{name}, {env_id}", text])
    return table(*rows)


def requirements_table() -> str:
    """Return a table with one row per requirement, and the options that have no effect without."""
    from hotloop.algorithms import ALGORITHMS, find
    from hotloop.training.options.base import describe_requirement, requirements_of

    configs = {algorithm: find(algorithm).config for algorithm in ALGORITHMS}
    owners: dict[str, dict[str, list[str]]] = {}  # requirement → option → algorithms
    for algorithm, config in configs.items():
        for name, requirements in requirements_of(config):
            needs = " and ".join(describe_requirement(*item) for item in requirements.items())
            owners.setdefault(needs, {}).setdefault(name, []).append(algorithm)
    rows = [["options", "need"]]
    for needs, options in owners.items():
        texts = []
        for name, algorithms in options.items():
            is_general = all(
                x in algorithms for x, config in configs.items() if hasattr(config, name)
            )
            texts.append(f"`{name}`" + ("" if is_general else f" of {', '.join(algorithms)}"))
        rows.append([", ".join(texts), needs])
    return table(*rows)


def other_names_table() -> str:
    """Return a table with one row per option name of another library."""
    from hotloop.training.options.other_names import OTHER_NAMES

    rows = [["name", "hotloop", ""]]
    for name, (options, note) in OTHER_NAMES.items():
        answers = ", ".join(f"`{option}`" for option in options) or "–"
        rows.append([f"`{name}`", answers, note])
    return table(*rows)


def format_default(field: Field) -> str:
    """Return a field's default as text for the pages."""
    default = field.default
    if default is MISSING or default is None:
        return "–"
    if isinstance(default, bool):
        return "on" if default else "off"
    if isinstance(default, tuple):
        return " ".join(map(str, default)) or "–"
    if isinstance(default, int):
        return f"{default:,}"
    return f"{default:g}" if isinstance(default, float) else f"`{default}`"
