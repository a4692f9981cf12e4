"""The table of third-party environments in docs/environments.md."""

from __future__ import annotations

from bench import storage
from bench.markdown import table
from bench.third_party import ENTRIES, FACTORIES, RESULT

_PURPOSES = ("PPO", "SAC", "workers", "resume", "eval")


def environments_table() -> str:
    """Return a table of the environments that were run, with versions and outcomes."""
    stored = storage.load(RESULT)
    notes: list[str] = []
    rows = [["package", "version", "`--env-id`", *_PURPOSES, "needs", "date"]]
    for name, entry in ENTRIES.items():
        if name not in stored:
            continue
        result = stored[name]
        outcomes: list[str] = []
        for purpose in _PURPOSES:
            short, _, reason = result["checks"].get(purpose, "").partition(": ")
            if reason:
                notes.append(f"{len(notes) + 1}. {name}, {purpose}: {reason}")
                short += f" ({len(notes)})"
            outcomes.append(short)
        needs = ", ".join(x for x in (entry.needs, entry.options and f"`{entry.options}`") if x)
        env_id = entry.env_id.replace(FACTORIES, "my_envs")
        version = f"{entry.package} {result['version']}"
        rows.append([name, version, f"`{env_id}`", *outcomes, needs, result["date"]])
    return "\n".join([table(*rows), *(["", *notes] if notes else [])])
