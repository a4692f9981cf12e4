"""Findings of a session, each computed once for the terminal and the HTML page.

findings = Findings(session)
print(text.render(findings))
html.write(findings, "report.html")
"""

from __future__ import annotations

from dataclasses import asdict
from functools import cached_property
from pathlib import Path
from typing import Any

from hotloop.base.html_page import escaped
from hotloop.profiler.diagnose.diagnosis import Diagnosis
from hotloop.profiler.render.lines import SourceFiles, ThreadCosts, thread_costs
from hotloop.profiler.session import ProfiledProcess, Session
from hotloop.profiler.session.gpu import GpuUse, gpu_use
from hotloop.profiler.session.lockstep import LockstepWaste, lockstep
from hotloop.profiler.session.stages import StageTimes, stage_times
from hotloop.profiler.session.sums import ranked, sums
from hotloop.profiler.session.throughput import Throughput, throughput
from hotloop.profiler.what_if.result import WhatIf, read_result
from hotloop.timing.policy_shares import policy_shares

# Minimum share of CPU time, and maximum number, of reported threads other than the main one.
_THREAD_SHARE, _MAX_THREADS = 0.05, 3


class Findings:
    """A session and the results derived from it, each computed on first access.

    Args:
        session: the session, which must not change afterwards.
    """

    def __init__(self, session: Session) -> None:
        self.session = session
        self._stages: dict[int, StageTimes] = {}

    @classmethod
    def from_source(cls, source: Session | Findings) -> Findings:
        """Return the findings of a session, or return findings unchanged."""
        return source if isinstance(source, Findings) else cls(source)

    def _repr_html_(self) -> str:
        """Return the HTML page in a frame, for notebooks."""
        from hotloop.profiler.render.html import render

        page = escaped(render(self))
        return f'<iframe width="100%" height="800" style="border: 0" srcdoc="{page}"></iframe>'

    def to_json(self) -> dict[str, Any]:
        """Return duration, speed, stages of the main thread, policies and diagnoses as JSON."""
        session, steps, stages = self.session, self.throughput, self.stages(self.session.main)
        shares = policy_shares(session.main.tree)
        return {
            "command": list(session.command),
            "wall_s": (session.end_ns - session.start_ns) / 1e9,
            "num_processes": len(session.processes),
            "steps": None if steps is None else steps.total,
            "steps_per_s": None if steps is None else steps.mean,
            "stages": {stage: stages.share(stage) for stage in stages.by_stage},
            "policies": {name: vars(share) for name, share in shares.items()},
            "diagnoses": [
                vars(x) | {"places": [place._asdict() for place in x.places]}
                for x in self.diagnoses
            ],
            "what_if": None if self.what_if is None else asdict(self.what_if),
            "problems": list(session.problems),
        }

    def stages(self, process: ProfiledProcess) -> StageTimes:
        """Return the stages of a process's main thread."""
        if process.pid not in self._stages:
            self._stages[process.pid] = stage_times(process)
        return self._stages[process.pid]

    @property
    def start_up_ns(self) -> int | None:
        """Time that the main process spent on importing and starting, None without samples."""
        stages = self.stages(self.session.main)
        if not stages.total.samples:
            return None
        times = stages.by_stage.get("import")
        return 0 if times is None else times.elapsed_ns

    @cached_property
    def diagnoses(self) -> list[Diagnosis]:
        """Causes that slow the program down, most expensive first."""
        from hotloop.profiler.diagnose import diagnose

        return diagnose(self.session)

    @cached_property
    def banners(self) -> list[Diagnosis]:
        """Diagnoses that affect the whole report."""
        from hotloop.profiler.diagnose import banners

        return banners(self.session)

    @property
    def has_no_removable_cost(self) -> bool:
        """Whether all diagnoses, if any, call for a redesign instead of removing a cost."""
        return all(diagnosis.is_rebuild for diagnosis in self.diagnoses)

    @cached_property
    def bound(self) -> str:
        """A sentence on where the time of a program without removable costs goes."""
        from hotloop.profiler.diagnose import bound

        return bound(self.session)

    @cached_property
    def what_if(self) -> WhatIf | None:
        """Effects measured by `hotloop profile --what-if`, None without an experiment."""
        try:
            return read_result(Path(self.session.directory))
        except (OSError, ValueError) as error:
            return WhatIf(problem=f"its file is damaged ({error})")

    @cached_property
    def lockstep(self) -> LockstepWaste | None:
        """Time that workers wait for each other, None if they do not step together."""
        return lockstep(self.session)

    @cached_property
    def throughput(self) -> Throughput | None:
        """Environment steps over time, None without steps."""
        return throughput(self.session)

    @cached_property
    def gpu(self) -> GpuUse | None:
        """Activity of the GPU in its measurement windows, None without windows."""
        return gpu_use(self.session)

    @cached_property
    def costs(self) -> list[ThreadCosts]:
        """Costs of the main thread, of other busy threads of its process, and of all workers."""
        main, workers = self.session.main, self.session.workers
        whole = self.stages(main).total.elapsed_ns
        costs = [thread_costs(f"{main.name} process", [(main, main.pid)], whole)]
        for thread, elapsed_ns in self._busy_threads(main):
            name = f"thread {main.thread_names.get(thread) or thread} of {main.name}"
            costs.append(thread_costs(name, [(main, thread)], elapsed_ns, with_waiting=False))
        if workers:
            name = workers[0].name if len(workers) == 1 else f"all {len(workers)} workers"
            whole = sum(self.stages(worker).total.elapsed_ns for worker in workers)
            threads = [(worker, worker.pid) for worker in workers]
            costs.append(thread_costs(name, threads, whole, with_waiting=False))
        return [item for item in costs if item.lines or item.functions]

    def _busy_threads(self, process: ProfiledProcess) -> list[tuple[int, int]]:
        """Return threads other than the main one, with their sampled time, busiest first."""
        samples = [sample for sample in process.samples if sample.thread not in (process.pid, 0)]
        on_core = sums((sample.thread, sample.on_core_ns) for sample in samples)
        elapsed = sums((sample.thread, sample.elapsed_ns) for sample in samples)
        min_ns = _THREAD_SHARE * process.duration_ns
        busy = [thread for thread in ranked(on_core) if on_core[thread] >= min_ns]
        return [(thread, elapsed[thread]) for thread in busy[:_MAX_THREADS]]

    @cached_property
    def sources(self) -> SourceFiles:
        """The source files of the lines."""
        return SourceFiles(self.session)
