"""Loops of network passes that cannot become one call, detected in the source."""

from __future__ import annotations

from textwrap import dedent

import pytest

from hotloop.profiler.diagnose import recurrence, source

TEXT = """
    for t in range(steps):
        {body}
"""


@pytest.mark.parametrize(
    ("body", "line", "is_fed"),
    [
        ("out, state = cell(x[t], state)", 2, True),
        ("_, self.state = self.net.step(x[t], self.state)", 2, True),
        ("action = actor(state)\n        state = model(state, action)", 3, True),
        ("action = actor(state)\n        state = model(state, action)", 2, True),
        ("action = actor(obs[t])", 2, False),
        ("total = total + float(net(x[t]))", 2, False),
        ("values = np.append(values, net(x[t]))", 2, False),
        ("values[t] = net(x[t])", 2, False),
        ("values.append(net(x[t]))", 2, False),
    ],
)
def test_recurrent_loops(tmp_path, body, line, is_fed):
    file = tmp_path / "train.py"
    file.write_text(dedent(TEXT.format(body=body)).lstrip("\n"))
    loop = source.loop_around(str(file), line)
    assert loop is not None
    assert recurrence.is_recurrent(str(file), loop, line) is is_fed


@pytest.mark.parametrize(
    ("text", "calls_elements"),
    [
        ("[net(x) for net in nets]", True),
        ("[nets[i](x) for i in range(3)]", True),
        ("[net(x[i]) for i in range(3)]", False),
        ("[net(x) for x in states]", False),
    ],
)
def test_loops_that_call_their_elements(tmp_path, text, calls_elements):
    file = tmp_path / "train.py"
    file.write_text(f"found = {text}\n")
    loop = source.loop_around(str(file), 1)
    assert loop is not None
    assert recurrence.calls_its_elements(str(file), loop) is calls_elements
