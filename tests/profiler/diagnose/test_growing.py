"""Lines that go through a structure that was there before, told by their source."""

from __future__ import annotations

from textwrap import dedent

import pytest

from hotloop.profiler.diagnose import growing, source

TEXT = """
    import numpy as np

    seen = []
    weights = np.zeros((4, 9))

    def features(state):
        return np.array([state[0], state[1]])

    def spread(values):
        return np.array(values)

    def longest(values):
        return np.array(values)

    def run(steps):
        kept, log = [], np.zeros(0)
        for step in range(steps):
            rows = [play(step) for _ in range(8)]
            seen.append(step)
            kept.append(step)
            a = np.array(seen)
            b = np.mean(kept)
            c = np.stack(rows)
            d = weights[:, rows].sum(axis=1)
            e = np.array([one for one in kept])
            f = np.sum(self.counts)
            g = np.array([step, 2.0])
            h = list(kept[-9:])
            log = np.append(log, [step])
            self.members = np.stack(self.members)[rows]
            self.scores = play(step)
            m = np.mean(self.scores)
            self.counts += 1
            l = list(kept[:step])
            i = max(self.counts.values())
            j = spread(rows)
            k = longest(kept)
        return np.array(kept)
"""


@pytest.mark.parametrize(
    ("line", "stays"),
    [
        ("a = np.array(seen)", True),
        ("b = np.mean(kept)", True),
        ("c = np.stack(rows)", False),
        ("d = weights[:, rows].sum(axis=1)", False),
        ("e = np.array([one for one in kept])", True),
        ("f = np.sum(self.counts)", True),
        ("g = np.array([step, 2.0])", False),
        ("h = list(kept[-9:])", False),
        ("log = np.append(log, [step])", True),
        ("self.members = np.stack(self.members)[rows]", True),
        ("m = np.mean(self.scores)", False),
        ("l = list(kept[:step])", True),
        ("i = max(self.counts.values())", True),
        ("return np.array([state[0], state[1]])", False),
        ("return np.array(kept)", False),
    ],
)
def test_what_is_gone_through_stays(tmp_path, line, stays):
    file = tmp_path / "train.py"
    file.write_text(dedent(TEXT).lstrip("\n"))
    number = [one.strip() for one in file.read_text().splitlines()].index(line) + 1
    block = source.statement_at(str(file), number)
    assert growing.goes_through_what_stays(str(file), block) is stays


def test_a_parameter_is_what_its_callers_give(tmp_path):
    file = tmp_path / "train.py"
    file.write_text(dedent(TEXT).lstrip("\n"))
    lines = [one.strip() for one in file.read_text().splitlines()]
    first, second = (i for i, one in enumerate(lines, 1) if one == "return np.array(values)")
    told = [
        growing.goes_through_what_stays(str(file), source.statement_at(str(file), line))
        for line in (first, second)
    ]
    assert told == [False, True]  # `rows` is new in each pass, `kept` is not
