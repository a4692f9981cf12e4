"""Readers of recordings of other profilers, and of small files beside profiles and sweeps.

See `tests.faults.readers`, which has hotloop's own profiles.
"""

from __future__ import annotations

import cProfile
import json
import random
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from hotloop.bandits.parsing import make_environment
from hotloop.cli.search_space import _read_spaces
from hotloop.profiler.render import html, text
from hotloop.profiler.session import syntax
from hotloop.profiler.session.reading import read as read_session
from hotloop.profiler.what_if import places, result
from hotloop.timing.clocks import Clock, Clocks, read_clocks
from tests.faults import damage
from tests.faults.readers import Reader, change_json_file, change_toml, seal_json

_RECORDINGS = Path(__file__).parents[1] / "profiler" / "session" / "recordings"
_FILES = ("austin.mojo", "austin.txt", "py-spy.txt", "speedscope.json", "torch.json.gz")


def make_recordings(folder: Path) -> None:
    """Copy recordings of other profilers, and write those of cProfile and the Firefox Profiler."""
    for name in _FILES:
        (folder / name).mkdir()
        shutil.copy(_RECORDINGS / name, folder / name)
    from tests.profiler.session.test_other_profilers import gecko

    for name in ("cprofile", "gecko"):
        (folder / name).mkdir()
    profile = cProfile.Profile()
    profile.runcall(sorted, range(1000), key=lambda x: -x)
    profile.dump_stats(folder / "cprofile" / "profile.prof")
    (folder / "gecko" / "gecko.json").write_text(json.dumps(gecko()))


def _read_recording(name: str) -> Callable[[Path], Any]:
    def read(folder: Path) -> Any:
        file = {"cprofile": "profile.prof", "gecko": "gecko.json"}.get(name, name)
        session = read_session(folder / name / file)
        html.render(session)
        return text.render(session)

    return read


def make_what_if(folder: Path) -> None:
    """Write the result of an experiment with delays."""
    effect = result.Effect("step (train.py:3)", 0.5, 0.1, 0.6, 0.3, 20)
    result.WhatIf("steps", 100.0, 0.5, 0.2, [effect], "", ["a note"]).write(folder)


def _read_what_if(folder: Path) -> Any:
    from hotloop.profiler.render import what_if

    try:
        found = result.read_result(folder)
    except (OSError, ValueError):  # `Findings.what_if` prints the reason
        return None
    return None if found is None else (repr(what_if.rows(found)), what_if.sentences(found))


def make_clocks(folder: Path) -> None:
    """Write the clocks of two machines."""
    Clocks("first", {"second": Clock("node", 5, 1, 2**32)}).write(folder)


def _read_clocks(folder: Path) -> Any:
    return read_clocks(folder)


def make_spaces(folder: Path) -> None:
    """Write a search space."""
    lines = [
        'learning_rate = "log:1e-5,1e-2"',
        "gamma = [0.9, 0.99]",
        "hidden_sizes = [[8], [8, 8]]",
    ]
    (folder / "space.toml").write_text("\n".join(lines) + "\n")


def _read_space(folder: Path) -> Any:
    from hotloop.algorithms import find
    from hotloop.experiments.spaces import parse

    return repr(parse(_read_spaces(folder / "space.toml", find("ppo").config), find("ppo").config))


def make_rewards(folder: Path) -> None:
    """Write the rewards of a bandit, in both formats."""
    rewards = np.random.default_rng(0).random((20, 3))
    np.save(folder / "rewards.npy", rewards)
    np.savetxt(folder / "rewards.csv", rewards, delimiter=",")


def _read_rewards(name: str) -> Callable[[Path], Any]:
    def read(folder: Path) -> Any:
        environment: Any = make_environment("adversarial", {"rewards": str(folder / name)})
        return environment.num_arms

    return read


def make_source(folder: Path) -> None:
    """Copy a Python file that a profile may name."""
    shutil.copy(syntax.__file__, folder / "source.py")


def _read_source(folder: Path) -> Any:
    for function in (syntax.parse_file, syntax.source_lines, places.source_points):
        function.cache_clear()
    path = str(folder / "source.py")
    syntax.parse_file(path)
    return syntax.source_lines(path), repr(places.source_points(path))


def _change_source(path: Path, rng: random.Random) -> None:
    lines = path.read_text().splitlines()
    values = [x for x in damage.VALUES if "ud800" not in x]
    lines[rng.randrange(len(lines))] = rng.choice([*values, "(" * 3000, "\0", "x = " + "-" * 9999])
    path.write_text("\n".join(lines))


def _flip(path: Path, rng: random.Random) -> None:
    path.write_bytes(damage.flip(path.read_bytes(), rng))


# Name → (artefact, reader), as in `tests.faults.readers`.
READERS: dict[str, tuple[str, Reader]] = {
    **{
        name: (
            "recordings",
            Reader(
                f"{name}/*",
                _read_recording(name),
                change_json_file if name.endswith(("json", "gecko")) else _flip,
                False,
            ),
        )
        for name in (*_FILES, "cprofile", "gecko")
    },
    "what-if.json": ("what_if", Reader(result.RESULT_FILE, _read_what_if, seal_json)),
    "clocks.json": ("clocks", Reader("clocks.json", _read_clocks, change_json_file, False)),
    "space.toml": ("spaces", Reader("space.toml", _read_space, change_toml, False)),
    "source.py": ("source", Reader("source.py", _read_source, _change_source, False)),
    "rewards.npy": ("rewards", Reader("rewards.npy", _read_rewards("rewards.npy"), _flip, False)),
    "rewards.csv": ("rewards", Reader("rewards.csv", _read_rewards("rewards.csv"), _flip, False)),
}
