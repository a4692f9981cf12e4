import math
from dataclasses import FrozenInstanceError

import pytest

from hotloop.errors import ConfigError, UnknownNameError
from hotloop.ops.schedules import as_schedule, constant, cosine, function, linear, piecewise, steps


def halved(progress):
    return 1 - progress / 2


def not_a_number(progress):
    return "much"


SCHEDULES = [
    (constant(0.25), "0.25", [0.25] * 5),
    (linear(1.0, 0.0), "linear:1,0", [1.0, 0.75, 0.5, 0.25, 0.0]),
    (linear(1, 0.5, until=0.5), "linear:1,0.5,0.5", [1.0, 0.75, 0.5, 0.5, 0.5]),
    (
        cosine(1.0, 0.0),
        "cosine:1,0",
        [1.0, (1 + math.sqrt(0.5)) / 2, 0.5, (1 - math.sqrt(0.5)) / 2, 0.0],
    ),
    (cosine(3, 1, until=0.5), "cosine:3,1,0.5", [3.0, 2.0, 1.0, 1.0, 1.0]),
    (
        piecewise([(0.25, 1.0), (0.75, 3.0)]),
        "piecewise:0.25=1,0.75=3",
        [1.0, 1.0, 2.0, 3.0, 3.0],
    ),
    (piecewise([(0.5, 7)]), "piecewise:0.5=7", [7.0] * 5),
    (steps([(0.25, 1.0), (0.75, 3.0)]), "steps:0.25=1,0.75=3", [1.0, 1.0, 1.0, 3.0, 3.0]),
    (function(halved), f"{__name__}:halved", [1.0, 0.875, 0.75, 0.625, 0.5]),
]


@pytest.mark.parametrize(("schedule", "text", "values"), SCHEDULES)
def test_values_and_texts(schedule, text, values):
    actual = [schedule(quarter / 4) for quarter in range(5)]
    assert actual == pytest.approx(values, abs=1e-15)
    assert all(type(value) is float for value in actual)
    assert str(schedule) == repr(schedule) == text
    assert as_schedule(text) == schedule
    assert all(min(schedule.extremes()) <= value <= max(schedule.extremes()) for value in actual)


def test_linear_to_zero_is_start_times_remaining_progress():
    """The values are bitwise equal."""
    for start in (3e-4, 1e-3, 0.1):
        for step in range(1000):
            assert linear(start, 0.0)(step / 1000) == start * (1 - step / 1000)


def test_piecewise_is_exact_at_its_points():
    points = [(0.1, 0.3), (0.4, 0.7), (0.9, 0.1)]
    assert [piecewise(points)(place) for place, _ in points] == [value for _, value in points]


def test_steps_change_only_at_their_points():
    schedule, before = steps([(0, 0.3), (1 / 3, 0.7)]), math.nextafter(1 / 3, 0)
    assert [schedule(x) for x in (0.0, 0.1, before, 1 / 3, 1.0)] == [0.3, 0.3, 0.3, 0.7, 0.7]


def test_texts_keep_every_digit():
    schedule = linear(1 / 3, 2.5e-17, until=0.1)
    assert as_schedule(str(schedule)) == schedule


@pytest.mark.parametrize("value", [1, 1e-3, "0.001", "constant:0.001", constant(0.001)])
def test_constant_schedules(value):
    assert as_schedule(value).is_constant
    assert as_schedule(value)(0.5) == float(str(as_schedule(value)))


def test_changing_schedules_are_not_constant():
    assert not linear(1.0, 0.5).is_constant
    assert linear(0.5, 0.5).is_constant
    assert not function(lambda progress: 1.0).is_constant  # functions may change


def test_as_schedule_returns_schedules_unchanged():
    schedule = linear(1.0, 0.0)
    assert as_schedule(schedule) is schedule
    with pytest.raises(FrozenInstanceError):
        schedule.start = 2.0


def test_unnamed_functions_cannot_be_restored_from_text():
    schedule = as_schedule(lambda progress: 2 * progress)
    assert schedule(0.25) == 0.5
    with pytest.raises(ConfigError, match="expected a number"):
        as_schedule(str(schedule))


@pytest.mark.parametrize(
    "text",
    [
        *("", "much", "linear", "linear:", "linear:1", "linear:1,2,0.5,4", "linear:a,b"),
        *("cosine:1;2", "piecewise:", "piecewise:0.5", "piecewise:0=1=2", "constant:x"),
        *(":f", "my module:1", "my_module:", "<function>:f"),
    ],
)
def test_malformed_text_lists_the_valid_forms(text):
    with pytest.raises(ConfigError) as caught:
        as_schedule(text)
    message = str(caught.value)
    for form in ("linear:0.001,0", "cosine:0.001,0", "piecewise:0=0.001,0.5=0.0001", "0.001"):
        assert form in message
    assert "my_module:my_function" in message
    assert f"got '{text}'" in message


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ("linaer:1,0", "did you mean 'linear'"),
        ("Cosin:1,0", "did you mean 'cosine'"),
        ("linear:1,nan", "must be finite, got nan"),
        ("inf", "must be finite, got inf"),
        ("linear:1,0,0", r"at a progress above 0 and up to 1, got 0"),
        ("linear:1,0,2", r"at a progress above 0 and up to 1, got 2"),
        ("piecewise:0.5=1,0.25=2", "points at ascending progress"),
        ("piecewise:0=1,0=2", "points at ascending progress"),
        ("piecewise:0=1,1.5=2", "from 0 to 1"),
        ("steps:0.5=1,0.25=2", "a steps schedule must have points at ascending progress"),
        (True, "consists of numbers, got True"),
        ([1.0], r"got \[1.0\]"),
        (None, "got None"),
    ],
)
def test_bad_schedules(value, message):
    with pytest.raises(ConfigError, match=message):
        as_schedule(value)


def test_piecewise_needs_points():
    with pytest.raises(ConfigError, match="must have points"):
        piecewise([])


def test_unknown_functions():
    with pytest.raises(UnknownNameError, match="there is no module 'no_such_module'"):
        as_schedule("no_such_module:f")
    with pytest.raises(UnknownNameError, match="has no 'halve'; did you mean 'halved'"):
        as_schedule(f"{__name__}:halve")
    with pytest.raises(ConfigError, match="got 'math:pi'"):
        function("math:pi")


def test_functions_must_return_finite_numbers():
    with pytest.raises(ConfigError, match="not_a_number must return a finite number, got 'much'"):
        function(not_a_number)(0.5)
    with pytest.raises(ConfigError, match=r"got nan at progress 0\.5"):
        function(lambda progress: math.nan)(0.5)
