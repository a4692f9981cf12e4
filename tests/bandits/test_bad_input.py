"""Bad input is refused with what was expected, what came, and how to fix it."""

from __future__ import annotations

import dataclasses
import json
import math
import os
import warnings

import numpy as np
import pytest

from hotloop.bandits import (
    AGENTS,
    ENVIRONMENTS,
    EXP3,
    KLUCB,
    UCB,
    UCB1,
    AbruptChange,
    Adversarial,
    BanditResult,
    Bernoulli,
    BetaThompson,
    EpsilonGreedy,
    GaussianRewards,
    GaussianThompson,
    Gradient,
    JittedAgent,
    JittedEnvironment,
    LinearContextual,
    LinTS,
    LinUCB,
    Optimistic,
    RandomWalk,
    compare,
    run,
)
from hotloop.bandits.parsing import make_agent, make_environment
from hotloop.base.space_syntax import parse_value
from hotloop.errors import BanditError, ConfigError, HotloopError, OutputError, UnknownNameError
from tests.bandits.test_user_defined import ALTERNATES, scripted_agent

NOT_NUMBERS = (math.nan, math.inf, "0.1", True)

BAD_AGENTS = [
    (EpsilonGreedy, "epsilon", (-0.01, 1.01, 7, *NOT_NUMBERS)),
    (EpsilonGreedy, "step_size", (0.0, -0.1, 1.1, *NOT_NUMBERS)),
    (EpsilonGreedy, "initial_value", NOT_NUMBERS),
    (EpsilonGreedy, "epsilon_decay", (-1.0, *NOT_NUMBERS)),
    (Optimistic, "initial_value", NOT_NUMBERS),
    (Optimistic, "step_size", (0.0, 1.5, *NOT_NUMBERS)),
    (UCB, "c", (-1.0, *NOT_NUMBERS)),
    (UCB, "step_size", (0.0, 2, *NOT_NUMBERS)),
    (UCB1, "scale", (-0.5, *NOT_NUMBERS)),
    (Gradient, "step_size", (0.0, -0.1, *NOT_NUMBERS)),
    (Gradient, "baseline", (1, "yes", None)),
    (GaussianThompson, "prior_mean", NOT_NUMBERS),
    (GaussianThompson, "prior_std", (0.0, -1.0, 1e-200, 1e7, *NOT_NUMBERS)),
    (GaussianThompson, "noise", (0.0, -1.0, 1e-200, 1e7, *NOT_NUMBERS)),
    (BetaThompson, "prior_alpha", (0.0, -1.0, *NOT_NUMBERS)),
    (BetaThompson, "prior_beta", (0.0, -1.0, *NOT_NUMBERS)),
    (KLUCB, "c", (-1.0, *NOT_NUMBERS)),
    (EXP3, "gamma", (0.0, -0.1, 1.1, *NOT_NUMBERS)),
    (LinUCB, "alpha", (-1.0, *NOT_NUMBERS)),
    (LinUCB, "ridge", (0.0, -1.0, *NOT_NUMBERS)),
    (LinTS, "scale", (-1.0, *NOT_NUMBERS)),
    (LinTS, "ridge", (0.0, -1.0, *NOT_NUMBERS)),
]
BAD_ENVIRONMENTS = [
    (GaussianRewards, "num_arms", (1, 0, -3, 2.5, "10", True, None)),
    (GaussianRewards, "mean", NOT_NUMBERS),
    (GaussianRewards, "spread", (-1.0, *NOT_NUMBERS)),
    (GaussianRewards, "noise", (-1.0, *NOT_NUMBERS)),
    (
        GaussianRewards,
        "means",
        ((1.0,), (), 3.0, (1.0, math.nan), (0.0, "1"), "0.1,0.2", ((1, 2), (3, 4))),
    ),
    (Bernoulli, "means", ((0.5,), (), 0.5, (0.5, 1.1), (-0.1, 0.5), (0.5, math.nan), None)),
    (RandomWalk, "num_arms", (1, 2.0, None)),
    (RandomWalk, "walk", (-0.01, *NOT_NUMBERS)),
    (RandomWalk, "start", NOT_NUMBERS),
    (RandomWalk, "noise", (-1.0, *NOT_NUMBERS)),
    (AbruptChange, "num_arms", (1, 0)),
    (AbruptChange, "every", (0, -1, 2.5, True, "5", 2**31)),
    (AbruptChange, "spread", (-1.0, *NOT_NUMBERS)),
    (Adversarial, "rewards", ([1.0, 2.0], [[1.0], [2.0]], np.ones((0, 3)), "abc", [[1, 2], [3]])),
    (Adversarial, "rewards", ([[1.0, math.nan]], [[math.inf, 0.0]], [["a", "b"]], 3.0, None)),
    (LinearContextual, "num_arms", (1, 0)),
    (LinearContextual, "dimension", (0, -1, 65, 2.5, True, "5")),
    (LinearContextual, "noise", (-1.0, *NOT_NUMBERS)),
]


@pytest.mark.parametrize(("kind", "name", "values"), [*BAD_AGENTS, *BAD_ENVIRONMENTS])
def test_bad_settings_are_refused(kind, name, values):
    for value in values:
        with pytest.raises(ConfigError) as caught:
            kind(**{name: value})
        message = str(caught.value)
        assert f"`{name}" in message  # the setting
        assert kind.name in message  # its agent or environment
        assert "must be" in message or "must have" in message  # what was expected
        if name != "rewards":
            text = value if not isinstance(value, tuple) else ""
            assert repr(text) in message or str(text) in message  # what came


def test_bad_settings_cover_every_setting():
    covered = {(kind, name) for kind, name, _ in (*BAD_AGENTS, *BAD_ENVIRONMENTS)}
    same_as_gaussian = {(AbruptChange, "mean"), (AbruptChange, "noise")}
    for kind in (*AGENTS.values(), *ENVIRONMENTS.values()):
        for field in dataclasses.fields(kind):
            assert (kind, field.name) in covered | same_as_gaussian


def test_limits_are_accepted():
    for epsilon in (0, 1, 0.0, 1.0, np.float32(0.5)):
        run(EpsilonGreedy(epsilon=epsilon), GaussianRewards(num_arms=2), num_runs=1, num_steps=1)
    run(EXP3(gamma=1), Bernoulli(means=(0, 1)), num_runs=1, num_steps=3)
    run(UCB(c=0, step_size=1), GaussianRewards(spread=0, noise=0), num_runs=1, num_steps=12)
    run(LinUCB(alpha=0), LinearContextual(dimension=1, noise=0), num_runs=1, num_steps=3)
    run(LinTS(scale=0), LinearContextual(dimension=64, num_arms=2), num_runs=1, num_steps=3)
    run(Gradient(), GaussianRewards(num_arms=np.int64(3)), num_runs=1, num_steps=3)


def test_error_names_the_largest_number():
    with pytest.raises(ConfigError, match=r"from 0 up to 1e\+30, got 1e\+31"):
        UCB(c=1e31)
    with pytest.raises(ConfigError, match=r"from -1e\+30 up to 1e\+30, got inf"):
        Optimistic(initial_value=math.inf)


def test_num_arms_must_match_the_means():
    with pytest.raises(ConfigError, match=r"`num_arms` of gaussian must be .* 2, got 7"):
        GaussianRewards(num_arms=7, means=(1, 2))
    assert GaussianRewards(num_arms=2, means=(1, 2)) == GaussianRewards(means=(1, 2))


BIG = 2.0**21


@pytest.mark.parametrize(
    ("kind", "good", "bad"),
    [
        (GaussianRewards, {"mean": 2**20}, {"mean": 2**20 + 1}),
        (GaussianRewards, {"mean": -BIG, "spread": 0, "noise": 2}, {"mean": -BIG, "noise": 1.9}),
        (GaussianRewards, {"means": (BIG / 2, 0), "noise": 0.1}, {"means": (BIG, BIG + 1)}),
        (RandomWalk, {"start": 2**10, "walk": 2**-10}, {"start": 2**10, "walk": 2**-11}),
        (RandomWalk, {"start": 2**20, "walk": 0}, {"start": 2**20 + 1, "walk": 0}),
        (AbruptChange, {"mean": 1e30, "spread": 0, "noise": 0}, {"mean": -1e7}),
    ],
)
def test_values_indistinguishable_in_float32_are_refused(kind, good, bad):
    kind(**good)
    with pytest.raises(ConfigError, match=r"2\*\*20 times .* got -?\d.* shift the values") as info:
        kind(**bad)
    assert f"`{next(iter(bad))}` of {kind.name}" in str(info.value)


def test_settings_are_keyword_only():
    with pytest.raises(TypeError):
        EpsilonGreedy(0.1)
    with pytest.raises(TypeError):
        EpsilonGreedy(epsilom=0.1)


def test_settings_are_immutable():
    with pytest.raises(AttributeError):
        EpsilonGreedy().epsilon = 2.0
    matrix = np.zeros((3, 2))
    environment = Adversarial(rewards=matrix)
    matrix[:] = 1.0
    assert not environment.rewards.any()
    with pytest.raises(ValueError):
        environment.rewards[0, 0] = 1.0


# Names and text.


@pytest.mark.parametrize(
    ("call", "name", "nearest"),
    [
        (lambda: make_agent("epsilon-greed", {}), "epsilon-greed", "'epsilon-greedy'"),
        (lambda: make_agent("epsilon-greedy", {"epsilom": 0.1}), "epsilom", "'epsilon'"),
        (lambda: make_agent("gradient", {"step_sise": 0.1}), "step_sise", "'step_size'"),
        (lambda: make_environment("gausian", {}), "gausian", "'gaussian'"),
        (lambda: make_environment("random-walk", {"num_arm": 5}), "num_arm", "'num_arms'"),
    ],
)
def test_unknown_names_suggest_similar_ones(call, name, nearest):
    with pytest.raises(UnknownNameError) as caught:
        call()
    assert f"'{name}'" in str(caught.value)
    assert f"did you mean {nearest}" in str(caught.value)


@pytest.mark.parametrize(
    ("call", "listed"),
    [
        (lambda: make_agent("zzz", {}), "kl-ucb"),
        (lambda: make_agent("moss", {"qqq": 1}), "none"),
        (lambda: make_agent("ucb", {"qqq": 1}), "step_size"),
        (lambda: make_environment("qqq", {}), "random-walk"),
    ],
)
def test_unknown_names_without_similar_ones_list_all(call, listed):
    with pytest.raises(UnknownNameError, match=listed):
        call()


@pytest.mark.parametrize("text", ["", "abc", "1/0", "0.1.2", "1,2", "2**", "--1", "0.1:0.5", "1/a"])
def test_bad_values_in_text(text):
    with pytest.raises(ConfigError) as caught:
        parse_value(text)
    assert f"'{text}'" in str(caught.value)
    assert "1/128" in str(caught.value)


def test_values_in_text():
    for text, value in {
        "0.1": 0.1, "3": 3, "1/128": 1 / 128, "2**-7": 2**-7, "none": None, "None": None,
        "true": True, "FALSE": False, " 1e-3 ": 0.001, "-2": -2,
    }.items():  # fmt: skip
        parsed = parse_value(text)
        assert parsed == value
        assert type(parsed) is type(value)
    assert make_agent("epsilon-greedy", {"epsilon": "1/8", "step-size": "none"}) == EpsilonGreedy(
        epsilon=0.125
    )
    assert make_environment("bernoulli", {"means": "0.9,0.8"}) == Bernoulli()


def test_bad_field_text():
    for call in (
        lambda: make_agent("epsilon-greedy", {"epsilon": "much"}),
        lambda: make_agent("epsilon-greedy", {"epsilon": "2"}),
        lambda: make_environment("gaussian", {"num_arms": "1"}),
        lambda: make_environment("bernoulli", {"means": "0.9,x"}),
        lambda: make_environment("bernoulli", {"means": "0.9"}),
    ):
        with pytest.raises(ConfigError, match=r"epsilon|num_arms|means"):
            call()


def test_rewards_from_a_file(tmp_path):
    matrix = np.array([[0.5, 1.0], [0.0, 0.25]])
    np.save(tmp_path / "rewards.npy", matrix)
    np.savetxt(tmp_path / "rewards.csv", matrix, delimiter=",")
    for name in ("rewards.npy", "rewards.csv"):
        environment = make_environment("adversarial", {"rewards": str(tmp_path / name)})
        np.testing.assert_array_equal(environment.rewards, matrix)
    (tmp_path / "words.csv").write_text("a,b\nc,d\n")
    np.save(tmp_path / "objects.npy", np.array([{}, {}], object), allow_pickle=True)
    content = (tmp_path / "rewards.npy").read_bytes()
    (tmp_path / "short.npy").write_bytes(content[:-8])
    (tmp_path / "empty.npy").write_bytes(b"")
    (tmp_path / "empty.csv").write_bytes(b"")
    (tmp_path / "archive.npy").write_bytes(b"PK\x03\x04")
    header = b"{'descr': '<f8', 'fortran_order': False, 'shape': (1000000000000,)}"
    (tmp_path / "huge.npy").write_bytes(b"\x93NUMPY\x01\x00\x44\x00" + header.ljust(68))
    for name in ("pipe.npy", "pipe.csv"):  # would block
        os.mkfifo(tmp_path / name)
    files = ("missing.npy", "words.csv", "objects.npy", "short.npy", "empty.npy", "archive.npy")
    for name in (*files, "empty.csv", "huge.npy", "pipe.npy", "pipe.csv"):
        with warnings.catch_warnings():
            warnings.simplefilter("error")  # no warnings by NumPy
            with pytest.raises(ConfigError, match=name):
                make_environment("adversarial", {"rewards": str(tmp_path / name)})
    with pytest.raises(ConfigError, match="rewards"):
        make_environment("adversarial", {})


# Runs.


@pytest.mark.parametrize("is_comparison", [False, True])
@pytest.mark.parametrize(
    ("name", "values"),
    [
        ("num_runs", (0, 2.5, "10")),
        ("num_steps", (0, 1.5)),
        ("seed", (-1, 2**64, 0.5)),
        ("threads", (0, 1.5)),
        ("late_steps", (0, 51)),
        ("steps_per_point", (0, 2.5)),
    ],
)
def test_bad_run_options(is_comparison, name, values):
    call, agent = (compare, [EpsilonGreedy()]) if is_comparison else (run, EpsilonGreedy())
    for value in values:
        with pytest.raises(ConfigError) as caught:
            call(agent, GaussianRewards(), **{"num_runs": 3, "num_steps": 50, name: value})
        assert name in str(caught.value)
        assert repr(value) in str(caught.value).replace(",", "")


@pytest.mark.parametrize("agents", [[], UCB(), "ucb"], ids=str)
def test_agents_must_be_a_list(agents):
    match = "agent" if agents == [] else r"must be a list of agents, got .*brackets"
    with pytest.raises(ConfigError, match=match):
        compare(agents, GaussianRewards(), num_runs=3, num_steps=5)


def test_values_that_are_neither_agents_nor_environments():
    for value in (3, "gaussian", None, EpsilonGreedy, [1]):
        with pytest.raises(HotloopError, match="JittedAgent"):
            run(value, GaussianRewards(), num_runs=3, num_steps=5)
    for value in (3, "gaussian", GaussianRewards, [1]):
        with pytest.raises(HotloopError, match="JittedEnvironment"):
            run(EpsilonGreedy(), value, num_runs=3, num_steps=5)


@pytest.mark.parametrize("agent", [LinUCB(), LinTS()], ids=lambda agent: agent.name)
@pytest.mark.parametrize("where", [GaussianRewards(), Bernoulli()], ids=lambda where: where.name)
def test_linear_agents_need_contexts(agent, where):
    for call in (lambda: run(agent, where), lambda: compare([EpsilonGreedy(), agent], where)):
        with pytest.raises(ConfigError, match="linear-contextual") as caught:
            call()
        assert agent.name in str(caught.value)
        assert where.name in str(caught.value)


@pytest.mark.parametrize("agent", [BetaThompson(), KLUCB(), EXP3()], ids=lambda agent: agent.name)
@pytest.mark.parametrize(
    "where",
    [
        GaussianRewards(),
        RandomWalk(),
        AbruptChange(),
        LinearContextual(),
        Adversarial(rewards=[[0.0, 1.5]] * 5),
        Adversarial(rewards=[[0.0, -0.5]] * 5),
    ],
    ids=lambda where: where.name,
)
def test_agents_for_bounded_rewards_refuse_others(agent, where):
    with pytest.raises(ConfigError, match=r"0 to 1|0 or 1") as caught:
        run(agent, where, num_runs=3, num_steps=5)
    assert agent.name in str(caught.value)
    assert where.name in str(caught.value)


def test_adversarial_rewards_must_cover_all_steps():
    with pytest.raises(ConfigError, match=r"7.*10"):
        run(EpsilonGreedy(), Adversarial(rewards=np.ones((7, 2))), num_runs=3, num_steps=10)


def test_unknown_quantity_of_a_difference():
    comparison = compare([EpsilonGreedy(), UCB()], num_runs=3, num_steps=5)
    with pytest.raises(BanditError, match="final_regret") as caught:
        comparison.difference(0, 1, "final_regrets")
    assert "final_regrets" in str(caught.value)
    assert "late_optimal" in str(caught.value)


# User-defined agents and environments.


def choose(state, params, step, uniform):
    return 0


def update(state, params, step, arm, reward):
    pass


def reward(state, params, step, arm, uniform):
    return 0.0


AGENT_PARTS = {"choose": choose, "update": update, "state_size": 1}
ENVIRONMENT_PARTS = {"num_arms": 2, "reward": reward}


@pytest.mark.parametrize(
    ("kind", "name", "values"),
    [
        (JittedAgent, "choose", (3,)),
        (JittedAgent, "update", (None,)),
        (JittedAgent, "start", (5,)),
        (JittedAgent, "state_size", (-1, 1.5, None)),
        (JittedAgent, "params", (("a",), ((1.0, 2.0),))),
        (JittedEnvironment, "num_arms", (1, 0, 2.5)),
        (JittedEnvironment, "reward", (None,)),
        (JittedEnvironment, "mean", (0.5,)),
        (JittedEnvironment, "start", (5,)),
        (JittedEnvironment, "state_size", (-1,)),
        (JittedEnvironment, "params", ("abc",)),
    ],
)
def test_user_defined_parts_are_validated(kind, name, values):
    good = AGENT_PARTS if kind is JittedAgent else ENVIRONMENT_PARTS
    kind(**good)
    for value in values:
        with pytest.raises(ConfigError, match=f"`{name}`"):
            kind(**{**good, name: value})


def test_functions_that_numba_cannot_compile():
    def strange(state, params, step, uniform):
        return {"arm": object()}["arm"]

    options = {"update": update, "state_size": 1, "name": "strange"}
    with pytest.raises(HotloopError, match="strange") as caught:
        run(JittedAgent(choose=strange, **options), GaussianRewards(), num_runs=3, num_steps=5)
    assert "Numba" in str(caught.value)
    assert "choose" in str(caught.value)


# Files.


@pytest.fixture
def saved(tmp_path):
    result = run(
        EpsilonGreedy(step_size=0.25), RandomWalk(num_arms=4), num_runs=300, num_steps=40,
        arm_shares=True, seed=2**64 - 1,
    )  # fmt: skip
    return result, result.save(tmp_path / "result.npz")


def test_results_survive_saving(saved):
    result, path = saved
    loaded = BanditResult.load(path)
    assert loaded.agent == result.agent
    assert loaded.environment == result.environment
    for name in ("seed", "num_runs", "num_steps", "steps_per_point", "late_steps", "elapsed_s"):
        assert getattr(loaded, name) == getattr(result, name)
    for name in ("reward", "reward_se", "optimal_se", "regret", "arm_share", "final_regrets"):
        np.testing.assert_array_equal(getattr(loaded, name), getattr(result, name))
    assert loaded.late_reward == result.late_reward
    assert loaded.to_dict(curves=True) == result.to_dict(curves=True)


@pytest.mark.parametrize(
    ("agent", "where"),
    [
        (EpsilonGreedy(), GaussianRewards(means=(0.5, 1.0))),
        (UCB(step_size=0.5), Bernoulli(means=(0.1, 0.2, 0.3))),
        (Gradient(baseline=False), Adversarial(rewards=np.eye(6))),
    ],
    ids=str,
)
def test_descriptions_survive_saving(agent, where, tmp_path):
    result = run(agent, where, num_runs=3, num_steps=5)
    loaded = BanditResult.load(result.save(tmp_path / "result.npz"))
    assert loaded.agent == agent
    assert loaded.environment.describe() == where.describe()


def test_truncated_files(saved, tmp_path):
    _, path = saved
    stored = path.read_bytes()
    cut = tmp_path / "cut.npz"
    for length in [*range(0, len(stored), max(1, len(stored) // 40)), len(stored) - 1]:
        cut.write_bytes(stored[:length])
        with pytest.raises(BanditError, match=r"cut\.npz") as caught:
            BanditResult.load(cut)
        assert "cut short" in str(caught.value)
        assert "again" in str(caught.value)


def test_settings_may_be_numpy_scalars(tmp_path):
    agent = GaussianThompson(prior_std=np.float32(0.5), noise=np.int64(2))
    result = run(agent, RandomWalk(num_arms=np.int64(3)), num_runs=3, num_steps=5)
    assert json.loads(json.dumps(result.to_dict()))["agent"]["prior_std"] == 0.5
    loaded = BanditResult.load(result.save(tmp_path / "result.npz"))
    assert (loaded.agent, loaded.environment) == (agent, result.environment)
    assert type(agent.describe()["noise"]) is int
    environment = AbruptChange(num_arms=2, every=np.int64(3))
    assert type(environment.describe()["every"]) is int


def test_files_with_a_flipped_byte(saved, tmp_path):
    """Such files are refused, unless the byte does not matter."""
    result, path = saved
    content, flipped_path = path.read_bytes(), tmp_path / "flipped.npz"
    refused = 0
    # The first and last bytes, with the archive's directory, and some between.
    ends = {*range(400), *range(len(content) - 400, len(content))}
    for index in sorted(ends | {*range(0, len(content), 97)}):
        flipped = bytearray(content)
        flipped[index] ^= 0xFF
        flipped_path.write_bytes(flipped)
        try:
            loaded = BanditResult.load(flipped_path)
        except BanditError:
            refused += 1
        else:
            assert loaded.to_dict(curves=True) == result.to_dict(curves=True)
    assert refused > 500


CHANGED_DESCRIPTIONS = [
    ('"num_runs": 300', '"num_runs": 301', "was changed"),
    ('"num_steps": 40', '"num_steps": 41', "was changed"),
    ('"num_steps": 40', '"num_steps": "40"', "was changed"),
    ('"steps_per_point": 1', '"steps_per_point": 2', "was changed"),
    ('"steps_per_point": 1', '"steps_per_point": 0', "was changed"),
    ('"late_steps": 4', '"late_steps": 44', "was changed"),
    ('"num_arms": 4', '"num_arms": 5', "was changed"),
    ('"prepare_s": ', '"prepare_s": null, "x": ', "was changed"),
    ('"format": 1', '"format": 99', "99.*1.*again"),
    ('"seed"', '"sead"', ""),
    ('"late_steps"', '"late_stepz"', ""),
    ('"elapsed_s"', '"elapsed"', ""),
    ('"agent"', '"agemt"', ""),
    ('"environment"', '"enviroment"', ""),
    ('"name"', '"nane"', ""),
    ("epsilon-greedy", "epsilon-greedier", ""),
    ('"epsilon": 0.1', '"epsilon": 7', ""),
    ("{", "[{", ""),
    ("}", "", ""),
]


@pytest.mark.parametrize(("old", "new", "match"), CHANGED_DESCRIPTIONS)
def test_files_with_changed_descriptions(saved, old, new, match):
    _, path = saved
    text = read_about(path)
    assert old in text
    with pytest.raises(BanditError if match else HotloopError, match=match):
        BanditResult.load(with_arrays(path, about=encode(text.replace(old, new))))


@pytest.mark.parametrize("regrets", [np.zeros((2, 2)), np.zeros(301), np.zeros(3, int)])
def test_files_with_bad_regrets(saved, regrets):
    _, path = saved
    with pytest.raises(BanditError, match="`final_regrets`"):
        BanditResult.load(with_arrays(path, final_regrets=regrets))


def with_arrays(path, **arrays):
    """Write the file again with other arrays in it."""
    with np.load(path) as file:
        stored = {name: file[name] for name in file.files}
    stored.update(arrays)
    other = path.with_name("changed.npz")
    np.savez(other, **{name: array for name, array in stored.items() if array is not None})
    return other


def read_about(path):
    with np.load(path) as file:
        return file["about"].tobytes().decode()


def encode(text):
    return np.frombuffer(text.encode(), np.uint8)


def test_files_without_description(saved):
    _, path = saved
    for text in ("", "{}", "[]", "3", "null"):
        with pytest.raises(BanditError):
            BanditResult.load(with_arrays(path, about=encode(text)))
    for name in ("about", "sums", "final_regrets"):
        with pytest.raises(BanditError, match="changed"):
            BanditResult.load(with_arrays(path, **{name: None}))


def test_files_with_truncated_sums(saved):
    _, path = saved
    with np.load(path) as file:
        sums = file["sums"]
    for length in (0, 31, 100, len(sums) - 8):
        with pytest.raises(BanditError, match="cut short"):
            BanditResult.load(with_arrays(path, sums=sums[:length]))


def test_other_files(tmp_path):
    (tmp_path / "words.npz").write_text("hello")
    np.savez(tmp_path / "other.npz", x=np.zeros(3))
    np.savez(tmp_path / "pickle.npz", about=np.array([{}], object))
    np.save(tmp_path / "array.npy", np.zeros(3))
    with pytest.raises(BanditError, match=r"missing\.npz"):
        BanditResult.load(tmp_path / "missing.npz")
    for name in ("words.npz", "other.npz", "pickle.npz", "array.npy"):
        with pytest.raises(BanditError, match=name):
            BanditResult.load(tmp_path / name)
    with pytest.raises(BanditError):
        BanditResult.load(tmp_path)  # a directory


def test_unwritable_targets(saved, tmp_path):
    result, path = saved
    before = path.read_bytes()
    with pytest.raises(OutputError, match="inside"):
        result.save(path / "inside.npz")
    (tmp_path / "folder").mkdir()
    with pytest.raises(OutputError, match="folder"):
        result.save(tmp_path / "folder")
    assert path.read_bytes() == before
    assert sorted(file.name for file in tmp_path.iterdir()) == ["folder", "result.npz"]


def test_results_of_user_agents_cannot_be_saved(tmp_path):
    result = run(scripted_agent(ALTERNATES), GaussianRewards(), num_runs=3, num_steps=5)
    with pytest.raises(BanditError, match="own"):
        result.save(tmp_path / "result.npz")
    assert not list(tmp_path.iterdir())
    assert result.to_dict()["num_runs"] == 3
