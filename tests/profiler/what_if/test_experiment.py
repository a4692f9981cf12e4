"""Experiments with real programs."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from hotloop.cli import main
from hotloop.profiler.collect.delays import DIRECTORY, MAX_POINTS
from hotloop.profiler.what_if.experiment import Experiment
from hotloop.profiler.what_if.places import Place, SampledTime, ThreadPlaces
from hotloop.profiler.what_if.result import WhatIf, read_result
from tests.attempts import attempts
from tests.profiler.programs import run, write

# The three workers of `collect` are busier than the one of `infer`, and wait for it.
PIPELINE = """
    import queue, sys, threading, time

    def collect():
        time.sleep(0.016)
        return 1

    def infer(item):
        time.sleep(0.010)
        return item

    def collecting(target):
        while True:
            target.put(collect())

    def main(seconds):
        items = queue.Queue(2)
        for _ in range(3):
            threading.Thread(target=collecting, args=(items,), daemon=True).start()
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            infer(items.get())

    main(float(sys.argv[1]))
    print("finished")
    sys.exit(3)
    """


def profile(directory: Path, *arguments: str) -> tuple[WhatIf, str]:
    command = [sys.executable, "-m", "hotloop", "profile", "--what-if", *arguments]
    result = run(command, directory)
    assert result.stdout == "finished\n"
    assert result.returncode == 3, result.stderr
    effects = read_result(directory / "profile")
    assert effects is not None
    return effects, result.stderr


@pytest.mark.slow
def test_the_bottleneck_of_a_pipeline_is_not_its_busiest_stage(tmp_path: Path) -> None:
    write(tmp_path, PIPELINE)

    def measure(number: int) -> WhatIf:
        folder = tmp_path / str(number)
        folder.mkdir()
        (folder / "script.py").write_text((tmp_path / "script.py").read_text())
        places = ("--what-if-at", "infer", "--what-if-at", "collect")
        return profile(folder, *places, "--out", "profile", "script.py", "25")[0]

    for result, attempt in attempts(measure):
        with attempt:
            assert result.problem == ""
            assert result.bottleneck is not None
            assert result.bottleneck.place.startswith("infer")
            assert result.busiest is not None
            assert result.busiest.place.startswith("collect")


def test_a_short_program_is_refused_in_one_sentence(tmp_path: Path) -> None:
    write(tmp_path, PIPELINE)
    result, printed = profile(tmp_path, "--out", "profile", "script.py", "0.5")
    assert result.effects == []
    assert f"what if: nothing was measured: {result.problem}" in printed
    document = json.loads((tmp_path / "profile" / "what-if.json").read_text())
    assert document["problem"].startswith("it ended before samples of its loop were taken")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--what-if-at", "learn"], "--what-if-at and --progress need --what-if"),
        (["--what-if", "--interval", "0"], "--what-if needs samples"),
    ],
)
def test_options_without_effect_are_refused(
    options: list[str], message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write(tmp_path, PIPELINE)
    code = main(["profile", *options, str(tmp_path / "script.py")])
    assert code == 2
    assert message in capsys.readouterr().err


def test_a_program_with_more_loops_than_points(tmp_path: Path) -> None:
    file = str(write(tmp_path, "for x in range(9): print(x)"))
    times = {
        ThreadPlaces(None, frozenset(), (Place("loop", file, line, "main"),), is_main=True): (
            SampledTime(cpu_ns=1e9, count=100)
        )
        for line in range(1, 2 * MAX_POINTS)
    }
    line = Place("line", file, 1, "main")
    times[ThreadPlaces(line, frozenset({line}), (), is_main=True)] = SampledTime(1e12, count=9)
    experiment = Experiment(tmp_path)
    (tmp_path / DIRECTORY).mkdir()
    assert experiment._choose_points(times, 1e12) == [line]
    assert len(experiment._points) == MAX_POINTS
    assert experiment._progress_order == [*range(1, MAX_POINTS)]
