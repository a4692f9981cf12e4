"""Processes of Doom's games: they end with the playing process and leave no files behind.

ViZDoom starts one process per game. It runs on forever if the playing process is killed, writes
into the current directory, and holds shared memory of 3 to 11 MB. So the games of a process start
in a temporary directory, where each writes a file named by its process id. A guard, another tiny
process, reads from a pipe that closes when the playing process ends for any reason. Then the guard
kills the remaining games, and removes their files and shared memory.
"""

from __future__ import annotations

import contextlib
import os
import shlex
import shutil
import subprocess
import tempfile
from pathlib import Path
from typing import Any

import vizdoom

from hotloop.errors import EnvironmentFailure

# Time limit for the guard's cleanup after the last game was closed.
_GUARD_S = 5.0

# ViZDoom's defaults if a scenario names no file.
_GAME_FILES = ("doom2.wad", "freedoom2.wad")
# Starts a game, unless the guard's cleanup has begun: the guard removes this file before
# it lists the games' process ids. The playing process handles Ctrl-C.
_LAUNCHER = """#!/bin/sh
trap '' INT
cd "${{0%/*}}" && printf '%s\\n' "$*" >"$$" && [ -e "$0" ] && exec {program} "$@"
"""

# The guard checks the command line for its directory, since a process id may have been reused.
_GUARD = r"""
cd "$0" || exit
read -r _
rm -f launch
for game in [0-9]*; do
    grep -q -F -e "$0/" "/proc/$game/cmdline" 2>/dev/null && kill -9 "$game"
    id=$(sed -n 's/.*+viz_instance_id \([A-Za-z0-9]*\).*/\1/p' "$game")
    [ -z "$id" ] || for part in SM MQCtr MQDoom; do rm -f "/dev/shm/ViZDoom$part$id"; done
done
cd / && rm -rf "$0"
"""


class _GameDirectory:
    """The directory of a process's games, and their guard process."""

    def __init__(self, program: str) -> None:
        self.pid = os.getpid()
        self.num_games = 0  # games that are not closed yet
        self.num_started = 0
        self.path = Path(tempfile.mkdtemp(prefix="hotloop-doom-")).resolve()
        self.launcher = self.path / "launch"
        self.launcher.write_text(_LAUNCHER.format(program=shlex.quote(program)), encoding="utf-8")
        self.launcher.chmod(0o700)
        if not os.access(self.launcher, os.X_OK):
            shutil.rmtree(self.path)
            raise EnvironmentFailure(
                f"Doom's games start in '{self.path.parent}', which does not permit executing "
                "programs: set TMPDIR to a directory that does"
            )
        self._guard = subprocess.Popen(
            ["/bin/sh", "-c", _GUARD, str(self.path)],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,  # survives a kill of the process group
            env={"PATH": os.environ.get("PATH", os.defpath)},  # without marks for a kill
        )

    def close(self) -> None:
        assert self._guard.stdin is not None
        self._guard.stdin.close()
        with contextlib.suppress(subprocess.TimeoutExpired):  # the guard ends later
            self._guard.wait(_GUARD_S)


_directory: _GameDirectory | None = None


def register_game(game: Any) -> None:
    """Configure a `vizdoom.DoomGame` that has not started to start in the process's directory.

    Raises:
        EnvironmentFailure: the directory or its guard cannot be created.
    """
    global _directory
    if _directory is None or _directory.pid != os.getpid():  # after a fork, this is another process
        try:
            _directory = _GameDirectory(vizdoom.exe_path)
        except OSError as error:
            raise EnvironmentFailure(
                f"cannot create a directory and a guard for Doom's games ({error}): set TMPDIR to "
                "a directory with space, or raise the limit on processes (`ulimit -u`)"
            ) from error
    _directory.num_games += 1
    _directory.num_started += 1
    game_path = game.get_doom_game_path()
    if not os.path.isfile(game_path):
        # ViZDoom would search the current directory first, but with a relative path.
        for name in [os.path.basename(game_path)] if game_path else _GAME_FILES:
            if os.path.isfile(name):
                game.set_doom_game_path(os.path.abspath(name))
                break
    game.set_vizdoom_path(str(_directory.launcher))
    game.set_doom_config_path(str(_directory.path / f"{_directory.num_started}.ini"))


def unregister_game() -> None:
    """Count a closed game, and remove the directory after the last one."""
    global _directory
    if _directory is None or _directory.pid != os.getpid():
        return
    _directory.num_games -= 1
    if _directory.num_games == 0:
        directory, _directory = _directory, None
        directory.close()
