"""The slow, obvious twin of a recorder, with dicts and lists that store everything."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field

Path = tuple[str, ...]


@dataclass
class DictRecorder:
    """A recorder that stores every duration by path."""

    durations: dict[Path, list[int]] = field(default_factory=lambda: defaultdict(list))
    stack: list[tuple[str, int]] = field(default_factory=list)

    def enter(self, name: str, now: int) -> None:
        self.stack.append((name, now))

    def exit(self, now: int) -> None:
        path = tuple(name for name, _ in self.stack)
        _, start = self.stack.pop()
        self.durations[path].append(now - start)

    def self_ns(self, path: Path) -> int:
        inside = [
            sum(times)
            for other, times in self.durations.items()
            if len(other) == len(path) + 1 and other[:-1] == path
        ]
        return sum(self.durations[path]) - sum(inside)
