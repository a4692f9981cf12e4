"""Texts that several error messages share."""

from __future__ import annotations

import importlib.metadata
import json

import pytest

from hotloop.errors import install_command


@pytest.mark.parametrize(
    ("origin", "expected"),
    [
        (None, "pip install 'hotloop[train,ray]'"),
        ({"url": "https://example.org/hotloop.whl"}, "pip install 'hotloop[train,ray]'"),
        ({"url": "file://{path}", "dir_info": {}}, "pip install '{path}[train,ray]'"),
        (
            {"url": "file://{path}", "dir_info": {"editable": True}},
            "pip install -e '{path}[train,ray]'",
        ),
        ({"url": "file://{path}/a%20b.whl"}, "pip install '{path}/a b.whl[train,ray]'"),
        (
            {"url": "file://{path}/gone", "dir_info": {"editable": True}},
            "pip install 'hotloop[train,ray]'",
        ),
    ],
)
def test_extras_are_installed_from_where_hotloop_was(monkeypatch, tmp_path, origin, expected):
    class Installed:
        def read_text(self, name):
            assert name == "direct_url.json"
            return origin and json.dumps(origin).replace("{path}", str(tmp_path))

    monkeypatch.setattr(importlib.metadata, "distribution", lambda name: Installed())
    (tmp_path / "a b.whl").touch()
    assert install_command("train,ray") == expected.replace("{path}", str(tmp_path))


def test_extras_of_a_hotloop_that_was_not_installed(monkeypatch):
    def missing(name):
        raise importlib.metadata.PackageNotFoundError(name)

    monkeypatch.setattr(importlib.metadata, "distribution", missing)
    assert install_command("mujoco") == "pip install 'hotloop[mujoco]'"
