"""Functions that run at the start of every Python program that this process starts.

Such a program finds `boot/sitecustomize.py` on its `PYTHONPATH`, which Python imports first. Forked
processes are not programs: they inherit the state of this process.
"""

from __future__ import annotations

import importlib
import os
from pathlib import Path

VARIABLE = "HOTLOOP_START"
BOOT_DIRECTORY = Path(__file__).parent / "boot"


def call_in_programs(function: str) -> None:
    """Call a function, given as `module:name`, in each program that this process starts."""
    functions = os.environ.get(VARIABLE, "").split()
    if function not in functions:
        os.environ[VARIABLE] = " ".join([*functions, function])
    path = os.environ.get("PYTHONPATH")
    if str(BOOT_DIRECTORY) not in (path or "").split(os.pathsep):
        os.environ["PYTHONPATH"] = str(BOOT_DIRECTORY) + (os.pathsep + path if path else "")


def call_functions() -> None:
    """Call the functions that the starting process has named."""
    for function in os.environ.get(VARIABLE, "").split():
        module, _, name = function.partition(":")
        getattr(importlib.import_module(module), name)()
