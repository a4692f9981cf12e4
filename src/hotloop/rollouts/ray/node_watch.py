"""A watch on each node of a cluster: its clock, its actors' processes, and what they recorded."""

from __future__ import annotations

import contextlib
import getpass
import shutil
import tempfile
import time
import zlib
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from hotloop.system.processes import boot_id, process_state
from hotloop.timing.clocks import compared

# Clocks are compared, and recordings fetched, so often, and at the end.
_EVERY_S = 10.0
_PINGS = 5
_PING_S = 1.0
_LAST_S = 5.0


class NodeWatch:
    """Looks after the actors of one node, from outside of them; an actor of Ray itself.

    Args:
        directory: in whose `timing` actors of this node record.
    """

    def __init__(self, directory: str) -> None:
        self._directory = Path(directory)
        self._sent: dict[str, int] = {}

    def clock(self) -> tuple[int, str]:
        """Tell CLOCK_MONOTONIC in nanoseconds, and which boot of a machine it counts from."""
        return time.monotonic_ns(), boot_id()

    def state(self, pid: int) -> str:
        """Tell the state of a process as the kernel has it: R, S, D, T, Z; empty: there is none."""
        return process_state(pid)

    def recorded(self) -> list[tuple[str, bytes]]:
        """Return what was recorded since the last time: names of files, and what is in them."""
        found: list[tuple[str, bytes]] = []
        for path in sorted((self._directory / "timing").glob("*")):
            with contextlib.suppress(OSError):
                content = path.read_bytes()
                version = zlib.adler32(content)  # times say nothing of what is written by a map
                if self._sent.get(path.name) != version:
                    self._sent[path.name] = version
                    found.append((path.name, zlib.compress(content, 1)))
        return found

    def end(self) -> None:
        """Remove what was recorded here."""
        shutil.rmtree(self._directory, ignore_errors=True)


def directory_on(node: str, job: str) -> str:
    """Return where actors of a run record on a node that has not the run's directory."""
    return str(Path(tempfile.gettempdir()) / f"hotloop-{getpass.getuser()}" / f"{job}-{node}")


@dataclass
class Watches:
    """The watches of all nodes but the learner's, as the learner knows them.

    Args:
        ray: connected.
        timing_dir: where the run's recordings are.
    """

    ray: Any
    timing_dir: str
    _actors: dict[str, Any] = field(default_factory=dict)
    _starting: dict[str, Any] = field(default_factory=dict)
    _silent_s: dict[str, float] = field(default_factory=dict)
    _fetching: dict[str, Any] = field(default_factory=dict)
    _clocks: dict[str, tuple[str, int, int]] = field(default_factory=dict)
    _looked_s: float = 0.0

    def __post_init__(self) -> None:
        context = self.ray.get_runtime_context()
        self._own, self._job = context.get_node_id(), context.get_job_id()

    def need(self, node: str) -> None:
        """Start a watch on a node that has none; wait for nobody."""
        if node in self._actors or node == self._own:
            return
        from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

        strategy = NodeAffinitySchedulingStrategy(node, soft=False)
        kind = self.ray.remote(num_cpus=0, scheduling_strategy=strategy)(NodeWatch)
        self._actors[node] = actor = kind.remote(directory_on(node, self._job))
        self._starting[node] = actor.clock.remote()

    def state(self, node: str, pid: int) -> str:
        """Return the state of a process on a node; "?": the node does not answer."""
        if node == self._own:
            return process_state(pid)
        if node not in self._actors or node in self._starting:
            return ""
        if time.monotonic() - self._silent_s.get(node, -_EVERY_S) < _EVERY_S:
            return "?"
        try:
            return self.ray.get(self._actors[node].state.remote(pid), timeout=_PING_S)
        except self.ray.exceptions.RayError:
            self._silent_s[node] = time.monotonic()
            return "?"

    def look(self) -> None:
        """Take what has come of recordings, and ask for more now and then; wait for nobody."""
        if not self._actors:
            return
        if self._starting:
            done, _ = self.ray.wait(
                list(self._starting.values()), num_returns=len(self._starting), timeout=0.0
            )
            for node in [node for node, ref in self._starting.items() if ref in done]:
                del self._starting[node]
                self._compare(node)
        if self._fetching:
            done, _ = self.ray.wait(
                list(self._fetching.values()), num_returns=len(self._fetching), timeout=0.0
            )
            for node in [node for node, ref in self._fetching.items() if ref in done]:
                self._keep(node, self._fetching.pop(node))
        now = time.monotonic()
        if now - self._looked_s < _EVERY_S:
            return
        self._looked_s = now
        for node, actor in self._actors.items():
            if node not in self._fetching and node not in self._starting:
                self._compare(node)
                self._fetching[node] = actor.recorded.remote()

    def fetch(self) -> None:
        """Fetch what was recorded until now; a node that is gone is not waited for long."""
        for node, actor in self._actors.items():
            self._compare(node)
            self._fetching[node] = actor.recorded.remote()
        deadline_s = time.monotonic() + _LAST_S
        for node, ref in self._fetching.items():
            self._keep(node, ref, timeout=max(0.0, deadline_s - time.monotonic()))
        self._fetching.clear()

    def end(self) -> None:
        """Fetch what is left, and end the watches."""
        self.fetch()
        ends = [actor.end.remote() for actor in self._actors.values()]
        if ends:
            self.ray.wait(ends, num_returns=len(ends), timeout=_PING_S)
        for actor in self._actors.values():
            with contextlib.suppress(Exception):
                self.ray.kill(actor)
        self._actors.clear()

    def _compare(self, node: str) -> None:
        """Ping a node's clock; nothing comes of it where the node is gone."""
        best: tuple[str, int, int] | None = None
        with contextlib.suppress(self.ray.exceptions.RayError):
            for _ in range(_PINGS):
                sent_ns = time.monotonic_ns()
                theirs_ns, boot = self.ray.get(self._actors[node].clock.remote(), timeout=_PING_S)
                came_ns = time.monotonic_ns()
                # What they told lies between the two: it is no further off than half of that.
                error_ns = (came_ns - sent_ns) // 2
                if best is None or error_ns < best[2]:
                    best = boot, (sent_ns + came_ns) // 2 - theirs_ns, error_ns
        if best is not None:
            self._clocks[node] = best
            if self.timing_dir:
                with contextlib.suppress(OSError):
                    compared(boot_id(), self._clocks).write(Path(self.timing_dir))

    def _keep(self, node: str, ref: Any, timeout: float = 0.0) -> None:
        """Write what a node recorded beside what was recorded here."""
        try:
            files = self.ray.get(ref, timeout=timeout)
        except self.ray.exceptions.RayError:
            return
        for name, content in files if self.timing_dir else ():
            stem, _, suffix = name.partition(".")
            path = Path(self.timing_dir) / f"{stem}-{node[:8]}.{suffix}"
            with contextlib.suppress(OSError):
                part = path.with_suffix(".part")
                part.write_bytes(zlib.decompress(content))
                part.replace(path)
