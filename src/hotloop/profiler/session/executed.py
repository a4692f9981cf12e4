"""Programs that replaced the program of a process (exec)."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from typing import Any

from hotloop.profiler.session import ProfiledProcess
from hotloop.profiler.session.sample_totals import SampleTotals

_MAX_COMMAND = 60


def note_executed_programs(
    process: ProfiledProcess, files: Sequence[SampleTotals], metadata: Mapping[str, Any]
) -> list[str]:
    """Return a sentence for each program that replaced the one of a process.

    A process whose last program is not recorded was not killed.

    Args:
        files: samples of the process, in order of time.
        metadata: content of `profile.json`, with the end of the main process.
    """
    sentences: list[str] = []
    for index, file in enumerate(files):
        executed: Any = file.last_period.get("executed")
        if executed is None or file.end_ns is None:
            continue
        command = shlex.join(executed.get("command", ()))
        if len(command) > _MAX_COMMAND:
            command = command[:_MAX_COMMAND] + "…"
        start_s = (file.end_ns - files[0].header["start_ns"]) / 1e9
        sentence = (
            f"after {start_s:.1f} s, process {process.pid} became another program, `{command}`"
        )
        if index + 1 < len(files):
            sentences.append(f"{sentence}: its times include both programs")
            continue
        process.state = "complete"
        missing = "its time is missing"
        end_ns = metadata.get("end_ns")
        if files[0].header["component"] == "main" and isinstance(end_ns, int):
            missing = f"its {max(0, end_ns - file.end_ns) / 1e9:.1f} s are missing"
        reason = "is not recorded"
        if not executed.get("has_settings"):
            reason = (
                "is not recorded, because its environment lacks the profiler's variables "
                "(HOTLOOP_PROFILE, PYTHONPATH)"
            )
        sentences.append(f"{sentence}, which {reason}: {missing}")
    return sentences
