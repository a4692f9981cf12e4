"""The script that mutates the source to test the tests."""

from pathlib import Path

import pytest

from tests import mutants
from tests.mutants import Mutant, mutate, pick, places_of

MODULE = '''"""A module."""
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    LIMIT = 3


class Clip:
    size: int = 2

    def __call__(self, x: float, is_on: bool = True) -> float:
        """Return 1 of them."""
        if x < 0.0 and is_on:
            raise ValueError(f"x was {x + 1}")
        if x > 1.0 or x > 1.0:
            self.γ["x"] = x
        return 0.0 + x
'''


def test_places_are_where_behaviour_can_change():
    found = [place.mutant for place in places_of("ops/clip.py", MODULE)]
    changes = [
        (entry.function, entry.kind, entry.before, entry.after, entry.occurrence) for entry in found
    ]
    call = "Clip.__call__"
    assert sorted(changes) == sorted(
        [
            ("Clip", "constant", "2", "3", 0),
            (call, "constant", "True", "False", 0),
            (call, "comparison", "x < 0.0", "(x >= 0.0)", 0),
            (call, "constant", "0.0", "1.0", 0),
            (call, "statement", 'raise ValueError(f"x was {x + 1}")', "pass", 0),
            (call, "comparison", "x > 1.0", "(x <= 1.0)", 0),
            (call, "comparison", "x > 1.0", "(x <= 1.0)", 1),
            (call, "constant", "1.0", "2.0", 0),
            (call, "constant", "1.0", "2.0", 1),
            (call, "statement", 'self.γ["x"] = x', "pass", 0),
            (call, "constant", "0.0", "1.0", 1),
        ]
    )
    second = Mutant("ops/clip.py", call, "comparison", "x > 1.0", "(x <= 1.0)", 1, line=0)
    assert mutate(second, MODULE) == MODULE.replace("or x > 1.0", "or (x <= 1.0)")
    # The same place is found in another version of the module.
    moved = MODULE.replace("x < 0.0 and", "x <= -1 and")
    assert mutate(second, moved) == moved.replace("or x > 1.0", "or (x <= 1.0)")
    assert mutate(second, MODULE.replace("or x > 1.0", "")) is None


def write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


@pytest.mark.slow
def test_mutants_are_caught_or_survive_and_are_judged_once(tmp_path, capsys):
    source, tests = tmp_path / "src", tmp_path / "tests"
    write(source / "hotloop/__init__.py", "")
    write(source / "hotloop/runs/__init__.py", "")
    write(source / "hotloop/runs/add.py", "NUMBER = 1\n\ndef is_less(x, y):\n    return x < y\n")
    write(tests / "__init__.py", "")
    write(tests / "runs/__init__.py", "")
    write(
        tests / "runs/test_add.py",
        "from hotloop.runs.add import is_less\n\n"
        "def test_less():\n    assert is_less(1, 2)\n\n"
        "def test_fails_anyway():\n    assert False\n",
    )
    (picked, other) = sorted(pick(source, 1, 2), key=lambda mutant: mutant.kind)
    assert (picked.before, other.before) == ("x < y", "1")
    assert pick(source, 1, 2) == pick(source, 1, 2)

    results = tmp_path / "results.jsonl"
    arguments = [f"--source={source}", f"--tests={tests}", f"--results={results}", "--count=2"]
    assert mutants.main(arguments) == 0
    printed = capsys.readouterr().out
    assert "caught: tests/runs/test_add.py::test_less\n    hotloop/runs/add.py:4 is_less" in printed
    assert "survived: hotloop/runs/add.py:1 : 1 → 2" in printed

    # Verdicts are kept, and mutants can be applied to another source.
    before = results.read_text()
    mutants.main(arguments)
    assert results.read_text() == before
    write(source / "hotloop/runs/add.py", "NUMBER = 1\n\ndef is_less(x, y):\n    return y > x\n")
    mutants.main([*arguments, f"--same-as={results}", f"--results={tmp_path / 'new.jsonl'}"])
    printed = capsys.readouterr().out
    assert "of 2 mutants: 1 not in this source, 1 survived" in printed or (
        "of 2 mutants: 1 survived, 1 not in this source" in printed
    )
