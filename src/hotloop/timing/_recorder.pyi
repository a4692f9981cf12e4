from collections.abc import Callable
from typing import Any

from hotloop.timing._format import Kind
from hotloop.timing._span import Span as _SpanProtocol

FLAGS: int
CONSTANTS: tuple[int | str, ...]

class Span:
    name: str
    kind: str

class RecorderState:
    def __init__(self, segment: Any, /) -> None: ...
    def current(self) -> int: ...
    def rewind(self) -> None: ...
    def retire(self) -> None: ...

def span(name: str, kind: Kind = "work") -> _SpanProtocol: ...
def install(
    attach: Callable[[], RecorderState],
    decorate: Callable[..., Any],
    check: Callable[[object, object], None],
    /,
) -> None: ...
def reset() -> None: ...
def exchange(state: RecorderState | None, /) -> RecorderState | None: ...
