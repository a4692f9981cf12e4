"""The tables of an algorithm's options: names, defaults, and what help says of them."""

from __future__ import annotations

from dataclasses import MISSING, Field, fields

from bench.markdown import table

# Of what every run has, those whose defaults an algorithm chooses; the rest is left to `--help`.
CHOSEN = ("total_timesteps", "num_envs", "torch_threads", "execution")


def options_table(algorithm: str, beside: str | None = None) -> str:
    """One row an option, the algorithm's own ones first.

    Args:
        algorithm: its name.
        beside: another one, whose options are left out where they have the same default.
    """
    from hotloop.algorithms import find
    from hotloop.cli.bandit.fields import field_docs
    from hotloop.training.options import RunOptions

    common = {field.name for field in fields(RunOptions)}.difference(CHOSEN)
    config = find(algorithm).config
    docs: dict[str, str] = {}
    own: set[str] = set()  # of the algorithm, and not of all of its kind
    for parent in reversed(config.__mro__[:-1]):
        docs.update(field_docs(parent))
        if parent.__module__.startswith("hotloop.algorithms."):
            own.update(parent.__annotations__)
    known = {} if beside is None else {x.name: x for x in fields(find(beside).config)}
    rows = [["option", "default", ""]]
    for field in sorted(fields(config), key=lambda field: field.name not in own):
        there = known.get(field.name)
        is_same = there is not None and (there.default, there.type) == (field.default, field.type)
        if field.name not in common and not is_same:
            about = docs[field.name].replace("|", "\\|")
            rows.append([f"`--{field.name.replace('_', '-')}`", written(field), about])
    return table(*rows)


def written(field: Field) -> str:
    """Return a field's default as the pages write it."""
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
