"""Updates as CUDA graphs: the wrapper's logic with a stand-in for the device, and on a GPU."""

import re

import pytest
import torch

from hotloop.errors import ConfigError
from hotloop.learner import Choice, Execution, choose
from hotloop.learner.graphs import CapturedUpdate, CudaCapturing, size_bytes, written_by
from hotloop.learner.state import mapped, tensors
from tests.learner.test_updates import make_batch, make_learner

GPU = pytest.param("cuda", marks=pytest.mark.gpu)


class Pretended:
    """Captures on the CPU as a GPU does: nothing runs while it captures, addresses stay.

    A capture runs the call on the real tensors and undoes what it did; each replay runs it again
    and writes what it gives into the outputs of the capture. So a replay that read anything but
    the static inputs, or gave its outputs away, is seen.
    """

    def __init__(self, state):
        self.state, self.captures, self.warm_ups = state, 0, 0

    def warm_up(self, call):
        self.warm_ups += 1
        call()

    def capture(self, call):
        self.captures += 1
        before = [x.clone() for x in tensors(self.state).values()]
        outputs = call()
        for x, old in zip(tensors(self.state).values(), before, strict=True):
            x.copy_(old)
        kept = outputs if isinstance(outputs, tuple) else (outputs,)

        def replay():
            made = call()
            for x, new in zip(kept, made if isinstance(made, tuple) else (made,), strict=True):
                x.copy_(new)

        return replay, outputs

    def reserved_bytes(self):
        return 1_000_000 * self.captures


def step(state, x, noise):
    """Change a state by its arguments, and give a number and a tensor."""
    weight, count, constant = state
    weight.add_(x.mean() * constant + noise.sum())
    count.add_(1.0)
    return weight.sum(), x * 2


def made(size=3):
    return torch.zeros(2), torch.zeros(()), torch.tensor(2.0), torch.ones(size), torch.ones(1)


def captured(state, *args, update=step):
    device = Pretended(state)
    return CapturedUpdate(
        update, state, args, written_by(update, state, args), device, name="update"
    ), device


def test_what_is_written_is_found_and_left_as_it_was():
    weight, count, constant, x, noise = made()
    state = (weight, count, constant)
    written = written_by(step, state, (x, noise))
    assert [id(one) for one in written] == [id(weight), id(count)]
    assert (weight.sum(), count) == (0.0, 0.0)
    # A view is its whole tensor; what is only read is no copy.
    table = torch.arange(6.0).view(2, 3)
    written = written_by(lambda state, x: state[0][1].mul_(x), (table, weight), (x,))
    assert [id(one) for one in written] == [id(table)]
    assert table.tolist() == [[0, 1, 2], [3, 4, 5]]

    def fails(state, x):
        state[0].fill_(9.0)
        raise KeyError("x")

    with pytest.raises(KeyError):
        written_by(fails, state, (x,))
    assert weight.sum() == 0.0


def test_a_warm_up_is_undone_and_a_replay_reads_its_inputs_alone():
    weight, count, constant, x, noise = made()
    state = (weight, count, constant)
    graph, device = captured(state, x, noise)
    assert device.warm_ups == 3
    assert (weight.tolist(), count.item()) == ([0.0, 0.0], 0.0)
    x.fill_(torch.nan)  # what it was captured with
    noise.fill_(torch.nan)
    given = [torch.full((3,), 2.0), torch.zeros(1)]
    total, doubled = graph(state, (), given)
    assert (total, count, weight.tolist()) == (8.0, 1.0, [4.0, 4.0])
    assert doubled.tolist() == [4.0] * 3
    # Nobody's outputs are overwritten, and nobody's arguments.
    later = graph(state, (), [torch.full((3,), 3.0), torch.ones(1)])
    assert (total, doubled[0]) == (8.0, 4.0)
    assert later[1].tolist() == [6.0] * 3
    assert given[0].tolist() == [2.0] * 3
    assert graph.size_bytes == 1_000_000
    with pytest.raises(ValueError, match="of the state that it was captured with"):
        graph((weight, count, constant), (), given)


def test_other_shapes_are_captured_anew_and_counted():
    weight, count, constant, _, noise = made()
    state = (weight, count, constant)
    device = Pretended(state)
    choice = Choice(False, "a CUDA graph, as asked", is_captured=True)
    execution = Execution(step, choice, capturing=device)
    for size in (3, 4, 3, 4):
        execution(state, torch.ones(size), noise)
    assert (device.captures, count.item()) == (2, 4.0)
    assert execution.was == "cudagraph"
    assert "4 updates, 1 recaptures; " in execution.summary()
    assert "MiB in graphs" in execution.summary()
    for size in range(5, 11):
        execution(state, torch.ones(size), noise)
    with pytest.raises(ConfigError, match=r"of a few shapes, and got 9: .* pad them to one"):
        execution(state, torch.ones(11), noise)


def test_an_update_that_waits_for_the_device_is_named_with_its_line():
    def peeks(state, x):
        if state[0].sum() > x.sum():
            raise AssertionError
        raise RuntimeError("operation not permitted when stream is capturing\nmore of it")

    with pytest.raises(ConfigError) as told:
        CapturedUpdate(peeks, made()[:3], (torch.ones(1),), [], Pretended(made()), name="update")
    message = str(told.value)
    assert "the update can't be captured as a graph: operation not permitted when stream" in message
    assert "test_graphs.py:" in message
    assert "in peeks)" in message
    assert "more of it" not in message


def test_no_room_is_told_by_who_holds_it():
    def fills(state, x):
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2 GiB")

    state = (torch.zeros(2**20), torch.zeros(2**18))
    with pytest.raises(ConfigError, match=r"no room .* take 5 MiB, a batch 1 MiB .* lower"):
        CapturedUpdate(fills, state, (torch.ones(2**18),), [], Pretended(state), name="update")
    assert size_bytes(state) == 5 * 2**20


@pytest.mark.parametrize("mode", ["cudagraph", "compile+cudagraph"])
def test_a_graph_without_a_gpu_is_refused(mode):
    with pytest.raises(
        ConfigError, match=rf"`execution` '{re.escape(mode)}' replays .* choose 'compile'"
    ):
        choose(mode, num_calls=1, flop_per_call=1, device=torch.device("cpu"))


def test_on_a_gpu_auto_is_a_compiled_graph():
    device = torch.device("cuda")
    choice = choose("auto", num_calls=1, flop_per_call=1, device=device)
    assert (choice.mode, choice.may_be_eager) == ("compile+cudagraph", True)
    for mode in ("eager", "compile", "cudagraph", "compile+cudagraph"):
        assert choose(mode, num_calls=1, flop_per_call=1, device=device).mode == mode


@pytest.mark.parametrize("name", ["ppo", "sac", "td3", "dqn"])
@pytest.mark.parametrize("device", ["cpu", GPU])
def test_a_graph_learns_what_eager_learns(name, device):
    """100 updates from the same noise, float32."""
    if device == "cuda" and not torch.cuda.is_available():
        pytest.skip("no CUDA device")
    learners = [make_learner(name, "eager", device) for _ in range(2)]
    eager, graphed = learners
    for rule, update in graphed.rules:
        bound = update._bound
        capturing = Pretended(bound) if device == "cpu" else CudaCapturing(torch.device(device))
        choice = Choice(False, "a CUDA graph", is_captured=True)
        update.execution = Execution(update.packed, choice, rule.name, capturing=capturing)
    for k in range(100):
        batch = mapped(make_batch(name, k % 7), lambda x: x.to(device))
        results = [one.update(batch) for one in learners]
        if results[0] is not None:
            torch.testing.assert_close(results[1], results[0], rtol=1e-3, atol=1e-4)
    for part, x in tensors(eager.state).items():
        torch.testing.assert_close(tensors(graphed.state)[part], x, rtol=1e-3, atol=1e-4, msg=part)
    assert eager.metrics.means() == pytest.approx(graphed.metrics.means(), rel=1e-3, abs=1e-4)
