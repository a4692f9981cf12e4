"""Lines that traverse a persistent structure, detected in the source."""

from __future__ import annotations

from textwrap import dedent

import pytest

from hotloop.profiler.diagnose import growing_structures, source

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
            n = np.argsort(-self.counts[:step])
            o = np.mean(self.counts / self.counts.sum())
            p = np.mean(self.counts * rows)
        return np.array(kept)
"""


@pytest.mark.parametrize(
    ("line", "is_persistent"),
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
        ("n = np.argsort(-self.counts[:step])", True),
        ("o = np.mean(self.counts / self.counts.sum())", True),
        ("p = np.mean(self.counts * rows)", False),
        ("return np.array([state[0], state[1]])", False),
        ("return np.array(kept)", False),
    ],
)
def test_traversals_of_persistent_structures(tmp_path, line, is_persistent):
    file = tmp_path / "train.py"
    file.write_text(dedent(TEXT).lstrip("\n"))
    number = [text.strip() for text in file.read_text().splitlines()].index(line) + 1
    block = source.statement_at(str(file), number)
    assert growing_structures.passes_persistent_structure(str(file), block) is is_persistent


def test_parameters_depend_on_the_callers(tmp_path):
    file = tmp_path / "train.py"
    file.write_text(dedent(TEXT).lstrip("\n"))
    lines = [text.strip() for text in file.read_text().splitlines()]
    first, second = (i for i, text in enumerate(lines, 1) if text == "return np.array(values)")
    results = [
        growing_structures.passes_persistent_structure(
            str(file), source.statement_at(str(file), line)
        )
        for line in (first, second)
    ]
    assert results == [False, True]  # `rows` is new in each pass, `kept` is not
