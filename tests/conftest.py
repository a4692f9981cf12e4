from __future__ import annotations

import contextlib
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests import browser
from tests.trained_runs import copy_trained_run, shared_folder, trained_run

__all__ = ["copy_trained_run", "trained_run"]  # fixtures of all tests

# Kept between runs of the tests: what is compiled takes longer than most of them.
CACHE = Path(__file__).parent.parent / ".pytest_cache" / "compiled"

# What may be skipped under `--no-skips`, by the beginning of its reason; all else fails.
MAY_BE_SKIPPED = (
    "Python 3.11 has exception groups",  # on 3.10
    "there is a GPU",
    "there is no GPU",
    # Peers come with `make bench`.
    "stable-baselines3 is not installed",
    "could not import 'stable_baselines3'",
    "could not import 'omegaconf'",
    "could not import 'jax'",
    "could not import 'gymnax'",
    "could not import 'mujoco_warp'",
    "gymnax is installed",
    "brax is installed",
    "playground is installed",
    "py-spy may not trace",  # a container without SYS_PTRACE
)


# Functions with a test that took longer than so much, one a line.
LONG_ONES, LONG_S = Path(__file__).parent / "long_ones.txt", 0.15


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("hotloop")
    group.addoption(
        "--no-skips", action="store_true", help="fail what is skipped for no reason on the list"
    )
    group.addoption("--quick", action="store_true", help=f"leave out what {LONG_ONES.name} names")
    group.addoption("--note-long-ones", action="store_true", help=f"write {LONG_ONES.name} anew")


def pytest_configure(config: pytest.Config) -> None:
    # Processes of xdist tell the first one, which writes.
    if config.getoption("--note-long-ones") and not hasattr(config, "workerinput"):
        config.pluginmanager.register(LongOnes(), "long-ones")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if not config.getoption("--quick"):
        return
    long_ones = set(LONG_ONES.read_text(encoding="utf-8").split())
    left_out = [item for item in items if _function(item.nodeid) in long_ones]
    config.hook.pytest_deselected(items=left_out)
    items[:] = [item for item in items if _function(item.nodeid) not in long_ones]


def _function(test: str) -> str:
    return test.partition("[")[0]


class LongOnes:
    """Notes which tests take long."""

    def __init__(self) -> None:
        self._seconds: dict[str, float] = defaultdict(float)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self._seconds[report.nodeid] += report.duration

    def pytest_sessionfinish(self) -> None:
        names = {_function(name) for name, seconds in self._seconds.items() if seconds > LONG_S}
        LONG_ONES.write_text("".join(f"{name}\n" for name in sorted(names)), encoding="utf-8")


def _fail_if_skipped(report: Any, config: pytest.Config) -> None:
    if not report.skipped or hasattr(report, "wasxfail") or not config.getoption("--no-skips"):
        return
    reason = report.longrepr[2].removeprefix("Skipped: ")
    if not reason.startswith(MAY_BE_SKIPPED):
        report.outcome, report.longrepr = "failed", f"skipped, and not on the list: {reason}"


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Any:
    report = yield
    _fail_if_skipped(report, item.config)
    return report


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report(collector: pytest.Collector) -> Any:
    report = yield
    _fail_if_skipped(report, collector.config)
    return report


@pytest.fixture(autouse=True, scope="session")
def own_key(tmp_path_factory):
    """The key that runs are signed with is the tests' own, in the processes that they start too."""
    with pytest.MonkeyPatch.context() as patch:
        # One key for all processes of the session: they share runs, which are signed.
        patch.setenv("XDG_STATE_HOME", str(shared_folder(tmp_path_factory) / "state"))
        patch.setenv("HOTLOOP_CACHE", str(CACHE))
        with contextlib.suppress(ImportError):  # the base package trains nothing
            from hotloop.training.algorithm import Algorithm

            # Trainings of the tests' own processes draw nothing unless a test asks for it.
            patch.setitem(Algorithm.train.__kwdefaults__, "progress", False)
        yield


@pytest.fixture(scope="session")
def chromium(tmp_path_factory: pytest.TempPathFactory) -> Iterator[browser.Browser]:
    """A browser, in which one page is open at a time."""
    path = browser.find()
    if path is None:
        pytest.skip(f"no browser: none of {', '.join(browser.NAMES)} is installed")
    one = browser.Browser(path, tmp_path_factory.mktemp("browser"))
    yield one
    one.close()
