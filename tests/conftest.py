from __future__ import annotations

import contextlib
import gc
import os
import re
import signal
from collections import defaultdict
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from random import Random
from typing import Any

import pytest

from tests import browser
from tests.costs import LONG_ONES, Costs, Meter, function_of
from tests.trained_runs import copy_trained_run, shared_folder, trained_run

__all__ = ["copy_trained_run", "trained_run"]  # fixtures of all tests

# Compiled code is kept between test runs, since compiling takes longer than most tests.
CACHE = Path(__file__).parent.parent / ".pytest_cache" / "compiled"

# Skip reasons that `--no-skips` allows, by their beginning. Other skips fail.
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
    "gymnax is installed",
    "brax is installed",
    "playground is installed",
    "py-spy may not trace",  # a container without SYS_PTRACE
)

# Test modules that import one of these are skipped where it is not installed, as on a machine that
# runs the tests of a GPU alone.
OPTIONAL = ("docutils", "gymnasium", "hypothesis", "onnxruntime", "scipy", "sphinx", "vizdoom")
_NO_MODULE = re.compile(r"ModuleNotFoundError: No module named '(\w+)[.\w]*'")
# Tests with fixtures that start other programs are marked `outside`.
OUTSIDE = {"chromium", "cluster", "ray"}
# Two Rays on one machine find each other, so one process runs them (--dist loadgroup).
ONE_RAY = [pytest.mark.outside, pytest.mark.xdist_group("ray")]


# Each core has a process of the tests. Further threads of torch and NumPy would wait for a core.
os.environ.setdefault("OMP_NUM_THREADS", "1")

# Ray's workers have a low priority by default. Beside other tests they would hardly run.
os.environ.setdefault("RAY_worker_niceness", "0")

# Programs that a shell starts in the background ignore it, and so would the tests' own programs.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

with contextlib.suppress(ImportError):  # as on a machine that runs the tests of a GPU alone
    from hypothesis import HealthCheck, settings

    # On a busy machine, an example or its generation may take any time.
    no_checks = [HealthCheck.too_slow, HealthCheck.function_scoped_fixture]
    settings.register_profile("busy", deadline=None, suppress_health_check=no_checks)
    settings.load_profile("busy")


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("hotloop")
    group.addoption(
        "--no-skips", action="store_true", help="fail what is skipped for no reason on the list"
    )
    group.addoption("--quick", action="store_true", help=f"leave out what {LONG_ONES.name} names")
    group.addoption(
        "--costs", type=Path, metavar="FILE", help="measure wall and core-seconds per test"
    )
    group.addoption(
        "--shuffle",
        type=int,
        metavar="SEED",
        help="run modules and their tests in random order",
    )


def pytest_configure(config: pytest.Config) -> None:
    if path := config.getoption("--costs"):
        config.pluginmanager.register(Meter(), "meter")
        if not hasattr(config, "workerinput"):  # not in xdist's processes
            config.pluginmanager.register(Costs(path), "costs")


@pytest.hookimpl(tryfirst=True)  # before pytest looks at the marks
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    for item in items:
        if not OUTSIDE.isdisjoint(getattr(item, "fixturenames", ())):
            item.add_marker("outside")
        if "ray" in item.path.stem or item.path.parent.name == "ray":
            item.add_marker(ONE_RAY[1])
    if config.getoption("--quick"):
        long_ones = set(LONG_ONES.read_text(encoding="utf-8").split())
        left_out = [item for item in items if function_of(item.nodeid) in long_ones]
        config.hook.pytest_deselected(items=left_out)
        items[:] = [item for item in items if function_of(item.nodeid) not in long_ones]
    seed = config.getoption("--shuffle")
    if seed is not None:
        # Tests of a module stay together: they share fixtures.
        random = Random(seed)
        modules = defaultdict(list)
        for item in items:
            modules[item.nodeid.partition("::")[0]].append(item)
        order = random.sample(sorted(modules), len(modules))
        items[:] = [
            item for name in order for item in random.sample(modules[name], len(modules[name]))
        ]


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Skip GPU tests without a GPU, and use exact float32 arithmetic in the others."""
    if item.get_closest_marker("gpu") is None:
        return
    torch = pytest.importorskip("torch")
    if not torch.cuda.is_available():
        pytest.skip("there is no GPU")
    from bench.accelerate.check import set_exact_arithmetic

    set_exact_arithmetic()


def _skip_if_missing(report: Any) -> None:
    """Make a module's failed import of an optional library a skip."""
    missing = _NO_MODULE.findall(str(report.longrepr)) if report.failed else []
    if missing and missing[-1] in OPTIONAL and find_spec(missing[-1]) is None:
        reason = f"Skipped: could not import '{missing[-1]}'"
        report.outcome, report.longrepr = "skipped", (report.nodeid, 0, reason)


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
    _skip_if_missing(report)
    _fail_if_skipped(report, collector.config)
    return report


@pytest.fixture(autouse=True, scope="session")
def own_key(tmp_path_factory):
    """Sign runs with a key of the tests, also in the processes that they start."""
    with pytest.MonkeyPatch.context() as patch:
        # All processes of the session share signed runs, and therefore one key.
        patch.setenv("XDG_STATE_HOME", str(shared_folder(tmp_path_factory) / "state"))
        patch.setenv("HOTLOOP_CACHE", str(CACHE))
        with contextlib.suppress(ImportError):  # the base package trains nothing
            from hotloop.training.algorithm import Algorithm

            # Trainings in test processes draw no curve unless a test enables it.
            patch.setitem(Algorithm.train.__kwdefaults__, "progress", False)
            # A training does not wait for measurements of free cores.
            patch.setattr("hotloop.training.process.available_threads", lambda: 1)
        yield


@pytest.fixture(autouse=True, scope="module")
def freeze_imports():
    """Exclude live objects from garbage collection: `gc.collect()` costs a second otherwise."""
    gc.collect()
    gc.freeze()


@pytest.fixture(scope="session")
def chromium(tmp_path_factory: pytest.TempPathFactory) -> Iterator[browser.Browser]:
    """Return a browser with one page."""
    path = browser.find()
    if path is None:
        pytest.skip(f"no browser: none of {', '.join(browser.NAMES)} is installed")
    page = browser.Browser(path, tmp_path_factory.mktemp("browser"))
    yield page
    page.close()
