"""The project as pyproject.toml declares it: its version, and where its repository is."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
_DECLARED = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
_URL = re.search(r'^(?:Repository|Source|Homepage) = "(https://[^"]+)"', _DECLARED, re.MULTILINE)

REPOSITORY = (_URL[1] if _URL else "https://github.com/hotloop/hotloop").rstrip("/") + "/"
_VERSION_FILE = ROOT / "src/hotloop/base/version.py"
VERSION = re.search(r'^__version__ = "(.+)"', _VERSION_FILE.read_text("utf-8"), re.MULTILINE)[1]
