"""Tables of docs/versions.md, from the stored results of the version matrix."""

from __future__ import annotations

from typing import Any

from bench import storage
from bench.markdown import table
from bench.matrix.cells import CELLS, supported_pythons
from bench.matrix.checks import CHECKS

_LIBRARIES = {
    "torch": "torch",
    "numpy": "NumPy",
    "gymnasium": "Gymnasium",
    "numba": "Numba",
    "envpool": "EnvPool",
}


def load() -> dict[str, dict[str, Any]]:
    """Return the result of every cell that pyproject.toml claims; it may be untested."""
    stored = storage.load("versions")
    untested = {"untested": "it has not run yet"}
    return {
        name: stored.get(name, {"python": cell.python, **untested})
        for name, cell in CELLS.items()
        if cell.python in supported_pythons()
    }


def cells_table() -> str:
    """Return a table of the cells: versions, how many checks passed, the date."""
    rows = [["cell", "Python", *_LIBRARIES.values(), "checks that pass", "date"]]
    for name, result in load().items():
        versions = result.get("versions", {})
        passed = (
            f"untested: {result['untested']}" if "untested" in result else _passed(name, result)
        )
        rows.append(
            [
                name,
                versions.get("python", result["python"]),
                *(versions.get(library, "") for library in _LIBRARIES),
                passed,
                result.get("date", ""),
            ]
        )
    return table(*rows)


def _passed(cell: str, result: dict[str, Any]) -> str:
    passed = sum(outcome.startswith("yes") for outcome in result["checks"].values())
    count = sum(check.runs_in(CELLS[cell]) for check in CHECKS.values())
    untested = count - len(result["checks"])
    if passed == count:
        return f"all {count}"
    return f"{passed} of {count}" + (f", {untested} untested" if untested else "")


def checks_table() -> str:
    """Return a table of the checks by cell, and the notes that it refers to."""
    results = load()
    notes: list[str] = []
    rows = [["", *results]]
    for name, check in CHECKS.items():
        row = [check.label]
        for cell, result in results.items():
            missing = "untested" if check.runs_in(CELLS[cell]) else ""
            outcome = result.get("checks", {}).get(name, missing)
            short, _, note = outcome.partition(": ")
            if note:
                notes.append(f"{len(notes) + 1}. {cell}, {check.label}: {note}")
                short += f" ({len(notes)})"
            row.append(short)
        rows.append(row)
    return "\n".join([table(*rows), *(["", *notes] if notes else [])])
