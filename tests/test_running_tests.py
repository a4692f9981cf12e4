"""Costs and order of the tests themselves."""

import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from tests.attempts import attempted, attempts
from tests.costs import Costs, total

ROOT = Path(__file__).parent.parent
SUITE = """
import subprocess, sys, time
import pytest

SPIN = "import time\\nend = time.process_time() + {}\\nwhile time.process_time() < end: pass"
SERVERS = []

@pytest.fixture(scope="module")
def model():
    exec(SPIN.format(0.3))

@pytest.fixture
def env():
    exec(SPIN.format(0.1))

def test_child(env):
    subprocess.run([sys.executable, "-c", SPIN.format(0.5)], check=True)

def test_server():
    # The process has ended when its output ends, but no parent has waited for it.
    command = [sys.executable, "-c", SPIN.format(0.5)]
    SERVERS.append(subprocess.Popen(command, stdout=subprocess.PIPE))
    SERVERS[-1].stdout.read()

@pytest.mark.parametrize("case", range(4))
def test_model(model, case): pass

def test_sleeps():
    time.sleep(0.4)
"""
# Each test records its position.
ORDER = """
from pathlib import Path
from types import SimpleNamespace
import pytest

@pytest.mark.parametrize("case", range(24))
def test_case(case):
    with open(Path(__file__).parent / "order", "a") as file:
        file.write(f"{case}\\n")
"""


def run_suite(folder: Path, *options: str) -> str:
    """Run the tests in a folder with the hooks of tests/conftest.py, and return the output."""
    (folder / "conftest.py").write_text(
        "from tests.conftest import pytest_addoption, pytest_configure\n"
        "from tests.conftest import pytest_collection_modifyitems\n"
    )
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-p", "xdist", *options]
    environment = os.environ | {"PYTHONPATH": str(ROOT), "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    result = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True)
    assert result.returncode == 0, result.stdout + result.stderr
    return result.stdout


def test_costs_add_up_over_workers_and_runs(tmp_path):
    (tmp_path / "test_suite.py").write_text(SUITE)
    run_suite(tmp_path, "-n2", "--costs=build/costs.json", "-k", "not sleeps", "-m", "not slow")
    printed = run_suite(tmp_path, "--costs=build/costs.json", "-k", "sleeps")
    costs = Costs(tmp_path / "build" / "costs.json")

    # Children count, waited for or not, and so does a fixture used only by this test.
    core_s = {name.partition("::")[2]: total(cost)[1] for name, cost in costs.tests.items()}
    assert core_s["test_child"] >= 0.6
    assert core_s["test_server"] >= 0.5
    assert costs.tests["test_suite.py::test_child"]["setup"][1] >= 0.1
    # A shared fixture counts separately, once per worker that sets it up.
    setups, _, fixture_s = costs.fixtures["test_suite.py::model"]
    assert setups in (1, 2)
    assert fixture_s >= 0.3 * setups
    assert all(core_s[f"test_model[{case}]"] < 0.2 for case in range(4))
    assert costs.shared["test_suite.py::test_model[2]"] == ["test_suite.py::model"]
    assert costs.collection["not slow"] > 0
    # The second run has added its test, which waits and needs no core.
    wall_s, sleep_core_s = total(costs.tests["test_suite.py::test_sleeps"])
    assert wall_s >= 0.4 > sleep_core_s
    assert "test_suite.py::test_child" in printed
    assert printed.strip().splitlines()[-1].startswith("=")
    assert "1 passed" in printed.strip().splitlines()[-1]


def test_the_limit_of_long_tests_follows_from_the_budget(tmp_path):
    costs = Costs(tmp_path / "costs.json")
    costs.tests = {
        "a.py::quick[0]": {"call": [0.1, 0.1]},
        "a.py::quick[1]": {"call": [0.1, 0.2]},
        "a.py::waits": {"setup": [0.2, 0.0], "call": [0.2, 0.0]},
        "a.py::trains": {"call": [0.0, 0.0]},
        "a.py::long": {"call": [2.0, 2.0]},
    }
    costs.fixtures = {"run": [2, 1.0, 6.0]}
    costs.shared = {"a.py::trains": ["run"]}
    costs.write()
    costs = Costs(costs.path)

    assert costs.long_ones(budget_s=0.35) == (["a.py::long", "a.py::trains", "a.py::waits"], 0.2)
    assert costs.long_ones(budget_s=0.75) == (["a.py::long", "a.py::trains"], 0.4)
    assert costs.long_ones(budget_s=3) == (["a.py::trains"], 2.0)
    assert costs.long_ones(budget_s=6) == ([], 3.0)


def test_costs_of_runs_at_the_same_time_are_all_kept(tmp_path):
    folder = tmp_path / "build"
    runs = [Costs(folder / "costs.json") for _ in range(2)]
    for name, costs in zip("ab", runs, strict=True):
        report = {"nodeid": f"{name}.py::test", "when": "setup", "cost": [1.0, 1.0]}
        costs.pytest_runtest_logreport(
            SimpleNamespace(**report, fixture_costs=[], shared_fixtures=[])
        )
    for costs in runs:
        costs.pytest_sessionfinish(None)
    assert Costs(folder / "costs.json").tests.keys() == {"a.py::test", "b.py::test"}


def test_a_seed_determines_the_order(tmp_path):
    (tmp_path / "test_order.py").write_text(ORDER)
    orders = []
    for options in (["-n3"], ["--shuffle=1"], ["--shuffle=1"], ["--shuffle=2"]):
        run_suite(tmp_path, *options)
        orders.append([int(case) for case in (tmp_path / "order").read_text().split()])
        (tmp_path / "order").unlink()

    assert all(sorted(order) == list(range(24)) for order in orders)
    # The same seed gives the same order.
    assert orders[1] == orders[2] != orders[3] != sorted(orders[3])


@pytest.mark.parametrize(
    ("errors", "num_measured", "is_raised"),
    [
        ([None], 1, False),
        ([AssertionError, None], 2, False),
        ([AssertionError] * 3, 3, True),
        ([OSError], 1, True),  # not an assertion
    ],
)
def test_three_attempts_at_a_measurement(errors, num_measured, is_raised):
    measured = []

    def repeat():
        for number, attempt in attempts(lambda number: number):
            measured.append(number)
            with attempt:
                if errors[number]:
                    raise errors[number]

    if is_raised:
        with pytest.raises(errors[-1]):
            repeat()
    else:
        repeat()
    assert measured == list(range(num_measured))


def test_attempts_without_assertions_are_an_error():
    with pytest.raises(RuntimeError, match="expected an assertion"):
        for _ in attempts(lambda number: number):
            pass


def test_each_attempt_has_its_own_directory(tmp_path):
    directories = []

    @attempted
    def test(tmp_path, value):
        directories.append(tmp_path)
        assert tmp_path.is_dir()
        if len(directories) < value:
            raise ValueError("not yet")

    test(tmp_path=tmp_path, value=2)
    assert directories == [tmp_path / "0", tmp_path / "1"]
    with pytest.raises(ValueError, match="not yet"):
        test(tmp_path=tmp_path / "0", value=9)
