from __future__ import annotations

import fcntl
import subprocess
import sys
from pathlib import Path

import pytest

from tests.docs.site import ROOT


@pytest.fixture(scope="session")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the built site, which all test processes share."""
    base = tmp_path_factory.getbasetemp()
    shared = base.parent if base.name.startswith("popen-") else base
    built = shared / "site"
    with (shared / "site.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (built / "index.html").exists():
            options = ["-W", "--keep-going", "-n", "-q", "-b", "html"]
            folders = ["-d", shared / "doctrees", ROOT / "docs", built]
            result = subprocess.run(
                [sys.executable, "-m", "sphinx", *options, *folders], capture_output=True, text=True
            )
            if result.returncode:
                (built / "index.html").unlink(missing_ok=True)
            assert result.returncode == 0, result.stderr
    return built
