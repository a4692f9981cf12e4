"""The notebooks run in a Jupyter kernel, and objects show themselves in a fixed-width font."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from types import SimpleNamespace

import nbformat
import pytest
from nbclient import NotebookClient

from hotloop.base.html_page import aligned_rows
from hotloop.experiments.results import Run, Trial
from hotloop.experiments.tables import ExperimentTable
from hotloop.runs.progress import Evaluation, Report
from hotloop.training.live_line import LiveLine

NOTEBOOKS = Path(__file__).parent.parent / "examples" / "notebooks"
# Smaller sizes, and what the outputs of the notebook contain.
SMALLER = {
    "train": {"100_000": "2_048"},
    "profile": {},
    "sweep": {"20_000, 8": "1_024, 2"},
}
SHOWN = {
    "train": ["class='hotloop-curve'", "steps             2,048 of 2,048", "2 values", "over 20"],
    "profile": ["<iframe", "slow_loop.py"],
    "sweep": ["trial  seed  ", "learning_rate"],
}


@pytest.mark.parametrize("name", SMALLER)
def test_a_notebook_is_stored_without_outputs(name):
    content = json.loads((NOTEBOOKS / f"{name}.ipynb").read_text(encoding="utf-8"))
    nbformat.validate(nbformat.from_dict(content))
    code = [cell for cell in content["cells"] if cell["cell_type"] == "code"]
    assert all(not cell["outputs"] and cell["execution_count"] is None for cell in code)


def test_every_notebook_is_tested_and_linked():
    assert {path.stem for path in NOTEBOOKS.glob("*.ipynb")} == set(SMALLER)
    page = (NOTEBOOKS.parents[1] / "docs" / "notebooks.md").read_text(encoding="utf-8")
    assert set(re.findall(r"notebooks/(\w+)\.ipynb\)", page)) == set(SMALLER)


@pytest.mark.slow
@pytest.mark.parametrize("name", SMALLER)
def test_a_notebook_runs(name, tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", f"{Path(sys.executable).parent}:/usr/bin:/bin")
    text = (NOTEBOOKS / f"{name}.ipynb").read_text(encoding="utf-8")
    for size, smaller in SMALLER[name].items():
        assert size in text
        text = text.replace(size, smaller)
    notebook = nbformat.reads(text, as_version=4)
    resources = {"metadata": {"path": str(tmp_path)}}
    NotebookClient(notebook, timeout=200, kernel_name="python3", resources=resources).execute()
    outputs = [output for cell in notebook.cells for output in cell.get("outputs", [])]
    shown = json.dumps(outputs)
    for content in SHOWN[name]:
        assert content in shown or re.sub(" +", " ", content) in re.sub(" +", " ", shown), content
    assert "Traceback" not in shown


ENVIRONMENT = """
import gymnasium, numpy as np

class Guess(gymnasium.Env):
    observation_space = gymnasium.spaces.Box(-1, 1, (1,), np.float32)
    action_space = gymnasium.spaces.Discrete(2)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.x = self.np_random.choice([-1.0, 1.0], 1).astype(np.float32)
        return self.x, {}

    def step(self, action):
        return self.x, float(action == (self.x[0] > 0)), True, False, {}
"""
CELLS = [
    ENVIRONMENT,
    """
import hotloop

def train(env, **options):
    return hotloop.train("ppo", env, total_timesteps=64, num_envs=2, num_steps=16,
                         num_minibatches=1, execution="eager", progress=False, **options)

one = train(Guess)
print("in a cell", one.status, hotloop.evaluate(one.run_dir, episodes=3).returns)
""",
    """
try:
    train(Guess, workers=2)
except hotloop.errors.ConfigError as error:
    print(error)
""",
    f"%%writefile guess.py\n{ENVIRONMENT}",
    """
import guess

two = train(guess.Guess, workers=2)
print("in a file", two.status, hotloop.evaluate(two.run_dir, episodes=3).returns)
""",
]


@pytest.mark.outside
def test_workers_need_an_environment_of_a_file(tmp_path):
    """The kernel trains on a class of a cell, and the error for workers names the way out."""
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(x) for x in CELLS])
    resources = {"metadata": {"path": str(tmp_path)}}
    NotebookClient(notebook, timeout=200, kernel_name="python3", resources=resources).execute()
    texts = ["".join(x.get("text", "") for x in cell.outputs) for cell in notebook.cells]
    assert texts[1].startswith("in a cell finished [")
    assert "Guess is defined in the main script or notebook, which workers don't" in texts[2]
    assert "such as my_envs.py, and pass" in texts[2]
    assert texts[4].startswith("in a file finished [")


class Cell:
    """The output of a cell: IPython's `display` and its handle."""

    def __init__(self):
        self.contents = []

    def display(self, content, *, display_id):
        assert display_id
        self.contents.append(content)
        return self

    def update(self, content):
        self.contents.append(content)


def report(steps, mean_return, evaluation=None):
    return Report(
        run_dir=Path("run"),
        timesteps=steps,
        total_timesteps=4_000,
        elapsed_s=steps / 1_000,
        mean_return=mean_return,
        std_return=1.0,
        num_episodes=10,
        metrics={},
        execution="",
        evaluation=evaluation,
    )


@pytest.fixture
def cell(monkeypatch):
    """Make this process look like a Jupyter kernel."""
    cell = Cell()
    shell = SimpleNamespace(kernel=object())
    module = SimpleNamespace(HTML=lambda text: text, display=cell.display)
    monkeypatch.setitem(sys.modules, "IPython", SimpleNamespace(get_ipython=lambda: shell))
    monkeypatch.setitem(sys.modules, "IPython.display", module)
    return cell


def test_a_cell_shows_the_curve_in_place(cell, capsys):
    line = LiveLine(age_s=lambda: 1.0)
    line.show(report(0, float("nan")))
    assert "<svg" not in cell.contents[0]  # no episode has ended
    for steps in (1_000, 2_000, 3_000):
        line.show(report(steps, steps / 100))
    line.close()
    last = cell.contents[-1]
    assert "3,000/4,000 steps" in last
    assert "font-family: monospace" in last
    assert last.count('class="mean"') == 1
    curve = re.search(r'class="mean" d="M([^"]+)"', last)[1].split("L")
    assert len(curve) == 3
    assert "/s" not in capsys.readouterr().out


def test_a_cell_marks_evaluations(cell):
    line = LiveLine(age_s=lambda: 1.0)
    evaluation = Evaluation(timesteps=1_000, returns=[50.0], lengths=[50], is_best=True)
    line.show(report(1_000, 40.0, evaluation))
    line.close()
    assert 'class="diamonds"' in cell.contents[-1]


def test_a_long_curve_is_thinned(cell):
    line = LiveLine(age_s=lambda: 1.0)
    for steps in range(3_000):
        line.show(report(steps, float(steps)))
    line.close()
    points = re.search(r'class="mean" d="M([^"]+)"', cell.contents[-1])[1].split("L")
    assert len(points) < 400


def test_ipython_in_a_terminal_has_no_cell(cell, monkeypatch, capsys):
    shell = SimpleNamespace()
    monkeypatch.setitem(sys.modules, "IPython", SimpleNamespace(get_ipython=lambda: shell))
    line = LiveLine(age_s=lambda: 1.0)
    line.show(report(1_000, 1.0))
    line.close()
    assert not cell.contents
    assert "1,000/4,000 steps" in capsys.readouterr().out


def test_rows_are_aligned_and_escaped():
    text = aligned_rows({"a": "<b>", "empty": "", "longer": 1})
    assert text.partition(">")[2] == "a       &lt;b&gt;\nlonger  1</pre>"


def test_results_of_trainings_show_the_best_first():
    trials = {number: Trial(number, {"gamma": 0.9 + number / 100}, {}) for number in (1, 2)}
    runs = [
        Run(number, 1, 100, "tune", "done", score, "", 1.0, [], "run")
        for number, score in [(1, 3.0), (2, 20.0), (1, None)]
    ]
    page = ExperimentTable(Path("file"), trials, runs)._repr_html_()
    lines = page.partition(">")[2].removesuffix("</pre>").split("\n")
    assert lines[0].split() == ["trial", "seed", "score", "state", "gamma"]
    assert [line.split() for line in lines[1:]] == [
        ["2", "1", "20.0", "done", "0.92"],
        ["1", "1", "3.0", "done", "0.91"],
        ["1", "1", "done", "0.91"],
    ]
    assert len({len(line) for line in lines}) == 1
    many = ExperimentTable(Path("file"), trials, runs * 10)._repr_html_()
    assert "… and 10 more runs" in many
