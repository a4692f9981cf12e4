"""First lines and lengths of the modules in src."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

import hotloop

ROOT = Path(hotloop.__file__).parent
MODULES = sorted(ROOT.rglob("*.py"))
MOST_LINES = 500
# A first line says what there is, in a noun or a verb.
NEITHER = re.compile(r"(What|Who|Whose|Where|When|How|Why|Which|Whether|From|All that)\b")


def test_all_modules_are_found():
    assert len(MODULES) > 250


@pytest.mark.parametrize("module", MODULES, ids=lambda path: path.relative_to(ROOT).as_posix())
def test_a_module_is_described_and_short(module):
    text = module.read_text(encoding="utf-8")
    first = ast.get_docstring(ast.parse(text))
    assert first, f"{module} needs a docstring"
    assert not NEITHER.match(first), f"{module}: {first.splitlines()[0]}"
    assert text.count("\n") <= MOST_LINES, f"{module} has more than {MOST_LINES} lines"
