"""Comparing the learning of sides of runs at equal steps."""

import pytest

from hotloop.errors import ConfigError, RunDirectoryError
from hotloop.reports.comparison import compare_learning, letter, load_sides
from tests.runs.run_factory import make_run


def make_side(path, late, *, first=1, **options):
    """Write a run of ten iterations for each final return."""
    for seed, value in enumerate(late, first):
        returns = [[float(k)] for k in range(9)] + [[value]]
        make_run(path / f"seed_{seed}", seed=seed, returns=returns, **options)
    return path


def compare_sides(*paths, metric=None):
    return compare_learning(load_sides(paths), metric=metric)


def test_sides_by_hand(tmp_path):
    a = make_side(tmp_path / "a", [10.0, 20.0, 30.0], lr=0.1)
    b = make_side(tmp_path / "b", [40.0, 50.0, 60.0], lr=0.2)
    comparison = compare_sides(a, b)
    assert comparison.options == {"lr": ["0.1", "0.2"]}
    (table,) = comparison.tables
    assert (table.metric, table.end, table.level) == ("return", 10_000, 20.0)
    one, two = table.rows
    assert (one.middle, one.band, one.verdict) == (20.0, (10.0, 30.0), "")
    assert (two.difference, two.improvement) == (30.0, 1.0)
    assert two.difference_band == pytest.approx((14.0, 46.0), abs=4)
    assert two.improvement_band == (1.0, 1.0)
    assert two.verdict == "higher"
    assert one.steps_to == two.steps_to == 10_000
    assert comparison.notes == [
        "with 3 seeds, intervals are narrower than 95 %: train five or more"
    ]


def test_three_sides_at_equal_steps(tmp_path):
    """Later iterations of a longer run do not count."""
    a = make_side(tmp_path / "a", [8.0] * 5, lr=1)
    b = make_run(tmp_path / "b", returns=[[float(k)] for k in range(30)], lr=2)
    c = make_run(tmp_path / "c", returns=[[0.0]] * 10, algorithm="sac")
    (table,) = compare_sides(a, b, c).tables
    assert table.end == 10_000
    assert [row.middle for row in table.rows] == [8.0, 9.0, 0.0]
    assert [row.difference for row in table.rows] == [None, 1.0, -8.0]
    assert [row.difference_band for row in table.rows] == [None] * 3
    assert table.rows[1].verdict.startswith("one seed")


def test_evaluations_are_compared_separately(tmp_path):
    """The last evaluation counts if the last tenth has none."""
    kinds = {"a": [1.0, 5.0], "b": [1.0, 7.0]}
    sides = [
        make_run(tmp_path / name, returns=[[1.0]] * 10, evaluations=values)
        for name, values in kinds.items()
    ]
    tables = compare_sides(*sides).tables
    assert [table.metric for table in tables] == ["return", "evaluation"]
    assert [row.middle for row in tables[1].rows] == [5.0, 7.0]
    (only,) = compare_sides(*sides, metric="policy_loss").tables
    assert only.level is None  # higher is not better


def test_a_missing_value_is_not_a_loss(tmp_path):
    often = make_run(tmp_path / "often", returns=[[1.0]] * 3, evaluations=[1.0, 2.0, 3.0])
    late = [None] * 5 + [9.0]
    rarely = make_run(tmp_path / "rarely", returns=[[1.0]] * 10, evaluations=late)
    comparison = compare_sides(often, rarely)
    assert [table.metric for table in comparison.tables] == ["return"]
    assert any("a run of B" in note and "until step 3,000" in note for note in comparison.notes)
    assert not compare_sides(often, rarely, metric="evaluation").tables
    short = make_run(tmp_path / "short", returns=[[1.0]] * 2)
    ends_late = make_run(tmp_path / "ends_late", returns=[[], [], [], [4.0]])
    assert not compare_sides(short, ends_late).tables


def test_several_environments(tmp_path):
    """Each environment has a table; only the probability of improvement is aggregated."""
    for side, add in (("a", 0.0), ("b", 5.0)):
        make_side(tmp_path / side / "x", [1.0 + add, 2.0 + add, 3.0 + add], env_id="CartPole-v1")
        make_side(tmp_path / side / "y", [900.0, 901.0, 902.0], env_id="Pendulum-v1")
    make_run(tmp_path / "b" / "z", env_id="Acrobot-v1")
    comparison = compare_sides(tmp_path / "a", tmp_path / "b")
    assert [table.env_id for table in comparison.tables] == ["CartPole-v1", "Pendulum-v1"]
    share, (low, high) = comparison.improvement["B"]
    assert share == pytest.approx((1.0 + 0.5) / 2)
    assert 0.5 <= low < share < high <= 1.0
    assert any("Acrobot-v1 of B" in note for note in comparison.notes)


def test_versions_that_differ_within_a_side(tmp_path):
    a = make_side(tmp_path / "a", [1.0, 2.0])
    text = (a / "seed_2" / "config.json").read_text()
    newer = text.replace('"versions": {}', '"versions": {"torch": "2.13"}')
    (a / "seed_2" / "config.json").write_text(newer)
    comparison = compare_sides(a, make_run(tmp_path / "b"))
    assert comparison.options["version of torch"] == ["2.13", ""]


def test_mistakes(tmp_path):
    a = make_side(tmp_path / "a", [1.0, 2.0], lr=0.1)
    other = make_run(tmp_path / "other", env_id="Pendulum-v1")
    with pytest.raises(ConfigError, match=r"got A \(.*a\) with CartPole-v1, B .* with Pendulum-v1"):
        compare_sides(a, other)
    for same in (a, a / "seed_1", tmp_path / "a" / ".." / "a"):
        with pytest.raises(ConfigError, match=r"each run must be on one side, got .*seed_1"):
            compare_sides(a, same)
    b = make_run(tmp_path / "b")
    with pytest.raises(ConfigError, match=r"be one that the runs have \(.*policy_loss.*got 'x'"):
        compare_sides(a, b, metric="x")
    make_run(tmp_path / "mixed" / "1", lr=0.1)
    make_run(tmp_path / "mixed" / "2", lr=0.2)
    with pytest.raises(ConfigError, match=r"must differ only in their seeds, got ppo, lr=0\.1 and"):
        compare_sides(b, tmp_path / "mixed")
    evaluated = make_run(tmp_path / "evaluated", evaluations=[1.0])
    with pytest.raises(RunDirectoryError, match=r"^B .*b\) has no `evaluation`"):
        compare_sides(evaluated, b, metric="evaluation")
    (make_run(tmp_path / "damaged") / "config.json").write_text("{")
    with pytest.raises(RunDirectoryError, match=r"B .*damaged\) can't be compared: .*is damaged"):
        compare_sides(a, tmp_path / "damaged")
    with pytest.raises(RunDirectoryError, match="nowhere, which does not exist"):
        compare_sides(a, tmp_path / "nowhere")


def test_no_episode_ended(tmp_path):
    """Options are compared even without episodes."""
    a = make_run(tmp_path / "a", lr=1)
    b = make_run(tmp_path / "b", lr=2, returns=[[], []])
    comparison = compare_sides(a, b)
    assert not comparison.tables
    assert comparison.options == {"lr": ["1", "2"]}
    assert f"{b} has no finished episode" in comparison.notes
    with pytest.raises(RunDirectoryError, match=r"B .* has no finished episode"):
        compare_sides(a, b, metric="return")


def test_letters():
    assert [letter(k) for k in (0, 1, 25, 26, 27)] == ["A", "B", "Z", "A2", "B2"]
