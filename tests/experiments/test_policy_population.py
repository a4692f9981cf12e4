"""Populations of several policies: matches, exploits, and what a kill leaves."""

from __future__ import annotations

import dataclasses
import json
import re
from dataclasses import asdict

import numpy as np
import pytest
from safetensors.numpy import load_file

from hotloop.algorithms import dqn, ppo
from hotloop.base import documents
from hotloop.base.space_syntax import Choices, Range
from hotloop.cli import main
from hotloop.envs import EnvSpec
from hotloop.errors import ConfigError, RunDirectoryError
from hotloop.experiments import policy_population
from hotloop.experiments.matches import Matches
from hotloop.experiments.policy_population import Population
from hotloop.experiments.population import first_part, mutate
from hotloop.ops.schedules import cosine, linear, piecewise, steps
from hotloop.runs import RunDirectory

RATES = Range(1e-4, 1e-2, is_log=True)


def population(tmp_path, **settings):
    config = ppo.Config(
        env_id="tests.toy_games:Matching",
        policies="left,right",
        num_envs=4,
        num_steps=16,
        total_timesteps=256,
        hidden_sizes=(4,),
        update_epochs=1,
        execution="eager",
        run_dir=str(tmp_path / "run"),
    )
    settings = {"members": 2, "generations": 2, "num_games": 4, **settings}
    return Population(ppo.algorithm, config, {"learning_rate": RATES}, **settings)


def arrays(tmp_path):
    """Return the parameters of all members' policies as bytes."""
    files = sorted((tmp_path / "run").glob("members/*/policies/*/checkpoints/last/*.safetensors"))
    return [
        (file.parts[-6:], {k: x.tobytes() for k, x in load_file(file).items()}) for file in files
    ]


def test_weak_members_continue_from_strong_ones(tmp_path):
    generations = []
    trained = population(tmp_path)
    trained.train(generations.append)
    assert [x.number for x in generations] == [1, 2]
    assert [x.timesteps for x in generations] == [128, 256]
    first, last = generations
    for name in ("left", "right"):
        (exploit,) = [x for x in first.exploits if x.policy == name]
        fitness = first.fitness[name]
        assert exploit.member == int(np.argmin(fitness))
        assert exploit.source == 1 - exploit.member
        # The new options are those of the next generation, which each run directory has.
        assert last.options[name][exploit.member] == exploit.options
        assert last.options[name][exploit.source] == first.options[name][exploit.source]
        for member in range(2):
            run = tmp_path / "run" / "members" / str(member) / "policies" / name
            stored = json.loads((run / "config.json").read_text())["config"]
            assert stored["learning_rate"] == last.options[name][member]["learning_rate"]
    assert last.exploits == []
    assert {len(x) for x in last.ratings.values()} == {2}
    best = trained.best(last)["left"]
    assert best.parts[-3] == str(int(np.argmax(last.fitness["left"])))
    stored = documents.read(tmp_path / "run" / "population.json")["log"]
    assert [x["exploits"] for x in stored] == [[asdict(x) for x in first.exploits], []]


def test_an_exploit_copies_the_weights(tmp_path, monkeypatch):
    class Stop(Exception):
        pass

    def stop(generation):
        raise Stop

    with pytest.raises(Stop):
        population(tmp_path).train(stop)
    (generation,) = documents.read(tmp_path / "run" / "population.json")["log"]
    for exploit in generation["exploits"]:
        members = [exploit["member"], exploit["source"]]
        paths = [
            tmp_path / f"run/members/{k}/policies/{exploit['policy']}/checkpoints/last"
            for k in members
        ]
        weights = [load_file(path / "policy.safetensors") for path in paths]
        assert weights[0].keys() == weights[1].keys()
        assert all((weights[0][name] == weights[1][name]).all() for name in weights[0])


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory):
    """Return the generations and the parameters of a population."""
    path = tmp_path_factory.mktemp("undisturbed")
    return population(path).train(), arrays(path)


@pytest.mark.parametrize("place", [1, 2, 3, "matches"])
def test_a_killed_population_ends_like_an_undisturbed_one(
    tmp_path, monkeypatch, undisturbed, place
):
    class Killed(BaseException):
        pass

    train, calls = policy_population.train_policies, []

    def count(*args, **options):
        if len(calls) == place:
            raise Killed
        calls.append(args)
        return train(*args, **options)

    def fail(*args):
        raise Killed

    with monkeypatch.context() as patch:
        patch.setattr(policy_population, "train_policies", count)
        if place == "matches":
            patch.setattr(Population, "_compare", fail)
        with pytest.raises(Killed):
            population(tmp_path).train()
    if place == 1:  # while it made the directory of the second member
        (tmp_path / "run" / "members" / "1").mkdir()
    assert (population(tmp_path).train(), arrays(tmp_path)) == undisturbed
    assert len(arrays(tmp_path)) == 8


def test_without_exploits_members_keep_their_options(tmp_path):
    generations = population(tmp_path, replaces=False).train()
    assert [x.exploits for x in generations] == [[], []]
    assert generations[0].options == generations[1].options


SCHEDULES = [linear(3.0, 1.0), linear(3.0, 1.0, 0.3), linear(3.0, 1.0, 0.9)]
SCHEDULES += [kind([(0.1, 2.0), (0.5, 1.0), (1.0, 4.0)]) for kind in (piecewise, steps)]
SCHEDULES += [kind([(0.7, 2.0), (0.8, 1.0)]) for kind in (piecewise, steps)]


@pytest.mark.parametrize("schedule", SCHEDULES, ids=str)
@pytest.mark.parametrize("share", [0.25, 0.5, 1.0])
def test_the_first_part_of_a_schedule_has_the_same_values(schedule, share):
    part = first_part(schedule, share, "gamma")
    for progress in np.linspace(0.0, 0.999, 30):
        assert part(progress) == pytest.approx(schedule(progress * share))


def test_schedules_continue_from_generation_to_generation(tmp_path, monkeypatch):
    base = population(tmp_path)._config
    config = dataclasses.replace(
        base,
        learning_rate=linear(1e-3, 0.0),
        policy_options={"left": {"entropy_coef": "steps:0=0.1,0.25=0.2,0.75=0.3"}},
    )
    configs, train = [], policy_population.train_policies

    def record(algorithm, config, **options):
        configs.append(config.policy_options)
        return train(algorithm, config, **options)

    monkeypatch.setattr(policy_population, "train_policies", record)
    space = {"gamma": Range(0.9, 0.99)}
    Population(ppo.algorithm, config, space, members=2, generations=2, num_games=1).train()
    for number, options in enumerate(configs):
        is_last = number >= 2
        rate = "piecewise:0=0.001,1=0" if is_last else "piecewise:0=0.001,1=0.0005"
        assert {x["learning_rate"] for x in options.values()} == {rate}
        steps_of_left = "0=0.1,0.25=0.2,0.75=0.3" if is_last else "0=0.1,0.5=0.2"
        assert options["left"]["entropy_coef"] == f"steps:{steps_of_left}"
        assert "entropy_coef" not in options["right"]
    # The logged learning rates fall over both generations.
    lines = RunDirectory.open(tmp_path / "run/members/0/policies/right").metrics()
    rates = [line["learning_rate"] for line in lines if "learning_rate" in line]
    assert rates == sorted(rates, reverse=True)
    assert rates[-1] < 0.5e-3


def test_other_settings_are_refused(tmp_path):
    population(tmp_path, generations=1).train()
    with pytest.raises(ConfigError, match=r"other settings \(members\): pass another directory"):
        population(tmp_path, generations=1, members=3).train()
    with pytest.raises(ConfigError, match="needs two members"):
        population(tmp_path, members=1)
    with pytest.raises(ConfigError, match="needs `policies`"):
        Population(ppo.algorithm, ppo.Config(), {})


@pytest.mark.parametrize(
    ("space", "options", "message"),
    [
        ({"hidden_sizes": Choices(((4,), (8,)))}, {}, "`hidden_sizes` can't change"),
        ({}, {"num_steps": 64}, "a generation has 128 steps, and an iteration 256"),
        (
            {"gamma": Range(0.9, 0.99)},
            {"learning_rate": cosine(1e-3, 0.0)},
            "`learning_rate` must be a number, or a schedule of points, got 'cosine:0.001,0'",
        ),
        (
            {},
            {"policy_options": {"left": {"entropy_coef": "cosine:0.1,0"}}},
            "`entropy_coef` must be a number, or a schedule of points",
        ),
        ({}, {"keep_checkpoints": 7}, "`keep_checkpoints` has no effect"),
        ({}, {"stop_at_return": 5.0}, "`stop_at_return` has no effect"),
    ],
)
def test_options_that_generations_cannot_respect_are_refused(tmp_path, space, options, message):
    config = dataclasses.replace(population(tmp_path)._config, **options)
    with pytest.raises(ConfigError, match=message):
        Population(
            ppo.algorithm, config, space or {"learning_rate": RATES}, members=2, generations=2
        )


def test_a_wrong_first_command_leaves_no_population(tmp_path):
    wrong = population(tmp_path)
    wrong._env = "tests.toy_games:NoGame"
    with pytest.raises(Exception, match="NoGame"):
        wrong.train()
    assert not (tmp_path / "run" / "population.json").exists()


def test_games_that_are_cut_replace_no_member(tmp_path, capsys):
    games = population(tmp_path)
    games._config = dataclasses.replace(games._config, eval_interval=128, eval_max_steps=1)
    (first, _) = games.train()
    assert first.exploits == []
    assert "did not end within 1 steps and don't count" in capsys.readouterr().err


DAMAGE = [
    ("member", 2, "does not fit"),
    ("source", -1, "does not fit"),
    ("policy", "../left", "does not fit"),
    ("checkpoint", "../last", "does not fit"),
    ("options", {"run_dir": "elsewhere"}, "does not fit"),
    ("options", {"learning_rate": "evil:fall"}, "does not fit"),
    ("member", "0", "must be an integer"),
]


def test_a_damaged_file_is_refused(tmp_path):
    population(tmp_path).train()
    file = tmp_path / "run" / "population.json"
    intact = file.read_text(encoding="utf-8")
    for field, value, message in DAMAGE:
        file.write_text(intact, encoding="utf-8")
        document = documents.read(file)
        document["log"][0]["exploits"][0][field] = value
        file.write_text(json.dumps(document), encoding="utf-8")
        with pytest.raises(RunDirectoryError, match=message):
            population(tmp_path).train()


class Fixed:
    """A policy that always takes one action."""

    def __init__(self, action):
        self.action = action

    def new_memory(self, num_envs):
        return None

    def sample(self, obs, rng, memory, mask):
        return np.full(len(obs), self.action)


def test_a_match_has_the_mean_return_of_each_policy_in_each_game():
    matches = Matches(EnvSpec("tests.toy_games:Teams"), "red,blue", 3, 100)
    results = matches.play({"red": Fixed(1), "blue": Fixed(0)}, 0)
    # red_0 acts in six steps and red_1 in two.
    assert results == [{"red": 4.0, "blue": 0.0}] * 3
    assert matches.num_steps == 3 * 3 * 6
    assert matches.play({"red": Fixed(0), "blue": Fixed(1)}, 1) == [{"red": 0.0, "blue": 6.0}] * 3
    short = Matches(EnvSpec("tests.toy_games:Teams"), "red,blue", 3, 5)
    assert short.play({"red": Fixed(1), "blue": Fixed(0)}, 0) == []


def test_members_of_two_policies_play_all_pairs():
    matches = Matches(EnvSpec("tests.toy_games:Teams"), "red,blue", 3, 100)
    members = {"red": [Fixed(1), Fixed(0)], "blue": [Fixed(0), Fixed(1)]}
    results = matches.play_all(members, 0)
    assert results.returns == {"red": [[4.0] * 6, [0.0] * 6], "blue": [[0.0] * 6, [6.0] * 6]}
    between = np.array([[3.0, 3.0], [3.0, 3.0]])
    none = np.zeros((2, 2))
    np.testing.assert_array_equal(results.games, np.block([[none, between], [between, none]]))
    # red 0 beats blue 0 and loses to blue 1; red 1 draws with blue 0 and loses to blue 1.
    red = np.array([[3.0, 0.0], [1.5, 0.0]])
    np.testing.assert_array_equal(results.scores, np.block([[none, red], [3 - red.T, none]]))


def test_mutations_stay_in_the_space():
    rng = np.random.default_rng(0)
    values = [mutate(RATES, 1e-2, rng) for _ in range(200)]
    assert all(1e-4 <= value <= 1e-2 for value in values)
    assert {1e-2, 8e-3} < set(values)  # clipped and lowered, besides those drawn again
    assert {mutate(Choices((1, 2, 3)), 2, rng) for _ in range(50)} == {1, 2, 3}
    assert all(type(mutate(Range(2, 9, is_int=True), 4, rng)) is int for _ in range(50))


def test_the_command_line_trains_a_population(tmp_path, capsys):
    arguments = ["sweep", "ppo", "learning_rate=log:1e-4,1e-2", "--policies", "left,right"]
    arguments += ["--env-id", "tests.toy_games:Matching", "--num-envs", "4", "--num-steps", "16"]
    arguments += ["--total-timesteps", "256", "--execution", "eager", "--update-epochs", "1"]
    assert main(arguments) == 2
    assert "with `--sampler pbt`" in capsys.readouterr().err
    arguments += ["--sampler", "pbt", "--trials", "2", "--generations", "2"]
    assert main([*arguments, "--seeds", "1-3"]) == 2
    assert "got `--seeds`" in capsys.readouterr().err
    assert main([*arguments, "--file", str(tmp_path / "run")]) == 0
    output = capsys.readouterr().out
    assert "generation 2, 256 steps of each member" in output
    assert re.search(r"left: member \d continues from member \d with learning_rate=", output)
    assert re.search(rf"best right: {tmp_path}/run/members/\d/policies/right", output)


@pytest.mark.parametrize(("algorithm", "policies"), [(dqn, "red,blue"), (ppo, "red,blue:dqn")])
def test_a_population_needs_one_on_policy_algorithm(algorithm, policies):
    config = algorithm.Config(env_id="tests.toy_games:Teams", policies=policies, num_envs=6)
    with pytest.raises(ConfigError, match="copied policies have no replay buffers, got dqn"):
        Population(algorithm.algorithm, config, {"learning_rate": RATES})
