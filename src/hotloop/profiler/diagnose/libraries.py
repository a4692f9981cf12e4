"""Tests for samples in known libraries, see `libraries.json`."""

from __future__ import annotations

from functools import lru_cache

from hotloop.profiler.diagnose.evidence import SampleRow, library_frames
from hotloop.profiler.session import Stack
from hotloop.profiler.session.catalogues import is_in


def calls_into(row: SampleRow, group: str) -> bool:
    """Return whether the user's innermost line calls into a group, directly or indirectly."""
    return _calls_into(row.stack, group)


@lru_cache(maxsize=65536)
def _calls_into(stack: Stack, group: str) -> bool:
    return any(is_in(group, frame) for frame in library_frames(stack))


def is_core(row: SampleRow) -> bool:
    """Return whether a sample is in a library's environment or network."""
    return calls_into(row, "environments") or calls_into(row, "networks")


def is_step(row: SampleRow) -> bool:
    return row.stage == "env" or calls_into(row, "environments")


def formats_traceback(row: SampleRow) -> bool:
    """Return whether a sample formats a stack, which a debug mode does in each operation."""
    return calls_into(row, "tracebacks")


def may_run_program(row: SampleRow) -> bool:
    """Return whether the library called by the user's innermost line may run the program's loop."""
    inner = library_frames(row.stack)
    return bool(inner) and not is_in("only_called", inner[0])


@lru_cache(maxsize=65536)
def is_in_module_forward(stack: Stack) -> bool:
    """Return whether torch calls the user's innermost function, as it calls `forward`."""
    index = len(stack.frames) - 1 - len(library_frames(stack))
    return index > 0 and stack.frames[index - 1].file.endswith("/torch/nn/modules/module.py")
