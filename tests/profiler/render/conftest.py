from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.profiler.browser import NAMES, Browser, find


@pytest.fixture(scope="session")
def chromium(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    path = find()
    if path is None:
        pytest.skip(f"no browser: none of {', '.join(NAMES)} is installed")
    one = Browser(path, tmp_path_factory.mktemp("browser"))
    yield one
    one.close()
