"""Causes: reasons why a program is slow, how each is found, and what to change.

The causes of hotloop are the rows of `causes.json`, where every pattern has an example that matches
and one that must not. Other packages add theirs by the entry-point group `hotloop.profiler.causes`:

    slow_scene = Cause(
        "simlib-scene", "the scene is loaded again in each episode", "Load it once, then reset it.",
        Find(frames=(FramePattern(r"/simlib/scene\\.py$", r"^load"),)),
    )
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache, lru_cache
from importlib import metadata
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple

from hotloop.profiler.session import Frame
from hotloop.profiler.session.catalogues import FramePattern, frame_patterns, read_catalogue
from hotloop.profiler.session.stages import CodeLine

if TYPE_CHECKING:
    from hotloop.profiler.diagnose.evidence import Evidence, SampleRow

ENTRY_POINTS = "hotloop.profiler.causes"
Texts = Mapping[str, Any]


class Explanation(NamedTuple):
    """A cause in one program, found by its structure.

    Attributes:
        saved_ns: time that the change saves, None if it is unknown.
        evidence: sentences with numbers.
        rows: the samples that it explains. No other cause is reported for them.
        places: the user's lines concerned, most expensive first.
        texts: values for the placeholders of the cause's texts, or `title` and `advice` themselves.
        confidence: overrides the cause's.
        pace: see `Diagnosis`.
    """

    saved_ns: float | None
    evidence: tuple[str, ...]
    rows: Sequence[SampleRow] = ()
    places: tuple[CodeLine, ...] = ()
    texts: Texts = MappingProxyType({})
    confidence: float | None = None
    pace: str = "repeated"


Structure = Callable[["Evidence"], Explanation | None]
"""A pure function of the recorded data and the source files that it refers to."""


@dataclass(frozen=True)
class Find:
    """A way to find a cause. One match suffices.

    Attributes:
        frames: library functions that the user's line calls, directly or indirectly.
        calls: names that the user's line calls: last parts, or dotted names.
        waits: waits of blocked time.
        stages: stages that no program needs in its loop.
        structure: finds it in the whole program, by spans, counters or source.
    """

    frames: tuple[FramePattern, ...] = ()
    calls: frozenset[str] = frozenset()
    waits: frozenset[str] = frozenset()
    stages: frozenset[str] = frozenset()
    structure: Structure | None = None


@dataclass(frozen=True, eq=False)
class Cause:
    """A reason why a program is slow. Each cause is equal only to itself.

    Attributes:
        name: identifier.
        title: the cause in a few words.
        advice: the change to make.
        find: how it is found.
        gain: share of its time that the change removes.
        verify: a command that shows whether the change helped. `{again}` profiles and compares.
        confidence: probability that it is a cause, 0 to 1.
        is_sure: whether it is a cost wherever it occurs, and never inherent work.
        is_usual: whether it takes some time in a healthy program, too.
        wait: overrides the wait that the kernel reports for its samples. Empty: no override.
        fills_caches: whether it runs so much Python code that it also slows down other code, see
            `Evidence.gain`.
        is_rebuild: whether the change restructures the program instead of removing a cost.
        is_banner: whether it concerns the whole report.
        subject: of several causes of one subject, only the first is reported. Empty: no limit.
    """

    name: str
    title: str
    advice: str
    find: Find = field(default_factory=Find)
    gain: float = 1.0
    verify: str = "{again}"
    confidence: float = 0.7
    is_sure: bool = True
    is_usual: bool = False
    wait: str = ""
    fills_caches: bool = False
    is_rebuild: bool = False
    is_banner: bool = False
    subject: str = ""

    @property
    def is_waste(self) -> bool:
        """Whether no program needs any of it in its loop."""
        return self.is_sure and not self.is_usual


def _from_row(row: Mapping[str, Any]) -> Cause:
    find = Find(
        frame_patterns(row.get("frames", ())),
        frozenset(row.get("calls", {}).get("names", ())),
        frozenset(row.get("waits", ())),
        frozenset(row.get("stages", ())),
    )
    patterns = ("frames", "calls", "waits", "stages")
    fields: dict[str, Any] = {"confidence": 0.9 if row.get("is_sure", True) else 0.7, **row}
    return Cause(find=find, **{k: value for k, value in fields.items() if k not in patterns})


BUILT_IN = tuple(map(_from_row, read_catalogue(Path(__file__).with_name("causes.json"))))
_BY_NAME = {cause.name: cause for cause in BUILT_IN}

# Causes that the classification of samples refers to.
COMPILATION = _BY_NAME["compiles-again"]
CONVERSIONS = _BY_NAME["conversions"]
COPYING = _BY_NAME["copies"]
DEBUG_MODE = _BY_NAME["debug-mode"]
EAGER_OPERATIONS = _BY_NAME["eager-operations"]
EVALUATION = _BY_NAME["evaluation"]
FILES = _BY_NAME["file-writes"]
INTERPRETER = _BY_NAME["interpreter-lock"]
LOCKS = _BY_NAME["lock"]
MESSAGES = _BY_NAME["messages"]
ONE_AT_A_TIME = _BY_NAME["one-at-a-time"]
PROCESSES = _BY_NAME["processes-started"]
PYTHON_LOOP = _BY_NAME["python-loop"]
RENDERING = _BY_NAME["rendering"]
WAITING_FOR_OTHERS = _BY_NAME["waits-for-others"]
WALKED_EACH_STEP = _BY_NAME["walked-each-step"]
WRAPPERS = _BY_NAME["wrapper"]


@cache
def all_causes() -> tuple[Cause, ...]:
    """Return the causes of other packages, then hotloop's, in the order of their evaluation.

    A package whose causes cannot be loaded is reported in a warning.
    """
    added: list[Cause] = []
    for entry in metadata.entry_points(group=ENTRY_POINTS):
        try:
            loaded = entry.load()
            causes = [loaded] if isinstance(loaded, Cause) else list(loaded)
            if not all(isinstance(cause, Cause) for cause in causes):
                raise TypeError("expected a Cause or a list of them")
            added += causes
        except Exception as error:  # whatever another package's module raises
            warnings.warn(
                f"the causes of `{entry.value}` are left out: {type(error).__name__}: {error}",
                stacklevel=2,
            )
    return (*added, *BUILT_IN)


def named(name: str) -> Cause:
    """Return a cause of hotloop."""
    return _BY_NAME[name]


@lru_cache(maxsize=65536)
def for_frame(frame: Frame) -> Cause | None:
    """Return the cause that time in a library function indicates, if any."""
    return _first(x for x in all_causes() if any(known.matches(frame) for known in x.find.frames))


@lru_cache(maxsize=65536)
def for_calls(names: frozenset[str]) -> Cause | None:
    """Return the cause that a line indicates by the names that it calls, if any."""
    return _first(cause for cause in all_causes() if cause.find.calls & names)


def for_wait(wait: str) -> Cause | None:
    """Return the cause that a blocking wait indicates, if any."""
    return _first(cause for cause in all_causes() if wait in cause.find.waits)


def for_stage(stage: str) -> Cause | None:
    """Return the cause of a stage that no program needs in its loop, if any."""
    return _first(cause for cause in all_causes() if stage in cause.find.stages)


def _first(causes: Iterable[Cause]) -> Cause | None:
    return next(iter(causes), None)
