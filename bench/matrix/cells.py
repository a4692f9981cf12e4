"""Cells of the version matrix: a Python, the installed extras, and the versions of libraries."""

from __future__ import annotations

import importlib
import re
import sys
from dataclasses import dataclass
from typing import Any, Literal

from bench.storage import ROOT

TRAIN = ("train", "export")
POOLED = (*TRAIN, "atari")


@dataclass(frozen=True)
class Cell:
    """An environment in which all checks run.

    Attributes:
        name: The cell's name, the head of its column in docs/versions.md.
        python: Minor version, such as "3.11".
        extras: Extras of hotloop that are installed. None are installed for the base package.
        versions: Which versions pip may choose. "oldest" pins each library of `extras` to the
            lower bound in pyproject.toml, "default" to constraints.txt, "newest" to nothing.
        pins: Further pins, as pip writes them.
    """

    name: str
    python: str
    extras: tuple[str, ...] = ()
    versions: Literal["oldest", "default", "newest"] = "newest"
    pins: tuple[str, ...] = ()

    def constraints(self) -> list[str]:
        """Return the lines of the cell's constraints file."""
        lines: list[str] = []
        if self.versions == "default":
            lines = (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()
        elif self.versions == "oldest":
            lines = lower_bounds(self.extras)
        return [*lines, *self.pins]


CELLS = {
    cell.name: cell
    for cell in (
        Cell("base-3.10", "3.10", versions="oldest"),
        Cell("base-3.11", "3.11"),
        Cell("base-3.12", "3.12"),
        Cell("base-3.13", "3.13"),
        Cell("train-3.10-oldest", "3.10", TRAIN, "oldest"),
        Cell("train-3.11-default", "3.11", TRAIN, "default"),
        Cell("train-3.11-torch-2.14", "3.11", TRAIN, pins=("torch==2.14.*",)),
        Cell("train-3.12-torch-2.9", "3.12", POOLED, pins=("torch==2.9.*",)),
        Cell("train-3.13-newest", "3.13", POOLED),
    )
}


def project() -> dict[str, Any]:
    """Return the `project` table of pyproject.toml."""
    tomllib = importlib.import_module("tomllib" if sys.version_info >= (3, 11) else "tomli")
    return tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]


def lower_bounds(extras: tuple[str, ...]) -> list[str]:
    """Return `name==bound` for every `name>=bound` that the base package or an extra requires."""
    table = project()
    requirements = list(table["dependencies"])
    for extra in extras:
        requirements += table["optional-dependencies"][extra]
    pins: dict[str, str] = {}
    for requirement in requirements:
        match = re.match(r"([A-Za-z0-9._-]+)(\[[^]]*\])?>=([0-9.]+)", requirement)
        if match is None:
            raise ValueError(f"expected a requirement `name>=bound`, got {requirement!r}")
        pins[match[1]] = f"{match[1]}=={match[3]}"
    return list(pins.values())


def supported_pythons() -> list[str]:
    """Return the minor versions of Python that pyproject.toml claims."""
    matches = (
        re.fullmatch(r"Programming Language :: Python :: (3\.\d+)", line)
        for line in project()["classifiers"]
    )
    return [match[1] for match in matches if match]
