import copy
import dataclasses
import errno
import shutil
import tempfile
from functools import partial

import numpy as np
import pytest
import torch
from torch._dynamo.utils import counters

from hotloop.algorithms import ppo
from hotloop.errors import ConfigError
from hotloop.learner import Execution, ExecutionChoice, HyperParameters, choose
from hotloop.learner.artifacts import Artifact, PackagingError
from hotloop.learner.execution import _torch_compile
from hotloop.learner.updates import BoundUpdate
from hotloop.ops.activations import rational_tanh, tanh
from hotloop.ops.schedules import linear
from hotloop.runs import RunDirectory
from hotloop.training.learners import hyper_of
from tests.policies.nets import Spaces
from tests.policies.test_policies import BOX, DISCRETE, MULTI, obs_spec

needs_compiler = pytest.mark.skipif(shutil.which("g++") is None, reason="no C++ compiler")


def test_the_choice_weighs_the_work_ahead(monkeypatch):
    few = choose("auto", num_calls=5_000, flop_per_call=1e7)
    many = choose("auto", num_calls=100_000, flop_per_call=1e7)
    heavy = choose("auto", num_calls=5_000, flop_per_call=2e9)
    assert (few.is_compiled, many.is_compiled, heavy.is_compiled) == (False, True, True)
    assert few.reason.startswith("eager: compiling takes about 20 s once")
    assert "would save about 89 s over 100,000 updates" in many.reason
    assert not choose("eager", num_calls=10**9, flop_per_call=1e9).is_compiled
    assert choose("compile", num_calls=1, flop_per_call=1).is_compiled


def test_shared_compilation_counts_for_every_run(monkeypatch):
    alone = choose("auto", num_calls=5_000, flop_per_call=1e7)
    assert not alone.is_compiled
    monkeypatch.setattr("hotloop.base.cache.SHARING.runs", 12)
    together = choose("auto", num_calls=5_000, flop_per_call=1e7)
    assert together.is_compiled
    assert "would save about 53 s over 5,000 updates in each of 12 runs" in together.reason
    lanes = choose("auto", num_calls=5_000, flop_per_call=1e7, num_lanes=4)  # of the 12 runs
    assert lanes.reason == together.reason


def test_without_a_compiler(monkeypatch):
    monkeypatch.setattr(shutil, "which", lambda name: None)
    monkeypatch.delenv("CXX", raising=False)
    assert choose("auto", num_calls=10**9, flop_per_call=1e9) == ExecutionChoice(
        False, "eager: the C++ compiler (g++) is missing"
    )
    with pytest.raises(ConfigError, match=r"g\+\+ is missing: install it.*'auto' or 'eager'"):
        choose("compile", num_calls=10**9, flop_per_call=1e9)
    monkeypatch.setenv("CXX", "no-such-compiler")
    assert not choose("auto", num_calls=10**9, flop_per_call=1e9).is_compiled


def test_rational_tanh_is_tanh():
    x = torch.cat([torch.linspace(-12, 12, 400_001), torch.tensor([1e-20, -1e30, 3e38])])
    want = torch.tanh(x.double())
    got = rational_tanh(x)
    relative = (got.double() - want).abs() / want.abs().clamp(min=1e-30)
    assert relative[x != 0].max() < 5e-7
    assert got.abs().max() <= 1.0 + 1e-6
    x = torch.randn(1000, requires_grad=True)
    (got,) = torch.autograd.grad(rational_tanh(x).sum(), x)
    (want,) = torch.autograd.grad(torch.tanh(x).sum(), x)
    torch.testing.assert_close(got, want, rtol=0, atol=5e-7)
    assert torch.equal(tanh(x), torch.tanh(x))  # outside of compilation


def make_update(action_spec, options):
    """Return a state, minibatches, hyper-parameters and PPO's update, from one seed."""
    config = ppo.Config(num_envs=4, num_steps=64, hidden_sizes=(32, 32), **options)
    nets = ppo.networks(config, Spaces(obs_spec(4), action_spec), torch.device("cpu"))
    state = ppo.init(nets, config)
    rng = np.random.default_rng(0)
    size = config.minibatch_size

    def minibatch():
        floats = torch.from_numpy(rng.standard_normal((8, size)).astype(np.float32))
        action = floats[4:6].T
        if action_spec.kind == "discrete":
            action = torch.from_numpy(rng.integers(0, 3, size))
        elif action_spec.kind == "multi_discrete":
            action = torch.from_numpy(rng.integers(0, 2, (size, 2)))
        return ppo.Batch(
            floats[:4].T, action.contiguous(), -1 + 0.1 * floats[6], floats[7], *floats[:2]
        )

    hyper = hyper_of(ppo.Hyper, config)._replace(learning_rate=linear(1e-3, 0.0))
    update = partial(ppo.update, nets=nets, config=config)
    return state, [minibatch() for _ in range(20)], hyper, update


@needs_compiler
@pytest.mark.slow
@pytest.mark.parametrize(
    ("action_spec", "options"),
    [
        (DISCRETE, {}),
        (MULTI, {"clip_value_loss": True}),
        (BOX, {"target_kl": 1.0, "entropy_coef": 0.01}),
    ],
)
def test_eager_and_compiled_agree_after_100_updates(action_spec, options):
    state, batches, hyper, update = make_update(action_spec, options)
    eager, compiled = copy.deepcopy(state), copy.deepcopy(state)
    hypers = [HyperParameters(hyper, torch.device("cpu")) for _ in range(2)]
    slow = BoundUpdate(update, eager, hypers[0].tensors, ExecutionChoice(False, ""), "update")
    fast = BoundUpdate(
        update, compiled, hypers[1].tensors, ExecutionChoice(True, "asked"), "update"
    )
    for k in range(100):
        for parameters in hypers:
            parameters.set(k / 100)  # in tensors: a changing rate is not recompiled
        (got, no_error), (want, _) = (each(batches[k % 20], None) for each in (fast, slow))
        assert no_error is None
        torch.testing.assert_close(got, want, rtol=2e-3, atol=2e-4)
    torch.testing.assert_close(compiled.params, eager.params, rtol=1e-3, atol=1e-4)
    assert not torch.allclose(eager.params, state.params, atol=1e-3)
    assert compiled.adam.step.item() == eager.adam.step.item() > 0
    execution = fast.execution
    assert execution.num_recompilations == 0
    assert execution.compile_s > 0
    assert "asked; compiling took" in execution.summary()
    assert "over 100 updates, 0 recompilations" in execution.summary()
    assert slow.execution.summary() == "update: "


def double(state, x):
    state.mul_(2.0)
    return x.sum()


def read_values(state, x):
    return x.sum() if x.sum() > 0 else x.mean()


def test_other_shapes_types_or_strides_are_recompiled_and_counted(monkeypatch):
    def compiled(update, args, on_progress):
        """Replace the compiler, which also runs an update on its arguments."""
        update(*args)
        return lambda state, args, leaves: update(state, *args)

    monkeypatch.setattr("hotloop.learner.execution._compile_update", compiled)
    execution = Execution(double, ExecutionChoice(True, ""))
    state = torch.ones(2)
    wide = torch.arange(12.0).view(4, 3)
    for x in (torch.ones(3), torch.ones(3), wide[0], wide[:3, 0], torch.ones(4), torch.ones(4)):
        assert execution(state, x) == x.sum()
    assert execution.num_recompilations == 2
    assert execution(state, torch.ones(3, dtype=torch.float64)).dtype == torch.float64
    assert execution.num_recompilations == 3
    assert state.tolist() == [128.0, 128.0]  # the compiler works on copies


@needs_compiler
def test_uncompilable_update_runs_eager_or_raises():
    arguments = (torch.ones(2), torch.ones(3))
    execution = Execution(read_values, ExecutionChoice(True, "compiled", may_fall_back=True))
    assert [execution(*arguments).item() for _ in range(3)] == [3.0] * 3
    assert execution.summary().startswith(
        f"update: eager: torch {torch.__version__} can't compile the update ("
    )
    execution = Execution(read_values, ExecutionChoice(True, "compiled, as requested"))
    with pytest.raises(
        ConfigError, match=r"is 'compile', but torch .* can't compile the update \(.*'auto'"
    ):
        execution(*arguments)


@needs_compiler
@pytest.mark.slow
def test_torch_compile_uses_the_cache(tmp_path, monkeypatch):
    """GPU updates are compiled this way. Another process finds the same files."""
    monkeypatch.setenv("HOTLOOP_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv("TORCHINDUCTOR_CACHE_DIR", raising=False)

    def update(state, x):
        state[0].add_(torch.tanh(x).mean() * 2.0)
        return state[0].sum()

    hits = []
    for _ in range(2):
        torch._dynamo.reset()
        before = counters["inductor"]["fxgraph_cache_hit"]
        with torch._inductor.config.patch({"cpp.vec_isa_ok": True}):  # compiles no probes
            _torch_compile(update, ((torch.zeros(3),), torch.ones(4, 4)), lambda message: None)
        hits.append(counters["inductor"]["fxgraph_cache_hit"] - before)
    assert hits == [0, 1]
    assert [path.name for path in (tmp_path / "cache").iterdir()] == ["inductor"]
    assert any((tmp_path / "cache" / "inductor" / "fxgraph").iterdir())


@pytest.fixture
def broken_aotinductor(monkeypatch, tmp_path):
    """Let AOTInductor fail, as on another version of torch, with an empty cache."""
    import torch._inductor

    def fail(*args, **kwargs):
        raise TypeError("unexpected keyword argument 'inductor_configs'")

    monkeypatch.setenv("HOTLOOP_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(torch._inductor, "aoti_compile_and_package", fail)
    monkeypatch.setattr(shutil, "which", lambda name: f"/usr/bin/{name}")


@pytest.mark.usefixtures("broken_aotinductor")
def test_compile_is_one_error_where_aotinductor_fails():
    execution = Execution(double, choose("compile", num_calls=1, flop_per_call=1.0))
    with pytest.raises(ConfigError) as caught:
        execution(torch.ones(2), torch.ones(3))
    assert str(caught.value) == (
        f"`execution` is 'compile', but AOTInductor of torch {torch.__version__} can't compile the "
        "update (unexpected keyword argument 'inductor_configs'): choose 'auto' or 'eager', or "
        "install another version of torch"
    )


@pytest.mark.usefixtures("broken_aotinductor")
def test_auto_is_eager_where_aotinductor_fails_and_reports_it_once(tmp_path, monkeypatch):
    monkeypatch.setattr("hotloop.base.cache.SHARING.runs", 10**6)  # so that compiling is worth it
    result = ppo.train(
        ppo.Config(total_timesteps=512, num_envs=4, num_steps=64, run_dir=str(tmp_path / "run"))
    )
    assert result.execution == (
        f"update: eager: AOTInductor of torch {torch.__version__} can't compile the update "
        "(unexpected keyword argument 'inductor_configs')"
    )


@dataclasses.dataclass
class Pair:
    first: torch.Tensor
    second: torch.Tensor


@needs_compiler
@pytest.mark.parametrize("is_packable", [True, False])
def test_compiled_and_eager_have_the_same_inputs_and_outputs(is_packable):
    """Nested inputs, constants, a tuple of outputs; also where an update can't be packaged."""
    constant = torch.tensor([100.0, 200.0])

    def update(state, x, extras, rate):
        state.second.add_(extras[1] * constant)
        state.first.sub_(rate * x)
        return (state.first + extras[0]).sum(), 10 * x + extras[0]

    slow, fast = (Execution(update, ExecutionChoice(chosen, "asked")) for chosen in (False, True))
    states = [[Pair(torch.zeros(2), torch.zeros(2)) for _ in range(2)] for _ in range(2)]
    ones, results = torch.ones(2), []
    for k in range(4):
        # A tensor that is passed twice can't be packaged.
        x = ones if is_packable or k != 1 else ones + k
        extras = (torch.full((2,), 2.0 + k) if is_packable or k == 2 else x, torch.tensor(3.0))
        arguments = (x, extras, torch.tensor(0.5**k))
        eager, compiled = (
            execution(pair[k % 2], *arguments)
            for execution, pair in zip((slow, fast), states, strict=True)
        )
        assert type(eager) is type(compiled) is tuple
        assert [part.shape for part in compiled] == [(), (2,)]
        results.append((eager, compiled))
    for eager, compiled in results:  # no call has overwritten an earlier one's results
        torch.testing.assert_close(compiled, eager)
    for expected, actual in zip(*states, strict=True):
        torch.testing.assert_close(actual.first, expected.first)
        torch.testing.assert_close(actual.second, expected.second)
    assert all(isinstance(graph, Artifact) for graph in fast._graphs.values()) is is_packable
    # Only a tensor that is passed twice needs another graph, not other values.
    num_recompilations = 0 if is_packable else 1
    assert fast.compile_s > 0
    assert "asked; compiling took" in fast.summary()
    assert f"over 4 updates, {num_recompilations} recompilations" in fast.summary()
    assert slow.summary() == "update: asked"


@needs_compiler
def test_number_of_compilations_is_not_limited(monkeypatch):
    """Also for updates that can't be packaged, whose compilations torch counts."""

    def fail(*args):
        raise PackagingError

    monkeypatch.setattr("hotloop.learner.artifacts.record", fail)
    with torch._dynamo.config.patch(recompile_limit=2):
        for _ in range(4):
            execution = Execution(partial(double), ExecutionChoice(True, ""))
            assert execution(torch.ones(2), torch.ones(3)) == 3.0
            assert execution.choice.is_compiled


@needs_compiler
@pytest.mark.slow
def test_a_compiled_training_learns_and_repeats(tmp_path):
    results = [
        ppo.train(
            ppo.Config(
                total_timesteps=30_000,
                execution="compile",
                run_dir=str(tmp_path / name),
                num_envs=8,
            )
        )
        for name in "ab"
    ]
    assert results[0].mean_return > 100
    first, again = (RunDirectory.open(r.run_dir).load_policy()[1].params for r in results)
    for name, array in first.items():
        np.testing.assert_array_equal(array, again[name], name)
    assert "0 recompilations" in results[0].execution


@pytest.mark.parametrize("may_fall_back", [True, False])
def test_a_full_directory_of_temporary_files_is_named(may_fall_back):
    error = RuntimeError("the backend failed")
    error.__cause__ = OSError(errno.ENOSPC, "No space left on device")
    execution = Execution(dict, ExecutionChoice(True, "compiled", may_fall_back))
    if may_fall_back:
        execution._fall_back(error)
        problem = execution.choice.reason
    else:
        with pytest.raises(ConfigError) as raised:
            execution._fall_back(error)
        problem = str(raised.value)
        assert "free some space there, or set TMPDIR" in problem
    assert f"can't be compiled because {tempfile.gettempdir()} or" in problem
    assert "is full" in problem
