"""Versions of the libraries that a run uses, for its `config.json`."""

from __future__ import annotations

import contextlib
import importlib.metadata
import platform


def library_versions() -> dict[str, str]:
    """Return the versions of hotloop, Python, the system and the libraries, by name."""
    from hotloop.base.version import __version__

    versions = {"hotloop": __version__, "python": platform.python_version()}
    for library in ("numpy", "torch", "gymnasium", "mujoco", "envpool", "vizdoom"):
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            versions[library] = importlib.metadata.version(library)
    versions["platform"] = platform.platform()
    return versions
