"""Removable and inherent costs of programs, derived from their source and samples."""

from __future__ import annotations

import dataclasses
import sys
from pathlib import Path
from textwrap import dedent
from types import SimpleNamespace

import pytest

from hotloop.profiler.diagnose import bound, causes, diagnose
from hotloop.profiler.diagnose.cost import Cost
from hotloop.profiler.diagnose.costs import Costs
from hotloop.profiler.diagnose.evidence import Evidence, user_positions
from hotloop.profiler.diagnose.merging import merge_alike
from hotloop.profiler.session import Frame, Stack, is_library
from tests.profiler.sessions import period, process, sample, session

SITE = "/usr/lib/python3.11/site-packages"
PYTHON = "/usr/lib/python3.11"
FORWARD = f"Module._call_impl ({SITE}/torch/nn/modules/module.py:1)"
CATEGORICAL = f"Categorical.sample ({SITE}/torch/distributions/categorical.py:1)"
BACKWARD = f"backward ({SITE}/torch/autograd/__init__.py:1)"
CARTPOLE = f"CartPoleEnv.step ({SITE}/gymnasium/envs/classic_control/cartpole.py:1)"
VECTOR = f"SyncVectorEnv.step ({SITE}/gymnasium/vector/sync_vector_env.py:1)"


class Program:
    """A script with samples at lines that are identified by their text.

    Args:
        directory: folder of the script.
        text: source of the script.
    """

    def __init__(self, directory: Path, text: str) -> None:
        self.path = directory / "train.py"
        self.path.write_text(dedent(text).lstrip("\n"))
        self.lines = [line.strip() for line in self.path.read_text().splitlines()]
        self.rows = []

    def line(self, text):
        """Return the number of the line that equals a text, or else starts with it."""
        if text in self.lines:
            return self.lines.index(text) + 1
        (number,) = (i for i, line in enumerate(self.lines, 1) if line.startswith(text))
        return number

    def at(self, *places, below=(), seconds=1.0, blocked=None, **fields):
        """Add samples at `(function, text)` from the outermost in, then `below` in a library."""
        stack = [f"{function} ({self.path}:{self.line(text)})" for function, text in places]
        if blocked:
            fields[blocked] = seconds
        on_core = {} if blocked else {"on_core_s": seconds}
        self.rows.append(sample(*stack, *below, elapsed_s=seconds, **on_core, **fields))
        return self

    def session(self, **fields):
        total_s = sum(row.elapsed_s for row in self.rows if row.thread is None)
        main = process(samples=self.rows, end_s=total_s, **fields)
        # Frames need the first line of their function. Names are unique here.
        main.stacks = [
            stack._replace(frames=tuple(map(self._with_first_line, stack.frames)))
            for stack in main.stacks
        ]
        return session(main)

    def _with_first_line(self, frame):
        owner, _, name = frame.function.rpartition(".")
        numbered = list(enumerate(self.lines, 1))
        first = next((i for i, line in numbered if owner and line == f"class {owner}:"), 1)
        lines = (i for i, line in numbered if i >= first and line.startswith(f"def {name}("))
        return frame._replace(first_line=next(lines, 1))

    def diagnoses(self):
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


def test_inherent_costs_have_no_diagnosis(tmp_path):
    program = healthy(Program(tmp_path, TRAIN))
    assert [cost.rule for cost in program.diagnoses() if not cost.is_rebuild] == []
    assert bound(program.session()) == (
        "No cost is large enough to justify a change. The time goes to: 80% networks and "
        "optimizers, 20% environment steps."
    )


def test_a_line_without_a_rule_is_reported(tmp_path):
    program = healthy(Program(tmp_path, TRAIN), 0.8)
    main = ("<module>", "train(env, agent, [])")
    caller = ("train", "mean = statistics(obs)")
    program.at(main, caller, ("statistics", "total = slow(obs)"), seconds=2)
    first = program.diagnoses()[0]
    assert (first.rule, first.wait, first.pace) == ("line", "computing", "repeated")
    assert first.gain == pytest.approx(10 / 8)
    assert [place.line for place in first.places] == [2, 9, program.line("train(env, agent, [])")]
    assert first.places[0].function == "statistics"


def test_a_library_function_is_named_in_the_evidence(tmp_path):
    program = healthy(Program(tmp_path, TRAIN), 0.7)
    main = ("<module>", "train(env, agent, [])")
    save = f"save ({SITE}/torch/serialization.py:5)"
    program.at(main, ("train", "picked = rng.choice"), below=(save,), seconds=3)
    first = program.diagnoses()[0]
    assert first.rule == "checkpoints"
    assert "in torch.save" in first.evidence[0]


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
def test_blocked_time_is_never_inherent(tmp_path, blocked, rule, wait):
    program = healthy(Program(tmp_path, TRAIN), 0.7)
    main = ("<module>", "train(env, agent, [])")
    # Computing on this line would be arithmetic.
    program.at(main, ("train", "picked = rng.choice"), seconds=3, blocked=blocked)
    first = program.diagnoses()[0]
    assert (first.rule, first.wait) == (rule, wait)
    assert first.gain == pytest.approx(10 / 7)


def test_matrix_products_and_arithmetic_are_inherent(tmp_path):
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
def test_costs_of_a_custom_environment(tmp_path, text, rule, blocked):
    program = Program(tmp_path, OWN)
    program.at(*WRAPPED, ("Walker.step", text), seconds=5, blocked=blocked, path="env_step")
    program.at(ROOT[0], ("train", "net(obs)"), below=(FORWARD,), seconds=5)
    costs = [cost for cost in program.diagnoses() if not cost.is_rebuild]
    assert [cost.rule for cost in costs] == ([rule] if rule else [])
    if rule:
        assert costs[0].places[0].line == program.line(text)


def test_the_cost_of_a_wrapper(tmp_path):
    program = Program(tmp_path, OWN)
    program.at(*WRAPPED, ("Walker.step", "self.physics(action)"), seconds=2, path="env_step")
    program.at(*ROOT, ("Stacked.step", "self.frames = copy_of"), seconds=4, path="env_step")
    program.at(ROOT[0], ("train", "net(obs)"), below=(FORWARD,), seconds=4)
    first = program.diagnoses()[0]
    assert first.rule == "wrapper"
    assert first.places[0].line == program.line("self.frames = copy_of")


def test_the_cost_of_an_observation_wrapper(tmp_path):
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
    first = program.diagnoses()[0]
    assert first.rule == "wrapper"
    assert first.places[0].line == program.line("return resize")


WRAPPERS = """
    class Small:
        def shrink(self, obs):
            return obs[::2]

        def step(self, action):
            obs = self.env.step(action)
            return self.shrink(obs)

    class Walker:
        def step(self, action):
            self.robot.step(action)
            return self.look()

        def look(self):
            return camera()

    class Robot:
        def step(self, action):
            self.state = move(action)

    env = ResizeObservation(FrameStackObservation(Small(Walker())))

    def train():
        for _ in range(100):
            env.step(0)
            net(obs)

    train()
"""
RESIZES = (
    f"ObservationWrapper.step ({SITE}/gymnasium/core.py:560)",
    f"TransformObservation.observation ({SITE}/gymnasium/wrappers/transform_observation.py:79)",
    f"ResizeObservation.__init__.<lambda> ({SITE}/gymnasium/wrappers/transform_observation.py:421)",
)
STACKS = (
    f"FrameStackObservation.step ({SITE}/gymnasium/wrappers/stateful_observation.py:400)",
    f"deepcopy ({PYTHON}/copy.py:128)",
)
VEC_STACKS = (
    f"VecEnv.step ({SITE}/stable_baselines3/common/vec_env/base_vec_env.py:222)",
    f"VecFrameStack.step_wait ({SITE}/stable_baselines3/common/vec_env/vec_frame_stack.py:36)",
    f"update ({SITE}/stable_baselines3/common/vec_env/stacked_observations.py:120)",
)


def test_work_that_a_wrapper_calls_is_its_own(tmp_path):
    program = Program(tmp_path, WRAPPERS)
    step = (*ROOT, ("Small.step", "obs = self.env.step"))
    program.at(*ROOT, ("Small.step", "return self.shrink"), ("Small.shrink", "return obs[::2]"))
    program.at(*step, ("Walker.step", "return self.look"), ("Walker.look", "return camera()"))
    program.at(*step, ("Walker.step", "self.robot.step"), ("Robot.step", "self.state = move"))
    program.rows = [sample_row for sample_row in program.rows for _ in range(2)]
    program.at(ROOT[0], ("train", "net(obs)"), below=(FORWARD,))
    (first,) = (x for x in program.diagnoses() if not x.is_rebuild)
    assert first.rule == "wrapper"
    assert first.places[0].line == program.line("return obs[::2]")
    assert first.places[-1].line == program.line("env.step(0)")
    assert first.evidence[0] == "29% of the time, 29% of the loop, in Small"
    assert "a whole batch" in first.advice


SIMULATED = """
    class Remote:
        def ask(self, action):
            self.socket.sendall(action)
            return self.socket.recv(99)

        def step(self, action):
            reply = self.ask(action)
            self.socket.recv(1)
            obs = decode(reply)
            return obs, 0.0, False, False, {}

    def train(env):
        for _ in range(100):
            env.step(0)
            net(obs)

    train()
"""


@pytest.mark.parametrize(
    ("places", "rules"),
    [
        ((("Remote.step", "reply = self.ask"), ("Remote.ask", "return self.socket.recv(99)")), []),
        ((("Remote.step", "self.socket.recv(1)"),), ["network-requests"]),
    ],
    ids=["the observation", "something else"],
)
def test_waiting_for_a_simulator_is_inherent(tmp_path, places, rules):
    program = Program(tmp_path, SIMULATED)
    program.at(*ROOT, *places, seconds=6, blocked="network")
    program.at(ROOT[0], ("train", "net(obs)"), below=(FORWARD,), seconds=4)
    assert [cost.rule for cost in program.diagnoses() if not cost.is_rebuild] == rules


TRAINER = """
    class Agent:
        def step(self, state, action, reward, next_state, done):
            self.learn(self.memory.sample(64))
            return reward

    class Trainer:
        def step(self):
            obs, reward, terminated, truncated, info = self.env.step(0)
            self.agent.step(obs, 0, reward, obs, terminated)
            self.note(obs)
            return obs

    trainer = Trainer()
    while True:
        trainer.step()
        net(obs)
"""


def test_steps_of_agents_and_trainers_are_no_environments(tmp_path):
    program = Program(tmp_path, TRAINER)
    root = ("<module>", "trainer.step()")
    agent = ("Trainer.step", "self.agent.step(obs")
    program.at(root, agent, ("Agent.step", "self.learn(self.memory.sample"), seconds=4)
    program.at(root, ("Trainer.step", "self.note(obs)"), seconds=3)
    program.at(("<module>", "net(obs)"), below=(FORWARD,), seconds=3)
    found = [(x.rule, x.places[0].line) for x in program.diagnoses() if not x.is_rebuild]
    assert found == [("linear-sampling", program.line("self.learn(self.memory"))]


def test_data_frames_in_a_market_environment(tmp_path):
    program = Program(tmp_path, OWN)
    rows = f"_iLocIndexer.__getitem__ ({SITE}/pandas/core/indexing.py:1191)"
    program.at(*WRAPPED, ("Walker.step", "self.physics(action)"), below=(rows,), seconds=6)
    program.at(ROOT[0], ("train", "net(obs)"), below=(FORWARD,), seconds=4)
    first = program.diagnoses()[0]
    assert (first.rule, first.gain) == ("data-frames", pytest.approx(2.5))
    assert first.places[0].line == program.line("self.physics(action)")


GAME = """
    class Game:
        def step(self, action):
            return self.screen, 1.0, False, False, {}

    class Frames:
        def shrink(self, frame):
            return frame[::2]

        def step(self, action):
            frame, reward, terminated, truncated, info = self.game.step(action)
            self.frames.append(self.shrink(frame))
            return np.stack(self.frames), reward, terminated, truncated, info

    def train(env):
        for _ in range(100):
            env.step(0)
            net(obs)

    train()
"""


@pytest.mark.parametrize("unpacked", ["frame, reward, terminated, truncated, info", "frame, more"])
def test_a_wrapper_whose_inner_step_is_too_fast_for_samples(tmp_path, unpacked):
    """It is recognized by the parts of a step's result. A robot's step has no such result."""
    text = GAME.replace("frame, reward, terminated, truncated, info =", f"{unpacked} =")
    program = Program(tmp_path, text)
    step = (*ROOT, ("Frames.step", "self.frames.append"))
    program.at(*step, ("Frames.shrink", "return frame[::2]"), seconds=4)
    program.at(ROOT[0], ("train", "net(obs)"), below=(FORWARD,), seconds=6)
    found = [cost.places[0].line for cost in program.diagnoses() if cost.rule == "wrapper"]
    is_wrapper = unpacked != "frame, more"
    assert found == ([program.line("return frame[::2]")] if is_wrapper else [])


def test_a_library_s_wrappers_are_found_where_they_are_made(tmp_path):
    program = Program(tmp_path, WRAPPERS)
    program.at(*ROOT, below=RESIZES, seconds=3, path="env_step")
    program.at(*ROOT, below=STACKS, seconds=2, path="env_step")
    program.at(*ROOT, below=(RESIZES[0], CARTPOLE), seconds=2, path="env_step")
    program.at(ROOT[0], ("train", "net(obs)"), below=(FORWARD,), seconds=3)
    costs = [x for x in program.diagnoses() if x.rule == "wrapper"]
    made = program.line("env = ResizeObservation")
    assert [cost.places[0].line for cost in costs] == [made, made]
    assert [cost.evidence[0].rpartition(" ")[2] for cost in costs] == [
        "ResizeObservation",
        "FrameStackObservation",
    ]
    assert costs[0].gain == pytest.approx(10 / 7)
    assert "20% environment steps" in bound(program.session())


@pytest.mark.parametrize("stack", [RESIZES, STACKS, VEC_STACKS])
def test_wrappers_in_a_process_without_lines_of_the_user(stack):
    """A worker of hotloop, or a library that creates the environments itself."""
    main = process(
        samples=[
            sample(*stack, elapsed_s=4, on_core_s=4, path="env_step"),
            sample(RESIZES[0], CARTPOLE, elapsed_s=6, on_core_s=6, path="env_step"),
        ]
    )
    first = diagnose(session(main))[0]
    assert first.rule == "wrapper"
    assert first.places[0].file in "".join(stack)
    assert first.gain == pytest.approx(10 / 6)


def test_small_wrappers_are_one_cost(tmp_path):
    program = Program(tmp_path, WRAPPERS)
    program.at(*ROOT, below=RESIZES, seconds=1.4, path="env_step")
    program.at(*ROOT, below=STACKS, seconds=1, path="env_step")
    program.at(*ROOT, below=(RESIZES[0], CARTPOLE), seconds=4, path="env_step")
    program.at(ROOT[0], ("train", "net(obs)"), below=(FORWARD,), seconds=3.6)
    (cost,) = (x for x in program.diagnoses() if x.rule == "wrapper")
    assert "in ResizeObservation (58%), FrameStackObservation (42%)" in cost.evidence[0]


EPISODES = """
    def play(context):
        process = context.Process(target=score)
        process.start()
        queue.get()

    def main():
        for _ in range(100):
            play(context)
            net(obs)

    main()
"""
STARTS = f"BaseProcess.start ({PYTHON}/multiprocessing/process.py:121)"
GETS = f"Queue.get ({PYTHON}/multiprocessing/queues.py:103)"


@pytest.mark.parametrize(
    ("num_children", "worked_s", "lived_s", "shares"),
    [
        (20, 0.0, 0.2, [0.8]),  # the child's start is what the queue waits for
        (20, 0.2, 0.2, [0.4]),  # the children work for 4 of 8 s
        (2, 0.0, 0.2, []),  # one was replaced
        (20, 0.0, 10.0, []),  # workers that live on
    ],
)
def test_processes_that_are_started_again_and_again(
    tmp_path, num_children, worked_s, lived_s, shares
):
    program = Program(tmp_path, EPISODES)
    root = (("<module>", "main()"), ("main", "play(context)"))
    program.at(*root, ("play", "process.start()"), below=(STARTS,), seconds=2)
    program.at(*root, ("play", "queue.get()"), below=(GETS,), seconds=6, blocked="pipe")
    program.at(root[0], ("main", "net(obs)"), below=(FORWARD,), seconds=2)
    children = [
        process(
            f"child-{number}",
            role="worker",
            pid=200 + number,
            start_s=number * 0.4 if lived_s < 1 else 0.0,
            end_s=min(10.0, number * 0.4 + lived_s),
            samples=[sample("score (score.py:1)", elapsed_s=worked_s, on_core_s=worked_s)]
            if worked_s
            else [],
        )
        for number in range(num_children)
    ]
    (main,) = program.session().processes
    costs = [x for x in diagnose(session(main, *children)) if x.rule == "processes-started"]
    assert [round(1 - 1 / cost.gain, 2) for cost in costs] == shares
    for cost in costs:
        assert "Start them once, before the loop" in cost.advice


def test_a_sleep_is_no_wait_for_a_started_process(tmp_path):
    program = Program(tmp_path, EPISODES.replace("net(obs)", "time.sleep(0.1)"))
    root = (("<module>", "main()"), ("main", "play(context)"))
    program.at(*root, ("play", "process.start()"), below=(STARTS,), seconds=2)
    sleeps = "time.sleep(0.1)"
    program.at(root[0], ("main", sleeps), seconds=8, blocked="sleep")
    (main,) = program.session().processes
    children = [
        process(f"child-{k}", role="worker", pid=200 + k, start_s=k * 0.4, end_s=k * 0.4 + 0.2)
        for k in range(20)
    ]
    first = diagnose(session(main, *children))[0]
    assert (first.rule, first.gain) == ("sleep", pytest.approx(5))
    assert first.places[0].line == program.line(sleeps)


GAMES = """
    def ask(game, move):
        game.stdin.write(move)
        return game.stdout.readline()

    def play(seed):
        game = subprocess.Popen(["game"], stdin=PIPE, stdout=PIPE)
        state = ask(game, "new")
        for _ in range(10):
            state = ask(game, "left")
        return state

    for seed in range(100):
        play(seed)
"""


def test_the_first_wait_for_a_program_belongs_to_its_start(tmp_path):
    program = Program(tmp_path, GAMES)
    play = ("<module>", "play(seed)")
    starts = f"Popen._execute_child ({PYTHON}/subprocess.py:1883)"
    reads = ("ask", "return game.stdout.readline()")
    program.at(play, ("play", "game = subprocess.Popen("), below=(starts,), seconds=1)
    program.at(play, ("play", 'state = ask(game, "new")'), reads, seconds=6, blocked="pipe")
    program.at(play, ("play", 'state = ask(game, "left")'), reads, seconds=3, blocked="pipe")
    first, rest = program.diagnoses()
    assert (first.rule, first.wait) == ("subprocess", "child")
    assert first.places[0].line == program.line("game = subprocess.Popen(")
    assert first.gain == pytest.approx(10 / 3)
    assert (rest.rule, rest.gain) == ("line", pytest.approx(10 / 7))


CLIENT = """
    def ask(message):
        with socket.create_connection(address) as sock:
            sock.sendall(message)
            return sock.recv(99)

    for step in range(1000):
        ask(b"step")
"""


def test_the_first_answer_of_a_connection_belongs_to_its_opening(tmp_path):
    program = Program(tmp_path, CLIENT)
    main = ("<module>", 'ask(b"step")')
    opens = f"create_connection ({PYTHON}/socket.py:1)"
    line = "with socket.create_connection(address) as sock:"
    program.at(main, ("ask", line), below=(opens,), seconds=2)
    program.at(main, ("ask", "return sock.recv(99)"), seconds=4, blocked="network")
    program.at(main, below=(FORWARD,), seconds=4)
    (cost,) = (x for x in program.diagnoses() if not x.is_rebuild)
    # An answer still takes some time.
    assert (cost.rule, cost.gain) == ("connections", pytest.approx(10 / (10 - 0.75 * 6)))
    assert cost.places[0].line == program.line(line)


def test_waits_of_a_loop_do_not_belong_to_a_start_before_the_loop(tmp_path):
    program = Program(
        tmp_path,
        """
        def train(sock):
            for step in range(1000):
                reward = sock.recv(99)

        sock = socket.create_connection(address)
        train(sock)
        """,
    )
    opens = f"create_connection ({PYTHON}/socket.py:1)"
    program.at(("<module>", "sock = socket.create"), below=(opens,), seconds=0.1)
    line = "reward = sock.recv(99)"
    program.at(("<module>", "train(sock)"), ("train", line), seconds=6, blocked="network")
    program.at(("<module>", "train(sock)"), below=(FORWARD,), seconds=4)
    found = [cost for cost in program.diagnoses() if not cost.is_rebuild]
    assert "connections" not in [cost.rule for cost in found]
    assert found[0].places[0].line == program.line(line)


ACTORS = """
    def act(connection):
        while True:
            connection.send(history)

    for step in range(1000):
        rows = [connection.recv() for connection in connections]
        net(rows)
"""


def test_messages_are_one_cost_at_both_ends(tmp_path):
    """Waits for them are none, and no loop over elements."""
    file = f"{PYTHON}/multiprocessing/connection.py"
    program = Program(tmp_path, ACTORS)
    receives = ("<module>", "rows = [connection.recv()")
    below = (f"_ConnectionBase.recv ({file}:250)",)
    program.at(receives, below=below, seconds=3)
    program.at(receives, below=(*below, f"Connection._recv ({file}:1)"), seconds=3, blocked="pipe")
    program.at(("<module>", "net(rows)"), below=(FORWARD,), seconds=4)
    sends = f"act ({program.path}:{program.line('connection.send(history)')})"
    pickles = sample(sends, f"_ConnectionBase.send ({file}:200)", elapsed_s=3, on_core_s=3)
    worker = process("worker", role="worker", pid=7, samples=[pickles])
    found = diagnose(session(program.session().main, worker))
    (cost,) = (x for x in found if not x.is_rebuild)
    assert (cost.rule, cost.gain) == ("messages", pytest.approx(10 / 4))
    lines = {program.line("rows = [connection.recv()"), program.line("connection.send(history)")}
    assert lines <= {place.line for place in cost.places[:3]}


def test_messages_of_a_library_are_no_cause(tmp_path):
    program = Program(tmp_path, "for step in range(1000):\n    venv.step(net(obs))\n")
    step = f"VecEnv.step ({SITE}/stable_baselines3/common/vec_env/base_vec_env.py:222)"
    receive = f"_ConnectionBase.recv ({PYTHON}/multiprocessing/connection.py:250)"
    program.at(("<module>", "venv.step"), below=(step, receive), seconds=6)
    program.at(("<module>", "venv.step"), below=(FORWARD,), seconds=4)
    assert "messages" not in [cost.rule for cost in diagnose(program.session())]


def test_what_a_line_computes_is_no_cause_of_its_wait_for_a_process(tmp_path):
    text = ACTORS.replace("[connection.recv()", "np.concatenate([connection.recv()")
    text = text.replace("in connections]", "in connections])")
    program = Program(tmp_path, text)
    file = f"{PYTHON}/multiprocessing/connection.py"
    receives = ("<module>", "rows = np.concatenate(")
    program.at(receives, below=(f"Connection._recv ({file}:1)",), seconds=6, blocked="pipe")
    program.at(receives, seconds=1)
    program.at(("<module>", "net(rows)"), below=(FORWARD,), seconds=4)
    found = [cost.rule for cost in program.diagnoses() if not cost.is_rebuild]
    assert found == ["waits-for-others"]


def test_a_wait_before_a_queue_for_a_core_is_a_wait():
    rows = [
        sample("<module> (a.py:1)", elapsed_s=9, on_core_s=on_core_s, queued_s=6)
        for on_core_s in (0.5, 2.0)
    ]
    main = process(samples=rows[:1], end_s=9.0)
    assert [row.is_blocked for row in Evidence(session(main)).rows_of(main)] == [True]
    main = process(samples=rows[1:], end_s=9.0)
    assert [row.is_blocked for row in Evidence(session(main)).rows_of(main)] == [False]


LAMBDAS = """
    def make(env):
        return Transform(env, lambda obs: resize(obs))

    for step in range(1000):
        env.step(0)
        best = max(rows, key=lambda row: row[0])
"""


def test_lambdas_have_lines_of_their_own_unless_they_are_called_there(tmp_path):
    program = Program(tmp_path, LAMBDAS)
    made = program.line("return Transform(env, lambda obs: resize(obs))")
    called = program.line("best = max(rows, key=lambda row: row[0])")
    for caller, line, expected in (
        (program.line("env.step(0)"), made, 2),
        (called, called, 1),
    ):
        places = [("<module>", caller), ("<lambda>", line)]
        stack = Stack(
            tuple(Frame(function, str(program.path), 1) for function, _ in places),
            tuple(number for _, number in places),
        )
        assert len(user_positions(stack)) == expected


def test_the_main_loop_is_not_removable(tmp_path):
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
    first = program.diagnoses()[0]
    # There is no gain, because a program without networks may consist of loops.
    assert (first.rule, first.gain, first.places[0].line) == ("line", None, loop)
    program.at(top, ("main", "trace[i] = decay"), seconds=4)
    first = program.diagnoses()[0]  # now the largest cost
    assert (first.rule, first.places[0].line) == ("python-loop", loop)


def test_evaluations_are_a_cost_only_beside_training(tmp_path):
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
    first = program.diagnoses()[0]
    assert first.rule == "evaluation"
    assert first.places[0].line == program.line("score = evaluate")
    # An evolution strategy only evaluates.
    other = Program(tmp_path, text)
    other.at(*evaluating, below=(FORWARD,), seconds=5).at(*evaluating, below=(CARTPOLE,), seconds=5)
    assert "evaluation" not in [cost.rule for cost in other.diagnoses()]


def test_start_up_is_separate(tmp_path):
    program = healthy(Program(tmp_path, TRAIN), 0.7)
    main = ("<module>", "train(env, agent, [])")
    program.at(main, ("train", "picked = rng.choice"), seconds=3)
    importing = "_find_and_load (<frozen importlib._bootstrap>:1)"
    program.at(main, below=(importing,), seconds=10)
    first = program.diagnoses()[0]
    assert first.rule == "linear-sampling"
    assert first.gain == pytest.approx(20 / 17)
    assert first.loop_gain == pytest.approx(10 / 7)


def test_a_thread_that_holds_the_gil(tmp_path):
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
    first = program.diagnoses()[0]
    assert (first.rule, first.wait) == ("interpreter-lock", "interpreter")
    assert first.gain == pytest.approx(10 / 6)
    assert first.places[0].line == program.line("count = digest")


def test_main_waits_for_the_threads_of_a_pool(tmp_path):
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
    first = program.diagnoses()[0]
    assert first.places[0].line == program.line("step = parse(text)")
    # The program does nothing else, so that the possible gain is unknown.
    assert (first.gain, first.evidence[0]) == (None, "90% of the time, 90% of the loop")


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
    example = program.session()
    stack = len(example.main.stacks) - 1
    example.main.periods = [
        period(i + 1.0, by_stack={stack: count, 0: 70}) for i, count in enumerate(per_second)
    ]
    assert diagnose(example)[0].pace == pace


def test_a_missing_source_is_reported_by_line(tmp_path):
    program = healthy(Program(tmp_path, TRAIN), 0.7)
    main = ("<module>", "train(env, agent, [])")
    program.at(main, ("train", "picked = rng.choice"), seconds=3)
    number = program.line("picked = rng.choice")
    program.path.unlink()
    first = program.diagnoses()[0]
    assert (first.rule, first.places[0].line) == ("line", number)


# --- gains ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("seconds", "rule"), [(1.0, None), (2.0, "line"), (4.0, "linear-sampling")]
)
def test_a_small_cost_has_no_gain(tmp_path, seconds, rule):
    program = healthy(Program(tmp_path, TRAIN))  # ten seconds
    main = ("<module>", "train(env, agent, [])")
    program.at(main, ("train", "picked = rng.choice(rewards, p=weights)"), seconds=seconds)
    diagnoses = [cost for cost in program.diagnoses() if not cost.is_rebuild]
    assert [cost.rule for cost in diagnoses] == ([] if rule is None else [rule])
    assert all((cost.gain is None) == (rule == "line") for cost in diagnoses)


def test_a_cost_without_a_gain_is_sorted_by_share(tmp_path):
    program = healthy(Program(tmp_path, TRAIN))
    main = ("<module>", "train(env, agent, [])")
    program.at(main, ("train", "picked = rng.choice(rewards, p=weights)"), seconds=2.3)
    program.at(main, ("train", "mean = statistics(obs)"), seconds=1.5, blocked="sleep")
    rules = [cost.rule for cost in program.diagnoses() if not cost.is_rebuild]
    assert rules == ["line", "sleep"]


LOCKED = """
    def publish(value):
        with lock:
            values.append(value)
            count(values)

    publish(1)
"""


def test_lock_waits_are_reported_where_the_lock_is_taken(tmp_path):
    program = healthy(Program(tmp_path, "import jax\n" + dedent(TRAIN) + dedent(LOCKED)))
    place = ("<module>", "publish(1)"), ("publish", "with lock:")
    program.at(*place, seconds=4, blocked="lock")
    first = program.diagnoses()[0]
    assert (first.rule, first.wait) == ("lock", "lock")
    assert program.line("with lock:") in [place.line for place in first.places]


def test_a_compiled_function_that_waits_for_its_own_threads_holds_no_lock(tmp_path):
    program = Program(
        tmp_path,
        """
        import numba
        @numba.njit(parallel=True)
        def total(x):
            return x.sum()
        while True:
            y = total(x)
        """,
    )
    program.at(("<module>", "y = total(x)"), seconds=4, blocked="lock")
    assert "lock" not in [diagnosis.rule for diagnosis in program.diagnoses()]


def test_waiting_for_a_future_is_reported_by_line(tmp_path):
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
    # The thread of the pool itself runs no user code, so that it explains nothing.
    program.rows.append(
        sample(
            f"_ExecutorManagerThread.run ({PYTHON}/concurrent/futures/process.py:1)",
            elapsed_s=5,
            on_core_s=5,
            thread=4,
        )
    )
    first = program.diagnoses()[0]
    assert first.rule == "waits-for-others"
    assert first.gain == pytest.approx(15 / 10)


def test_arithmetic_of_a_module_belongs_to_its_network(tmp_path):
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
    assert [cost.rule for cost in program.diagnoses() if not cost.is_rebuild] == []


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


def test_scoring_episodes_beside_training_is_an_evaluation(tmp_path):
    text = SCORES.replace("obs, reward, *_ = env.step(action)", "obs = env.step(action)[0]")
    text = text.replace("def statistics", "def unused")
    program = Program(tmp_path, text)
    main = ("<module>", "train(env, agent, [])")
    scoring = (main, ("train", "mean = score(env, agent)"))
    stepped = ("score", "obs, reward, done, _, _ = env.step(agent(obs))")
    program.at(*scoring, stepped, below=(FORWARD,), seconds=3)
    program.at(*scoring, stepped, below=(VECTOR, CARTPOLE), seconds=3)
    assert "evaluation" not in [cost.rule for cost in program.diagnoses()]  # the only activity
    program.at(main, ("train", "action = agent(step)"), below=(FORWARD,), seconds=3)
    program.at(main, ("train", "loss.backward()"), below=(BACKWARD,), seconds=2)
    program.at(main, ("train", "obs = env.step(action)[0]"), below=(VECTOR, CARTPOLE), seconds=1)
    first = program.diagnoses()[0]
    assert (first.rule, first.gain) == ("evaluation", pytest.approx(2.0))
    assert first.places[0].line == program.line("mean = score(env, agent)")


def test_fields_of_a_batch_are_converted_by_one_change(tmp_path):
    """Comprehensions in consecutive lines are one cost, even if each alone has no gain."""
    fields = [f"{name} = [float(row[{i}]) for row in batch]" for i, name in enumerate("abc")]
    line = "picked = rng.choice(rewards, p=weights)\n"
    text = TRAIN.replace(line, "\n            ".join([*fields, line]))
    program = healthy(Program(tmp_path, text))
    main = ("<module>", "train(env, agent, [])")
    for field in fields:
        program.at(main, ("train", field), seconds=2)
    (cost,) = (cost for cost in program.diagnoses() if not cost.is_rebuild)
    assert (cost.rule, cost.gain) == ("python-loop", pytest.approx(1.6))
    assert {program.line(field) for field in fields} < {place.line for place in cost.places}


def test_one_state_at_a_time_in_a_comprehension(tmp_path):
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
    first = program.diagnoses()[0]
    assert (first.rule, first.places[0].line) == (
        "one-at-a-time",
        program.line("action = [agent(one) for one in obs]"),
    )


@pytest.mark.parametrize(
    ("expression", "is_found"),
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
def test_products_row_by_row(tmp_path, expression, is_found):
    line = f"probe = {expression}"
    text = TRAIN.replace("action = agent(step)", f"action = agent(step)\n            {line}")
    program = healthy(Program(tmp_path, text))
    program.at(("<module>", "train(env, agent, [])"), ("train", line), seconds=10)
    diagnoses = [cost for cost in program.diagnoses() if cost.rule == "one-at-a-time"]
    assert [cost.places[0].line for cost in diagnoses] == ([program.line(line)] if is_found else [])


@pytest.mark.parametrize(
    ("initial", "cleanup", "is_found"),
    [
        ("[]", "", True),
        ("[]", "self.seen.pop(0)", False),
        ("[]", "self.seen = self.seen[-9:]", False),
        ("deque(maxlen=9)", "", False),
    ],
)
def test_lists_that_grow_within_an_environment(tmp_path, initial, cleanup, is_found):
    text = f"""
        class Env:
            def __init__(self):
                self.seen = {initial}

            def step(self, action):
                self.seen.append(action)
                spread = np.array(self.seen)
                {cleanup}
                return spread

        while True:
            env.step(agent(obs))
            loss.backward()
    """
    program = Program(tmp_path, text)
    step = "env.step(agent(obs))"
    program.at(("<module>", step), ("Env.step", "spread = np.array(self.seen)"), seconds=6)
    program.at(("<module>", "loss.backward()"), below=(BACKWARD,), seconds=4)
    diagnoses = [cost for cost in program.diagnoses() if cost.rule == "walked-each-step"]
    assert [cost.places[0].line for cost in diagnoses] == ([7] if is_found else [])


def test_the_waiting_line_of_main_is_listed(tmp_path):
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
    first = program.diagnoses()[0]
    assert (first.rule, first.gain) == ("sleep", pytest.approx(2.0))
    assert [place.line for place in first.places[:2]] == [
        program.line("return slow(3)"),
        program.line("x = answers.get()"),
    ]


CONVERT = f"_compile ({SITE}/torch/_dynamo/convert_frame.py:1)"
CALL = (
    f"_TorchDynamoContext.__call__.<locals>.compile_wrapper ({SITE}/torch/_dynamo/eval_frame.py:1)"
)


@pytest.mark.parametrize(
    ("compiling", "running", "rules"),
    [
        # Compiled once, for most of the run.
        ((90, 90, 90, 90, 90, 0, 0), (0, 0, 0, 0, 0, 90, 90), []),
        # Twice at the start, for other shapes.
        ((90, 50, 90, 0, 0, 0), (0, 40, 0, 90, 90, 90), []),
        # Again in most periods, or to the end.
        ((60, 0, 60, 60, 0, 60, 60, 0), (30, 90, 30, 30, 90, 30, 30, 90), ["compiles-again"]),
        ((80, 80, 80, 80, 80, 80), (10, 10, 10, 10, 10, 10), ["compiles-again"]),
    ],
)
def test_a_function_that_is_compiled_once_starts(tmp_path, compiling, running, rules):
    program = Program(
        tmp_path,
        """
        import torch
        f = torch.compile(lambda x: x @ x)
        def main(x):
            for _ in range(1000):
                x = f(x)
        main(torch.zeros(9, 9))
        """,
    )
    top = ("<module>", "main(torch.zeros(9, 9))")
    for below, counts in (((CALL, CONVERT), compiling), ((CALL,), running)):
        program.at(top, ("main", "x = f(x)"), below=below, seconds=sum(counts) / 100)
    example = program.session()
    example.main.periods = [
        period(i + 1.0, by_stack={0: a, 1: b})
        for i, (a, b) in enumerate(zip(compiling, running, strict=True))
    ]
    assert [diagnosis.rule for diagnosis in diagnose(example)] == rules


@pytest.mark.parametrize(
    ("compiling", "is_repeated"), [((90, 90, 90, 90, 90, 0, 0), False), ((80,) * 8, True)]
)
def test_later_calls_may_stand_on_another_line(tmp_path, compiling, is_repeated):
    program = Program(
        tmp_path,
        """
        import torch
        f, x = torch.compile(torch.sin), torch.zeros(9)
        def run(call):
            call()
            while True:
                again = call()
        run(lambda: f(x))
        """,
    )
    running = [90 - count for count in compiling]
    top, call = ("<module>", "run(lambda: f(x))"), ("<lambda>", "run(lambda: f(x))")
    program.at(top, ("run", "call()"), call, below=(CALL, CONVERT), seconds=sum(compiling) / 100)
    program.at(top, ("run", "again = call()"), call, below=(CALL,), seconds=sum(running) / 100)
    example = program.session()
    example.main.periods = [
        period(i + 1.0, by_stack={0: a, 1: b})
        for i, (a, b) in enumerate(zip(compiling, running, strict=True))
    ]
    rules = [diagnosis.rule for diagnosis in diagnose(example)]
    assert ("compiles-again" in rules) == is_repeated


@pytest.mark.parametrize(
    ("compiling", "running", "rules"),
    [
        ((0, 70, 90, 90, 80, 0, 0, 0), (0, 2, 1, 1, 10, 90, 90, 90), []),
        # Other work between compilations, a break, and the end of the run.
        ((0, 50, 50, 50, 50, 0, 0, 0), (0, 40, 40, 40, 40, 90, 90, 90), ["compiles-again"]),
        ((0, 70, 90, 0, 90, 0, 0, 0), (0, 0, 0, 0, 0, 90, 90, 90), ["compiles-again"]),
        ((0, 70, 90, 90, 90, 90, 0, 0), (0, 0, 0, 0, 0, 0, 90, 90), ["compiles-again"]),
    ],
)
def test_several_functions_that_are_compiled_in_a_row_start(tmp_path, compiling, running, rules):
    program = Program(
        tmp_path,
        """
        import torch
        def main(functions, x):
            for f in functions:
                f(x)
            while True:
                work(functions, x)
        main([torch.compile(torch.sin), torch.compile(torch.cos)], torch.zeros(9))
        """,
    )
    main = (
        "<module>",
        "main([torch.compile(torch.sin), torch.compile(torch.cos)], torch.zeros(9))",
    )
    program.at(main, ("main", "f(x)"), below=(CALL, CONVERT), seconds=sum(compiling) / 100)
    program.at(main, ("main", "work(functions, x)"), seconds=sum(running) / 100)
    example = program.session()
    example.main.periods = [
        period(i + 1.0, by_stack={0: a, 1: b})
        for i, (a, b) in enumerate(zip(compiling, running, strict=True))
    ]
    rules_found = [diagnosis.rule for diagnosis in diagnose(example)]
    assert [rule for rule in rules_found if rule == "compiles-again"] == rules


@pytest.mark.parametrize(
    ("function", "file", "is_compiling"),
    [
        ("_compile", "torch/_dynamo/convert_frame.py", True),
        ("compile_fx_inner", "torch/_inductor/compile_fx.py", True),
        ("trace_to_jaxpr_dynamic", "jax/_src/interpreters/partial_eval.py", True),
        ("Dispatcher._compile_for_args", "numba/core/dispatcher.py", True),
        # Calls of compiled functions.
        ("Context.__call__.<locals>.compile_wrapper", "torch/_dynamo/eval_frame.py", False),
        ("CompiledFxGraph.__call__", "torch/_inductor/output_code.py", False),
        ("Compiled.call", "jax/_src/stages.py", False),
    ],
)
def test_calls_of_compiled_functions_do_not_compile(function, file, is_compiling):
    cause = causes.for_frame(Frame(function, f"{SITE}/{file}", 1))
    assert (cause is causes.COMPILATION) is is_compiling


@pytest.mark.parametrize(
    ("file", "is_generated"),
    [
        ("<string>", True),
        ("<eval_with_key>.3", True),
        ("<attrs generated init train.Config>", True),
        ("/tmp/torchinductor_me/ab/some.py", True),
        ("/cache/uh/cuhwznklneuse4z4vv6ir4bygy5hcu7ihbabjpt6kajps3gvlmvc.py", True),
        ("/home/me/uh/cuhwznklneuse.py", False),
        ("/home/me/train.py", False),
        ("<stdin>", False),
        ("<ipython-input-3-abc>", False),
    ],
)
def test_generated_code_is_not_the_users(file, is_generated):
    assert is_library(Frame("f", file, 1)) is is_generated


def test_compilations_are_merged_into_one_cost():
    learn, act = Frame("learn", "train.py", 1), Frame("act", "train.py", 30)

    def cost(kind, frame, block, *times):
        result = Cost(kind, frame, block)
        result.rows = [SimpleNamespace(ns=ns) for ns in times]
        return result

    other = cost(causes.COPYING, learn, (7, 7), 90.0)
    fast, slow = (
        cost(causes.COMPILATION, learn, (3, 3), 20.0),
        cost(causes.COMPILATION, act, (31, 31), 25.0, 5.0),
    )
    merged, remaining = merge_alike([fast, other, slow])
    assert (merged.function, merged.block, merged.ns) == (act, (31, 31), 50.0)
    assert remaining is other
    assert merge_alike([fast, other]) == [fast, other]


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
    ("file", "is_found"),
    [
        (f"{PYTHON}/glob.py", True),
        (f"{SITE}/numpy/_core/fromnumeric.py", True),
        (f"{SITE}/somelearner/loop.py", False),
        (f"{PYTHON}/asyncio/base_events.py", False),
    ],
)
def test_standard_library_modules_drive_no_program(tmp_path, file, is_found):
    """A line with nearly all of the time may drive a program if a library can be one."""
    program = Program(tmp_path, SORTS)
    train = ("<module>", "train()")
    place = ("newest", "return sorted(glob(FOLDER))[-1]")
    program.at(train, ("train", "newest()"), place, below=(f"work ({file}:1)",), seconds=9)
    program.at(train, ("train", "learner.fit(step)"), below=(BACKWARD,), seconds=1)
    lines = [cost.places[0].line for cost in program.diagnoses() if not cost.is_rebuild]
    assert lines == ([program.line(place[1])] if is_found else [])


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
        ("spread", "return np.array(kept)", causes.WALKED_EACH_STEP),
    ],
)
def test_only_persistent_structures_are_walked_each_step(tmp_path, function, line, kind):
    """A new NumPy vector is not a structure that is walked."""
    program = Program(tmp_path, HELPERS)
    main = ("<module>", "main()")
    call = "z = features(step, 1)" if function == "features" else "n = spread()"
    program.at(main, ("main", call), (function, line), seconds=6)
    program.at(main, ("main", "kept.append(step)"), seconds=4)
    first = Costs(Evidence(program.session())).costs[0]
    assert first.places[0].line == program.line(line)
    assert (first.cause, first.is_guess) == (kind, kind is None)
    assert program.diagnoses()[0].gain is None  # the possible gain is unknown


@pytest.mark.parametrize(
    ("line", "inner"),
    [
        ("choice = int(torch.multinomial(agent(obs).softmax(-1), 1))", FORWARD),
        ("choice = int(torch.distributions.Categorical(logits=obs).sample())", CATEGORICAL),
    ],
)
def test_processing_of_outputs_belongs_to_the_network(tmp_path, line, inner):
    text = "import torch\n" + dedent(TRAIN).replace(
        "action = agent(step)", f"action = agent(step)\n        {line}"
    )
    train = ("<module>", "train(env, agent, [])")
    program = healthy(Program(tmp_path, text))
    program.at(train, ("train", line), below=(inner,), seconds=2)
    program.at(train, ("train", line), seconds=6)
    assert [cost.rule for cost in program.diagnoses() if not cost.is_rebuild] == []
    # Without a network on the line, it is a cost like any other.
    other = healthy(Program(tmp_path, text))
    other.at(train, ("train", line), seconds=6)
    assert [cost.places[0].line for cost in other.diagnoses()][:1] == [other.line(line)]


UNROLLED = TRAIN.replace(
    "    def train(",
    """    def unroll(net, xs, state):
        for x in xs:
            out, state = net(x, state)
        return out

    def train(""",
).replace("total = slow(obs)", "total = unroll(net, obs, 0)")


@pytest.mark.parametrize(
    ("call", "is_found"), [("out, state = net(x, state)", False), ("out = net(x, 0)", True)]
)
def test_a_recurrent_network_is_called_once_per_step(tmp_path, call, is_found):
    text = UNROLLED.replace("out, state = net(x, state)", call)
    program = healthy(Program(tmp_path, text))
    at = ("train", "mean = statistics(obs)"), ("statistics", "total = unroll(net, obs, 0)")
    main = ("<module>", "train(env, agent, [])")
    program.at(main, *at, ("unroll", call), below=(FORWARD,), seconds=10)
    rules = [cost.rule for cost in program.diagnoses() if not cost.is_rebuild]
    assert rules == (["one-at-a-time"] if is_found else [])


SPREAD = TRAIN.replace(
    "total = slow(obs)\n        return total",
    """first = slow(obs)
        second = slower(first)
        third = slowest(second)
        return agent(third)""",
)


@pytest.mark.parametrize(("network_s", "is_found"), [(0.0, True), (2.0, False)])
def test_a_function_is_reported_if_no_line_is(tmp_path, network_s, is_found):
    program = healthy(Program(tmp_path, SPREAD))
    main = ("<module>", "train(env, agent, [])"), ("train", "mean = statistics(obs)")
    lines = ["first = slow(obs)", "second = slower(first)", "third = slowest(second)"]
    for line in lines:
        program.at(*main, ("statistics", line), seconds=0.8)
    if network_s:
        last = ("statistics", "return agent(third)")
        program.at(*main, last, below=(FORWARD,), seconds=network_s)
    diagnoses = [cost for cost in program.diagnoses() if not cost.is_rebuild]
    assert len(diagnoses) == is_found
    if is_found:
        assert diagnoses[0].title == "statistics takes 19% of the time, spread over all its lines"
        assert (diagnoses[0].gain, diagnoses[0].share) == (None, pytest.approx(2.4 / 12.4))
        assert {place.line for place in diagnoses[0].places} >= {
            program.line(line) for line in lines
        }


@pytest.mark.parametrize(("seconds", "is_claimed"), [(3.5, False), (6, True)])
def test_waiting_for_a_pool_has_a_gain_from_a_third_on(tmp_path, seconds, is_claimed):
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
    assert (program.diagnoses()[0].gain is not None) is is_claimed


def many_functions(number, file="/me/lib.py"):
    """Return a session with samples in many functions of a file, called by one line in few."""
    top = ("<module> (/me/train.py:90)", "main (/me/train.py:80)")
    rows = [
        sample(*top, f"step{i % 5} (/me/steps.py:{10 * (i % 5)})", f"f{i} ({file}:{3 * i + 3})")
        for i in range(number)
    ]
    return session(process(samples=rows, end_s=number))


def num_calls(function, *arguments):
    """Return the number of calls of Python and C functions in a call."""
    count = 0

    def count_call(frame, event, argument):
        nonlocal count
        count += event in ("call", "c_call")

    sys.setprofile(count_call)
    try:
        function(*arguments)
    finally:
        sys.setprofile(None)
    return count


@pytest.mark.parametrize("has_source", [False, True])
def test_twice_as_many_functions_take_twice_as_long(tmp_path, has_source):
    text = "def f{}(x):\n    for i in g(x): total += np.mean(x)\n    return torch.sum(total)\n"
    counts = []
    for number in (100, 200):
        file = tmp_path / f"lib{number}.py"
        if has_source:
            file.write_text("import torch\n" + "".join(map(text.format, range(number))))
        counts.append(num_calls(diagnose, many_functions(number, file)))
    assert counts[1] < 2.3 * counts[0]


@pytest.mark.parametrize("name", [f"f{number}" for number in range(8)])
def test_small_costs_are_reported_by_the_innermost_function_that_contains_them(name):
    # Sets of frames have another order in each process, and names change it, too.
    top = ("<module> (/me/train.py:90)", "main (/me/train.py:80)")
    calls = (f"outer_{name} (/me/train.py:50)", f"inner_{name} (/me/train.py:60)")
    rows = [sample(*top, *calls, f"g{i} (/me/lib.py:{10 * i + 1})") for i in range(10)]
    first, *_ = diagnose(session(process(samples=[*rows, *_half_of_the_time(top)], end_s=20)))
    assert first.title.startswith(f"inner_{name} takes 50% of the time")


def _half_of_the_time(top):
    return [sample(*top, f"h (/me/other.py:{i})", elapsed_s=5) for i in (1, 2)]


def with_lock_holder(*, interpreter_s):
    """Return a session whose main thread and another thread compute at the same line."""
    top, line = "<module> (/me/train.py:90)", "preprocess (/me/data.py:3)"
    rows = [
        sample(top, line, elapsed_s=6.0 - interpreter_s, on_core_s=6.0 - interpreter_s),
        sample(top, line, elapsed_s=interpreter_s, interpreter=interpreter_s),
        sample(top, CARTPOLE, elapsed_s=4, on_core_s=4),
        sample("load (/me/data.py:20)", line, elapsed_s=5, on_core_s=5, thread=7),
    ]
    return session(process(samples=rows, end_s=10, cores=4))


def test_work_at_the_line_of_another_thread_is_no_wait_for_the_lock():
    (only,) = diagnose(with_lock_holder(interpreter_s=0.0))
    assert (only.rule, only.wait, only.gain) == ("line", "computing", pytest.approx(2.5))


def test_work_and_waiting_for_the_lock_at_one_line_are_two_costs():
    found = {item.rule: item for item in diagnose(with_lock_holder(interpreter_s=2.5))}
    assert found["line"].gain == pytest.approx(10 / 6.5)
    assert found["interpreter-lock"].gain == pytest.approx(10 / 7.5)


def test_a_short_wait_for_the_interpreter_renames_no_larger_cost(tmp_path):
    """A thread that main waits for 5 s keeps its cause, though main also waits for its lock."""
    (tmp_path / "data.py").write_text("with guard:\n    pass\n")
    load = f"load ({tmp_path}/data.py:1)"
    rows = [
        sample("<module> (/me/train.py:90)", f"get ({PYTHON}/queue.py:1)", elapsed_s=5, lock=5.0),
        sample("<module> (/me/train.py:91)", CARTPOLE, elapsed_s=5, on_core_s=4, interpreter=0.1),
        sample(load, elapsed_s=5, lock=4.5, on_core_s=0.1, thread=7),
    ]
    (only,) = diagnose(session(process(samples=rows, end_s=10)))
    assert (only.rule, only.gain) == ("lock", pytest.approx(2.0, rel=0.1))


def test_a_cause_without_a_place_may_be_beside_a_thread():
    forward = f"Net.forward ({SITE}/torch/nn/modules/module.py:1)"
    rows = [
        sample(forward, f"extract_stack ({PYTHON}/traceback.py:3)", elapsed_s=5, on_core_s=5),
        sample("main (/me/train.py:6)", elapsed_s=5, on_core_s=3, interpreter=2.0),
        sample("load (/me/data.py:17)", elapsed_s=5, on_core_s=5, thread=9),
    ]
    main = process(samples=rows, end_s=10, facts={"detects_anomalies": 1.0})
    rules = [item.rule for item in diagnose(session(main))]
    assert {"debug-mode", "interpreter-lock"} <= {*rules}


PIXELS = """
    class Pixels(gym.Wrapper):
        def step(self, action):
            _, reward, *ends = self.env.step(action)
            return self.env.render(), reward, *ends

    class Scaled(gym.ObservationWrapper):
        def observation(self, obs):
            frame = self.env.render()
            return frame / 255

    class Recorded(gym.Wrapper):
        def step(self, action):
            result = self.env.step(action)
            self.frames.append(self.env.render())
            return result

    def train(env, agent):
        obs = env.reset()
        for step in range(1000):
            obs, *_ = env.step(agent(obs))
        return obs

    train(env, agent)
"""
RENDER = f"MujocoEnv.render ({SITE}/gymnasium/envs/mujoco/mujoco_env.py:1)"
CORE = f"{SITE}/gymnasium/core.py:1"
PIXEL_WRAPPER = f"{SITE}/gymnasium/wrappers/transform_observation.py:1"
RECORDER = f"RecordVideo.step ({SITE}/gymnasium/wrappers/rendering.py:1)"


@pytest.mark.parametrize(
    ("user", "library", "is_cost"),
    [
        (("Pixels.step", "return self.env.render(), reward, *ends"), (), False),
        (("Scaled.observation", "frame = self.env.render()"), (), False),
        (None, (f"AddRenderObservation.observation ({PIXEL_WRAPPER})",), False),
        (("Recorded.step", "self.frames.append(self.env.render())"), (), True),
        (None, (RECORDER,), True),
        (None, (CARTPOLE,), True),  # render_mode="human"
    ],
)
def test_rendered_observations_are_inherent(tmp_path, user, library, is_cost):
    program = Program(tmp_path, PIXELS)
    main = ("<module>", "train(env, agent)"), ("train", "obs, *_ = env.step(agent(obs))")
    program.at(*main, below=(FORWARD,), seconds=4, path="env_step")
    program.at(*main, *filter(None, [user]), below=(*library, RENDER), seconds=6, path="env_step")
    assert ("rendering" in [item.rule for item in program.diagnoses()]) is is_cost


@pytest.mark.parametrize(
    ("step", "inner", "blocked"),
    [
        ("highway_env/envs/common/abstract.py", f"deepcopy ({PYTHON}/copy.py:1)", None),
        ("mlagents_envs/environment.py", f"result ({SITE}/grpc/_channel.py:1)", "lock"),
        ("nle/env/base.py", f"recv ({PYTHON}/socket.py:1)", "network"),
    ],
)
def test_what_a_librarys_environment_does_is_inherent(tmp_path, step, inner, blocked):
    program = Program(tmp_path, PIXELS)
    main = ("<module>", "train(env, agent)"), ("train", "obs, *_ = env.step(agent(obs))")
    program.at(*main, below=(FORWARD,), seconds=4)
    below = (f"Wrapper.step ({CORE})", f"SomeEnv.step ({SITE}/{step}:1)", inner)
    program.at(*main, below=below, seconds=6, blocked=blocked)
    assert [item.rule for item in program.diagnoses() if not item.is_rebuild] == []


POLLING = """
    def train():
        for step in range(1000):
            obs = env.step(0)
            text = json.dumps(history)

    worker = Worker(target=train)
    worker.start()
    while worker.is_alive():
        time.sleep(0.1)
"""
THREAD = f"Thread.run ({PYTHON}/threading.py:2)"


def polling(directory, *, in_process, work_s):
    """Return a session whose main thread sleeps while another thread or process works."""
    program = Program(directory, POLLING)
    program.at(("<module>", "time.sleep(0.1)"), blocked="sleep", seconds=10)
    train = (("train", "obs = env.step(0)"), ("train", "text = json.dumps(history)"))
    numbers = [f"{name} ({program.path}:{program.line(text)})" for name, text in train]
    rows = [
        sample(THREAD, numbers[0], CARTPOLE, elapsed_s=4, on_core_s=0.4 * work_s),
        sample(THREAD, numbers[1], elapsed_s=6, on_core_s=0.6 * work_s),
    ]
    if in_process:
        main = program.session().main
        return session(main, process("worker-0", role="worker", pid=9, samples=rows, end_s=10))
    program.rows += [dataclasses.replace(row, thread=9) for row in rows]
    return program.session()


@pytest.mark.parametrize("in_process", [False, True])
def test_a_main_thread_that_polls_waits_for_the_others_work(tmp_path, in_process):
    first, *_ = diagnose(polling(tmp_path, in_process=in_process, work_s=10))
    assert (first.rule, first.places[0].line) == ("text-and-bytes", 4)
    assert first.gain == pytest.approx(10 / 4)


def test_a_main_thread_that_steps_and_sleeps_does_not_poll(tmp_path):
    recorded = polling(tmp_path, in_process=True, work_s=10)
    step = sample("main (/me/train.py:9)", CARTPOLE, path="env_step", elapsed_s=0.5)
    stepping = session(process(samples=[step])).main
    main = recorded.main
    main.stacks += stepping.stacks
    main.samples += [stepping.samples[0]._replace(stack=len(main.stacks) - 1)]
    assert "sleep" in [item.rule for item in diagnose(recorded)]


def test_a_main_thread_that_sleeps_beside_little_other_work_sleeps(tmp_path):
    (only,) = diagnose(polling(tmp_path, in_process=False, work_s=3))
    assert (only.rule, only.places[0].line) == ("sleep", 9)


@pytest.mark.parametrize(
    ("library", "wait"),
    [
        ("ray/_private/worker.py", "lock"),
        ("ray/_private/worker.py", "network"),
        ("torch/distributed/distributed_c10d.py", "lock"),
    ],
)
def test_a_wait_for_processes_of_another_machine_has_no_gain(tmp_path, library, wait):
    program = healthy(Program(tmp_path, TRAIN), 0.5)
    main, line = ("<module>", "train(env, agent, [])"), ("train", "picked = rng.choice")
    below = (f"get ({SITE}/{library}:1)",)
    program.at(main, line, below=below, seconds=5, blocked=wait)
    first = program.diagnoses()[0]
    assert (first.rule, first.gain, first.wait) == ("line", None, "lock")
    assert len(first.evidence) == 1  # not what the run would take without it


def test_a_learner_of_ray_waits_for_threads_of_torch(tmp_path):
    program = healthy(Program(tmp_path, TRAIN), 0.5)
    main, line = ("<module>", "train(env, agent, [])"), ("train", "picked = rng.choice")
    learner = f"TorchLearner.update ({SITE}/ray/rllib/core/learner/torch/torch_learner.py:1)"
    program.at(main, line, below=(learner, FORWARD), seconds=5, blocked="lock")
    assert [item.rule for item in program.diagnoses() if not item.is_rebuild] == []


def test_a_library_that_polls_waits_for_its_workers(tmp_path):
    program = Program(tmp_path, POLLING)
    retrieve = f"Parallel._retrieve ({SITE}/joblib/parallel.py:1)"
    start = ("<module>", "worker.start()")
    program.at(start, below=(retrieve,), blocked="sleep", seconds=6)
    program.at(start, below=(FORWARD,), seconds=4)
    worker = f"_process_worker ({SITE}/joblib/externals/loky/process_executor.py:1)"
    line = program.line("text = json.dumps(history)")
    row = sample(worker, f"train ({program.path}:{line})", elapsed_s=6, on_core_s=6)
    main = program.session().main
    workers = [process(f"worker-{k}", role="worker", pid=k, samples=[row]) for k in (7, 8)]
    first, *_ = diagnose(session(main, *workers))
    assert (first.rule, first.places[0].line) == ("text-and-bytes", line)
    assert first.gain == pytest.approx(10 / 4)


@pytest.mark.parametrize(
    ("number", "rule"), [(1, "text-and-bytes"), (3, "text-and-bytes"), (9, "subprocess")]
)
def test_a_program_that_starts_others_waits_for_their_work(tmp_path, number, rule):
    """Unless it starts them again and again."""
    program = Program(tmp_path, POLLING)
    run = f"Popen._try_wait ({PYTHON}/subprocess.py:1)"
    program.at(("<module>", "worker.start()"), below=(run,), blocked="child", seconds=9)
    line = program.line("text = json.dumps(history)")
    each_s = 9 / number
    rows = [sample(f"train ({program.path}:{line})", elapsed_s=each_s, on_core_s=each_s)]
    others = [
        process(f"other-{k}", pid=k + 7, start_s=k * each_s, end_s=(k + 1) * each_s, samples=rows)
        for k in range(number)
    ]
    assert [item.rule for item in diagnose(session(program.session().main, *others))] == [rule]
