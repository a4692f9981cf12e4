"""The process that `hotloop profile` starts: it records a user's script.

hotloop.profiler.collect.script SETTINGS SCRIPT [ARGUMENT ...]
hotloop.profiler.collect.script SETTINGS -m MODULE [ARGUMENT ...]
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

from hotloop.base.children import end_with_parent
from hotloop.base.programs import run_program
from hotloop.profiler.collect.processes import begin

_PACKAGE = str(Path(__file__).parent) + os.sep


def main(argv: list[str]) -> int:
    """Run the script and return its exit code, unless it exits by itself."""
    settings = json.loads(argv[0])
    if "parent" in settings:
        end_with_parent(settings["parent"])
    begin(
        Path(settings["directory"]),
        interval_s=settings["interval_s"],
        hooks=settings["hooks"],
        gpu_window_s=settings.get("gpu_window_s", 0.0),
        what_if=settings.get("what_if", False),
    )
    return run_program(argv[1:], hidden_files=(_PACKAGE,))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
