"""The process that `hotloop accelerate` becomes: it runs a user's script with other classes.

    hotloop.accelerate.script SETTINGS SCRIPT [ARGUMENT ...]
    hotloop.accelerate.script SETTINGS -m MODULE [ARGUMENT ...]

Its forks inherit the classes, and Python programs that it starts call `begin_in_program`.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from hotloop.accelerate import import_hook
from hotloop.base.children import python_command
from hotloop.base.programs import INTERRUPTED, run_program
from hotloop.base.startup import call_in_programs

_SETTINGS_VARIABLE = "HOTLOOP_ACCELERATE"


def script_command(arguments: Sequence[str], **settings: str) -> list[str]:
    """Return the command that runs a script.

    Args:
        arguments: Python's arguments: a script or `-m MODULE`, and its own arguments.
        settings: the values of `hotloop.accelerate.acceleration.Settings`.
    """
    return python_command("hotloop.accelerate.script", json.dumps(settings), *arguments)


def main(argv: list[str]) -> int:
    """Run the script and return its exit code, unless it exits by itself."""
    directory = tempfile.mkdtemp(prefix="hotloop-accelerate-")
    settings = {**json.loads(argv[0]), "directory": directory}
    os.environ[_SETTINGS_VARIABLE] = json.dumps(settings)
    call_in_programs("hotloop.accelerate.script:begin_in_program")
    hooks = import_hook.install(settings)
    try:
        code = run_program(argv[1:], hidden_files=(__file__,))
    finally:
        text = import_hook.final_report(hooks, Path(directory))
        shutil.rmtree(directory, ignore_errors=True)
        print(text, file=sys.stderr, flush=True)
    if code == INTERRUPTED:
        # Python ends by the signal, so that a shell's loop ends too. The traceback is printed.
        sys.excepthook = lambda *_: None
        raise KeyboardInterrupt
    return code


def begin_in_program() -> None:
    """Put the classes in place in a program that an accelerated script has started."""
    text = os.environ.get(_SETTINGS_VARIABLE)
    if not text or "hotloop.accelerate.script" in sys.orig_argv:  # `main` has its own settings
        return
    settings: dict[str, Any] = json.loads(text)
    import_hook.install(settings)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
