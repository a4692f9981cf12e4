"""A watch on each node of a cluster: its clock, its actors' processes and their recordings."""

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

from hotloop.base.processes import boot_id, process_state
from hotloop.timing.clocks import node_clocks

# Interval at which clocks are compared and recordings fetched, which also happens at the end.
_INTERVAL_S = 10.0
_PINGS = 5
_PING_S = 1.0
_FINAL_FETCH_S = 5.0


class NodeWatch:
    """An actor that watches the other actors of its node.

    Args:
        directory: Directory with this node's recordings, in its subdirectory `timing`.
    """

    def __init__(self, directory: str) -> None:
        self._directory = Path(directory)
        self._sent_checksums: dict[str, int] = {}

    def clock(self) -> tuple[int, str]:
        """Return CLOCK_MONOTONIC in nanoseconds, and the id of the boot from which it counts."""
        return time.monotonic_ns(), boot_id()

    def state(self, pid: int) -> str:
        """Return the kernel's state of a process: R, S, D, T or Z. Empty if it does not exist."""
        return process_state(pid)

    def recordings(self) -> list[tuple[str, bytes]]:
        """Return (file name, content) of recordings that have changed since the last call."""
        files: list[tuple[str, bytes]] = []
        for path in sorted((self._directory / "timing").glob("*")):
            with contextlib.suppress(OSError):
                content = path.read_bytes()
                checksum = zlib.adler32(content)  # writes to a memory map keep the mtime
                if self._sent_checksums.get(path.name) != checksum:
                    self._sent_checksums[path.name] = checksum
                    files.append((path.name, zlib.compress(content, 1)))
        return files

    def end(self) -> None:
        """Remove the recordings of this node."""
        shutil.rmtree(self._directory, ignore_errors=True)


def directory_on(node: str, job: str) -> str:
    """Return the directory for recordings on a node that lacks the run's directory."""
    return str(Path(tempfile.gettempdir()) / f"hotloop-{getpass.getuser()}" / f"{job}-{node}")


@dataclass
class NodeWatches:
    """The learner's handle on the watches of all nodes but its own."""

    ray: Any
    timing_dir: str
    _actors: dict[str, Any] = field(default_factory=dict)
    _starting: dict[str, Any] = field(default_factory=dict)
    _silent_since_s: dict[str, float] = field(default_factory=dict)
    _fetching: dict[str, Any] = field(default_factory=dict)
    _clocks: dict[str, tuple[str, int, int]] = field(default_factory=dict)
    _polled_at_s: float = 0.0

    def __post_init__(self) -> None:
        context = self.ray.get_runtime_context()
        self._learner_node, self._job = context.get_node_id(), context.get_job_id()

    def add_node(self, node: str) -> None:
        """Start a watch on a node that has none, without waiting."""
        if node in self._actors or node == self._learner_node:
            return
        from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

        strategy = NodeAffinitySchedulingStrategy(node, soft=False)
        kind = self.ray.remote(num_cpus=0, scheduling_strategy=strategy)(NodeWatch)
        self._actors[node] = actor = kind.remote(directory_on(node, self._job))
        self._starting[node] = actor.clock.remote()

    def state(self, node: str, pid: int) -> str:
        """Return the state of a process on a node. "?" if the node does not answer."""
        if node == self._learner_node:
            return process_state(pid)
        if node not in self._actors or node in self._starting:
            return ""
        if time.monotonic() - self._silent_since_s.get(node, -_INTERVAL_S) < _INTERVAL_S:
            return "?"
        try:
            return self.ray.get(self._actors[node].state.remote(pid), timeout=_PING_S)
        except self.ray.exceptions.RayError:
            self._silent_since_s[node] = time.monotonic()
            return "?"

    def poll(self) -> None:
        """Store arrived recordings, and request new ones at intervals, without waiting."""
        if not self._actors:
            return
        if self._starting:
            done, _ = self.ray.wait(
                list(self._starting.values()), num_returns=len(self._starting), timeout=0.0
            )
            for node in [node for node, ref in self._starting.items() if ref in done]:
                del self._starting[node]
                self._compare_clocks(node)
        if self._fetching:
            done, _ = self.ray.wait(
                list(self._fetching.values()), num_returns=len(self._fetching), timeout=0.0
            )
            for node in [node for node, ref in self._fetching.items() if ref in done]:
                self._store(node, self._fetching.pop(node))
        now = time.monotonic()
        if now - self._polled_at_s < _INTERVAL_S:
            return
        self._polled_at_s = now
        for node, actor in self._actors.items():
            if node not in self._fetching and node not in self._starting:
                self._compare_clocks(node)
                self._fetching[node] = actor.recordings.remote()

    def fetch(self) -> None:
        """Fetch all recordings. The wait for a lost node is short."""
        for node, actor in self._actors.items():
            self._compare_clocks(node)
            self._fetching[node] = actor.recordings.remote()
        deadline_s = time.monotonic() + _FINAL_FETCH_S
        for node, ref in self._fetching.items():
            self._store(node, ref, timeout=max(0.0, deadline_s - time.monotonic()))
        self._fetching.clear()

    def end(self) -> None:
        """Fetch the last recordings, and end the watches."""
        self.fetch()
        ending = [actor.end.remote() for actor in self._actors.values()]
        if ending:
            self.ray.wait(ending, num_returns=len(ending), timeout=_PING_S)
        for actor in self._actors.values():
            with contextlib.suppress(Exception):
                self.ray.kill(actor)
        self._actors.clear()

    def _compare_clocks(self, node: str) -> None:
        """Measure the offset of a node's clock. An unreachable node is skipped."""
        best: tuple[str, int, int] | None = None
        with contextlib.suppress(self.ray.exceptions.RayError):
            for _ in range(_PINGS):
                sent_ns = time.monotonic_ns()
                node_ns, boot = self.ray.get(self._actors[node].clock.remote(), timeout=_PING_S)
                received_ns = time.monotonic_ns()
                # The reading lies between both times, so the error is at most half the difference.
                error_ns = (received_ns - sent_ns) // 2
                if best is None or error_ns < best[2]:
                    best = boot, (sent_ns + received_ns) // 2 - node_ns, error_ns
        if best is not None:
            self._clocks[node] = best
            if self.timing_dir:
                with contextlib.suppress(OSError):
                    node_clocks(boot_id(), self._clocks).write(Path(self.timing_dir))

    def _store(self, node: str, ref: Any, timeout: float = 0.0) -> None:
        """Write a node's recordings into the run's directory."""
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
