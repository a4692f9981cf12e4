"""The corpus makes scripts that differ only in their planted lines, and lists these lines."""

from __future__ import annotations

import ast
import builtins
import re

import numpy as np
import pytest

from bench.profiler.corpus import plant
from bench.profiler.corpus.cause import causes
from bench.profiler.corpus.score import score
from bench.profiler.corpus.template import MARKER, programs

TELLING = re.compile(r"planted|slow|cause|#:", re.IGNORECASE)


def _planted_in(half: str) -> list[tuple[plant.Case, plant.Script, plant.Script]]:
    return [(case, *plant.scripts(case)) for case in plant.draw(half, 60, seed=1)]


@pytest.fixture(scope="module", params=sorted(plant.HALVES))
def cases(request: pytest.FixtureRequest) -> list[tuple[plant.Case, plant.Script, plant.Script]]:
    return _planted_in(request.param)


def test_the_corpus_has_enough_cases() -> None:
    styles = [program.style for program in programs().values()]
    assert len(styles) >= 40
    assert all(styles.count(style) >= 5 for style in set(styles))
    assert len(causes()) >= 30
    for half in plant.HALVES.values():
        assert {template.style for template in programs().values() if template.half == half} == set(
            styles
        )


@pytest.mark.parametrize("name", sorted(programs()))
def test_healthy_program_compiles(name: str) -> None:
    program = programs()[name]
    text = plant.healthy(program)
    compile(text, name, "exec")
    assert not TELLING.search(text)
    assert f'"{program.option}", type=int, default={program.length}' in text
    assert "loop {" in text.splitlines()[-1] or 'print(f"loop {' in text


def test_halves_share_nothing() -> None:
    tune, unseen = (plant.combinations(half) for half in ("tune", "unseen"))
    for at in (0, 1):
        assert not {pair[at] for pair in tune} & {pair[at] for pair in unseen}


def test_every_cause_fits_somewhere() -> None:
    fitting = {cause for half in plant.HALVES for _, cause in plant.combinations(half)}
    assert fitting == set(causes())


def test_scripts_compile_and_reveal_nothing(cases) -> None:
    assert len(cases) == 60
    for case, *scripts in cases:
        for script in scripts:
            compile(script.text, case.name, "exec")
            assert not TELLING.search(script.text), case
            assert not any(MARKER.match(line) for line in script.text.splitlines())


def test_scripts_differ_in_planted_lines_alone(cases) -> None:
    def unplanted_lines(script: plant.Script) -> list[str]:
        lines = enumerate(script.text.splitlines(), 1)
        return [line for at, line in lines if at not in script.planted and line.strip()]

    for case, with_it, without in cases:
        assert with_it.planted, case
        assert with_it.text != without.text, case
        assert unplanted_lines(with_it) == unplanted_lines(without), case


def test_planted_lines_are_the_causes(cases) -> None:
    for case, with_it, _ in cases:
        cause, lines = causes()[case.cause], with_it.text.splitlines()
        planted_text = "\n".join(lines[at - 1] for at in with_it.planted)
        for line in (cause.slow + "\n" + cause.slow_globals).splitlines():
            # The text up to the first placeholder is equal.
            assert line.split("$")[0].strip() in planted_text, case


def test_every_name_is_defined(cases) -> None:
    for case, *scripts in cases:
        for script in scripts:
            known, used = set(dir(builtins)) | {"__file__", "__name__"}, set()
            for node in ast.walk(ast.parse(script.text)):
                if isinstance(node, ast.Name):
                    (used if isinstance(node.ctx, ast.Load) else known).add(node.id)
                elif isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
                    known.add(node.name)
                elif isinstance(node, ast.arg):
                    known.add(node.arg)
                elif isinstance(node, ast.alias):
                    known.add((node.asname or node.name).split(".")[0])
            assert used <= known, case


def test_draws_are_repeatable_and_of_a_fair_size() -> None:
    cases = plant.draw("tune", 20, seed=5)
    assert cases == plant.draw("tune", 20, seed=5)
    assert cases != plant.draw("tune", 20, seed=6)
    gains = [case.expected for case in cases if case.expected is not None]
    assert np.mean([1.2 <= gain <= 3.2 for gain in gains]) > 0.6


def test_scores() -> None:
    truth = {"planted": [5, 6], "file": "train.py", "words": [], "waits": ["disk"], "grows": False}
    finding = {
        "rule": "", "title": "", "evidence": [], "gain": 2.0, "loop_gain": None,
        "wait": "disk", "pace": "repeated", "places": [["train.py", 6, "main"]],
    }  # fmt: skip
    other = {**finding, "places": [["train.py", 9, "main"]]}
    assert score([], truth)["outcome"] == "silent"
    assert score([other], truth)["outcome"] == "wrong"
    assert score([other, finding], truth)["outcome"] == "second"
    named = score([finding], {**truth, "measured": 1.6})
    assert (named["outcome"], named["wait_right"], named["error"]) == ("first", True, 0.25)
