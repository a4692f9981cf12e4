"""The version matrix covers what pyproject.toml claims."""

import pytest

from bench import storage
from bench.matrix import tables
from bench.matrix.cells import CELLS, TRAIN, lower_bounds, supported_pythons


def padded(version: str) -> list[int]:
    """Return a version as three numbers."""
    release = version.partition("+")[0]
    return [int(part) for part in f"{release}.0.0".split(".")[:3]]


def test_every_supported_python_has_cells():
    assert supported_pythons() == ["3.10", "3.11", "3.12", "3.13"]
    for python in supported_pythons():
        cells = [cell for cell in CELLS.values() if cell.python == python]
        assert any(not cell.extras for cell in cells), python
        assert any("train" in cell.extras for cell in cells), python


def test_the_oldest_cell_ran_on_the_lower_bounds():
    """After a change of a lower bound, run `python -m bench matrix --store` again."""
    installed = storage.load("versions")["train-3.10-oldest"]["versions"]
    for pin in lower_bounds(TRAIN):
        name, bound = pin.split("==")
        if name in installed:
            assert padded(installed[name]) == padded(bound), name
    assert {"numpy", "torch", "gymnasium", "numba"} <= installed.keys()


def test_no_stored_check_fails():
    for name, result in storage.load("versions").items():
        for check, outcome in result.get("checks", {}).items():
            assert outcome.startswith("yes"), f"{name}, {check}: {outcome}"


def test_tables_number_the_notes(monkeypatch):
    results = {
        "base-3.10": {"python": "3.10", "untested": "there is no Python 3.10 on this machine"},
        "train-3.11-default": {
            "python": "3.11",
            "date": "2026-01-02",
            "versions": {"python": "3.11.7", "torch": "2.13.0"},
            "checks": {"wheel": "yes", "PPO compile": "no: it crashes", "export": "yes: slowly"},
        },
    }
    monkeypatch.setattr(storage, "load", lambda name: results)
    cells = tables.cells_table().splitlines()
    assert cells[2].startswith("| base-3.10 | 3.10 |")
    assert cells[2].endswith("| untested: there is no Python 3.10 on this machine |  |")
    (default,) = [line for line in cells if line.startswith("| train-3.11-default |")]
    assert default.startswith("| train-3.11-default | 3.11.7 | 2.13.0 |  |  |  |  | ")
    assert default.endswith(" | 2 of 18, 15 untested | 2026-01-02 |")
    checks = tables.checks_table()
    assert "| the wheel installs, its extensions import | untested |" in checks
    assert "| PPO, compiled |  |" in checks  # the base package trains nothing
    assert "| no (1) |" in checks
    assert checks.endswith(
        "\n\n1. train-3.11-default, PPO, compiled: it crashes\n"
        "2. train-3.11-default, export to NumPy and ONNX: slowly"
    )


def test_a_requirement_without_a_lower_bound_is_an_error(monkeypatch):
    table = {"dependencies": ["numpy"], "optional-dependencies": {}}
    monkeypatch.setattr("bench.matrix.cells.project", lambda: table)
    with pytest.raises(ValueError, match="expected a requirement `name>=bound`, got 'numpy'"):
        lower_bounds(())
