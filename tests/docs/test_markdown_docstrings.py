"""Converting docstrings to reStructuredText."""

from __future__ import annotations

import sys

import pytest

from tests.docs.site import ROOT

sys.path.insert(0, str(ROOT / "docs" / "_ext"))

pytest.importorskip("sphinx")

from markdown_docstrings import converted


@pytest.mark.parametrize(
    ("markdown", "expected"),
    [
        ("a `name` of it", "a ``name`` of it"),
        ("noise `s`² of it", "noise ``s``\\ ² of it"),
        ("w = B + |m| and x_t*", "w = B + \\|m\\| and x\\_t\\*"),
        ("`*args` alone", "``*args`` alone"),
    ],
)
def test_a_line(markdown, expected):
    assert converted([markdown]) == [expected]


def test_a_fence_and_an_indented_paragraph_are_code():
    converted_lines = converted(
        ["As", "", "    x = `1`", "", "or", "```python", "y = 2", "```", "it is."]
    )
    text = "\n".join(converted_lines)
    assert ".. code-block:: none\n\n        x = `1`" in text
    assert ".. code-block:: python\n\n    y = 2\n\nit is." in text


def test_sections_are_left_to_napoleon():
    lines = ["Args:", "    x: a `y`.", "", "Attributes:", "    low, high: both.", ""]
    lines += ["Returns:", "    What acts: a policy,", "    loaded: so."]
    assert converted(lines) == [
        *("Args:", "    x: a ``y``.", "", "Attributes:", "    low,high: both.", ""),
        *("Returns:", "    : What acts: a policy,", "    loaded: so."),
    ]
