"""Processes of Doom's games: none outlives the one that plays, and none leaves a file behind.

ViZDoom starts a process a game, which goes on for ever where its player was killed, writes into the
current directory, and keeps shared memory of 3 to 11 MB. So the games of a process are started in a
directory of their own, where each notes its number. A guard, a tiny process as well, reads from a
pipe that ends when the player does, however that is: then it kills the games that are left, and
removes what they had.
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

# How long the guard may take to tidy up when the last game was closed.
_GUARD_S = 5.0

# What ViZDoom takes where a scenario does not say.
_GAME_FILES = ("doom2.wad", "freedoom2.wad")
# Starts a game, unless the guard is at work already: that removes this file before it looks at the
# games that have noted their number. Ctrl-C is the player's to answer.
_LAUNCHER = """#!/bin/sh
trap '' INT
cd "${{0%/*}}" && printf '%s\\n' "$*" >"$$" && [ -e "$0" ] && exec {program} "$@"
"""

# A number may have become another process's, whose command names another directory.
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


class _Room:
    """The directory of a process's games, and their guard."""

    def __init__(self, program: str) -> None:
        self.pid = os.getpid()
        self.num_games = 0  # that are not closed
        self.num_started = 0
        self.path = Path(tempfile.mkdtemp(prefix="hotloop-doom-")).resolve()
        self.launcher = self.path / "launch"
        self.launcher.write_text(_LAUNCHER.format(program=shlex.quote(program)), encoding="utf-8")
        self.launcher.chmod(0o700)
        if not os.access(self.launcher, os.X_OK):
            shutil.rmtree(self.path)
            raise EnvironmentFailure(
                f"Doom's games are started in '{self.path.parent}', where programs may not be "
                "executed: set TMPDIR to a directory where they may"
            )
        self._guard = subprocess.Popen(
            ["/bin/sh", "-c", _GUARD, str(self.path)],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,  # it outlives what is killed by group,
            env={"PATH": os.environ.get("PATH", os.defpath)},  # or by a mark in the environment
        )

    def close(self) -> None:
        assert self._guard.stdin is not None
        self._guard.stdin.close()
        with contextlib.suppress(subprocess.TimeoutExpired):  # it ends by itself
            self._guard.wait(_GUARD_S)


_room: _Room | None = None


def enter(game: Any) -> None:
    """Have a game, a `vizdoom.DoomGame` that has not begun, start in its process's directory.

    Raises:
        EnvironmentFailure: it can't be there.
    """
    global _room
    if _room is None or _room.pid != os.getpid():  # a fork is another player
        try:
            _room = _Room(vizdoom.exe_path)
        except OSError as error:
            raise EnvironmentFailure(
                f"a directory and a guard of Doom's games can't be made ({error}): set TMPDIR to a "
                "directory with space, or raise the limit on processes (`ulimit -u`)"
            ) from error
    _room.num_games += 1
    _room.num_started += 1
    given = game.get_doom_game_path()
    if not os.path.isfile(given):
        # ViZDoom looks here first, and would name it from here.
        for name in [os.path.basename(given)] if given else _GAME_FILES:
            if os.path.isfile(name):
                game.set_doom_game_path(os.path.abspath(name))
                break
    game.set_vizdoom_path(str(_room.launcher))
    game.set_doom_config_path(str(_room.path / f"{_room.num_started}.ini"))


def leave() -> None:
    """Count one game less; after the last one nothing is left of them."""
    global _room
    if _room is None or _room.pid != os.getpid():
        return
    _room.num_games -= 1
    if _room.num_games == 0:
        room, _room = _room, None
        room.close()
