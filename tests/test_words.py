"""Names, docstrings and pages follow the style rules of CONTRIBUTING.md.

Each check lists its violations with file and line. It fails if there are more than its budget.
"""

from __future__ import annotations

import ast
import functools
import re
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import hotloop

PACKAGE = Path(hotloop.__file__).parent
ROOT = Path(__file__).parents[1]
MODULES = {path: path.read_text(encoding="utf-8") for path in sorted(PACKAGE.rglob("*.py"))}
PAGES = [*sorted((ROOT / "docs").rglob("*.md")), *sorted(ROOT.glob("*.md"))]
PAGES = [page for page in PAGES if page.name != "CHANGELOG.md"]  # a list of changes
MAX_LINES = 500

# Pronouns, participles and question words do not describe a value.
VAGUE_NAMES = re.compile(
    r"about|asked|begun|came|drawn|due|ended|given|gone|heard|held|kept|left|looked|made|meant|mine"
    r"|needed|noted|others|ours|own|rest|said|seen|sent|shown|some|taken|theirs|there|told|wanted"
    r"|was|what"
)
FRAGMENT = re.compile(
    r"(What|Who|Whose|Whoever|Of|As|Where|Nobody|Somebody|That|The same|None:|In which|From which"
    r"|How|When|Why|Which|From|All that)\b"
)
DIALECT = re.compile(
    r"\b(nobody|somebody|whoever|dearest|anew|told|tells|asked after|(?:gone|goe?s?) on with"
    r"|came of it|what came of|one's own|of a user's own|(?:is|are) to be|that which|as many)\b",
    re.IGNORECASE,
)
OPENING = re.compile(r"(Of|What|Who|Whoever|Where|Nobody|That|So is|So it|So has|Not) ")
PASSIVE = re.compile(r"\b(is|are|was|be) (said|told|asked|held|looked|gone|made|kept|left)\b")
READER = re.compile(r"\byour?\b", re.IGNORECASE)


@functools.cache
def _trees() -> dict[Path, ast.Module]:
    return {path: ast.parse(text) for path, text in MODULES.items()}


def _place(path: Path, line: int) -> str:
    return f"{path.relative_to(PACKAGE.parent)}:{line}"


def _nodes(*kinds: type[ast.AST]) -> Iterator[tuple[Path, ast.AST]]:
    for path, tree in _trees().items():
        for node in ast.walk(tree):
            if isinstance(node, kinds):
                yield path, node


def _check(violations: list[str], budget: int) -> None:
    lines = "\n".join(violations)
    assert len(violations) <= budget, f"{len(violations)} places, {budget} allowed:\n{lines}"


def test_modules_have_a_description_and_a_readable_length():
    assert len(MODULES) > 250
    violations = []
    for path, text in MODULES.items():
        if not ast.get_docstring(_trees()[path]):
            violations.append(f"{_place(path, 1)} needs a docstring")
        if text.count("\n") > MAX_LINES:
            violations.append(f"{_place(path, 1)} has more than {MAX_LINES} lines")
    _check(violations, 0)


def test_names_describe_their_values():
    violations = []
    for path, node in _nodes(ast.Name, ast.arg, ast.FunctionDef, ast.AsyncFunctionDef):
        if isinstance(node, ast.Name):
            name = node.id if isinstance(node.ctx, ast.Store) else ""
        else:
            name = node.arg if isinstance(node, ast.arg) else node.name
        if VAGUE_NAMES.fullmatch(name.strip("_")):
            violations.append(f"{_place(path, node.lineno)} {name}")
    _check(violations, 20)


def test_docstrings_begin_as_sentences():
    violations = []
    kinds = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    for path, node in _nodes(*kinds):
        first = (ast.get_docstring(node) or "").partition("\n")[0]
        if FRAGMENT.match(first):
            violations.append(f"{_place(path, getattr(node, 'lineno', 1))} {first}")
    _check(violations, 0)


def test_code_is_free_of_dialect():
    violations = [
        f"{_place(path, number)} {match[0]}"
        for path, text in MODULES.items()
        for number, line in enumerate(text.splitlines(), 1)
        for match in DIALECT.finditer(line)
    ]
    _check(violations, 20)


def test_public_classes_have_one_meaning():
    places = defaultdict(list)
    for path, tree in _trees().items():
        for node in tree.body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                places[node.name].append(_place(path, node.lineno))
    repeated = {name: found for name, found in places.items() if len(found) > 1}
    # `Config`, `State` and `Hyper` are parts of each algorithm's declaration.
    _check([f"{name}: {', '.join(found)}" for name, found in repeated.items()], 8)


def test_training_reads_typed_options():
    violations = []
    for path, node in _nodes(ast.FunctionDef, ast.AnnAssign, ast.Call):
        if path.relative_to(PACKAGE).parts[0] != "training":
            continue
        parts = [node]
        if isinstance(node, ast.FunctionDef):
            parts = [*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs]
        for part in parts:
            text = ast.unparse(part)
            if re.match(r"(self\.)?_?configs?($|: .*\bAny\b)|getattr\((self\.)?_?config\b", text):
                violations.append(f"{_place(path, part.lineno)} {text}")
    _check(violations, 0)


def _sentences() -> list[tuple[str, str]]:
    """Return the sentences of the pages' paragraphs, each with its page and line."""
    sentences = []
    for page in PAGES:
        text = page.read_text(encoding="utf-8")
        # Blank what is no prose, and keep the line numbers.
        text = re.sub(r"```.*?```", lambda code: "\n" * code[0].count("\n"), text, flags=re.DOTALL)
        lines = [
            "" if re.match(r"\||#|    |>|- |\* |<!|!\[|\{|\(|\$", line) else line
            for line in text.split("\n")
        ]
        paragraph, start = [], 1
        for number, line in enumerate([*lines, ""], 1):
            if line.strip():
                start = start if paragraph else number
                paragraph.append(line)
                continue
            prose = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", " ".join(paragraph))
            prose = re.sub(r"\s+", " ", re.sub(r"`[^`]*`", "X", prose)).strip()
            where = f"{page.relative_to(ROOT)}:{start}"
            sentences += [
                (where, sentence)
                for sentence in re.split(r"(?<=[.!?])\s+(?=[A-Z*X])", prose)
                if len(sentence.split()) > 4
            ]
            paragraph = []
    assert len(sentences) > 1000
    return sentences


def test_pages_are_plain_and_address_the_reader():
    sentences = _sentences()
    budgets = ((OPENING, 0.01), (PASSIVE, 0.007), (re.compile(";"), 0.06))
    problems = []
    for pattern, share in budgets:
        search = pattern.match if pattern is OPENING else pattern.search
        violations = [f"{place} {sentence}" for place, sentence in sentences if search(sentence)]
        if len(violations) > share * len(sentences):
            listed = "\n".join(violations)
            problems.append(f"{pattern.pattern}: more than {share:.1%}\n{listed}")
    addressed = sum(bool(READER.search(sentence)) for _, sentence in sentences)
    if addressed < 0.2 * len(sentences):
        problems.append(f"{addressed} of {len(sentences)} sentences address the reader")
    assert not problems, "\n\n".join(problems)
