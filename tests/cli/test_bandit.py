import json
import os
import pty
import re
import subprocess
import sys

import pytest

from hotloop.cli import main
from hotloop.errors import install_command

SPEED = r"[\d,]+ runs × [\d,]+ steps = [\d,]+ run·steps in [\d.]+ s: [\d,.]+ ns a run and step"
SMALL = ["--runs", "300", "--steps", "50"]


def bandit(capsys, *args):
    """Return the exit code, output and errors, without the progress that a busy machine prints."""
    try:
        code = main(["bandit", *map(str, args)])
    except SystemExit as stop:  # option parsers exit
        code = stop.code
    captured = capsys.readouterr()
    err = re.sub(r"^\d+% of .* ns a step.*\n", "", captured.err, flags=re.MULTILINE)
    return code, captured.out, err


def test_run(capsys):
    code, out, err = bandit(
        capsys,
        *("run", "epsilon-greedy", "--epsilon", 0.1, "--runs", 2000, "--steps", 1000, "--arms", 10),
    )
    assert (code, err) == (0, "")
    first, _, heading, *rows = out.splitlines()
    assert first == "ε-greedy, ε = 0.1 · gaussian, 10 arms · 2,000 runs of 1,000 steps · seed 0"
    assert heading.split("  ")[-1].strip() == "the last 100"
    # Fig. 2.2: 1.368 and 79.8 % over the last 100 steps, standard errors 0.013 and 0.7.
    mean, late = re.findall(r"(\d\.\d+) ± 0\.01\d", rows[0])
    assert float(mean) < float(late) == pytest.approx(1.368, abs=0.055)
    assert re.fullmatch(r"optimal action +\d\d\.\d+ ± 0\.\d+ % +\d\d\.\d+ ± 0\.\d+ %", rows[1])
    assert re.fullmatch(r"regret at the end +\d+\.\d ± \d\.\d", rows[2])
    assert re.fullmatch(SPEED, rows[-1])
    assert "2,000 runs × 1,000 steps = 2,000,000 run·steps" in rows[-1]


def test_run_as_json_and_saved(capsys, tmp_path):
    from hotloop.bandits import BanditResult

    saved, picture = tmp_path / "result.npz", tmp_path / "curves.svg"
    code, out, err = bandit(
        capsys,
        *("run", "ucb", "--c", "1/2", "--step-size", "none", "--seed", 3, *SMALL),
        *("--environment", "random-walk", "--arms", 4, "--env", "walk=0.1", "start=2"),
        *("--save", saved, "--output", picture, "--json"),
    )
    assert (code, err) == (0, "")
    content = json.loads(out)
    assert content["agent"] == {"name": "ucb", "c": 0.5, "step_size": None}
    assert content["environment"]["walk"] == 0.1
    assert content["environment"]["num_arms"] == 4
    assert (content["seed"], content["num_runs"], content["num_steps"]) == (3, 300, 50)
    assert content["save"] == str(saved)
    assert content["pictures"] == {"curves": str(picture)}
    assert picture.read_bytes().startswith(b"<?xml")
    result = BanditResult.load(saved)
    assert result.mean_reward.mean == content["mean_reward"]["mean"]
    assert result.agent.describe() == content["agent"]


def test_options_written_as_fields(capsys):
    """Options may have dashes or underscores, `=` or a space, and negative values."""
    results = []
    for option in (
        ["--initial-value", "-0.015"],
        ["--initial_value=-0.015"],
        ["--initial-value", "-1.5e-2"],
    ):
        code, out, _ = bandit(capsys, "run", "optimistic", *option, *SMALL, "--json")
        assert code == 0
        results.append(json.loads(out))
    assert results[0]["agent"]["initial_value"] == -0.015
    assert results[0]["mean_reward"] == results[1]["mean_reward"] == results[2]["mean_reward"]


def test_number_of_arms_with_and_without_means(capsys):
    args = ("run", "ucb", *SMALL, "--json", "--arms", 3, "--env")
    for environment in ("means=none", "means=1,2,3"):
        code, out, _ = bandit(capsys, *args, environment)
        assert (code, json.loads(out)["environment"]["num_arms"]) == (0, 3)


def test_pictures_of_several_kinds(capsys, tmp_path):
    code, out, _ = bandit(
        capsys,
        *("compare", "ucb c=2", "epsilon-greedy epsilon=0.1", *SMALL),
        *("--picture", "curves,regret,boxes,shares", "--output", tmp_path / "new" / "all.png"),
    )
    assert code == 0
    names = {path.name for path in (tmp_path / "new").iterdir()}
    assert names == {"all_curves.png", "all_regret.png", "all_boxes.png", "all_shares.png"}
    for name in names:
        assert f": {tmp_path / 'new' / name}\n" in out
        assert (tmp_path / "new" / name).stat().st_size > 5000


def test_compare(capsys):
    code, out, err = bandit(
        capsys, "compare", "epsilon-greedy epsilon=0", "epsilon-greedy", "ucb", "--runs", 2000
    )
    assert (code, err) == (0, "")
    first, _, heading, greedy, random, ucb, *notes = out.splitlines()
    assert first == "gaussian, 10 arms · 2,000 runs of 1,000 steps · seed 0"
    headings = "agent reward to the first optimal final regret to the first"
    assert " ".join(heading.split()) == headings
    assert greedy.count("±") == 3  # the first agent has no difference to itself
    assert random.count("±") == ucb.count("±") == 5
    # Fig. 2.2: 1.368 − 1.033.
    difference, error = re.search(r"\+(0\.\d+) ± (0\.\d+)", random).groups()
    assert float(difference) == pytest.approx(0.335, abs=0.055)
    assert float(error) < 0.015
    assert re.search(r" -3\d\d ± 1\d$", ucb)
    assert re.fullmatch(f"3 agents × {SPEED}", notes[-1])


def test_compare_as_json(capsys):
    args = ("compare", "beta-thompson", "kl-ucb c=3", "--environment", "bernoulli", *SMALL)
    code, out, _ = bandit(capsys, *args, "--env", "means=0.9,0.8,0.1", "--json")
    assert code == 0
    content = json.loads(out)
    first, second = content["results"]
    assert first["environment"] == {"name": "bernoulli", "means": [0.9, 0.8, 0.1]}
    assert second["agent"] == {"name": "kl-ucb", "c": 3}
    difference = second["difference_to_first"]["final_regret"]["mean"]
    assert difference == pytest.approx(
        second["final_regret"]["mean"] - first["final_regret"]["mean"]
    )
    assert content["pictures"] == {}


def test_figure(capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    code, out, err = bandit(capsys, "figure", "2.2")
    assert (code, err) == (0, "")
    lines = out.splitlines()
    assert lines[0].startswith("Figure 2.2: ε-greedy methods")
    assert lines[1] == "2,000 runs of 1,000 steps, seed 0"
    assert lines[3].split() == ["agent", "reward", "reference", "optimal", "reference", "regret"]
    assert re.fullmatch(
        r"ε-greedy, ε = 0\.01 +1\.\d+ ± 0\.01\d +1\.312 +\d\d\.\d+ ± \d\.\d+ % +59\.4 % +0\.\d+",
        lines[5],
    )
    assert "over the last 100 steps; ± standard error" in out
    assert "Reference: computed independently in float64 over 200,000 runs." in lines
    assert lines[-2] == "picture: figure_2.2.png"
    assert re.fullmatch(f"3 agents × {SPEED}", lines[-1])
    assert (tmp_path / "figure_2.2.png").read_bytes().startswith(b"\x89PNG")


def test_figure_of_another_size(capsys, tmp_path):
    output = tmp_path / "study.pdf"
    code, out, _ = bandit(
        capsys, "figure", "2.11", "--runs", 40, "--steps", 300, "--seed", 2, "--output", output
    )
    assert code == 0
    assert out.startswith("Exercise 2.11: ")
    assert "reference" not in out.lower()  # the reference has 200,000 steps
    assert "over the last 150 steps" in out
    assert "UCB: c = 256" in out
    assert output.read_bytes().startswith(b"%PDF")


def test_figure_as_json(capsys, tmp_path):
    output = tmp_path / "figure.svg"
    code, out, _ = bandit(capsys, "figure", "2.1", "--json", "--output", output)
    assert code == 0
    content = json.loads(out)
    assert content["output"] == str(output)
    assert len(content["rows"]) == 10
    assert content["results"] == []
    assert output.exists()


def test_figure_2_1_prints_true_values(capsys, tmp_path):
    code, out, _ = bandit(capsys, "figure", "2.1", "--output", tmp_path / "figure.png")
    assert code == 0
    assert out.splitlines()[3].split() == ["arm", "true", "value"]
    assert len(re.findall(r"^arm \d +-?\d\.\d{3}$", out, re.MULTILINE)) == 10


def test_figure_2_1_names_options_without_effect(capsys, tmp_path):
    args = ("figure", "2.1", "--output", tmp_path / "figure.png")
    code, _, err = bandit(capsys, *args, "--runs", 7, "--threads", 3)
    assert code == 0
    assert "these options have no effect: --runs, --threads" in err
    assert len(err.splitlines()) == 1
    assert bandit(capsys, *args, "--seed", 1)[2] == ""


def test_the_grid_gets_its_arguments(capsys, monkeypatch):
    calls = []
    monkeypatch.setattr("hotloop.cli.bandit.grid.run", lambda args: calls.append(args) or 7)
    assert bandit(capsys, "grid", "ucb", "c=1,2", "--runs", 8)[0] == 7
    assert calls == [["ucb", "c=1,2", "--runs", "8"]]


def test_help_lists_agents_and_environments_with_their_fields(capsys):
    from dataclasses import fields

    from hotloop.bandits import AGENTS, ENVIRONMENTS

    code, everything, _ = bandit(capsys, "--help")
    assert code == 0
    for command in ("figure", "run", "compare", "grid"):
        assert f"\n  {command} " in everything
    for name, cls in {**AGENTS, **ENVIRONMENTS}.items():
        assert f"\n  {name}" in everything
        for field in fields(cls):
            assert f"{field.name}=" in everything
    for name, cls in AGENTS.items():
        _, out, _ = bandit(capsys, "run", name, "--help")
        text = " ".join(out.split())
        for field in fields(cls):
            assert re.search(rf"--{field.name.replace('_', '-')} VALUE .{{3,}}? \(default: ", text)
        assert "--runs N independent runs (default: 2000)" in text
        assert "bernoulli means=0.9,0.8" in text


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["figgure"], "got 'figgure'; did you mean 'figure'?"),
        (["figure", "2.7"], "expected a figure (2.1, 2.2, 2.3, 2.4, 2.5, 2.6, 2.11), got '2.7'"),
        (["figure", "2.2", "--rums", "3"], "has no option '--rums'; did you mean '--runs'"),
        (["figure", "2.2", "--output", "x.jpg"], "`--output` must end in .png, .svg or .pdf, got"),
        (["figure", "2.2", "--runs", "0"], "`--runs` must be a positive integer, got 0"),
        (["figure", "2.2", "--threads", "0"], "`--threads` must be a positive integer, got 0"),
        (["run"], "name an agent first"),
        (["run", "--runs", "3"], "name an agent first"),
        (["run", "epsilon-gredy"], "there is no agent 'epsilon-gredy'; did you mean"),
        (["run", "epsilon-greedy", "--epsilom", "0.2"], "'--epsilom'; did you mean '--epsilon'"),
        (["run", "epsilon-greedy", "--epsilon", "1.5"], "`epsilon` of epsilon-greedy must be"),
        (["run", "epsilon-greedy", "--epsilon", "much"], "got 'much'"),
        (["run", "ucb", "--epsilon", "0.1"], "`hotloop bandit run ucb` has no option '--epsilon'"),
        (["run", "ucb", "stray"], "can't take 'stray' here"),
        (["run", "ucb", "--seed", "-1"], "`--seed` must be an integer of at least 0, got -1"),
        (["run", "ucb", "--environment", "bernouli"], "did you mean 'bernoulli'?"),
        (
            ["run", "ucb", "--environment", "bernoulli", "--arms", "3"],
            "environment bernoulli has no field 'num_arms'; it has means",
        ),
        (
            ["run", "ucb", "--env", "means=1,2", "--arms", "3"],
            "`num_arms` of gaussian must be the number of `means`, 2, got 3",
        ),
        (["run", "ucb", "--env", "means=1,2", "--arms", "10"], "sets 10 arms, `--env` 2"),
        (["run", "ucb", "--env", "spred=2"], "has no field 'spred'; did you mean 'spread'"),
        (["run", "ucb", "--env", "spread"], "expected --env FIELD=VALUE, got '--env spread'"),
        (["run", "ucb", "--save", "x.json"], "`--save` must end in .npz, got 'x.json'"),
        (["run", "ucb", "--picture", "curve"], "got 'curve'; did you mean 'curves'?"),
        (["compare", "ucb c"], "expected FIELD=VALUE, got 'c'"),
        (["compare", "ucb", "ubc"], "there is no agent 'ubc'"),
        (["compare", "ucb d=1"], "agent ucb has no field 'd'"),
        (["compare", "ucb c=2 c=3"], "`c` is given twice: give it once"),
        (["run", "ucb", "--c", "2", "--c", "3"], "`--c` is given twice: give it once"),
        (
            ["run", "ucb", "--step-size", "1", "--step_size=1"],
            "`--step_size` is given twice: give it once",
        ),
        (["run", "ucb", "--env", "spread=1", "--env", "spread=2"], "`--env spread` is given twice"),
        (["run", "ucb", "--env", "num-arms=2", "num_arms=3"], "`--env num_arms` is given twice"),
        (["compare", "ucb", "--env", "every=5", "ucb c=1"], "expected --env FIELD=VALUE, got"),
    ],
)
def test_mistakes(capsys, tmp_path, monkeypatch, args, message):
    monkeypatch.chdir(tmp_path)
    code, out, err = bandit(capsys, *args)
    assert (code, out) == (2, "")
    assert message in err
    assert err.startswith("hotloop: ")
    assert len(err.splitlines()) == 1
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (
            ["compare", "ucb", "c=2"],
            "got the setting 'c=2': write an agent and its settings in quotes, such as \"ucb c=2\"",
        ),
        (["run", "ucb", "c=2"], "can't take 'c=2' here: write it as an option, `--c 2`"),
        (
            ["run", "ucb", "--epsilon", "1"],
            "'--epsilon'; settings of this agent are --c, --step-size",
        ),
        (["run", "ucb", "--stepsize", "1"], "did you mean '--step-size'"),
        (["grid", "ucb", "--c", "1"], "write a setting of the agent without dashes, `c=RANGE`"),
    ],
)
def test_misplaced_settings_of_an_agent_get_the_right_place(capsys, args, message):
    code, _, err = bandit(capsys, *args)
    assert code == 2
    assert message in err


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["compare"], "the following arguments are required: AGENT"),
        (["figure"], "the following arguments are required: NUMBER"),
        (["run", "ucb", "--runs", "many"], "`--runs` must be a positive integer, got many"),
        (["run", "ucb", "--c"], "argument --c: expected one argument"),
    ],
)
def test_malformed_options_are_rejected(capsys, args, message):
    code, _, err = bandit(capsys, *args)
    assert code == 2
    assert message in err


def test_help_lists_the_figures(capsys):
    _, out, _ = bandit(capsys, "figure", "--help")
    assert "  2.6   a parameter study on the 10-armed testbed (2,000 runs of 1,000 steps)\n" in out
    assert "(2,000 runs of 200,000 steps)" in " ".join(out.split())


def test_no_command(capsys):
    code, out, _ = bandit(capsys)
    assert code == 2
    assert "commands:" in out


def test_results_are_printed_if_the_picture_fails(capsys, tmp_path):
    (tmp_path / "file").write_text("")
    output = tmp_path / "file" / "x.png"
    code, out, err = bandit(capsys, "run", "ucb", *SMALL, "--output", output)
    assert code == 1
    assert "reward per step" in out
    assert "can't be written" in err


@pytest.mark.parametrize(
    ("module", "args"),
    [
        ("numba", ["run", "ucb"]),
        ("numba", ["compare", "ucb"]),
        ("numba", ["figure", "2.2"]),
        ("matplotlib", ["run", "ucb", "--picture", "curves"]),
        ("matplotlib", ["figure", "2.2"]),
    ],
)
def test_a_missing_extra_is_named(capsys, monkeypatch, tmp_path, module, args):
    import importlib.util

    monkeypatch.chdir(tmp_path)
    real = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name: None if name == module else real(name)
    )
    code, _, err = bandit(capsys, *args)
    assert code == 1
    assert f"needs {module}: {install_command('bandit')}" in err


PROGRESS = """
import time
from hotloop.cli.bandit.progress import ProgressLine
with ProgressLine(after_s={after_s}) as progress:
    progress._interval_s = 0.0
    for behind in (0, 250_000, 1_000_000):
        progress.show_steps(behind, 1_000_000)
print("the result")
"""


@pytest.mark.parametrize(("after_s", "is_shown"), [(0.0, True), (60.0, False)])
def test_progress_on_a_terminal(after_s, is_shown):
    """Progress appears on stderr after a delay and is erased at the end."""
    reader, writer = pty.openpty()
    code = PROGRESS.format(after_s=after_s)
    process = subprocess.run(
        [sys.executable, "-c", code],
        stdout=subprocess.PIPE,
        stderr=writer,
        env={**os.environ, "TERM": "xterm", "COLUMNS": "120"},
        check=True,
    )
    os.close(writer)
    output = b""
    try:
        while piece := os.read(reader, 65536):
            output += piece
    except OSError:  # Linux raises this for a closed terminal
        pass
    os.close(reader)
    assert process.stdout == b"the result\n"
    assert ("25% of 1 M run·steps · " in output.decode()) == is_shown
