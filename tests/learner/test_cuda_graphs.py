"""Updates as CUDA graphs: the wrapper's logic with a stand-in for the device, and on a GPU."""

import contextlib
import gc
import re
import shutil
import weakref
from typing import ClassVar

import pytest
import torch

from hotloop.errors import ConfigError
from hotloop.learner import Execution, ExecutionChoice, choose, cuda_graphs, torch_threads
from hotloop.learner.cuda_graphs import (
    CapturedCall,
    CapturedUpdate,
    CudaGraphCapturer,
    written_tensors,
)
from hotloop.learner.execution import repeat_choice
from hotloop.learner.lanes import Lanes
from hotloop.learner.state import map_tensors, tensors
from tests.learner.test_updates import make_batch, make_learner

needs_compiler = pytest.mark.skipif(shutil.which("g++") is None, reason="no C++ compiler")
GPU = pytest.param("cuda", marks=pytest.mark.gpu)


class Outputs(list):
    """A list that supports weak references."""


class FakeCapturer:
    """A capturer on the CPU that behaves like a GPU's: a capture runs nothing, addresses stay.

    A capture runs the call on the real tensors and undoes its effects. Each replay runs it again on
    the memory that the state's tensors had at the capture, whatever memory they have now, and
    writes the results into the outputs of the capture. The outputs of all other captures lose
    their values, as graphs share one pool of memory.
    """

    pool: ClassVar[list[weakref.ref]] = []  # lists of outputs

    def __init__(self, state):
        self.state, self.captures, self.warm_ups = state, 0, 0

    def warm_up(self, call):
        for _ in range(4):
            self.warm_ups += 1
            call()

    def capture(self, call):
        self.captures += 1
        before = [x.clone() for x in tensors(self.state).values()]
        outputs = call()
        for x, old in zip(tensors(self.state).values(), before, strict=True):
            x.copy_(old)
        static_outputs = Outputs(outputs if isinstance(outputs, tuple) else (outputs,))
        self.pool.append(weakref.ref(static_outputs))
        # A separate tensor: `x.data = …` moves only the original.
        recorded = [x.detach() for x in tensors(self.state).values()]

        def replay():
            for other in self.pool:
                for x in other() or ():
                    x.fill_(77)
            current = [x.detach() for x in tensors(self.state).values()]
            for x, memory in zip(tensors(self.state).values(), recorded, strict=True):
                x.data = memory
            results = call()
            for x, memory in zip(tensors(self.state).values(), current, strict=True):
                x.data = memory
            for x, new in zip(
                static_outputs, results if isinstance(results, tuple) else (results,), strict=True
            ):
                x.copy_(new)

        return CapturedCall(replay, outputs, 1_500_000)

    def wait(self):
        pass


def step(state, x, noise):
    """Change a state by its arguments; return a number and a tensor."""
    weight, count, constant = state
    weight.add_(x.mean() * constant + noise.sum())
    count.add_(1.0)
    return weight.sum(), x * 2


def make_inputs(size=3):
    return torch.zeros(2), torch.zeros(()), torch.tensor(2.0), torch.ones(size), torch.ones(1)


def capture(state, *args, update=step):
    device = FakeCapturer(state)
    inputs = map_tensors(args, lambda x: x.clone())
    written = written_tensors(update, state, inputs)
    return CapturedUpdate(update, state, inputs, written, device, name="update"), device


def test_written_tensors_are_found_and_restored():
    weight, count, constant, x, noise = make_inputs()
    state = (weight, count, constant)
    written = written_tensors(step, state, (x, noise))
    assert [id(tensor) for tensor in written] == [id(weight), id(count)]
    assert (weight.sum(), count) == (0.0, 0.0)
    # A view counts as its whole tensor. Tensors that are only read are not copied.
    table = torch.arange(6.0).view(2, 3)
    written = written_tensors(lambda state, x: state[0][1].mul_(x), (table, weight), (x,))
    assert [id(tensor) for tensor in written] == [id(table)]
    assert table.tolist() == [[0, 1, 2], [3, 4, 5]]

    def fails(state, x):
        state[0].fill_(9.0)
        raise KeyError("x")

    with pytest.raises(KeyError):
        written_tensors(fails, state, (x,))
    assert weight.sum() == 0.0


def test_warm_up_is_undone_and_replay_reads_only_its_inputs():
    weight, count, constant, x, noise = make_inputs()
    state = (weight, count, constant)
    graph, device = capture(state, x, noise)
    assert device.warm_ups == 4
    assert (weight.tolist(), count.item()) == ([0.0, 0.0], 0.0)
    x.fill_(torch.nan)  # the inputs of the capture
    noise.fill_(torch.nan)
    inputs = [torch.full((3,), 2.0), torch.zeros(1)]
    total, doubled = graph(state, (), inputs)
    assert (total, count, weight.tolist()) == (8.0, 1.0, [4.0, 4.0])
    assert doubled.tolist() == [4.0] * 3
    # Neither earlier outputs nor arguments are overwritten.
    later = graph(state, (), [torch.full((3,), 3.0), torch.ones(1)])
    assert (total, doubled[0]) == (8.0, 4.0)
    assert later[1].tolist() == [6.0] * 3
    assert inputs[0].tolist() == [2.0] * 3
    assert graph.size_bytes == 1_500_000
    assert graph.call_s > 0.0
    assert graph.matches(state)
    assert not graph.matches((weight, count, constant))


@pytest.mark.parametrize("is_stacked", [False, True])
def test_a_state_that_moves_is_captured_again(is_stacked):
    """Stacking learners for a joint update after acting moves their states."""
    weight, count, constant, x, noise = make_inputs()
    state = (weight, count, constant)
    device = FakeCapturer(state)
    execution = Execution(step, ExecutionChoice(False, "", is_captured=True), capturer=device)
    assert execution(state, x, noise)[0] == 6.0
    if is_stacked:
        stack = torch.stack([torch.zeros(2), weight])
        weight.data = stack[1]
    assert execution(state, x, noise)[0] == 12.0
    assert weight.tolist() == [6.0, 6.0]
    assert device.captures == 1 + is_stacked
    if is_stacked:
        assert stack.tolist() == [[0.0, 0.0], [6.0, 6.0]]


def test_other_shapes_are_captured_again_and_counted():
    weight, count, constant, _, noise = make_inputs()
    state = (weight, count, constant)
    device = FakeCapturer(state)
    choice = ExecutionChoice(False, "a CUDA graph, as requested", is_captured=True)
    execution = Execution(step, choice, capturer=device)
    for size in (3, 4, 3, 4):
        execution(state, torch.ones(size), noise)
    assert (device.captures, count.item()) == (2, 4.0)
    assert execution.mode_used == "cudagraph"
    assert "4 updates, 1 recaptures; " in execution.summary()
    assert "; capturing took 0.0 s, then an update took 0." in execution.summary()
    assert execution.summary().endswith("; 3 MiB in graphs")
    for size in range(5, 11):
        execution(state, torch.ones(size), noise)
    with pytest.raises(ConfigError, match=r"at most 8 shapes, got 9: .* pad batches to one"):
        execution(state, torch.ones(11), noise)


def as_graph(update, state, *, is_compiled=False, may_fall_back=False):
    choice = ExecutionChoice(is_compiled, "as requested", may_fall_back, is_captured=True)
    return Execution(update, choice, capturer=FakeCapturer(state))


def read_values(state, x):
    if state[0].sum() > x.sum():
        raise AssertionError
    raise RuntimeError("operation not permitted when stream is capturing\nmore of it")


class BrokenCapturer(FakeCapturer):
    """A capturer whose end of capture raises a second error, from torch's files."""

    def warm_up(self, call):
        pass

    def capture(self, call):
        try:
            call()
        finally:
            torch.zeros(2) + torch.zeros(3)


@pytest.mark.parametrize("kind", [FakeCapturer, BrokenCapturer])
def test_error_names_the_line_that_waits_for_the_device(kind):
    state = make_inputs()[:3]
    try:
        raise KeyError("an unrelated error, before")
    except KeyError:
        with pytest.raises(ConfigError) as caught:
            CapturedUpdate(read_values, state, (torch.ones(1),), [], kind(state), name="update")
    message = str(caught.value)
    assert "the update can't be captured as a graph: operation not permitted when stream" in message
    line = read_values.__code__.co_firstlineno + 3
    assert f"test_cuda_graphs.py:{line}, in read_values)" in message
    assert "more of it" not in message


def test_out_of_memory_error_lists_the_memory():
    def exhaust_memory(state, x):
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2 GiB\nadvice")

    rows = torch.zeros(2**18)
    state = (torch.zeros(2**20), torch.zeros(()), (torch.zeros(2**19), torch.zeros(2**19)))
    message = (
        r"no memory left for the update, which holds the state 4 MiB, the replay buffer 4 MiB, "
        r"a batch 1 MiB \(CUDA out of memory. Tried to allocate 2 GiB\): lower `batch_size`"
    )
    for choice in (ExecutionChoice(False, "eager"), ExecutionChoice(False, "", is_captured=True)):
        with pytest.raises(ConfigError, match=message):
            Execution(exhaust_memory, choice, capturer=FakeCapturer(state))(state, rows)


def test_arguments_may_be_views_of_anything():
    """Views are copied to dense tensors, for which the update is captured and compiled."""
    table = torch.arange(24.0).view(4, 6)
    state = torch.zeros(4)

    def update(state, x, row):
        state.add_(x[:, 1] * row[0])
        return state.sum() + x.sum()

    execution = as_graph(update, state)
    same = torch.zeros(4)
    for k in range(3):
        args = (table[:, k : k + 2], torch.tensor(1.0 + k).expand(3))
        torch.testing.assert_close(execution(state, *args), update(same, *args))
    assert execution.num_recompilations == 0
    assert torch.equal(state, same)


@needs_compiler
@pytest.mark.slow
def test_captured_updates_may_be_compiled():
    state, same = torch.zeros(4), torch.zeros(4)
    table = torch.arange(24.0).view(4, 6)

    def update(state, x):
        state.add_(x[:, 1])
        return state.sum() + x.sum()

    execution = as_graph(update, state, is_compiled=True)
    for k in range(3):
        x = table[:, k : k + 2]
        torch.testing.assert_close(execution(state, x), update(same, x))
    assert torch.equal(state, same)
    assert execution.mode_used == "compile+cudagraph"
    assert "; compiling took" in execution.summary()


def test_static_inputs_are_not_copied():
    state = make_inputs()[:3]
    graph, _ = capture(state, torch.ones(3), torch.ones(1))
    static, noise = graph._inputs
    static.fill_(4.0)
    copied = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(torch, "_foreach_copy_", lambda to, sources: copied.append(list(map(id, to))))
        graph(state, (), [static, noise])
        graph(state, (), [static, torch.zeros(1)])
    assert copied == [[id(noise)]]
    assert state[1] == 2.0


def test_tensors_that_are_only_read_are_not_copied(monkeypatch):
    """A replay buffer may fill half of a GPU."""
    weight, buffer = torch.zeros(2), torch.arange(10.0)

    def update(state, x):
        state[0].add_(state[1].mean() * x)
        return state[0].sum()

    monkeypatch.setattr("hotloop.learner.execution._device", lambda state: torch.device("cuda"))
    execution = Execution(update, ExecutionChoice(False, ""))
    (copied, same), x = execution._copy_arguments((weight, buffer), (torch.ones(2),))
    assert same is buffer
    assert copied is not weight
    assert torch.equal(x, torch.ones(2))
    assert weight.sum() == 0.0


# --- fallbacks of `auto` --------------------------------------------------------------------------


class FailingCapturer(FakeCapturer):
    def capture(self, call):
        raise RuntimeError("no graphs today")


def test_auto_falls_back_if_something_fails(monkeypatch):
    """Without the compiler it is captured; without graphs it is compiled; without both eager."""

    def fail_to_compile(update, args, on_progress):
        raise ValueError("no compiler today")

    def pretend_to_compile(update, args, on_progress):
        return lambda state, args, leaves: update(state, *args)

    cases = {
        (pretend_to_compile, FakeCapturer): ("compile+cudagraph", "as requested"),
        (fail_to_compile, FakeCapturer): (
            "cudagraph",
            "can't compile the update (no compiler today)",
        ),
        (pretend_to_compile, FailingCapturer): ("compile", "captured as a graph: no graphs today"),
        (fail_to_compile, FailingCapturer): ("eager", "captured as a graph: no graphs today"),
    }
    for (compiler, device), (mode, reason) in cases.items():
        monkeypatch.setattr("hotloop.learner.execution._compile_update", compiler)
        for may_fall_back in (True, False):
            state = torch.zeros(2)
            choice = ExecutionChoice(True, "as requested", may_fall_back, is_captured=True)
            execution = Execution(add, choice, capturer=device(state))
            if not may_fall_back and mode != "compile+cudagraph":
                with pytest.raises(ConfigError, match=r"no (compiler|graphs) today"):
                    execution(state, torch.ones(2))
                continue
            for _ in range(3):
                execution(state, torch.ones(2))
            assert state.tolist() == [3.0, 3.0]
            assert execution.mode_used == mode
            if mode != "compile+cudagraph":
                assert execution.summary().startswith(f"update: {MODE_TEXTS[mode]}: ")
            assert reason in execution.summary()


MODE_TEXTS = {
    "eager": "eager",
    "compile": "compiled",
    "cudagraph": "a CUDA graph",
    "compile+cudagraph": "compiled, and a CUDA graph",
}


def add(state, x):
    state.add_(x)
    return state.sum()


@pytest.mark.parametrize(
    ("stored_mode", "on_cpu", "on_gpu"),
    [
        ("eager", "eager", "eager"),
        ("compiled", "compile", "compile"),  # of older versions
        ("compile", "compile", "compile"),
        ("cudagraph", "eager", "cudagraph"),
        ("compile+cudagraph", "compile", "compile+cudagraph"),
    ],
)
def test_resumed_run_keeps_its_mode_if_the_device_can(stored_mode, on_cpu, on_gpu):
    for device, mode in ((None, on_cpu), ("cpu", on_cpu), ("cuda", on_gpu)):
        choice = repeat_choice(stored_mode, None if device is None else torch.device(device))
        assert (choice.mode, choice.reason) == (
            mode,
            f"{MODE_TEXTS[mode]}, as before the run was resumed",
        )
        assert choice.may_fall_back == (mode != "eager")


# --- torch's own capturing, with a stand-in for CUDA ----------------------------------------------


class Stream:
    def wait_stream(self, other):
        pass


class FakeCuda:
    """CUDA's part of `torch.cuda.graph` on the CPU: captured operations are undone."""

    def __init__(self, monkeypatch):
        self.current = self.default = Stream()
        self.captures, self.ended_pools, self.is_broken = [], [], False
        self.states = []
        fake = self

        class Graph:
            def capture_begin(self, pool=None, **options):
                self.pool, self.stream = pool, fake.current
                self.before = [x.clone() for x in fake.states]
                fake.captures.append(self)

            def capture_end(self):
                for x, before in zip(fake.states, self.before, strict=True):
                    x.copy_(before)
                if fake.is_broken:
                    raise RuntimeError("operation failed due to a previous error during capture")

            def replay(self):
                pass

        @contextlib.contextmanager
        def stream(new):
            before, fake.current = fake.current, new
            yield
            fake.current = before

        for name, value in {
            "CUDAGraph": Graph,
            "Stream": Stream,
            "stream": stream,
            "device": lambda device: contextlib.nullcontext(),
            "current_device": lambda: 0,
            "current_stream": lambda device=None: fake.current,
            "set_stream": lambda stream: setattr(fake, "current", stream),
            "graph_pool_handle": object,
            "synchronize": lambda device=None: None,
            "empty_cache": lambda: None,
            "memory_reserved": lambda device=None: 0,
        }.items():
            monkeypatch.setattr(torch.cuda, name, value)
        monkeypatch.setattr(torch._C, "_host_emptyCache", lambda: None, raising=False)
        monkeypatch.setattr(
            torch._C,
            "_cuda_endAllocateToPool",
            lambda index, pool: fake.ended_pools.append(pool),
            raising=False,
        )


@pytest.fixture
def cuda(monkeypatch):
    monkeypatch.setattr(cuda_graphs, "_FAILED_GRAPHS", [])
    cuda_graphs._capture_resources.cache_clear()
    yield FakeCuda(monkeypatch)
    cuda_graphs._capture_resources.cache_clear()


def test_all_graphs_share_a_stream_and_a_pool(cuda):
    streams, collects = [], []

    def call():
        streams.append(cuda.current)
        collects.append(gc.isenabled())
        return torch.zeros(1)

    for _ in range(2):
        capturing = CudaGraphCapturer(torch.device("cuda"))
        capturing.warm_up(call)
        capturing.capture(call)
        assert cuda.current is cuda.default
    keeper, first, second = cuda.captures
    # Torch refuses a pool whose graphs are all gone: an empty graph keeps it.
    assert keeper is cuda_graphs._capture_resources(0).keeper
    assert first.pool is second.pool is keeper.pool is not None
    assert first.stream is second.stream is keeper.stream
    warm_up, capture = streams[:4] + streams[5:9], [streams[4], streams[9]]
    assert capture == [keeper.stream] * 2
    assert len({*warm_up, keeper.stream, cuda.default}) == 3
    # Garbage, such as a graph or an event, must not be freed while CUDA captures.
    assert collects == 2 * [True, True, True, True, False]
    assert gc.isenabled()


def test_after_a_failed_capture_nothing_more_is_captured(cuda):
    """After the error, torch leaves the capture stream set and the graph in the allocator."""
    choice = ExecutionChoice(False, "by default", may_fall_back=True, is_captured=True)
    executions = [Execution(add, choice, name) for name in ("first", "second", "third")]
    cuda.states = states = [torch.zeros(2) for _ in executions]
    executions[0](states[0], torch.ones(2))
    cuda.is_broken = True
    for execution, state in zip(executions[1:], states[1:], strict=True):
        for _ in range(2):
            execution(state, torch.ones(2))
        assert state.tolist() == [2.0, 2.0]
        assert execution.mode_used == "eager"
        assert cuda.current is cuda.default
    keeper, _, broken = cuda.captures
    assert [broken] == cuda_graphs._FAILED_GRAPHS
    assert cuda.ended_pools == [keeper.pool]
    assert executions[0].mode_used == "cudagraph"
    summaries = [execution.summary() for execution in executions]
    assert sum(", and this process can't capture other graphs" in text for text in summaries) == 1
    assert "the second can't be captured as a graph: operation failed due to a" in summaries[1]
    assert summaries[2].startswith("third: eager: can't capture a graph after a failed")
    with pytest.raises(ConfigError, match="start a new process, or choose `execution` 'compile'"):
        Execution(add, ExecutionChoice(False, "", is_captured=True))(states[0], torch.ones(2))


def test_a_graph_keeps_its_compiled_function(monkeypatch):
    """The function holds constants that the graph reads."""

    class ForgetfulCapturer(FakeCapturer):
        def capture(self, call):
            return CapturedCall(lambda: None, call(), 0)

    functions = []

    def pretend_to_compile(update, args, on_progress):
        def compiled(state, args, leaves):
            return update(state, *args)

        functions.append(weakref.ref(compiled))
        return compiled

    monkeypatch.setattr("hotloop.learner.execution._compile_update", pretend_to_compile)
    state = torch.zeros(2)
    choice = ExecutionChoice(True, "", is_captured=True)
    execution = Execution(add, choice, capturer=ForgetfulCapturer(state))
    execution(state, torch.ones(2))
    gc.collect()
    assert functions[0]() is not None


def test_calls_are_timed_on_the_learners_device(monkeypatch):
    device, waited = torch.device("cuda", 1), []
    monkeypatch.setattr("hotloop.learner.execution._device", lambda state: device)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda device=None: waited.append(device))
    execution = Execution(add, ExecutionChoice(True, ""))
    state, x = torch.zeros(2), torch.ones(2)
    assert execution._measure_eager_s(state, (x,)) > 0.0
    assert (
        execution._measure_graph_s(lambda state, args, leaves: add(state, *args), state, (x,)) > 0.0
    )
    assert set(waited) == {device}


# --- choice of the mode ---------------------------------------------------------------------------


@pytest.mark.parametrize("mode", ["cudagraph", "compile+cudagraph"])
def test_a_graph_without_a_gpu_is_refused(mode):
    with pytest.raises(
        ConfigError,
        match=rf"`execution` '{re.escape(mode)}' needs a CUDA device, .* choose 'compile'",
    ):
        choose(mode, num_calls=1, flop_per_call=1, device=torch.device("cpu"))


def test_on_a_gpu_auto_is_a_graph_which_is_compiled_for_long_runs():
    """Only counts decide, so a seed gives one run, whatever the cache and the GPU's speed."""
    device = torch.device("cuda")
    short = choose("auto", num_calls=10_000, flop_per_call=1e6, device=device)
    assert (short.mode, short.may_fall_back, short.may_use_cached) == ("cudagraph", True, False)
    assert short.reason.startswith("a CUDA graph of the eager update: compiling takes about 45 s")
    long = choose("auto", num_calls=1_000_000, flop_per_call=1e6, device=device)
    assert (long.mode, long.may_fall_back, long.may_use_cached) == (
        "compile+cudagraph",
        True,
        False,
    )
    lanes = choose("auto", num_calls=100_000, flop_per_call=1e6, num_lanes=16, device=device)
    assert lanes.mode == "compile+cudagraph"
    for mode in ("eager", "compile", "cudagraph", "compile+cudagraph"):
        assert choose(mode, num_calls=1, flop_per_call=1, device=device).mode == mode


# --- every algorithm ------------------------------------------------------------------------------

ALGORITHMS = ("ppo", "sac", "td3", "dqn")


@pytest.fixture(autouse=True)
def one_thread():
    """The networks are tiny, and threads wait for each other on busy cores."""
    with torch_threads(1):
        yield


def capture_updates(learner, device, *, is_compiled=False):
    for rule, update in learner.rules:
        bound = update._state_and_hyper
        capturing = (
            FakeCapturer(bound) if device == "cpu" else CudaGraphCapturer(torch.device(device))
        )
        choice = ExecutionChoice(is_compiled, "a CUDA graph", is_captured=True)
        update.execution = Execution(update.run_packed, choice, rule.name, capturer=capturing)
    learner.executions = [update.execution for _, update in learner.rules]


@pytest.mark.parametrize(
    "is_compiled", [False, pytest.param(True, marks=[needs_compiler, pytest.mark.slow])]
)
@pytest.mark.parametrize("name", ALGORITHMS)
@pytest.mark.parametrize("device", ["cpu", GPU])
def test_graphs_learn_like_eager_updates(name, device, is_compiled):
    """30 updates from the same noise, float32, while every hyper-parameter changes."""
    skip_without(device)
    learners = [make_learner(name, "eager", device) for _ in range(2)]
    eager, graphed = learners
    capture_updates(graphed, device, is_compiled=is_compiled)
    for k in range(30):
        batch = map_tensors(make_batch(name, k % 7), lambda x: x.to(device))
        for learner in learners:
            learner.hyper.set(k / 30)
        results = [learner.update(batch) for learner in learners]
        if results[0] is not None:
            torch.testing.assert_close(results[1], results[0], rtol=5e-3, atol=5e-3)
    for part, x in tensors(eager.state).items():
        want = x.to(torch.float32)
        atol = 2e-3 * float(want.abs().max())
        got = tensors(graphed.state)[part].to(torch.float32)
        if device == "cpu" and not is_compiled:
            atol = 0.0  # the same operations
        torch.testing.assert_close(got, want, rtol=5 * atol, atol=atol, msg=part)
    assert eager.metrics.means() == pytest.approx(graphed.metrics.means(), rel=1e-3, abs=1e-4)
    for execution in graphed.executions:
        assert execution.num_recompilations == 0
        assert execution.choice.is_captured


def skip_without(device):
    if device == "cuda" and not torch.cuda.is_available():
        pytest.skip("no CUDA device")


@pytest.mark.parametrize("device", ["cpu", GPU])
def test_lanes_share_one_graph(device):
    """Tensors that `vmap` writes are found, so warm-ups leave all lanes unchanged."""
    skip_without(device)
    together = [make_learner("dqn", "eager", device) for _ in range(3)]
    alone = [make_learner("dqn", "eager", device) for _ in range(3)]
    lanes = Lanes(together)
    for update in lanes._updates:
        update.execution.choice = ExecutionChoice(False, "", is_captured=True)
        update.execution._capturer = (
            FakeCapturer(lanes._stacks)
            if device == "cpu"
            else CudaGraphCapturer(torch.device(device))
        )
    for k in range(5):
        batches = [
            map_tensors(make_batch("dqn", 10 * k + lane), lambda x: x.to(device))
            for lane in range(3)
        ]
        lanes.update(dict(enumerate(batches)))
        for single, batch in zip(alone, batches, strict=True):
            single.update(batch)
    for lane_learner, single in zip(together, alone, strict=True):
        for part, x in tensors(single.state).items():
            got = tensors(lane_learner.state)[part]
            torch.testing.assert_close(got, x, rtol=1e-3, atol=1e-5, msg=part)
    (execution,) = lanes.executions
    assert execution.mode_used == "cudagraph"
