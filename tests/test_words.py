"""First lines and lengths of the modules in src."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import hotloop

ROOT = Path(hotloop.__file__).parent
MODULES = sorted(ROOT.rglob("*.py"))
MOST_LINES = 500
# A first line says what there is, in a noun or a verb.
NEITHER = re.compile(r"(What|Who|Whose|Where|When|How|Why|Which|Whether|From|All that)\b")


def test_every_module_is_described_and_short():
    assert len(MODULES) > 250
    problems = []
    for module in MODULES:
        text = module.read_text(encoding="utf-8")
        first = (ast.get_docstring(ast.parse(text)) or "").partition("\n")[0]
        if not first:
            problems.append(f"{module} needs a docstring")
        if NEITHER.match(first):
            problems.append(f"{module}: {first}")
        if text.count("\n") > MOST_LINES:
            problems.append(f"{module} has more than {MOST_LINES} lines")
    assert not problems, "\n".join(problems)
