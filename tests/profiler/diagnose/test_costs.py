"""What can be removed from a program, and what is inherent: by sources and samples of programs."""

from __future__ import annotations

from pathlib import Path
from textwrap import dedent
from types import SimpleNamespace

import pytest

from hotloop.profiler.diagnose import bound, diagnose, kinds
from hotloop.profiler.diagnose.cost import Cost
from hotloop.profiler.diagnose.costs import Costs, _compiled_anew
from hotloop.profiler.diagnose.evidence import Evidence
from hotloop.profiler.session import Frame
from tests.profiler.sessions import period, process, seen, session

SITE = "/usr/lib/python3.11/site-packages"
PYTHON = "/usr/lib/python3.11"
FORWARD = f"Module._call_impl ({SITE}/torch/nn/modules/module.py:1)"
BACKWARD = f"backward ({SITE}/torch/autograd/__init__.py:1)"
CARTPOLE = f"CartPoleEnv.step ({SITE}/gymnasium/envs/classic_control/cartpole.py:1)"
VECTOR = f"SyncVectorEnv.step ({SITE}/gymnasium/vector/sync_vector_env.py:1)"


class Program:
    """A script, and samples at lines of it that are told by their text.

    Args:
        directory: where it is written.
        text: of the script.
    """

    def __init__(self, directory: Path, text: str) -> None:
        self.path = directory / "train.py"
        self.path.write_text(dedent(text).lstrip("\n"))
        self.lines = [line.strip() for line in self.path.read_text().splitlines()]
        self.rows = []

    def line(self, text):
        """The number of the line that is a text, or else of the one that begins with it."""
        if text in self.lines:
            return self.lines.index(text) + 1
        (number,) = (i for i, line in enumerate(self.lines, 1) if line.startswith(text))
        return number

    def at(self, *places, below=(), seconds=1.0, blocked=None, **more):
        """So many seconds at `(function, text)`, from the outermost in, and below in a library."""
        stack = [f"{function} ({self.path}:{self.line(text)})" for function, text in places]
        if blocked:
            more[blocked] = seconds
        on_core = {} if blocked else {"on_core_s": seconds}
        self.rows.append(seen(*stack, *below, elapsed_s=seconds, **on_core, **more))
        return self

    def session(self, **fields):
        whole = sum(row.elapsed_s for row in self.rows if row.thread is None)
        main = process(samples=self.rows, end_s=whole, **fields)
        # Of functions, the places have their first lines; here a name is one function.
        main.stacks = [
            one._replace(frames=tuple(map(self._with_first_line, one.frames)))
            for one in main.stacks
        ]
        return session(main)

    def _with_first_line(self, frame):
        begins = f"def {frame.function}("
        lines = (i for i, line in enumerate(self.lines, 1) if line.startswith(begins))
        return frame._replace(first_line=next(lines, 1))

    def found(self):
        return diagnose(self.session())


TRAIN = """
    def statistics(obs):
        total = slow(obs)
        return total

    def train(env, agent, rewards):
        for step in range(1000):
            action = agent(step)
            obs, reward, *_ = env.step(action)
            mean = statistics(obs)
            loss = agent(obs)
            loss.backward()
            picked = rng.choice(rewards, p=weights)
        return mean

    train(env, agent, [])
"""


def healthy(program, share=1.0):
    main = ("<module>", "train(env, agent, [])")
    program.at(main, ("train", "action = agent(step)"), below=(FORWARD,), seconds=3 * share)
    program.at(
        main,
        ("train", "obs, reward, *_ = env.step(action)"),
        below=(VECTOR, CARTPOLE),
        seconds=2 * share,
    )
    program.at(main, ("train", "loss.backward()"), below=(BACKWARD,), seconds=5 * share)
    return program


def test_what_is_inherent_is_told_apart_and_nothing_is_found(tmp_path):
    program = healthy(Program(tmp_path, TRAIN))
    assert [one.rule for one in program.found() if not one.is_rebuild] == []
    assert bound(program.session()) == (
        "No cost is worth a change. Of the time: 80% networks and optimizers, 20% the "
        "environments' own steps."
    )


def test_a_line_that_no_rule_knows_is_named_with_what_it_costs(tmp_path):
    program = healthy(Program(tmp_path, TRAIN), 0.8)
    main = ("<module>", "train(env, agent, [])")
    caller = ("train", "mean = statistics(obs)")
    program.at(main, caller, ("statistics", "total = slow(obs)"), seconds=2)
    found = program.found()[0]
    assert (found.rule, found.wait, found.pace) == ("line", "computing", "repeated")
    assert found.gain == pytest.approx(10 / 8)
    assert [place.line for place in found.places] == [2, 9, program.line("train(env, agent, [])")]
    assert found.places[0].function == "statistics"


def test_a_library_s_function_is_named_below_the_line(tmp_path):
    program = healthy(Program(tmp_path, TRAIN), 0.7)
    main = ("<module>", "train(env, agent, [])")
    save = f"save ({SITE}/torch/serialization.py:5)"
    program.at(main, ("train", "picked = rng.choice"), below=(save,), seconds=3)
    found = program.found()[0]
    assert found.rule == "checkpoints"
    assert "in torch.save" in found.evidence[0]


@pytest.mark.parametrize(
    ("blocked", "rule", "wait"),
    [
        ("sleep", "sleep", "sleep"),
        ("network", "network-requests", "network"),
        ("disk", "file-writes", "disk"),
        ("child", "subprocess", "child"),
        ("lock", "lock", "lock"),
    ],
)
def test_time_that_is_blocked_is_never_inherent(tmp_path, blocked, rule, wait):
    program = healthy(Program(tmp_path, TRAIN), 0.7)
    main = ("<module>", "train(env, agent, [])")
    # On a line that multiplies matrices it would be arithmetic, if it computed.
    program.at(main, ("train", "picked = rng.choice"), seconds=3, blocked=blocked)
    found = program.found()[0]
    assert (found.rule, found.wait) == (rule, wait)
    assert found.gain == pytest.approx(10 / 7)


def test_products_of_matrices_and_plain_arithmetic_are_inherent(tmp_path):
    program = Program(
        tmp_path,
        """
        def update(x, w, table):
            hidden = x @ w
            scores = np.dot(hidden, w)
            table[0] += 0.1 * (hidden[0] - table[0])
            best = lookup(scores)
        update()
        """,
    )
    top = ("<module>", "update()")
    program.at(top, ("update", "hidden = x @ w"), seconds=4)
    program.at(top, ("update", "scores = np.dot"), seconds=2)
    program.at(top, ("update", "table[0] += "), seconds=2)
    program.at(top, ("update", "best = lookup"), seconds=2)
    costs = Costs(Evidence(program.session()))
    assert costs.inherent == {"arithmetic": pytest.approx(8e9)}
    (cost,) = costs.costs
    assert cost.places[0].line == program.line("best = lookup")


OWN = """
    class Walker:
        def step(self, action):
            self.physics(action)
            for i in range(100):
                self.state[i] = move(i)
            time.sleep(0.001)
            return self.state

    class Stacked:
        def step(self, action):
            obs = self.env.step(action)
            self.frames = copy_of(obs)
            return obs

    def train(env):
        for _ in range(100):
            env.step(0)
            net(obs)

    train()
"""
ROOT = (("<module>", "train()"), ("train", "env.step(0)"))
WRAPPED = (*ROOT, ("Stacked.step", "obs = self.env.step"))


@pytest.mark.parametrize(
    ("text", "rule", "blocked"),
    [
        ("self.physics(action)", None, None),
        ("self.state[i] = move(i)", "python-loop", None),
        ("time.sleep(0.001)", "sleep", "sleep"),
    ],
)
def test_an_environment_of_the_user_s_own(tmp_path, text, rule, blocked):
    program = Program(tmp_path, OWN)
    program.at(*WRAPPED, ("Walker.step", text), seconds=5, blocked=blocked, path="env_step")
    program.at(ROOT[0], ("train", "net(obs)"), below=(FORWARD,), seconds=5)
    costs = [one for one in program.found() if not one.is_rebuild]
    assert [one.rule for one in costs] == ([rule] if rule else [])
    if rule:
        assert costs[0].places[0].line == program.line(text)


def test_what_a_wrapper_adds(tmp_path):
    program = Program(tmp_path, OWN)
    program.at(*WRAPPED, ("Walker.step", "self.physics(action)"), seconds=2, path="env_step")
    program.at(*ROOT, ("Stacked.step", "self.frames = copy_of"), seconds=4, path="env_step")
    program.at(ROOT[0], ("train", "net(obs)"), below=(FORWARD,), seconds=4)
    found = program.found()[0]
    assert found.rule == "wrapper"
    assert found.places[0].line == program.line("self.frames = copy_of")


def test_what_a_wrapper_s_observation_adds(tmp_path):
    program = Program(
        tmp_path,
        """
        class Resized:
            def observation(self, obs):
                return resize(obs)

        def train(env):
            for _ in range(100):
                env.step(0)

        train()
        """,
    )
    root = (("<module>", "train()"), ("train", "env.step(0)"))
    base = f"ObservationWrapper.step ({SITE}/gymnasium/core.py:560)"
    inner = f"Resized.observation ({program.path}:{program.line('return resize')})"
    program.at(*root, below=(base, inner), seconds=4, path="env_step")
    program.at(*root, below=(base, CARTPOLE), seconds=6, path="env_step")
    found = program.found()[0]
    assert found.rule == "wrapper"
    assert found.places[0].line == program.line("return resize")


def test_the_program_s_own_loop_is_none_that_could_be_removed(tmp_path):
    program = Program(
        tmp_path,
        """
        def main():
            for episode in range(100):
                for step in range(100):
                    a = pick(q)
                    s = world.step(a)
                    for i in range(10):
                        trace[i] = decay(trace[i])
        main()
        """,
    )
    top = ("<module>", "main()")
    program.at(top, ("main", "a = pick(q)"), seconds=2)
    program.at(top, ("main", "s = world.step(a)"), ("World.step", "s = world.step(a)"), seconds=4)
    program.at(top, ("main", "trace[i] = decay"), seconds=4)
    loop = program.line("trace[i] = decay")
    first = program.found()[0]
    # A place without a promise: a program without networks may be made of loops.
    assert (first.rule, first.gain, first.places[0].line) == ("line", None, loop)
    program.at(top, ("main", "trace[i] = decay"), seconds=4)
    first = program.found()[0]  # most of all
    assert (first.rule, first.places[0].line) == ("python-loop", loop)


def test_evaluations_are_a_cost_beside_training_alone(tmp_path):
    text = """
        def evaluate(agent):
            return env.step(agent(obs))

        def train():
            loss.backward()
            score = evaluate(agent)

        train()
    """
    program = Program(tmp_path, text)
    top = ("<module>", "train()")
    evaluating = (top, ("train", "score = evaluate"), ("evaluate", "return env.step"))
    program.at(*evaluating, below=(FORWARD,), seconds=3)
    program.at(*evaluating, below=(VECTOR, CARTPOLE), seconds=3)
    program.at(top, ("train", "loss.backward()"), below=(BACKWARD,), seconds=4)
    found = program.found()[0]
    assert found.rule == "evaluation"
    assert found.places[0].line == program.line("score = evaluate")
    # An evolution strategy does nothing else.
    alone = Program(tmp_path, text)
    alone.at(*evaluating, below=(FORWARD,), seconds=5).at(*evaluating, below=(CARTPOLE,), seconds=5)
    assert "evaluation" not in [one.rule for one in alone.found()]


def test_start_up_is_set_apart(tmp_path):
    program = healthy(Program(tmp_path, TRAIN), 0.7)
    main = ("<module>", "train(env, agent, [])")
    program.at(main, ("train", "picked = rng.choice"), seconds=3)
    importing = "_find_and_load (<frozen importlib._bootstrap>:1)"
    program.at(main, below=(importing,), seconds=10)
    found = program.found()[0]
    assert found.rule == "linear-sampling"
    assert found.gain == pytest.approx(20 / 17)
    assert found.loop_gain == pytest.approx(10 / 7)


def test_a_thread_that_holds_the_interpreter_s_lock(tmp_path):
    program = Program(
        tmp_path,
        """
        def watch():
            while True:
                count = digest(data)

        train()
        """,
    )
    top = ("<module>", "train()")
    program.at(top, seconds=6, below=(FORWARD,))
    program.at(top, seconds=4, blocked="interpreter", below=(FORWARD,))
    program.at(("watch", "count = digest"), seconds=4, thread=7)
    found = program.found()[0]
    assert (found.rule, found.wait) == ("interpreter-lock", "interpreter")
    assert found.gain == pytest.approx(10 / 6)
    assert found.places[0].line == program.line("count = digest")


def test_a_pool_s_threads_are_what_main_waits_for(tmp_path):
    program = Program(
        tmp_path,
        """
        def collect():
            step = parse(text)

        futures = wait(pool)
        """,
    )
    program.at(("<module>", "futures = wait(pool)"), seconds=10, blocked="lock")
    for thread in (7, 8):
        program.at(("collect", "step = parse(text)"), seconds=9, thread=thread)
    found = program.found()[0]
    assert found.places[0].line == program.line("step = parse(text)")
    # It is all that the program does: how much of it could be spared nobody can tell.
    assert (found.gain, found.evidence[0]) == (None, "90% of the time, 90% of the loop")


@pytest.mark.parametrize(
    ("per_second", "pace"),
    [
        ((10, 10, 11, 10, 9, 10, 10, 10), "repeated"),
        ((2, 4, 8, 12, 17, 22, 28, 33), "growing"),
        ((0, 0, 80, 0, 0, 0, 0, 0), "once"),
    ],
)
def test_pace(tmp_path, per_second, pace):
    program = healthy(Program(tmp_path, TRAIN), 0.7)
    main = ("<module>", "train(env, agent, [])")
    program.at(main, ("train", "picked = rng.choice"), seconds=3)
    one = program.session()
    stack = len(one.main.stacks) - 1
    one.main.periods = [
        period(i + 1.0, by_stack={stack: count, 0: 70}) for i, count in enumerate(per_second)
    ]
    assert diagnose(one)[0].pace == pace


def test_a_source_that_is_gone_is_told_by_its_line(tmp_path):
    program = healthy(Program(tmp_path, TRAIN), 0.7)
    main = ("<module>", "train(env, agent, [])")
    program.at(main, ("train", "picked = rng.choice"), seconds=3)
    number = program.line("picked = rng.choice")
    program.path.unlink()
    found = program.found()[0]
    assert (found.rule, found.places[0].line) == ("line", number)


# --- promises -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("seconds", "rule"), [(1.0, None), (2.0, "line"), (4.0, "linear-sampling")]
)
def test_what_a_healthy_program_may_have_is_told_without_a_promise(tmp_path, seconds, rule):
    program = healthy(Program(tmp_path, TRAIN))  # ten seconds
    main = ("<module>", "train(env, agent, [])")
    program.at(main, ("train", "picked = rng.choice(rewards, p=weights)"), seconds=seconds)
    found = [one for one in program.found() if not one.is_rebuild]
    assert [one.rule for one in found] == ([] if rule is None else [rule])
    assert all((one.gain is None) == (rule == "line") for one in found)


def test_a_place_without_a_promise_is_sorted_by_its_share(tmp_path):
    program = healthy(Program(tmp_path, TRAIN))
    main = ("<module>", "train(env, agent, [])")
    program.at(main, ("train", "picked = rng.choice(rewards, p=weights)"), seconds=2.3)
    program.at(main, ("train", "mean = statistics(obs)"), seconds=1.5, blocked="sleep")
    rules = [one.rule for one in program.found() if not one.is_rebuild]
    assert rules == ["line", "sleep"]


LOCKED = """
    def publish(value):
        with lock:
            values.append(value)
            count(values)

    publish(1)
"""


def test_a_lock_is_waited_for_where_it_is_entered(tmp_path):
    program = healthy(Program(tmp_path, "import jax\n" + dedent(TRAIN) + dedent(LOCKED)))
    place = ("<module>", "publish(1)"), ("publish", "with lock:")
    program.at(*place, seconds=4, blocked="lock")
    first = program.found()[0]
    assert (first.rule, first.wait) == ("lock", "lock")
    assert program.line("with lock:") in [one.line for one in first.places]


def test_what_is_handed_over_is_waited_for_by_its_line(tmp_path):
    text = TRAIN.replace("total = slow(obs)", "total = pool.submit(slow, obs).result()")
    program = healthy(Program(tmp_path, text))
    program.at(
        ("<module>", "train(env, agent, [])"),
        ("train", "mean = statistics(obs)"),
        ("statistics", "total = pool.submit(slow, obs).result()"),
        below=(
            f"Future.result ({PYTHON}/concurrent/futures/_base.py:1)",
            f"Condition.wait ({PYTHON}/threading.py:1)",
        ),
        seconds=5,
        blocked="lock",
    )
    # The pool's own thread runs nothing of the user's: it explains nothing.
    program.rows.append(
        seen(
            f"_ExecutorManagerThread.run ({PYTHON}/concurrent/futures/process.py:1)",
            elapsed_s=5,
            on_core_s=5,
            thread=4,
        )
    )
    first = program.found()[0]
    assert first.rule == "waits-for-others"
    assert first.gain == pytest.approx(15 / 10)


def test_a_module_s_own_arithmetic_is_a_network_s(tmp_path):
    text = (
        TRAIN
        + """
    def forward(self, x):
        return x + self.net(x)
"""
    )
    program = healthy(Program(tmp_path, text))
    program.at(
        ("<module>", "train(env, agent, [])"),
        ("train", "loss = agent(obs)"),
        below=(FORWARD, f"forward ({program.path}:{program.line('return x + self.net(x)')})"),
        seconds=6,
    )
    assert [one.rule for one in program.found() if not one.is_rebuild] == []


SCORES = TRAIN.replace(
    "def train(",
    """def score(env, agent):
        total, done = 0.0, False
        obs, _ = env.reset()
        while not done:
            obs, reward, done, _, _ = env.step(agent(obs))
            total += reward
        return total

    def train(""",
).replace("mean = statistics(obs)", "mean = score(env, agent)")


def test_what_plays_for_a_score_beside_training_is_an_evaluation(tmp_path):
    text = SCORES.replace("obs, reward, *_ = env.step(action)", "obs = env.step(action)[0]")
    text = text.replace("def statistics", "def unused")
    program = Program(tmp_path, text)
    main = ("<module>", "train(env, agent, [])")
    scoring = (main, ("train", "mean = score(env, agent)"))
    stepped = ("score", "obs, reward, done, _, _ = env.step(agent(obs))")
    program.at(*scoring, stepped, below=(FORWARD,), seconds=3)
    program.at(*scoring, stepped, below=(VECTOR, CARTPOLE), seconds=3)
    assert "evaluation" not in [one.rule for one in program.found()]  # it is all that there is
    program.at(main, ("train", "action = agent(step)"), below=(FORWARD,), seconds=3)
    program.at(main, ("train", "loss.backward()"), below=(BACKWARD,), seconds=2)
    program.at(main, ("train", "obs = env.step(action)[0]"), below=(VECTOR, CARTPOLE), seconds=1)
    first = program.found()[0]
    assert (first.rule, first.gain) == ("evaluation", pytest.approx(2.0))
    assert first.places[0].line == program.line("mean = score(env, agent)")


def test_one_state_at_a_time_in_a_list(tmp_path):
    text = TRAIN.replace("action = agent(step)", "action = [agent(one) for one in obs]")
    program = healthy(
        Program(
            tmp_path, text.replace("action = [", "action = agent(step)\n            action = [")
        )
    )
    program.at(
        ("<module>", "train(env, agent, [])"),
        ("train", "action = [agent(one) for one in obs]"),
        ("train.<locals>.<listcomp>", "action = [agent(one) for one in obs]"),
        below=(FORWARD,),
        seconds=10,
    )
    first = program.found()[0]
    assert (first.rule, first.places[0].line) == (
        "one-at-a-time",
        program.line("action = [agent(one) for one in obs]"),
    )


@pytest.mark.parametrize(
    ("made", "is_told"),
    [
        ("[float(tanh(row @ weights)) for row in obs]", True),
        ("[np.dot(row, weights) for row in obs]", True),
        ("max(row.dot(weights) for row in obs)", True),
        ("obs @ weights", False),
        ("[obs @ weights for weights in population]", False),
        ("[row @ rows for row, rows in zip(obs, others)]", False),
        ("[obs[i] @ weights for i in range(64)]", True),
        ("[table[i] @ obs for i in range(3)]", False),
    ],
)
def test_products_row_by_row(tmp_path, made, is_told):
    line = f"probe = {made}"
    text = TRAIN.replace("action = agent(step)", f"action = agent(step)\n            {line}")
    program = healthy(Program(tmp_path, text))
    program.at(("<module>", "train(env, agent, [])"), ("train", line), seconds=10)
    found = [one for one in program.found() if one.rule == "one-at-a-time"]
    assert [one.places[0].line for one in found] == ([program.line(line)] if is_told else [])


@pytest.mark.parametrize(
    ("made", "then", "is_told"),
    [
        ("[]", "", True),
        ("[]", "self.seen.pop(0)", False),
        ("[]", "self.seen = self.seen[-9:]", False),
        ("deque(maxlen=9)", "", False),
    ],
)
def test_lists_that_grow_within_an_environment(tmp_path, made, then, is_told):
    text = f"""
        class Env:
            def __init__(self):
                self.seen = {made}

            def step(self, action):
                self.seen.append(action)
                spread = np.array(self.seen)
                {then}
                return spread

        while True:
            env.step(agent(obs))
            loss.backward()
    """
    program = Program(tmp_path, text)
    step = "env.step(agent(obs))"
    program.at(("<module>", step), ("Env.step", "spread = np.array(self.seen)"), seconds=6)
    program.at(("<module>", "loss.backward()"), below=(BACKWARD,), seconds=4)
    found = [one for one in program.found() if one.rule == "walked-each-step"]
    assert [one.places[0].line for one in found] == ([7] if is_told else [])


def test_where_main_waits_for_a_thread_s_cost_is_told(tmp_path):
    text = """
        def answer():
            return slow(3)

        def train():
            loss.backward()
            x = answers.get()

        train()
    """
    program = Program(tmp_path, text)
    train = ("<module>", "train()")
    program.at(train, ("train", "loss.backward()"), below=(BACKWARD,), seconds=5)
    program.at(
        train,
        ("train", "x = answers.get()"),
        below=(f"Queue.get ({PYTHON}/queue.py:1)", f"Condition.wait ({PYTHON}/threading.py:1)"),
        seconds=5,
        blocked="lock",
    )
    program.at(("answer", "return slow(3)"), seconds=5, blocked="sleep", thread=7)
    first = program.found()[0]
    assert (first.rule, first.gain) == ("sleep", pytest.approx(2.0))
    assert [one.line for one in first.places[:2]] == [
        program.line("return slow(3)"),
        program.line("x = answers.get()"),
    ]


def test_compiling_that_several_calls_show_is_one_cost():
    here, there = Frame("learn", "train.py", 1), Frame("act", "train.py", 30)

    def cost(kind, frame, block, *times):
        found = Cost(kind, frame, block)
        found.rows = [SimpleNamespace(ns=ns) for ns in times]
        return found

    other = cost(kinds.COPYING, here, (7, 7), 90.0)
    few, most = (
        cost(kinds.COMPILES, here, (3, 3), 20.0),
        cost(kinds.COMPILES, there, (31, 31), 25.0, 5.0),
    )
    whole, rest = _compiled_anew([few, other, most])
    assert (whole.function, whole.block, whole.ns) == (there, (31, 31), 50.0)
    assert rest is other
    assert _compiled_anew([few, other]) == [few, other]


SORTS = """
    def newest():
        return sorted(glob(FOLDER))[-1]

    def train():
        for step in range(1000):
            learner.fit(step)
            newest()

    train()
"""


@pytest.mark.parametrize(
    ("file", "is_told"),
    [
        (f"{PYTHON}/glob.py", True),
        (f"{SITE}/numpy/_core/fromnumeric.py", True),
        (f"{SITE}/somelearner/loop.py", False),
        (f"{PYTHON}/asyncio/base_events.py", False),
    ],
)
def test_python_s_own_modules_are_no_program(tmp_path, file, is_told):
    """A line with nearly all of the time may drive a program, if a library can be one."""
    program = Program(tmp_path, SORTS)
    train = ("<module>", "train()")
    place = ("newest", "return sorted(glob(FOLDER))[-1]")
    program.at(train, ("train", "newest()"), place, below=(f"work ({file}:1)",), seconds=9)
    program.at(train, ("train", "learner.fit(step)"), below=(BACKWARD,), seconds=1)
    lines = [one.places[0].line for one in program.found() if not one.is_rebuild]
    assert lines == ([program.line(place[1])] if is_told else [])


HELPERS = """
    kept = []

    def features(x, y):
        return np.array([x, y, x * y])

    def spread():
        return np.array(kept)

    def main():
        for step in range(1000):
            kept.append(step)
            z = features(step, 1)
            n = spread()

    main()
"""


@pytest.mark.parametrize(
    ("function", "line", "kind"),
    [
        ("features", "return np.array([x, y, x * y])", None),
        ("spread", "return np.array(kept)", kinds.WALKED),
    ],
)
def test_what_is_walked_each_step_stays(tmp_path, function, line, kind):
    """Of a program in NumPy alone: a vector that is made is no structure that is walked."""
    program = Program(tmp_path, HELPERS)
    main = ("<module>", "main()")
    call = "z = features(step, 1)" if function == "features" else "n = spread()"
    program.at(main, ("main", call), (function, line), seconds=6)
    program.at(main, ("main", "kept.append(step)"), seconds=4)
    first = Costs(Evidence(program.session())).costs[0]
    assert first.places[0].line == program.line(line)
    assert (first.kind, first.is_guess) == (kind, kind is None)
    assert program.found()[0].gain is None  # nobody can tell what such a program could spare


def test_what_is_made_of_a_network_s_answer_is_the_network_s(tmp_path):
    line = "choice = int(torch.multinomial(agent(obs).softmax(-1), 1))"
    text = "import torch\n" + dedent(TRAIN).replace(
        "action = agent(step)", f"action = agent(step)\n        {line}"
    )
    train = ("<module>", "train(env, agent, [])")
    program = healthy(Program(tmp_path, text))
    program.at(train, ("train", line), below=(FORWARD,), seconds=2)
    program.at(train, ("train", line), seconds=6)
    assert [one.rule for one in program.found() if not one.is_rebuild] == []
    # Without a network on the line, it is a cost like any other.
    alone = healthy(Program(tmp_path, text))
    alone.at(train, ("train", line), seconds=6)
    assert [one.places[0].line for one in alone.found()][:1] == [alone.line(line)]


UNROLLED = TRAIN.replace(
    "    def train(",
    """    def unroll(net, xs, state):
        for x in xs:
            out, state = net(x, state)
        return out

    def train(""",
).replace("total = slow(obs)", "total = unroll(net, obs, 0)")


@pytest.mark.parametrize(
    ("asked", "is_told"), [("out, state = net(x, state)", False), ("out = net(x, 0)", True)]
)
def test_a_recurrent_network_is_asked_once_a_step(tmp_path, asked, is_told):
    text = UNROLLED.replace("out, state = net(x, state)", asked)
    program = healthy(Program(tmp_path, text))
    at = ("train", "mean = statistics(obs)"), ("statistics", "total = unroll(net, obs, 0)")
    main = ("<module>", "train(env, agent, [])")
    program.at(main, *at, ("unroll", asked), below=(FORWARD,), seconds=10)
    found = [one.rule for one in program.found() if not one.is_rebuild]
    assert found == (["one-at-a-time"] if is_told else [])


SPREAD = TRAIN.replace(
    "total = slow(obs)\n        return total",
    """first = slow(obs)
        second = slower(first)
        third = slowest(second)
        return agent(third)""",
)


@pytest.mark.parametrize(("network_s", "is_told"), [(0.0, True), (2.0, False)])
def test_a_function_is_told_where_no_line_of_it_is(tmp_path, network_s, is_told):
    program = healthy(Program(tmp_path, SPREAD))
    main = ("<module>", "train(env, agent, [])"), ("train", "mean = statistics(obs)")
    lines = ["first = slow(obs)", "second = slower(first)", "third = slowest(second)"]
    for line in lines:
        program.at(*main, ("statistics", line), seconds=0.8)
    if network_s:
        last = ("statistics", "return agent(third)")
        program.at(*main, last, below=(FORWARD,), seconds=network_s)
    found = [one for one in program.found() if not one.is_rebuild]
    assert len(found) == is_told
    if is_told:
        assert found[0].title == "statistics takes 19% of the time, over all of its lines"
        assert (found[0].gain, found[0].share) == (None, pytest.approx(2.4 / 12.4))
        assert {one.line for one in found[0].places} >= {program.line(line) for line in lines}


@pytest.mark.parametrize(("seconds", "is_claimed"), [(3.5, False), (6, True)])
def test_waiting_for_a_pool_is_claimed_from_a_third_on(tmp_path, seconds, is_claimed):
    """Workers are never quite even."""
    text = TRAIN.replace("total = slow(obs)", "total = pool.submit(slow, obs).result()")
    program = healthy(Program(tmp_path, text))
    program.at(
        ("<module>", "train(env, agent, [])"),
        ("train", "mean = statistics(obs)"),
        ("statistics", "total = pool.submit(slow, obs).result()"),
        below=(f"Condition.wait ({PYTHON}/threading.py:1)",),
        seconds=seconds,
        blocked="lock",
    )
    assert (program.found()[0].gain is not None) is is_claimed
