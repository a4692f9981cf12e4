"""Recording of threads, nested spans and misuse, with both recorders."""

from __future__ import annotations

import contextlib
import threading

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hotloop import timing
from hotloop.timing import _control, _pure
from hotloop.timing import _format as f
from hotloop.timing._writer import Recorder
from tests.reference.timing import DictRecorder

nestings = st.recursive(
    st.just([]),
    lambda inner: st.lists(
        st.tuples(st.sampled_from("abc"), st.integers(1, 10**9), inner), max_size=5
    ),
    max_leaves=40,
)


def counts(tree):
    return {path: node.count for path, node in tree.walk() if node.count}


def play(nesting, span, reference, clock=None):
    for name, duration, inner in nesting:
        reference.enter(name, clock[0] if clock else 0)
        with span(name):
            play(inner, span, reference, clock)
            if clock:
                clock[0] += duration
        reference.exit(clock[0] if clock else 0)


@given(nestings)
def test_counts_match_the_reference(span, nesting):
    _control._switch_recorder(Recorder(None, "main", _control.backend.FLAGS))
    reference = DictRecorder()
    play(nesting, span, reference)
    tree = timing.current().tree()
    assert counts(tree) == {path: len(times) for path, times in reference.durations.items()}
    for _, node in tree.walk():
        assert node.total_ns >= sum(child.total_ns for child in node.children.values())
        assert node.min_ns <= node.percentile(50) <= node.max_ns


@given(nestings, st.integers(1, 3))
def test_totals_match_the_reference_with_a_fake_clock(nesting, repeats):
    clock = [10**9]
    recorder = Recorder(None, "main", _pure.FLAGS)
    segment = recorder.acquire_segment()
    state = segment.state = _pure.RecorderState(segment, lambda: clock[0] / 1e9)
    previous = _pure.exchange(state)
    reference = DictRecorder()
    try:
        for _ in range(repeats):
            play(nesting, _pure.span, reference, clock)
    finally:
        _pure.exchange(previous)
    tree = _tree_of(recorder)
    nodes = dict(tree.walk())
    assert set(nodes) == set(reference.durations)
    for path, times in reference.durations.items():
        node = nodes[path]
        assert (node.count, node.total_ns) == (len(times), sum(times))
        assert (node.min_ns, node.max_ns) == (min(times), max(times))
        assert node.self_ns == reference.self_ns(path)
        for q in (0, 10, 50, 90, 100):
            exact = np.percentile(times, q, method="inverted_cdf")
            if exact >= 8:
                assert abs(node.percentile(q) - exact) <= 0.063 * exact


def _tree_of(recorder):
    from hotloop.timing.reader import _parse

    recorder.open()
    sources = [
        (lambda at, n, s=s: bytes(s.buffer[at : at + n]), 0, s.layout.size)
        for s in recorder.segments
    ]
    return _parse(None, recorder.header[: f.HEADER.size], sources).tree()


def test_percentiles_of_many_durations():
    clock = [0.0]
    recorder = Recorder(None, "main", _pure.FLAGS)
    segment = recorder.acquire_segment()
    segment.state = _pure.RecorderState(segment, lambda: clock[0] / 1e9)
    previous = _pure.exchange(segment.state)
    durations = np.random.default_rng(0).lognormal(12, 2, 50_000).astype(np.int64) + 8
    for duration in durations:
        clock[0] += 1.0
        with _pure.span("x"):
            clock[0] += int(duration)
    _pure.exchange(previous)
    node = _tree_of(recorder).find("x")
    assert node.count == 50_000
    assert node.total_ns == pytest.approx(durations.sum(), abs=50_000)
    for q in (1, 10, 50, 90, 99, 99.9):
        exact = np.percentile(durations, q, method="inverted_cdf")
        assert node.percentile(q) == pytest.approx(exact, rel=0.0635)
    assert node.percentile(100) == pytest.approx(durations.max(), abs=1)


@pytest.mark.parametrize("extra", [-1, 0, 1, 4095, 4096])
def test_totals_outlive_the_ring(span, extra):
    loops = (f.MAIN.ring_capacity * 2 + extra + 1) // 2
    for _ in range(loops):
        with span("outer"), span("inner", "wait"):
            pass
    recording = timing.current()
    assert counts(recording.tree()) == {("outer",): loops, ("outer", "inner"): loops}
    assert recording.num_spans == 2 * loops
    # One slot is never valid: the one that is written next.
    assert len(recording.events) == f.MAIN.ring_capacity - 1
    assert (np.diff(recording.events["end_ns"]) >= 0).all()
    assert set(recording.events["depth"]) == {1, 2}
    assert recording.tree().find("outer", "inner").kind == "wait"


def test_open_spans_are_reported_with_their_time(span):
    with span("train"):
        with span("step"):
            pass
        with span("step"):
            recording = timing.current()
    assert [o.path for o in recording.open_spans] == [("train",), ("train", "step")]
    train = recording.tree().find("train")
    assert (train.count, train.open) == (0, 1)
    assert train.total_ns == train.open_ns == recording.end_ns - recording.open_spans[0].start_ns
    assert train.find("step").count == 1
    assert not timing.current().open_spans


def test_exceptions_pass_and_the_span_ends(span):
    error = KeyError("x")
    with pytest.raises(KeyError) as caught, span("a"), span("b"):
        raise error
    assert caught.value is error
    recording = timing.current()
    assert counts(recording.tree()) == {("a",): 1, ("a", "b"): 1}
    assert not recording.open_spans


def test_leaving_out_of_order_ends_inner_spans(span):
    outer, inner = span("outer"), None
    outer.__enter__()
    inner = span("inner")
    inner.__enter__()
    outer.__exit__(None, None, None)
    inner.__exit__(None, None, None)  # ended with the outer one: nothing happens
    with span("after"):
        pass
    recording = timing.current()
    assert counts(recording.tree()) == {("outer",): 1, ("outer", "inner"): 1, ("after",): 1}
    assert not recording.open_spans


def test_interleaved_generators_do_no_harm(span):
    def rows(name):
        with span(name):
            yield 1
            with span("more"):
                yield 2

    first, second = rows("first"), rows("second")
    for _ in range(2):
        next(first)
        next(second)
    first.close()
    second.close()
    with span("after"):
        pass
    tree = timing.current().tree()
    assert tree.find("after").count == 1
    assert tree.find("first").count == 1


def test_a_stored_span_can_be_entered_anywhere(span):
    stored = span("stored")
    with span("here"), stored:
        pass
    with span("there"), stored, stored:
        pass
    with stored:
        pass
    assert counts(timing.current().tree()) == {
        ("here",): 1,
        ("here", "stored"): 1,
        ("there",): 1,
        ("there", "stored"): 1,
        ("there", "stored", "stored"): 1,
        ("stored",): 1,
    }


def test_exit_stack_and_attributes(span):
    with contextlib.ExitStack() as stack:
        entered = stack.enter_context(span("a", kind="transfer"))
        assert (entered.name, entered.kind) == ("a", "transfer")
        assert repr(entered) == "span('a', kind='transfer')"
    assert timing.current().tree().find("a").count == 1


def test_decorator(span):
    @span("double", kind="wait")
    def double(x, *, plus=0):
        "Twice."
        return 2 * x + plus

    assert double(3, plus=1) == 7
    with span("outer"):
        double(1)
    assert double.__doc__ == "Twice."
    assert counts(timing.current().tree()) == {
        ("double",): 1,
        ("outer",): 1,
        ("outer", "double"): 1,
    }

    async def wait():
        pass

    with pytest.raises(TypeError, match="plain functions"):
        span("x")(wait)


@pytest.mark.parametrize(
    ("args", "error", "message"),
    [
        ((3,), TypeError, "must be a str, got int"),
        (("a", "idle"), ValueError, "work, wait, transfer, got 'idle'"),
        (("a", 3), ValueError, "got 3"),
        (("a\0b",), ValueError, "NUL"),
        (((),), TypeError, "got tuple"),
    ],
)
def test_wrong_arguments(span, args, error, message):
    with pytest.raises(error, match=message):
        span(*args)


def test_kinds_are_separate(span):
    for kind in ("work", "wait", "transfer", "".join(["wo", "rk"])):
        with span("x", kind=kind):
            pass
    nodes = [node for _, node in timing.current().tree().walk()]
    assert [(n.kind, n.count) for n in nodes] == [("work", 2), ("wait", 1), ("transfer", 1)]


def test_too_many_names_share_one_node(span):
    for i in range(1000):
        with span(f"step_{i}"), span("inside"):
            pass
    with span("step_0"):
        pass
    recording = timing.current()
    tree = recording.tree()
    assert tree.find("step_0").count == 2
    shared = tree.find(f.OVERFLOW)
    assert shared.count > 500
    total = sum(node.count for path, node in tree.walk() if len(path) == 1)
    assert total == 1001
    assert recording.threads[0].unnamed > 0
    assert "fewer, fixed names" in timing.render(tree)
    assert not recording.open_spans


def test_unbounded_names_are_not_stored(span):
    for i in range(10_000):
        with span(f"name {i}"):
            pass
    assert sum(node.count for _, node in timing.current().tree().walk()) == 10_000


def test_deep_recursion(span):
    def down(depth):
        with span("down"):
            if depth:
                down(depth - 1)

    for _ in range(3):
        down(400)
    with span("after"):
        pass
    recording = timing.current()
    tree = recording.tree()
    path = ("down",) * f.MAX_DEPTH
    assert tree.find(*path).count == 3
    assert tree.find(*path, f.OVERFLOW).count == 3
    assert tree.find("after").count == 1
    assert recording.threads[0].unnamed == 3 * (401 - f.MAX_DEPTH - 1)


def test_long_names_are_cut_between_characters(span):
    with span("é" * 100):
        pass
    (path,) = counts(timing.current().tree())
    assert path == ("é" * 55,)


def test_threads_have_their_own_stacks(span):
    barrier = threading.Barrier(3)

    def work(name):
        with span(name):
            barrier.wait()
            for _ in range(5000):
                with span("loop"):
                    pass
            barrier.wait()

    threads = [threading.Thread(target=work, args=(n,), name=f"thread {n}") for n in "ab"]
    for thread in threads:
        thread.start()
    barrier.wait()
    assert {o.path[0] for o in timing.current().open_spans} == {"a", "b"}
    barrier.wait()
    for thread in threads:
        thread.join()
    recording = timing.current()
    assert counts(recording.tree()) == {
        ("a",): 1, ("a", "loop"): 5000, ("b",): 1, ("b", "loop"): 5000,
    }  # fmt: skip
    assert {t.name for t in recording.threads} == {"thread a", "thread b"}
    assert not any(t.alive for t in recording.threads)
    tree = recording.tree()
    shares = sum(node.self_ns for _, node in tree.walk()) + tree.self_ns
    assert shares == tree.total_ns


def test_short_lived_threads_share_segments(span):
    def work():
        with span("short"):
            pass

    for _ in range(2000):
        thread = threading.Thread(target=work)
        thread.start()
        thread.join()
    recording = timing.current()
    assert counts(recording.tree()) == {("short",): 2000}
    assert len(recording.threads) <= 3
    assert sum(t.num_threads for t in recording.threads) == 2000


def test_a_thread_that_ends_inside_a_span_leaves_a_clean_segment(span):
    def abandon():
        span("abandoned").__enter__()

    def work():
        with span("short"):
            pass

    for target in (abandon, work):
        thread = threading.Thread(target=target)
        thread.start()
        thread.join()
    recording = timing.current()
    assert counts(recording.tree()) == {("short",): 1}
    assert not recording.open_spans


def test_measuring_overhead_adds_no_spans(span, monkeypatch):
    from hotloop.timing import calibrate

    monkeypatch.setattr(calibrate, "_overhead_ns", None)
    with span("a"):
        cost = timing.overhead()
    assert 0 < cost < 1e5
    assert counts(timing.current().tree()) == {("a",): 1}
    recording = timing.current()
    assert timing.cost_share(recording, 1000) == 1000 / recording.tree().total_ns
