from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest

from hotloop.base import documents


@dataclass(frozen=True, kw_only=True)
class InnerRecord:
    x: float
    name: str | None = None


@dataclass(frozen=True, kw_only=True)
class OuterRecord:
    count: int
    is_on: bool = False
    inner: InnerRecord | None = None
    pairs: tuple[tuple[int, str], ...] = ()
    numbers: Sequence[float] = ()
    texts: list[str] = field(default_factory=list)
    sizes: Mapping[str, int] = field(default_factory=dict)
    plain: dict[str, Any] = field(default_factory=dict)
    anything: Any = None


def test_a_document_becomes_the_declared_record():
    value = {
        "count": 2,
        "is_on": True,
        "inner": {"x": 1, "name": None},
        "pairs": [[1, "a"], [2, "b"]],
        "numbers": [1, 2.5],
        "sizes": {"a": 1},
        "plain": {"x": [1, {}]},
        "anything": [None],
    }
    assert documents.record(OuterRecord, value) == OuterRecord(
        count=2,
        is_on=True,
        inner=InnerRecord(x=1),
        pairs=((1, "a"), (2, "b")),
        numbers=[1, 2.5],
        sizes={"a": 1},
        plain={"x": [1, {}]},
        anything=[None],
    )
    assert documents.record(
        OuterRecord, {"count": 1, "more": 2}, ignore_unknown=True
    ) == OuterRecord(count=1)


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ([], "it must be an object, got a list"),
        ({}, "`count` is missing"),
        ({"count": 1, "more": 2}, "`more` is not known"),
        ({"count": "1"}, "`count` must be an integer, got '1'"),
        ({"count": 1.0}, "`count` must be an integer, got 1.0"),
        ({"count": True}, "`count` must be an integer, got True"),
        ({"count": None}, "`count` must be an integer, got None"),
        ({"count": 2**63}, "`count` must be an integer of 64 bits"),
        ({"count": 1, "is_on": 1}, "`is_on` must be true or false, got 1"),
        ({"count": 1, "inner": {"x": "y" * 999}}, r"`inner.x` must be a number, got 'y{59}$"),
        ({"count": 1, "inner": {"name": ""}}, r"`inner.x` is missing"),
        ({"count": 1, "inner": {"x": 1, "y": 2}}, r"`inner.y` is not known"),
        ({"count": 1, "pairs": [[1]]}, r"`pairs\[0\]` must be a list of 2, got a list"),
        ({"count": 1, "pairs": [[1, 2]]}, r"`pairs\[0\]\[1\]` must be a text, got 2"),
        ({"count": 1, "numbers": "12"}, "`numbers` must be a list, got '12'"),
        ({"count": 1, "numbers": [10**400]}, r"`numbers\[0\]` must be a number of 64 bits"),
        ({"count": 1, "texts": [None]}, r"`texts\[0\]` must be a text, got None"),
        ({"count": 1, "sizes": {"a": {}}}, r"`sizes.a` must be an integer, got an object"),
        ({"count": 1, "plain": []}, "`plain` must be an object, got a list"),
    ],
)
def test_a_wrong_shape_is_explained(value, message):
    with pytest.raises(ValueError, match=message):
        documents.record(OuterRecord, value)


@pytest.mark.parametrize("text", ["", "[" * 100_000, "{", "9" * 5000, b"\xff\xfe\x00", "nul"])
def test_invalid_json_is_a_value_error(text):
    with pytest.raises(ValueError):
        documents.parse(text)
