"""Several policies learn at once, each with its own spaces and run directory."""

from __future__ import annotations

import json
import re
import shutil
from typing import ClassVar

import numpy as np
import pytest
from safetensors.numpy import load_file

import hotloop
from hotloop.algorithms import appo, dqn, ppo
from hotloop.cli import main
from hotloop.envs import EnvSpec, make_vec
from hotloop.envs.game_factory import make_views
from hotloop.errors import (
    CheckpointError,
    ConfigError,
    EnvironmentFailure,
    RunDirectoryError,
    SpaceError,
    UnknownNameError,
)
from hotloop.training import train_policies
from hotloop.training.assignment import assign
from tests.toy_games import Hiding, Matching, Teams

TEAMS = "tests.toy_games:Teams"


def config(tmp_path, **options):
    defaults = {
        "env_id": TEAMS,
        "policies": "red,blue",
        "num_envs": 6,
        "num_steps": 16,
        "update_epochs": 2,
        "total_timesteps": 400,
        "hidden_sizes": (8,),
        "execution": "eager",
        "run_dir": str(tmp_path / "run"),
        "checkpoint_interval": 96,
    }
    return ppo.Config(**{**defaults, **options})


def by_name(agent):
    return "left" if agent == "agent_1" else "others"


class Follow:
    """The other view's actions, a function of the step and the row."""

    def __init__(self, view, rows):
        self.view, self.rows, self.t = view, rows, 0

    def reset(self):
        self.view.reset()

    def act(self):
        self.step = self.view.step((self.t + self.rows) % 3)
        self.t += 1


def test_views_have_the_rows_of_one_view_of_all_agents():
    spec = EnvSpec(Hiding)
    whole = make_vec(spec, 8)
    views = make_views(spec, 8, lambda agents: {"a": agents[1:3], "b": [agents[0], agents[3]]})
    a, b = views.values()
    rows_a, rows_b = np.array([1, 2, 5, 6]), np.array([0, 3, 4, 7])
    a.others = others = Follow(b, rows_b)
    obs = whole.reset()
    np.testing.assert_array_equal(a.reset(), obs[rows_a])
    for t in range(50):
        expected = whole.step((t + np.arange(8)) % 3)
        step = a.step((t + rows_a) % 3)
        for name in ("next_obs", "reward", "terminated", "truncated", "valid", "obs"):
            values = getattr(expected, name)
            np.testing.assert_array_equal(getattr(step, name), values[rows_a], name)
            np.testing.assert_array_equal(getattr(others.step, name), values[rows_b], name)
    episodes = {(e.episode, e.undiscounted_return, e.length) for e in whole.pop_episodes()}
    parts = [*a.pop_episodes(), *b.pop_episodes()]
    assert {(e.episode, e.undiscounted_return, e.length) for e in parts} == episodes


def test_agents_have_the_policy_whose_name_theirs_begins_with():
    agents = ["red_0", "redder_0", "blue"]
    groups = assign("red,redder,blue", agents)
    assert groups == {"red": ["red_0"], "redder": ["redder_0"], "blue": ["blue"]}
    named = assign("tests.training.test_several_policies:by_name", ["agent_0", "agent_1"])
    assert named == {"others": ["agent_0"], "left": ["agent_1"]}


@pytest.mark.parametrize(
    ("policies", "message"),
    [
        ("red", "got 'red' and none for 'blue_0': the agents are red_0, blue_0"),
        ("red,blue,green", "got 'green' without any"),
        ("red,", "got 'red,' and none for 'blue_0'"),
        (lambda agent: "a/b", "letters, digits"),
        (lambda agent: agent.nothing, "raised AttributeError"),
    ],
)
def test_a_mapping_that_does_not_fit_is_an_error(policies, message):
    with pytest.raises(ConfigError, match=re.escape(message)):
        assign(policies, ["red_0", "blue_0"])


def test_a_policys_agents_need_the_same_spaces(tmp_path):
    with pytest.raises(SpaceError, match="to share one policy; 'blue_0' has"):
        train_policies(ppo.algorithm, config(tmp_path, policies=lambda agent: "all"))
    assert not (tmp_path / "run").exists()


def test_each_policy_has_a_run_of_its_own_and_games_are_stepped_once(tmp_path, capsys):
    Teams.num_steps = 0
    results = train_policies(ppo.algorithm, config(tmp_path))
    num_iterations = 5  # of 6 · 16 steps
    assert Teams.num_steps == num_iterations * 2 * 16
    assert list(results) == ["red", "blue"]
    assert [result.timesteps for result in results.values()] == [320, 160]
    assert results["red"].accounting["dropped"]["reset"] > 0
    for name, size in (("red", 3), ("blue", 2)):
        run = tmp_path / "run" / "policies" / name
        assert results[name].run_dir == run
        assert hotloop.load(run).act(np.zeros(size, np.float32)) in range(size)
        lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
        assert [line["iteration"] for line in lines] == [1, 2, 3, 4, 5]
        # Two games end after steps 6 and 12, and after steps 18, 24 and 30.
        counts = [len(line["episode_returns"]) for line in lines[:2]]
        assert counts == ([8, 12] if name == "red" else [4, 6])
    played = hotloop.evaluate(tmp_path / "run" / "policies" / "red", episodes=4)
    assert sorted(played.lengths) == [2, 2, 6, 6]
    with pytest.raises(ConfigError, match="has 2 policies: choose one of them"):
        hotloop.load(tmp_path / "run")
    for command in (["export", "--format", "numpy"], ["push", "a/b"]):
        assert main([command[0], str(tmp_path / "run"), *command[1:]]) == 2
        assert "has 2 policies: choose one of them" in capsys.readouterr().err
    with pytest.raises(ConfigError, match="has 2 policies: choose one of them"):
        ppo.train("CartPole-v1", init_from=str(tmp_path / "run"), run_dir=str(tmp_path / "new"))


def test_reports_name_each_policy_and_its_share_of_the_time(tmp_path, capsys):
    options = ["--env-id", TEAMS, "--policies", "red,blue", "--num-envs", "6"]
    options += ["--num-steps", "16", "--total-timesteps", "400", "--execution", "eager"]
    assert main(["train", "ppo", *options, "--run-dir", str(tmp_path / "run")]) == 0
    assert re.search(r"policy +share +acting .*\nred .*%.*\nblue .*%", capsys.readouterr().out)
    page = tmp_path / "page.html"
    assert main(["report", str(tmp_path / "run"), "--html", str(page)]) == 0
    output = capsys.readouterr().out
    assert "policy red: ppo on tests.toy_games:Teams" in output
    assert re.search(r"\nred .*%.*\nblue .*%.*\nthe games, for all policies +[\d.]+%", output)
    for name in ("red-returns", "blue-returns", "policies"):
        assert f'<section id="{name}"' in page.read_text(encoding="utf-8")
    assert main(["report", str(tmp_path / "run"), "--json"]) == 0
    content = json.loads(capsys.readouterr().out)
    assert [content["run"][name]["timesteps"] for name in ("red", "blue")] == [320, 160]
    shares = content["profile"]["policies"]
    assert shares["red"]["learning_ns"] > 0
    assert shares["blue"]["acting_ns"] > 0
    assert content["profile"]["steps"] == 480  # of agents, each once: six of them act 80 times


def iterations(run):
    text = (run / "metrics.jsonl").read_text()
    return [json.loads(line)["iteration"] for line in text.splitlines()]


def test_an_interrupted_training_resumes_all_policies(tmp_path):
    options = config(tmp_path)
    runs = [tmp_path / "run" / "policies" / name for name in ("red", "blue")]
    train_policies(ppo.algorithm, options, on_report=lambda report: report.timesteps >= 192)
    assert [iterations(run) for run in runs] == [[1, 2]] * 2
    # One policy has a later checkpoint, as if the process had been killed in between.
    (runs[1] / "checkpoints" / "last").unlink()
    (runs[1] / "checkpoints" / "step-000000000064").rename(runs[1] / "checkpoints" / "unused")
    results = train_policies(ppo.algorithm, options, resume_from=tmp_path / "run")
    assert [iterations(run) for run in runs] == [[1, 2, 3, 4, 5]] * 2
    assert [result.timesteps for result in results.values()] == [320, 160]
    with pytest.raises(ConfigError, match="is finished"):
        train_policies(ppo.algorithm, options, resume_from=tmp_path / "run")
    with pytest.raises(RunDirectoryError, match=r"with the directory of all, got .*red: resume "):
        train_policies(ppo.algorithm, options, resume_from=runs[0])


def last_arrays(run):
    """Return all arrays of a run's last checkpoint as bytes, by name."""
    files = [run / "checkpoints" / "last" / f"{name}.safetensors" for name in ("policy", "learner")]
    return {name: x.tobytes() for file in files for name, x in load_file(file).items()}


@pytest.mark.parametrize("memory", [None, "gru:4"])
def test_a_resumed_training_ends_with_the_weights_of_an_undisturbed_one(tmp_path, memory):
    options = {"memory": memory, "num_steps": 15, "num_minibatches": 1}  # cuts games in the middle
    whole = config(tmp_path, run_dir=str(tmp_path / "whole"), **options)
    train_policies(ppo.algorithm, whole)
    cut = config(tmp_path, **options)
    train_policies(ppo.algorithm, cut, on_report=lambda report: report.timesteps >= 180)
    reports = []
    train_policies(ppo.algorithm, cut, on_report=reports.append, resume_from=tmp_path / "run")
    assert reports[0].resumed == "resumed at 120 steps"  # of the first policy; no game began again
    for name in ("red", "blue"):
        arrays = last_arrays(tmp_path / "run" / "policies" / name)
        assert len(arrays) > 10
        assert arrays == last_arrays(tmp_path / "whole" / "policies" / name)


def test_a_training_killed_between_the_first_checkpoints_begins_again(tmp_path):
    options = config(tmp_path)
    runs = [tmp_path / "run" / "policies" / name for name in ("red", "blue")]
    train_policies(ppo.algorithm, options, on_report=lambda report: report.timesteps >= 96)
    shutil.rmtree(runs[1])
    train_policies(ppo.algorithm, options, resume_from=tmp_path / "run")
    assert [iterations(run) for run in runs] == [[1, 2, 3, 4, 5]] * 2


def test_other_names_beside_checkpoints_do_not_prevent_a_resume(tmp_path):
    train_policies(ppo.algorithm, config(tmp_path, total_timesteps=96))
    run = tmp_path / "run" / "policies" / "red"
    (run / "checkpoints" / "step-000000000064 (copy)").mkdir()
    (run / "checkpoints" / "step-old").mkdir()
    more = config(tmp_path, total_timesteps=192)
    train_policies(ppo.algorithm, more, resume_from=tmp_path / "run")
    assert iterations(run) == [1, 2]


def test_a_changed_configuration_of_one_policy_is_not_used(tmp_path, capsys):
    train_policies(ppo.algorithm, config(tmp_path, total_timesteps=96))
    path = tmp_path / "run" / "policies" / "red" / "config.json"
    content = json.loads(path.read_text())
    content["command"] = ["another"]
    path.write_text(json.dumps(content))
    more = ["resume", str(tmp_path / "run"), "--total-timesteps", "192"]
    assert main(more) == 1
    assert f"{path} was changed after your training had signed it" in capsys.readouterr().err
    assert main([*more, "--trust"]) == 0
    assert iterations(path.parent) == [1, 2]


def test_policies_have_options_of_their_own(tmp_path):
    own = {"blue": {"learning_rate": "linear:0.01,0", "hidden_sizes": [4, 4]}}
    options = config(tmp_path, policy_options=own, total_timesteps=192)
    train_policies(ppo.algorithm, options, on_report=lambda report: report.timesteps >= 96)
    assert main(["resume", str(tmp_path / "run")]) == 0
    runs = [tmp_path / "run" / "policies" / name for name in ("red", "blue")]
    stored = [json.loads((run / "config.json").read_text())["config"] for run in runs]
    assert [x["learning_rate"] for x in stored] == ["linear:0.001,0", "linear:0.01,0"]
    assert [x["hidden_sizes"] for x in stored] == [[8], [4, 4]]
    assert [x["policy_options"] for x in stored] == [{}, {}]
    assert [iterations(run) for run in runs] == [[1, 2]] * 2


@pytest.mark.parametrize(
    ("own", "message"),
    [
        ({"green": {}}, "must name policies, red, blue, got 'green'"),
        ({"red": {"num_steps": 8}}, "of 'red' must be options that policies need not share, got"),
        ({"red": {"seeed": 8}}, "got `seeed`: choose from hidden_sizes,"),
        ({"red": 8}, "need not share, got 8"),
        ({"red": {"learning_rate": -1.0}}, "`learning_rate` must be positive"),
    ],
)
def test_wrong_options_of_a_policy_are_errors_before_anything_starts(tmp_path, own, message):
    with pytest.raises(ConfigError, match=re.escape(message)):
        train_policies(ppo.algorithm, config(tmp_path, policy_options=own))
    assert not (tmp_path / "run").exists()


def test_options_of_single_policies_need_several():
    with pytest.raises(ConfigError, match="`policy_options` need several policies"):
        ppo.Config(policy_options={"red": {}})


def test_a_failing_game_leaves_all_policies_at_the_same_iteration(tmp_path, monkeypatch):
    step = Teams.step
    monkeypatch.setattr(Teams, "num_steps", 0)

    def fail(self, actions):
        if Teams.num_steps == 80:  # in the third iteration, of 32 steps each
            raise ValueError("the game broke")
        return step(self, actions)

    monkeypatch.setattr(Teams, "step", fail)
    with pytest.raises(EnvironmentFailure, match="the game broke"):
        train_policies(ppo.algorithm, config(tmp_path))
    runs = [tmp_path / "run" / "policies" / name for name in ("red", "blue")]
    assert [iterations(run) for run in runs] == [[1, 2]] * 2
    steps = [{path.name for path in (run / "checkpoints").glob("step-*")} for run in runs]
    assert [f"step-{128:012}" in steps[0], f"step-{64:012}" in steps[1]] == [True, True]


def test_resume_of_the_command_line(tmp_path, capsys):
    train_policies(ppo.algorithm, config(tmp_path, total_timesteps=96))
    run = tmp_path / "run"
    assert main(["resume", str(run)]) == 0
    assert "run is finished, with 96 steps; learning curve: " in capsys.readouterr().out
    assert main(["resume", str(run), "--checkpoint", "best"]) == 2
    assert "leave --checkpoint out" in capsys.readouterr().err
    more = ["resume", str(run), "--total-timesteps", "192"]
    assert main([*more, "--run-dir", str(tmp_path / "new")]) == 2
    assert "only be resumed in their own directory" in capsys.readouterr().err
    assert iterations(run / "policies" / "red") == [1]
    assert main(more) == 0
    assert iterations(run / "policies" / "red") == [1, 2]
    assert main(["resume", str(run)]) == 0  # the new total is stored
    assert "run is finished, with 192 steps" in capsys.readouterr().out
    # One of the policies can't go on alone.
    assert main(["resume", str(run / "policies" / "red")]) == 1
    assert f"the directory of all, got {run}/policies/red: resume {run}" in capsys.readouterr().err
    with pytest.raises(ConfigError, match="run is finished: it has 192 of 192 steps"):
        train_policies(ppo.algorithm, config(tmp_path, total_timesteps=192), resume_from=run)


def off_policy_config(tmp_path, **options):
    defaults = {
        "env_id": TEAMS,
        "policies": "red,blue",
        "num_envs": 6,
        "total_timesteps": 480,
        "train_frequency": 4,
        "learning_starts": 24,
        "batch_size": 8,
        "report_interval": 96,
        "buffer_size": 1000,
        "hidden_sizes": (8,),
        "execution": "eager",
        "seed": 1,
        "checkpoint_interval": 96,
        "run_dir": str(tmp_path / "run"),
    }
    return dqn.Config(**{**defaults, **options})


def test_off_policy_algorithms_learn_in_rounds_of_the_same_steps(tmp_path):
    Teams.num_steps = 0
    own = {"blue": {"learning_starts": 60, "batch_size": 16}}  # learns later
    options = off_policy_config(tmp_path, policy_options=own)
    results = train_policies(dqn.algorithm, options)
    assert Teams.num_steps == 2 * 80
    assert [result.timesteps for result in results.values()] == [320, 160]
    runs = [result.run_dir for result in results.values()]
    assert [iterations(run) for run in runs] == [[1, 2, 3, 4, 5]] * 2
    lines = [json.loads((run / "metrics.jsonl").read_text().splitlines()[-1]) for run in runs]
    # A tenth of the transitions since learning began.
    assert [line["num_updates"] for line in lines] == [289 // 10, 97 // 10]
    assert lines[0]["replay_size"] < 320
    assert hotloop.load(runs[1]).act(np.zeros(2, np.float32)) in range(2)


@pytest.mark.parametrize("starts", [24, 300])
def test_resumed_off_policy_trainings_end_with_the_same_weights(tmp_path, starts):
    """Policies may learn earlier than the options of all say, and have fewer steps than these."""
    options = {"save_replay": True, "learning_starts": starts}
    options["policy_options"] = {name: {"learning_starts": 24} for name in ("red", "blue")}
    whole = off_policy_config(tmp_path, **options, run_dir=str(tmp_path / "whole"))
    train_policies(dqn.algorithm, whole)
    cut = off_policy_config(tmp_path, **options)
    train_policies(dqn.algorithm, cut, on_report=lambda report: report.timesteps >= 192)
    assert main(["resume", str(tmp_path / "run")]) == 0
    assert ends(tmp_path / "run") == ends(tmp_path / "whole")


@pytest.mark.parametrize("backend", ["inline", "processes"])
def test_policies_may_have_different_algorithms(tmp_path, backend):
    own = {"blue": {"learning_starts": 24, "batch_size": 8, "hidden_sizes": [4]}}
    options = {"policies": "red, blue:dqn", "policy_options": own, "workers": 2, "num_envs": 12}
    options |= {"total_timesteps": 576, "num_steps": 16, "backend": backend}
    train_policies(
        ppo.algorithm, config(tmp_path, **options), on_report=lambda report: report.timesteps >= 192
    )
    assert main(["resume", str(tmp_path / "run")]) == 0
    runs = [tmp_path / "run" / "policies" / name for name in ("red", "blue")]
    assert [iterations(run) for run in runs] == [[1, 2, 3]] * 2
    stored = [json.loads((run / "config.json").read_text()) for run in runs]
    assert [content["algorithm"] for content in stored] == ["ppo", "dqn"]
    assert stored[1]["config"]["train_frequency"] == 16
    assert [hotloop.evaluate(run, episodes=2).lengths for run in runs] != []


def test_continuous_actions_and_policies_that_lag(tmp_path):
    options = {"env_id": "tests.toy_games:Matching", "policies": "left,right:sac", "num_envs": 4}
    options |= {"env_kwargs": {"is_box": True}, "num_steps": 8, "workers": 2, "schedule": "lag:1"}
    options |= {"policy_options": {"right": {"learning_starts": 16, "batch_size": 8}}}
    options |= {"total_timesteps": 128, "hidden_sizes": (8,), "execution": "eager"}
    results = train_policies(
        appo.algorithm, appo.Config(**options, run_dir=str(tmp_path / "run"), seed=1)
    )
    assert [result.timesteps for result in results.values()] == [64, 64]
    assert [iterations(result.run_dir) for result in results.values()] == [[1, 2, 3, 4]] * 2
    lines = (results["left"].run_dir / "metrics.jsonl").read_text().splitlines()
    assert [json.loads(line)["age_max"] for line in lines] == [0, 1, 1, 1]


@pytest.mark.parametrize(
    ("algorithm", "policies", "error", "message"),
    [
        (dqn, "red,blue:td3_bc", ConfigError, "learn from their games, got td3_bc"),
        (dqn, "red,blue:ppo", ConfigError, "take the steps of an on-policy one, got dqn with ppo"),
        (ppo, "red,blue:dqm", UnknownNameError, "got 'dqm'; did you mean 'dqn'?"),
    ],
)
def test_algorithms_that_do_not_fit_are_errors(tmp_path, algorithm, policies, error, message):
    options = {"env_id": TEAMS, "policies": policies, "num_envs": 6}
    options["run_dir"] = str(tmp_path / "run")
    with pytest.raises(error, match=re.escape(message)):
        train_policies(algorithm.algorithm, algorithm.Config(**options))
    assert not (tmp_path / "run").exists()


class Alike(Matching):
    """Both agents see the same, and `choices` has the actions of both in each step."""

    choices: ClassVar[list[tuple[int, ...]]] = []

    def draw(self):
        observation = super().draw()["left"]
        return {"left": observation, "right": observation}

    def step(self, actions):
        self.choices.append(tuple(actions.values()))
        return super().step(actions)


def test_policies_with_equal_observations_act_differently(tmp_path):
    Alike.choices.clear()
    options = {"env_id": Alike, "policies": "left,right", "num_envs": 8, "num_steps": 32}
    train_policies(ppo.algorithm, config(tmp_path, **options, total_timesteps=256))
    left, right = np.array(Alike.choices).T
    assert 0.3 < np.mean(left == right) < 0.7
    runs = [tmp_path / "run", *(tmp_path / "run/policies" / name for name in ("left", "right"))]
    seeds = {json.loads((run / "config.json").read_text())["config"]["seed"] for run in runs}
    assert len(seeds) == 3


def test_evaluations_play_with_the_other_policies_of_this_moment(tmp_path):
    results = train_policies(ppo.algorithm, config(tmp_path, eval_interval=200, eval_episodes=4))
    for result in results.values():
        lines = (result.run_dir / "metrics.jsonl").read_text().splitlines()
        evaluated = [n for n, line in enumerate(lines, 1) if "evaluation" in json.loads(line)]
        assert evaluated == [3, 5]


def test_a_policy_whose_partners_are_missing_cannot_be_evaluated(tmp_path):
    train_policies(ppo.algorithm, config(tmp_path, total_timesteps=96))
    (tmp_path / "run" / "policies" / "blue").rename(tmp_path / "blue")
    with pytest.raises(CheckpointError, match="keep the runs of all policies in one directory"):
        hotloop.evaluate(tmp_path / "run" / "policies" / "red", episodes=2)


def test_train_names_the_function_for_several_policies(tmp_path):
    with pytest.raises(ConfigError, match="call `hotloop"):
        ppo.algorithm.train(config(tmp_path))


@pytest.mark.slow
def test_two_policies_learn_to_choose_each_others_numbers(tmp_path):
    results = train_policies(
        ppo.algorithm,
        config(
            tmp_path,
            env_id=Matching,
            policies="left,right",
            num_envs=8,
            num_steps=64,
            hidden_sizes=(32, 32),
            learning_rate=3e-3,
            total_timesteps=16_384,
        ),
    )
    for result in results.values():
        assert result.mean_return > 6  # of 8, and 2 for random choices


def ends(run):
    """Return the arrays and episodes of all policies' last checkpoints, by policy."""
    found = {}
    for path in sorted((run / "policies").iterdir()):
        state = json.loads((path / "checkpoints" / "last" / "state.json").read_text())
        progress = {**state["progress"], "elapsed_s": None}
        found[path.name] = last_arrays(path), progress, state["rollout"]
    return found


WORKERS = {"workers": 2, "num_envs": 12, "total_timesteps": 800, "num_steps": 15}


@pytest.mark.parametrize("memory", [None, "gru:4"])
def test_workers_learn_the_weights_of_an_inline_training(tmp_path, memory):
    options = {**WORKERS, "memory": memory, "num_minibatches": 1}
    for backend in ("inline", "processes"):
        run_dir = str(tmp_path / backend)
        options |= {"backend": backend, "run_dir": run_dir}
        results = train_policies(ppo.algorithm, config(tmp_path, **options))
        assert [result.timesteps for result in results.values()] == [600, 300]
    assert ends(tmp_path / "processes") == ends(tmp_path / "inline")
    accounting = results["red"].accounting
    assert set(accounting["dropped"]) == {"reset"}
    assert len(accounting["workers"]) == 2


@pytest.mark.parametrize("env_kwargs", [{}, {"length": 2}])
def test_workers_respect_the_masks_of_each_policy(tmp_path, env_kwargs):
    """The policies have different numbers of actions, and the game refuses those not allowed."""
    options = {**WORKERS, "env_id": "tests.toy_games:MaskedTeams", "action_masks": True}
    options |= {"num_minibatches": 1, "env_kwargs": env_kwargs}
    for backend in ("inline", "processes"):
        run_dir = str(tmp_path / backend)
        train_policies(ppo.algorithm, config(tmp_path, **options, backend=backend, run_dir=run_dir))
    assert ends(tmp_path / "processes") == ends(tmp_path / "inline")
    played = hotloop.evaluate(tmp_path / "processes" / "policies" / "blue", episodes=4)
    assert sorted(played.lengths) == [env_kwargs.get("length", 6)] * 4


def test_workers_resume_all_policies_with_the_same_weights(tmp_path):
    whole = config(tmp_path, **WORKERS, backend="inline", run_dir=str(tmp_path / "whole"))
    train_policies(ppo.algorithm, whole)
    cut = config(tmp_path, **WORKERS)
    train_policies(ppo.algorithm, cut, on_report=lambda report: report.timesteps >= 360)
    reports = []
    train_policies(ppo.algorithm, cut, on_report=reports.append, resume_from=tmp_path / "run")
    assert reports[0].resumed == "resumed at 240 steps"
    assert ends(tmp_path / "run") == ends(tmp_path / "whole")


def test_a_worker_that_is_killed_does_not_end_the_training(tmp_path):
    options = {"env_id": "tests.toy_games:FatalTeams", "env_kwargs": {"directory": str(tmp_path)}}
    with pytest.warns(RuntimeWarning, match="worker 1: its process ended with SIGKILL"):
        results = train_policies(ppo.algorithm, config(tmp_path, **WORKERS, **options))
    assert [result.timesteps for result in results.values()] == [600, 300]
    for result in results.values():
        accounting = result.accounting
        assert accounting["dropped"]["worker died"] > 0
        assert [worker["restarts"] for worker in accounting["workers"]] == [0, 1]
        shares = accounting["workers"][0]
        assert 0 < shares["step_share"] + shares["act_share"] <= 1


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"workers": 2, "num_envs": 8}, "is a multiple of 6, got 8: set it to 6 or 12"),
        ({"workers": "auto"}, "need a number of `workers`, got 'auto'"),
        ({"workers": 3, "schedule": "variable"}, "take the same steps, got `schedule` 'variable'"),
        (
            {"workers": 3, "inference": "central"},
            "`policies` 'red,blue' is for `inference` 'worker'",
        ),
    ],
)
def test_options_of_workers_that_do_not_fit_several_policies(tmp_path, options, message):
    with pytest.raises(ConfigError, match=re.escape(message)):
        train_policies(ppo.algorithm, config(tmp_path, **{"num_envs": 9, **options}))
    assert not (tmp_path / "run").exists()
