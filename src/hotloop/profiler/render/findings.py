"""Findings of a session, each worked out once for the terminal and the page.

found = Findings(session)
print(text.render(found))
html.write(found, "report.html")
"""

from __future__ import annotations

import html
from functools import cached_property

from hotloop.profiler.diagnose.diagnosis import Diagnosis
from hotloop.profiler.render.lines import Costs, Sources, costs
from hotloop.profiler.session import Process, Session
from hotloop.profiler.session.gpu import GpuUse, gpu_use
from hotloop.profiler.session.lockstep import LockstepWaste, lockstep
from hotloop.profiler.session.stages import Stages, stages
from hotloop.profiler.session.throughput import Throughput, throughput

# A thread beside the main one is told of where it is on a core for so much of the time.
_THREAD_SHARE, _MAX_THREADS = 0.05, 3


class Findings:
    """A session, and what can be said of it. Each is worked out when it is first asked for.

    Args:
        session: the session, which must not change any more.
    """

    def __init__(self, session: Session) -> None:
        self.session = session
        self._stages: dict[int, Stages] = {}

    @classmethod
    def of(cls, source: Session | Findings) -> Findings:
        """Of a session, or those that there are."""
        return source if isinstance(source, Findings) else cls(source)

    def _repr_html_(self) -> str:
        """Return the page in a frame, for notebooks."""
        from hotloop.profiler.render.html import render

        page = html.escape(render(self))
        return f'<iframe width="100%" height="800" style="border: 0" srcdoc="{page}"></iframe>'

    def stages(self, process: Process) -> Stages:
        """Of a process's main thread."""
        if process.pid not in self._stages:
            self._stages[process.pid] = stages(process)
        return self._stages[process.pid]

    @property
    def start_up_ns(self) -> int | None:
        """What main took to import and to start; None: it was not sampled."""
        found = self.stages(self.session.main)
        if not found.total.samples:
            return None
        share = found.by_stage.get("import")
        return 0 if share is None else share.elapsed_ns

    @cached_property
    def diagnoses(self) -> list[Diagnosis]:
        """What keeps it from being faster, the dearest first."""
        from hotloop.profiler.diagnose import diagnose

        return diagnose(self.session)

    @cached_property
    def banners(self) -> list[Diagnosis]:
        """What holds of all that is said."""
        from hotloop.profiler.diagnose import banners

        return banners(self.session)

    @property
    def is_bounded(self) -> bool:
        """Whether nothing is there to be removed: what is found, if anything, is to be rebuilt."""
        return all(one.is_rebuild for one in self.diagnoses)

    @cached_property
    def bound(self) -> str:
        """How far it is from its bound, in a sentence."""
        from hotloop.profiler.diagnose import bound

        return bound(self.session)

    @cached_property
    def lockstep(self) -> LockstepWaste | None:
        """What workers waited for each other; None: they are not stepped together."""
        return lockstep(self.session)

    @cached_property
    def throughput(self) -> Throughput | None:
        """Environment steps; None: there were none."""
        return throughput(self.session)

    @cached_property
    def gpu(self) -> GpuUse | None:
        """What the GPU did in windows on it; None: there are none."""
        return gpu_use(self.session)

    @cached_property
    def costs(self) -> list[Costs]:
        """Lines and functions: of main, of other threads of it that are at work, of all workers."""
        main, workers = self.session.main, self.session.workers
        found = [costs(main.name, [(main, main.pid)], self.stages(main).total.elapsed_ns)]
        names = {thread.number: thread.name for thread in main.threads}
        names.update((thread.number, thread.name) for thread in main.span_threads if thread.name)
        for thread, elapsed_ns in self._busy_threads(main):
            name = f"thread {names.get(thread) or thread} of {main.name}"
            found.append(costs(name, [(main, thread)], elapsed_ns, with_waiting=False))
        if workers:
            name = workers[0].name if len(workers) == 1 else f"all {len(workers)} workers"
            whole = sum(self.stages(one).total.elapsed_ns for one in workers)
            threads = [(one, one.pid) for one in workers]
            found.append(costs(name, threads, whole, with_waiting=False))
        return [one for one in found if one.lines or one.functions]

    def _busy_threads(self, process: Process) -> list[tuple[int, int]]:
        """Those beside the main one, and how long each was seen; the busiest first."""
        on_core: dict[int, int] = {}
        elapsed: dict[int, int] = {}
        for sample in process.samples:
            if sample.thread not in (process.pid, 0):
                on_core[sample.thread] = on_core.get(sample.thread, 0) + sample.on_core_ns
                elapsed[sample.thread] = elapsed.get(sample.thread, 0) + sample.elapsed_ns
        least = _THREAD_SHARE * process.duration_ns
        busy = sorted((one for one in on_core if on_core[one] >= least), key=lambda n: -on_core[n])
        return [(thread, elapsed[thread]) for thread in busy[:_MAX_THREADS]]

    @cached_property
    def sources(self) -> Sources:
        """The files that the lines are in."""
        return Sources(self.session)
