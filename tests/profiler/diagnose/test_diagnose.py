"""Each rule on hand-made evidence for and against it, with gains computed by hand."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from hotloop.profiler.diagnose import (
    STRUCTURES,
    Evidence,
    bound,
    causes,
    diagnose,
    environments,
    limits,
    networks,
    over_time,
    pipeline,
    python_code,
    replay,
    threads,
)
from hotloop.profiler.diagnose import source as sources
from hotloop.profiler.diagnose.findings import explain
from hotloop.profiler.render.text import diagnosis_lines
from hotloop.profiler.session import Frame, Session, Stack, ThreadTotals, catalogues
from hotloop.profiler.session.catalogues import is_in, read_catalogue
from tests.profiler.sessions import (
    ns,
    period,
    process,
    sample,
    session,
    span,
    with_first_lines,
)

TORCH = "/x/lib/python3.11/site-packages/torch"
OMEGACONF = "/x/lib/python3.11/site-packages/omegaconf/dictconfig.py"
QUEUES = "/usr/lib/python3.11/multiprocessing/queues.py"


def apply(structure, *processes, **fields):
    """Return the diagnosis of the cause with a structure."""
    evidence = Evidence(session(*processes, **fields))
    explanation = structure(evidence)
    name = next(name for name, known in STRUCTURES.items() if known is structure)
    return explanation and explain(evidence, causes.named(name), explanation)


def test_recorded_crowding_needs_no_samples():
    """The record needs no samples, and no other rule repeats its diagnosis."""
    crowding = {"cores": 2, "seconds": 10.0, "on_core_s": 9.0, "queued_s": 233.0}
    crowding |= {"longest_s": 9.5, "workers": 24, "workers_on_core_s": 8.0}
    crowding |= {"workers_queued_s": 232.0}
    diagnosis = apply(threads.crowded_cores, process(), metadata={"crowding": crowding})
    assert diagnosis.title == "more processes or threads than 2 cores can run: 24 workers"
    assert diagnosis.gain == pytest.approx(10 / 4.5)
    assert diagnosis.advice == "Try --workers 2 (now with 24 workers)."
    assert "for 96% of their runnable time" in diagnosis.evidence[0]
    assert diagnose(session(process(), metadata={"crowding": crowding})) == [diagnosis]
    for change in ({"queued_s": 0.5}, {"cores": "x"}):
        assert (
            apply(threads.crowded_cores, process(), metadata={"crowding": crowding | change})
            is None
        )
    assert apply(threads.crowded_cores, process()) is None


def repeat(name, count, each_s, *, took_s, start_s=0.0):
    """Return `count` spans, one every `each_s` seconds."""
    return [span(name, start_s + i * each_s, start_s + i * each_s + took_s) for i in range(count)]


@pytest.fixture
def script(tmp_path):
    """Return a function that writes a script and returns its path."""

    def write(text):
        path = tmp_path / f"script{len(list(tmp_path.iterdir()))}.py"
        path.write_text(text)
        return str(path)

    return write


# --- environments ---------------------------------------------------------------------------------


def stepping(took_s, num_steps=100, **fields):
    spans = repeat("env_step", num_steps, 0.1, took_s=took_s)
    samples = [
        sample("step (env.py:3)", path="env_step", elapsed_s=took_s * num_steps, on_core_s=8)
    ]
    fields = {"cores": 4, "facts": {"num_envs": 4.0}} | fields
    return process(**{"spans": spans, "samples": samples} | fields)


def test_environment_bound():
    diagnosis = apply(environments.environment_bound, stepping(0.08))
    # Steps take 8 s of 10. Less 0.2 ms each for sending, three quarters are removed: 5.985 s.
    assert diagnosis.rule == "environment-bound"
    assert diagnosis.gain == pytest.approx(10 / (10 - 5.985))
    assert diagnosis.evidence[0].startswith("80%")


def training(**options):
    """Return the metadata of a hotloop training."""
    base = {"num_envs": 4, "execution": "eager", "has_replay": False, "has_auto_workers": False}
    return {"training": base | options}


def test_advice_to_a_training_has_its_own_options():
    """`--workers auto` accepts any number of environments and measures; it decided before."""
    for facts, options in (({"num_envs": 4.0}, "--workers auto"), ({}, "--num-envs 4 --workers a")):
        main = stepping(0.08, facts=facts)
        diagnosis = apply(environments.environment_bound, main, metadata=training())
        assert f"Pass `{options}" in diagnosis.advice
    metadata = training(has_auto_workers=True)
    assert apply(environments.environment_bound, stepping(0.08), metadata=metadata) is None


@pytest.mark.parametrize(
    "processes",
    [
        [stepping(0.04)],  # less than half of the time
        [stepping(0.08, cores=1)],  # no other core
        [stepping(0.08, periods=[period(10.0, cpu_s=39.0)])],  # all cores are busy
        [stepping(0.08), process("worker-0", role="worker", pid=2, spans=[span("env_step", 0, 1)])],
        [process(spans=repeat("env_step", 1000, 0.0003, took_s=0.0003), end_s=0.31, cores=4)],
        [stepping(0.08, samples=[sample("wait (a.py:3)", lock=10.0, elapsed_s=10)])],
        [process(spans=4 * repeat("env_step", 100, 0.1, took_s=0.08), cores=4)],
    ],
    ids=[
        *("little", "one core", "no core left", "workers", "fast steps"),
        *("in another thread", "in several threads, without samples"),
    ],
)
def test_not_environment_bound(processes):
    assert apply(environments.environment_bound, *processes) is None


def lockstep(step_s, num_steps=50, took_s=0.1, samples=()):
    """Return a parent that steps four workers every 0.2 s, for `step_s(step, worker)` each."""
    main = process(spans=repeat("vector_step", num_steps, 0.2, took_s=took_s), samples=samples)
    workers = [
        process(
            f"worker-{number}",
            role="worker",
            pid=200 + number,
            spans=[
                span("env_step", step * 0.2 + 0.001, step * 0.2 + 0.001 + step_s(step, number))
                for step in range(num_steps)
            ],
        )
        for number in range(4)
    ]
    return main, *workers


def test_stragglers():
    # One of four workers takes 90 ms, the others 10: slowest 4.5 s, mean 0.03 · 50 = 1.5.
    diagnosis = apply(
        environments.stragglers, *lockstep(lambda step, i: 0.09 if step % 4 == i else 0.01)
    )
    assert diagnosis.rule == "lockstep-stragglers"
    assert diagnosis.gain == pytest.approx(10 / 7, rel=1e-6)
    assert "12.0 s of the processes' time" in diagnosis.evidence[2]


@pytest.mark.parametrize("step_s", [lambda step, i: 0.09, lambda step, i: 0.07 + 0.005 * i])
def test_no_stragglers(step_s):
    assert apply(environments.stragglers, *lockstep(step_s)) is None


def test_transfer():
    # A vector step takes 100 ms, with 1 ms in environments: in sequence, 4 · 50 · 1 ms.
    diagnosis = apply(environments.transfer, *lockstep(lambda step, i: 0.001))
    assert diagnosis.rule == "transfer-dearer-than-step"
    assert diagnosis.gain == pytest.approx(10 / (10 - 4.8), rel=0.02)


def test_transfer_is_worth_it():
    assert apply(environments.transfer, *lockstep(lambda step, i: 0.09)) is None
    # Transfer costs more than a step of 20 ms, but four steps in sequence would take 80 of 60 ms.
    assert apply(environments.transfer, *lockstep(lambda step, i: 0.02, took_s=0.06)) is None


@pytest.mark.parametrize(
    ("step_s", "rule"),
    [
        (lambda step, i: 0.09 if step % 4 == i else 0.01, "lockstep-stragglers"),
        (lambda step, i: 0.001, "transfer-dearer-than-step"),
    ],
)
def test_waiting_for_workers_has_one_diagnosis(step_s, rule):
    receive = "Connection.recv (/usr/lib/python3.11/multiprocessing/connection.py:9)"
    samples = [
        sample("main (a.py:3)", receive, path="vector_step", elapsed_s=5, pipe=5.0),
        sample("main (a.py:4)", f"backward ({TORCH}/autograd/__init__.py:9)", elapsed_s=5),
    ]
    found = diagnose(session(*lockstep(step_s, samples=samples)))
    assert [item.rule for item in found if not item.is_rebuild] == [rule]
    assert [place.line for place in found[0].places] == [3]


def test_a_learner_that_compiles_at_first_is_no_starved_pipeline():
    compiling = f"compile_fx_inner ({TORCH}/_inductor/compile_fx.py:9)"
    learner = process(
        samples=[sample("learn (a.py:3)", compiling, elapsed_s=9, on_core_s=9), *_waits(1)]
    )
    actors = (process(f"actor-{i}", pid=i, samples=_waits(9)) for i in (7, 8, 9))
    assert apply(pipeline.starved_stage, learner, *actors) is None


def _waits(seconds):
    return [sample("run (a.py:9)", f"Queue.get ({QUEUES}:9)", elapsed_s=seconds, pipe=seconds)]


# --- threads --------------------------------------------------------------------------------------


def crowded(on_core_s, queued_s):
    return process(
        cores=2,
        spans=repeat("backward", 1000, 0.01, took_s=0.001),
        samples=[sample("f (a.py:1)", path="update", elapsed_s=10, on_core_s=7, queued_s=queued_s)],
        threads=[ThreadTotals(100, "python", ns(7), ns(queued_s))]
        + [ThreadTotals(n, "python", ns(on_core_s), 0) for n in range(101, 105)],
        facts={"torch_threads": 4.0},
    )


def test_too_many_threads():
    diagnosis = apply(threads.too_many_threads, crowded(on_core_s=3, queued_s=3))
    assert diagnosis.rule == "too-many-threads"
    assert diagnosis.gain == pytest.approx(10 / 7)
    assert diagnosis.confidence == 0.8
    assert "torch uses 4 threads per operation" in diagnosis.evidence


def test_spinning_threads_cost_an_unknown_time():
    diagnosis = apply(threads.too_many_threads, crowded(on_core_s=3, queued_s=0.1))
    assert diagnosis.gain is None
    assert diagnosis.confidence == 0.5


def test_queued_torch_threads():
    """Seven threads beside main on two cores: each operation waits for the last thread."""
    main = process(
        cores=2,
        samples=[sample("f (a.py:1)", path="update", elapsed_s=10, on_core_s=7, lock=3)],
        threads=[ThreadTotals(100, "python", ns(7), 0)]
        + [ThreadTotals(n, "python", ns(0.5), ns(1.5)) for n in range(101, 108)],
    )
    diagnosis = apply(threads.too_many_threads, main)
    assert diagnosis.rule == "too-many-threads"
    assert diagnosis.gain == pytest.approx(10 / 7)


def beside_a_neighbor(slow_s, lock_s, waited_s):
    """Return SAC's small networks on two cores, one of which a neighbor uses."""
    spans = repeat("backward", 900, 0.01, took_s=0.001)
    spans += repeat("backward", 20, slow_s, took_s=slow_s, start_s=9.0)
    return process(
        cores=2,
        spans=spans,
        samples=[
            sample("f (a.py:1)", path="update", elapsed_s=9, on_core_s=9 - lock_s, lock=lock_s),
            sample("g (a.py:9)", elapsed_s=1, on_core_s=1),
        ],
        threads=[ThreadTotals(100, "python", ns(3), ns(1)), ThreadTotals(101, "", ns(1), waited_s)],
        facts={"torch_threads": 2.0},
    )


def test_threads_that_wait_for_a_neighbor():
    diagnosis = apply(threads.too_many_threads, beside_a_neighbor(0.24, 7, ns(4)))
    assert diagnosis.rule == "too-many-threads"
    # One thread would need the 2 s on a core of the main thread.
    assert diagnosis.gain == pytest.approx(10 / 3)
    assert "OMP_NUM_THREADS=1" in diagnosis.advice
    assert any("one in a hundred 2" in text for text in diagnosis.evidence)


@pytest.mark.parametrize(
    ("slow_s", "lock_s", "waited_s"),
    [
        (0.24, 0.5, 4),  # the networks compute
        (0.24, 7, 0.5),  # the threads have cores
    ],
)
def test_threads_that_do_not_wait_for_a_neighbor(slow_s, lock_s, waited_s):
    main = beside_a_neighbor(slow_s, lock_s, ns(waited_s))
    assert apply(threads.too_many_threads, main) is None


def test_threads_of_a_worker_do_not_stall_the_networks_of_the_main_process():
    main = process(
        cores=2,
        samples=[sample("f (a.py:1)", path="update", elapsed_s=10, on_core_s=2, lock=8)],
        threads=[ThreadTotals(100, "python", ns(2), 0)],
    )
    worker = process(
        "worker-0",
        role="worker",
        pid=200,
        samples=[sample("step (env.py:3)", path="env_step", elapsed_s=10, on_core_s=9)],
        threads=[ThreadTotals(200, "python", ns(9), 0), ThreadTotals(201, "", ns(3), ns(8))],
    )
    assert apply(threads.too_many_threads, main, worker) is None


def test_idle_threads():
    assert apply(threads.too_many_threads, crowded(on_core_s=0.1, queued_s=3)) is None


def queued(queued_s, cpu_s):
    return process(
        cores=2,
        samples=[sample("f (a.py:1)", elapsed_s=10, on_core_s=10 - queued_s, queued_s=queued_s)],
        periods=[period(10.0, cpu_s=cpu_s)],
    )


def test_cores_taken_by_other_programs():
    diagnosis = apply(threads.cores_taken, queued(4, cpu_s=6))
    assert diagnosis.rule == "cores-taken"
    assert diagnosis.gain == pytest.approx(10 / 6)
    assert "queued for a core for 40% of their time" in diagnosis.evidence[0]


@pytest.mark.parametrize(
    "main", [queued(3, cpu_s=7), queued(4, cpu_s=14)], ids=["mostly there", "its own processes"]
)
def test_cores_not_taken_by_other_programs(main):
    assert apply(threads.cores_taken, main) is None


def single_process(env_s, update_s, *, cpu_s=10.0, cores=4):
    return process(
        cores=cores,
        samples=[
            sample("f (a.py:1)", path="env_step", elapsed_s=env_s, on_core_s=env_s),
            sample("f (a.py:2)", path="update", elapsed_s=update_s, on_core_s=update_s),
        ],
        periods=[period(10.0, cpu_s=cpu_s)],
    )


def test_pegged_core():
    diagnosis = apply(threads.pegged_core, single_process(4, 6))
    assert diagnosis.rule == "pegged-core"
    assert diagnosis.gain == pytest.approx(10 / (10 - 3.2))


@pytest.mark.parametrize(("has_replay", "option"), [(False, "--overlap"), (True, "--schedule a")])
def test_a_training_on_one_core_gets_a_valid_option(has_replay, option):
    metadata = training(has_replay=has_replay)
    diagnosis = apply(threads.pegged_core, single_process(4, 6), metadata=metadata)
    assert f"`--workers 1 {option}" in diagnosis.advice
    metadata = training(has_auto_workers=True)
    assert apply(threads.pegged_core, single_process(4, 6), metadata=metadata) is None


@pytest.mark.parametrize(
    "main",
    [
        single_process(2, 8),
        single_process(4, 6, cpu_s=15),
        single_process(4, 6, cores=1),
        single_process(2, 3),
    ],
    ids=["all one thing", "others work", "one core", "idle"],
)
def test_no_pegged_core(main):
    assert apply(threads.pegged_core, main) is None


# --- replay ---------------------------------------------------------------------------------------


def drawing(per_draw_s):
    """Return a process of twelve seconds with a hundred draws in each."""
    periods, total = [], 0.0
    for k in range(12):
        total += 100 * per_draw_s(k)
        periods.append(period(k + 1.0, spans={"replay_sample": (100 * (k + 1), total)}))
    return process(end_s=12.0, periods=periods)


def test_replay_grows():
    # 1 ms plus 5 µs per earlier draw, in the middle of a period: 1.25 to 6.75 ms. This adds up to
    # 4.8 s, of which 12 · 0.1 s are constant.
    diagnosis = apply(replay.sampling_grows, drawing(lambda k: 1e-3 + 5e-6 * (100 * k + 50)))
    assert diagnosis.rule == "replay-grows"
    assert diagnosis.gain == pytest.approx(12 / (12 - 3.6), rel=1e-6)
    assert diagnosis.evidence[0] == "drawing a batch takes 40% of the time"


@pytest.mark.parametrize(
    "per_draw_s",
    [
        lambda k: 5e-3,
        lambda k: 4e-3 if k % 2 else 8e-3,
        lambda k: 1e-5 + 1e-5 * k,
        lambda k: 7e-3 * (1 + 0.04 * k),
    ],
    ids=["constant", "noise", "little", "a tree's"],
)
def test_replay_does_not_grow(per_draw_s):
    assert apply(replay.sampling_grows, drawing(per_draw_s)) is None


def custom_buffer(draw_s):
    """Return a process of 12 s whose custom buffer appears only in samples.

    Every iteration takes 9 ms plus `draw_s(iteration)` for drawing.
    """
    in_replay, clock, iteration = [0.0] * 13, 0.0, 0
    while clock < 12:
        in_replay[int(clock)] += draw_s(iteration)
        clock += 0.009 + draw_s(iteration)
        iteration += 1
    stacks = ("<module> (train.py:9)", "ReplayBuffer.sample (train.py:3)")
    main = process(
        end_s=12.0,
        samples=[
            sample(*stacks, elapsed_s=sum(in_replay), on_core_s=sum(in_replay)),
            sample(stacks[0], elapsed_s=12 - sum(in_replay), on_core_s=1),
        ],
    )
    main.periods = [
        period(k + 1.0)._replace(by_stack={0: round(1000 * s), 1: 1000 - round(1000 * s)})
        for k, s in enumerate(in_replay[:12])
    ]
    return main, sum(in_replay), iteration


def test_custom_buffer_grows():
    main, drawing_s, iterations = custom_buffer(lambda i: 1e-3 + 20e-6 * i)
    diagnosis = apply(replay.sampling_grows, main)
    assert diagnosis.rule == "replay-grows"
    # A millisecond per draw remains.
    assert diagnosis.gain == pytest.approx(12 / (12 - drawing_s + 1e-3 * iterations), rel=0.05)


def test_custom_buffer_does_not_grow():
    main, _, _ = custom_buffer(lambda i: 5e-3 + 1e-3 * (i % 3))
    assert apply(replay.sampling_grows, main) is None


# --- Python ---------------------------------------------------------------------------------------

LOGS = """\
import logging
log = logging.getLogger("x")
def learn(values):
    log.debug(f"values {values}")
    log.debug("values %s", values)
    log.info(
        "pulls {}".format(values)
    )
    log.debug("nothing to fill in")
"""


def at_line(file, line, elapsed_s, *inner):
    return process(
        samples=[
            sample(f"<module> ({file}:99)", elapsed_s=10 - elapsed_s, on_core_s=5),
            sample(
                f"<module> ({file}:99)",
                f"learn ({file}:{line})",
                *inner,
                elapsed_s=elapsed_s,
                on_core_s=elapsed_s,
            ),
        ]
    )


@pytest.mark.parametrize("line", [4, 6, 7])
def test_eager_messages(script, line):
    diagnosis = apply(python_code.logging, at_line(script(LOGS), line, 3))
    assert diagnosis.rule == "logging"
    # The remaining lazy message takes a third of the removed time.
    assert diagnosis.gain == pytest.approx(1 / (1 - 0.95 * 0.3) / (1 - 0.95 * 0.1))
    assert "formatted even if they are not emitted" in diagnosis.title


@pytest.mark.parametrize(("line", "elapsed_s"), [(5, 3), (9, 3), (4, 0.5)])
def test_lazy_messages(script, line, elapsed_s):
    assert apply(python_code.logging, at_line(script(LOGS), line, elapsed_s)) is None


PRINTS = """\
def learn(values, model):
    print("values", round(values.mean(), 2))
    print(evaluate(model))
    print(sum(x * x for x in values))
"""


def test_prints(script):
    file = script(PRINTS)
    assert apply(python_code.logging, at_line(file, 2, 3)).rule == "logging"
    # Calls whose results are printed are separate work.
    assert apply(python_code.logging, at_line(file, 3, 3)) is None
    assert apply(python_code.logging, at_line(file, 4, 3)) is None
    step = "CartPoleEnv.step (/lib/site-packages/gymnasium/envs/cartpole.py:150)"
    assert apply(python_code.logging, at_line(file, 2, 3, step)) is None


def test_written_messages(script):
    emit = "StreamHandler.emit (/usr/lib/python3.11/logging/__init__.py:1100)"
    diagnosis = apply(python_code.logging, at_line(script(LOGS), 5, 3, emit))
    assert diagnosis.title == "logging takes a large part of the loop"


def test_configuration_objects():
    diagnosis = apply(
        python_code.configuration,
        at_line("agent.py", 7, 5, f"DictConfig.__getitem__ ({OMEGACONF}:370)"),
    )
    assert diagnosis.rule == "configuration-objects"
    assert diagnosis.gain == pytest.approx(1 / (1 - 0.97 * 0.5) / (1 - 0.97 * 0.5 / 3))
    assert diagnosis.evidence == (
        "50% of the time is spent in their code: 50% at agent.py:7 in learn",
    )


def test_hydra_only_calls_the_program():
    hydra = "/x/site-packages/hydra/main.py"
    main = process(samples=[sample(f"decorated_main ({hydra}:94)", "f (a.py:1)", elapsed_s=10)])
    assert apply(python_code.configuration, main) is None
    little = at_line("agent.py", 7, 0.5, f"DictConfig.__getitem__ ({OMEGACONF}:370)")
    assert apply(python_code.configuration, little) is None


ARGMAX = """\
import numpy as np
def learn(self):
    values = np.array(list(self.values.values()))
    best = np.argwhere(values == np.max(values)).flatten().tolist()
    return np.random.choice(best) if len(best) > 1 else best[0]
def total(values):
    return sum(values)
"""


def test_argmax_of_lists(script):
    file = script(ARGMAX)
    diagnosis = apply(python_code.slow_argmax, with_first_lines(at_line(file, 4, 3), {"learn": 2}))
    assert diagnosis.rule == "slow-argmax"
    assert diagnosis.gain == pytest.approx(1 / (1 - 0.9 * 0.3) / (1 - 0.9 * 0.1))


def test_an_argmax_in_the_main_loop_is_ignored(script):
    file = script(ARGMAX)
    main_loop = with_first_lines(at_line(file, 4, 9.9), {"learn": 2})
    assert apply(python_code.slow_argmax, main_loop) is None
    small = with_first_lines(at_line(file, 4, 0.5), {"learn": 2})
    assert apply(python_code.slow_argmax, small) is None


def test_a_copy_in_a_function_with_an_argmax_is_a_copy(script):
    copying = at_line(script(ARGMAX), 3, 3, "deepcopy (/usr/lib/python3.11/copy.py:128)")
    assert apply(python_code.slow_argmax, with_first_lines(copying, {"learn": 2})) is None


def test_debug_mode(script):
    file = script("import torch\ntorch.autograd.set_detect_anomaly(True)\ntrain()\n")
    main = at_line(file, 3, 9)
    assert apply(python_code.debug_mode, main) is None
    main.facts = {"detects_anomalies": 1.0}
    diagnosis = apply(python_code.debug_mode, main)
    assert diagnosis.rule == "debug-mode"
    assert "anomaly detection" in diagnosis.title
    assert [place.line for place in diagnosis.places] == [2]


def test_the_line_that_starts_tracemalloc_starts_no_thread(script):
    file = script("import tracemalloc\nthread.start()\ntracemalloc.start()\ntrain()\n")
    main = at_line(file, 4, 9)
    main.facts = {"traces_memory": 1.0}
    diagnosis = apply(python_code.debug_mode, main)
    assert [place.line for place in diagnosis.places] == [3]


# --- networks -------------------------------------------------------------------------------------


def acting(elapsed_s, steps_per_call):
    calls = repeat("act", 1000, 0.01, took_s=elapsed_s / 1000)
    steps = repeat("env_step", 1000 * steps_per_call, 0.01 / steps_per_call, took_s=0.0001)
    return process(
        spans=calls + steps,
        samples=[
            sample("f (a.py:1)", path="act", elapsed_s=elapsed_s, on_core_s=elapsed_s),
            sample("f (a.py:2)", elapsed_s=10 - elapsed_s, on_core_s=10 - elapsed_s),
        ],
    )


def test_tiny_batches():
    diagnosis = apply(networks.tiny_batches, acting(5, 1))
    assert diagnosis.rule == "tiny-batches"
    assert diagnosis.gain == pytest.approx(10 / (10 - 5 * (1 - 1.3 / 8)))


@pytest.mark.parametrize(("elapsed_s", "steps_per_call"), [(2, 1), (5, 4)])
def test_no_tiny_batches(elapsed_s, steps_per_call):
    assert apply(networks.tiny_batches, acting(elapsed_s, steps_per_call)) is None


UPDATE = """\
import torch
def update(self):
    for i in range(256):
        self.priorities[i] = self.error[i].item()
    for i in range(256):
        self.target[i] = self.reward[i] + self.value[i].max()
    self.loss.backward()
def loop(self):
    for _ in range(1000):
        self.loss.backward()
        self.total = self.total + self.reward
"""


def updating(file, line, elapsed_s, *inner, function="update"):
    return process(
        samples=[
            sample(
                f"<module> ({file}:99)",
                f"{function} ({file}:{7 if function == 'update' else 10})",
                f"backward ({TORCH}/_tensor.py:500)",
                path="backward",
                elapsed_s=10 - elapsed_s,
                on_core_s=10 - elapsed_s,
            ),
            sample(
                f"<module> ({file}:99)",
                f"{function} ({file}:{line})",
                *inner,
                elapsed_s=elapsed_s,
                on_core_s=elapsed_s,
            ),
        ]
    )


def test_host_syncs(script):
    diagnosis = apply(networks.host_syncs, updating(script(UPDATE), 4, 4))
    assert diagnosis.rule == "host-sync"
    assert diagnosis.gain == pytest.approx(1 / (1 - 0.95 * 0.4))
    assert diagnosis.title == ".item() in the middle of the update"
    assert diagnosis.evidence[1].endswith("in the loop that starts at line 3")


def test_one_sync_per_update_has_no_gain(script):
    # The arithmetic of the line counts as well.
    text = UPDATE.replace("self.loss.backward()", "self.td = float(self.loss.mean())", 1)
    diagnosis = apply(networks.host_syncs, updating(script(text), 7, 4))
    assert (diagnosis.rule, diagnosis.gain, diagnosis.confidence) == ("host-sync", None, 0.4)


def test_a_comprehension_over_a_tensor_is_a_host_sync(script):
    """Its iteration, in torch's Python code, counts as well. Calls of networks do not."""
    text = UPDATE.replace("self.error[i].item()", "[float(x) for x in self.error[i]]")
    for file, rule in (("_tensor.py", "host-sync"), ("nn/modules/linear.py", None)):
        inside = f"__iter__ ({TORCH}/{file}:100)"
        found = apply(networks.host_syncs, updating(script(text), 4, 4, inside))
        assert getattr(found, "rule", None) == rule


def test_no_host_syncs(script):
    file = script(UPDATE)
    assert apply(networks.host_syncs, updating(file, 4, 0.5)) is None
    assert apply(networks.host_syncs, updating(file, 6, 4)) is None
    # The time is on the line, but in a torch function below it.
    inside = f"Module.forward ({TORCH}/nn/modules/linear.py:100)"
    assert apply(networks.host_syncs, updating(file, 4, 4, inside)) is None
    # Another library's `item`.
    assert (
        apply(networks.host_syncs, updating(script(UPDATE.replace("torch", "math")), 4, 4)) is None
    )


def test_fetching_actions_is_no_sync(script):
    file = script("import torch\ndef collect(envs):\n    envs.step(policy().item())\n")
    main = updating(file, 3, 4, function="collect")
    # The program learns elsewhere and steps environments in `collect`.
    main.stacks[0] = Stack(
        tuple(
            f._replace(function=f.function.replace("collect", "learn")) for f in main.stacks[0][0]
        ),
        main.stacks[0].lines,
    )
    stepping = process(
        samples=[sample(f"<module> ({file}:99)", f"collect ({file}:3)", path="env_step")]
    )
    main.samples += [stepping.samples[0]._replace(stack=len(main.stacks))]
    main.stacks += stepping.stacks
    assert apply(networks.host_syncs, main) is None


def test_tiny_operations(script):
    diagnosis = apply(networks.tiny_operations, updating(script(UPDATE), 6, 4))
    assert diagnosis.rule == "tiny-operations"
    assert diagnosis.gain == pytest.approx(1 / (1 - 0.95 * 0.4))


def test_no_tiny_operations(script):
    file = script(UPDATE)
    assert apply(networks.tiny_operations, updating(file, 6, 0.5)) is None
    # Another rule covers reading values from tensors.
    assert apply(networks.tiny_operations, updating(file, 4, 4)) is None
    # A loop with backward passes is the training loop itself.
    assert apply(networks.tiny_operations, updating(file, 11, 4, function="loop")) is None


def test_a_loop_over_large_products_has_no_tiny_operations(script):
    file = script(UPDATE.replace("self.reward[i] + self.value[i].max()", "self.weights @ self.x"))
    assert apply(networks.tiny_operations, updating(file, 6, 4)) is None


def small_updates(backward_s, dispatch_s):
    other_s = 8 - dispatch_s
    return process(
        spans=repeat("backward", 1000, 0.01, took_s=backward_s),
        samples=[
            sample(f"adam ({TORCH}/optim/adam.py:400)", path="update", elapsed_s=dispatch_s),
            sample(f"linear ({TORCH}/nn/functional.py:1)", path="update", elapsed_s=other_s),
            sample("f (a.py:2)", elapsed_s=2),
        ],
    )


def test_launch_bound():
    diagnosis = apply(networks.launch_bound, small_updates(0.0005, 4))
    assert diagnosis.rule == "launch-bound"
    # Only the sampled time in torch's Python code counts.
    assert diagnosis.gain == pytest.approx(10 / (10 - 4))
    assert diagnosis.is_rebuild


@pytest.mark.parametrize(("execution", "is_advised"), [("eager", True), ("auto", False)])
def test_a_training_that_compiles_when_it_pays_off_is_not_advised_to(execution, is_advised):
    metadata = training(execution=execution)
    diagnosis = apply(networks.launch_bound, small_updates(0.0005, 4), metadata=metadata)
    assert (diagnosis is not None) == is_advised


@pytest.mark.parametrize(("backward_s", "dispatch_s"), [(0.005, 4), (0.0005, 1)])
def test_not_launch_bound(backward_s, dispatch_s):
    assert apply(networks.launch_bound, small_updates(backward_s, dispatch_s)) is None


SB3 = "/x/lib/python3.11/site-packages/stable_baselines3"


def learning_with_sb3(
    backward_s=0.0005, file=f"{SB3}/ppo/ppo.py", train=f"{SB3}/ppo/ppo.py", name="PPO"
):
    learn, forward = (
        f"{name}.learn ({file}:311)",
        f"Linear.forward ({TORCH}/nn/modules/linear.py:9)",
    )
    return process(
        spans=repeat("backward", 1000, 0.01, took_s=backward_s),
        samples=[
            sample("main (a.py:9)", learn, f"PPO.train ({train}:250)", path="update", elapsed_s=6),
            sample("main (a.py:9)", learn, forward, path="act", elapsed_s=2),
            sample("main (a.py:9)", learn, path="env_step", elapsed_s=2),
        ],
    )


def test_a_class_of_stable_baselines3_with_a_faster_twin():
    diagnosis = apply(networks.stable_baselines3, learning_with_sb3())
    assert diagnosis.rule == "stable-baselines3"
    assert diagnosis.gain == pytest.approx(10 / (10 - 0.7 * 8))
    assert diagnosis.advice.startswith("Run the same script as `hotloop accelerate SCRIPT`")
    assert "from hotloop.accelerate import PPO" in diagnosis.advice
    # Of both causes of slow updates, only this one is reported.
    rules = [x.rule for x in diagnose(session(learning_with_sb3())) if x.is_rebuild]
    assert rules == ["stable-baselines3"]


@pytest.mark.parametrize(
    "fields",
    [
        {"backward_s": 0.005},
        {"file": "/x/lib/python3.11/site-packages/sb3_contrib/ars/ars.py"},
        {"train": "/x/lib/python3.11/site-packages/hotloop/accelerate/ppo.py"},
    ],
    ids=["large networks", "no twin", "accelerated"],
)
def test_a_class_of_stable_baselines3_without_a_faster_twin(fields):
    assert apply(networks.stable_baselines3, learning_with_sb3(**fields)) is None


def test_recurrent_ppo_has_a_faster_twin_with_large_networks():
    file = "/x/lib/python3.11/site-packages/sb3_contrib/ppo_recurrent/ppo_recurrent.py"
    evidence = learning_with_sb3(backward_s=0.05, file=file, name="RecurrentPPO")
    diagnosis = apply(networks.stable_baselines3, evidence)
    assert "from hotloop.accelerate import RecurrentPPO" in diagnosis.advice
    evidence.tree.children.clear()  # as other profilers record it, without spans
    diagnosis = apply(networks.stable_baselines3, evidence)
    assert diagnosis.evidence == ("its updates and acting take 80% of the time",)


def test_known_classes_are_accelerated():
    pytest.importorskip("stable_baselines3")
    from hotloop.accelerate.classes import CLASSES

    for name in ("PPO", "A2C", "MaskablePPO", "RecurrentPPO"):
        module, _ = CLASSES[name]
        file = f"/x/lib/python3.11/site-packages/{module.replace('.', '/')}.py"
        assert is_in("accelerated", Frame(f"{name}.learn", file, 1)), name


# --- over time ------------------------------------------------------------------------------------


def starting(elapsed_s):
    return process(
        samples=[
            sample(
                "f (a.py:1)",
                "_find_and_load (<frozen importlib._bootstrap>:1)",
                elapsed_s=elapsed_s,
            ),
            sample("f (a.py:2)", elapsed_s=10 - elapsed_s),
        ],
    )


def test_start_up():
    diagnosis = apply(over_time.start_up, starting(6))
    assert (diagnosis.rule, diagnosis.gain) == ("start-up", None)
    assert diagnosis.evidence[0].startswith("60% of the time (6.0 s)")
    assert apply(over_time.start_up, starting(3)) is None


def stepped(counts):
    """Return a process with the steps of each second."""
    total = 0
    periods = []
    for second, count in enumerate(counts):
        total += count
        periods.append(period(second + 1.0, spans={"env_step": (total, 0.0)}))
    return process(end_s=float(len(counts)), periods=periods)


def test_decay():
    # The n-th step takes 10 ms + n · 20 µs: after t seconds a n + b n² / 2 = t. 1000 steps take
    # 20 s, or 10 s without the growth.
    num_steps = [round((-0.01 + (0.01**2 + 2 * 0.00002 * t) ** 0.5) / 0.00002) for t in range(21)]
    diagnosis = apply(over_time.decay, stepped(np.diff(num_steps).tolist()))
    assert diagnosis.rule == "decay"
    assert diagnosis.gain == pytest.approx(2.0, rel=0.02)
    assert diagnosis.evidence[0] == ("67.5 steps per second in the first third, 36.0 in the last")


@pytest.mark.parametrize(
    "counts",
    [
        [100] * 20,
        [60 + 40 * (k % 3) for k in range(20)],
        [100 - 0.5 * k for k in range(20)],
        [100, 40, 30],
        [0] * 3 + [100] * 10 + [0] * 10,
        [100] * 11 + [60] + [0] * 8,
        [100] * 9 + [0] * 5 + [50] * 6,
    ],
    ids=["constant", "bursts", "hardly", "too short", "evaluated", "by halves", "a pause"],
)
def test_no_decay(counts):
    assert apply(over_time.decay, stepped([int(count) for count in counts])) is None


# --- pipelines ------------------------------------------------------------------------------------


def staged(*busy_s):
    """Return processes that work for `busy_s` of ten seconds and otherwise wait for a queue."""
    return [
        process(
            "main" if number == 0 else f"worker-{number}",
            role="main" if number == 0 else "worker",
            pid=100 + number,
            samples=[
                sample("f (a.py:1)", elapsed_s=busy, on_core_s=busy),
                sample("f (a.py:2)", f"Queue.get ({QUEUES}:103)", elapsed_s=10 - busy, count=200),
            ],
        )
        for number, busy in enumerate(busy_s)
    ]


def test_starved_pipeline():
    diagnosis = apply(pipeline.starved_stage, *staged(1.0, 10.0, 2.5, 2.0))
    assert diagnosis.rule == "starved-pipeline"
    assert diagnosis.gain == pytest.approx(4.0)
    assert "worker-1" in diagnosis.title


@pytest.mark.parametrize(
    "busy_s", [(1, 10, 7.5), (1, 10), (1, 7, 2), (8, 8, 9)], ids=["two", "a pair", "slack", "even"]
)
def test_no_starved_pipeline(busy_s):
    assert apply(pipeline.starved_stage, *staged(*busy_s)) is None


def test_many_small_costs_are_no_starved_pipeline():
    """The work is necessary, so that nothing can be removed."""
    processes = staged(1.0, 10.0, 2.5, 2.0)
    rows = [sample(f"f{i} (a.py:{10 * i})", elapsed_s=1.0, on_core_s=1.0) for i in range(10)]
    processes[1] = process("worker-1", role="worker", pid=101, samples=rows)
    assert apply(pipeline.starved_stage, *processes) is None


@pytest.mark.parametrize(
    ("below", "is_found"),
    [((), True), (("Connection.recv (/lib/python3/multiprocessing/c.py:2)",), False)],
)
def test_receiving_is_not_removable_work(below, is_found):
    processes = staged(1.0, 10.0, 2.5, 2.0)
    rows = [sample("f (a.py:1)", *below, elapsed_s=10.0, on_core_s=10.0)]
    processes[1] = process("worker-1", role="worker", pid=101, samples=rows)
    assert (apply(pipeline.starved_stage, *processes) is not None) is is_found


# --- all rules ------------------------------------------------------------------------------------


def healthy():
    """Return a session that spends its time in fast environments."""
    return session(
        process(
            cores=2,
            spans=repeat("env_step", 9200, 0.001, took_s=0.001),
            samples=[
                sample("f (a.py:1)", path="env_step", elapsed_s=9.2, on_core_s=9.2),
                sample("f (a.py:2)", path="update", elapsed_s=0.8, on_core_s=0.8),
            ],
            periods=[
                period(k + 1.0, cpu_s=k + 1.0, spans={"env_step": (920 * (k + 1), 0.9)})
                for k in range(10)
            ],
            facts={"num_envs": 1.0},
        )
    )


def test_healthy_program():
    example = healthy()
    example.main.cores = 1
    assert diagnose(example) == []
    assert bound(example) == (
        "No cost is large enough to justify a change. The time goes to: 92% environment steps. "
        "8% is in one other place: a.py:2 in f."
    )
    assert diagnosis_lines(example) == [bound(example)]


def test_an_empty_program():
    empty = session(process())
    assert diagnose(empty) == []
    assert bound(empty).startswith("The profile is too short")


def test_the_largest_cause_comes_first(script):
    file = script(LOGS)
    main = at_line(file, 4, 2)
    stack = f"<module> ({file}:99)", "f (a.py:1)", f"DictConfig.get ({OMEGACONF}:370)"
    other = process(samples=[sample(*stack, elapsed_s=5, on_core_s=5)])
    main.samples += [other.samples[0]._replace(stack=len(main.stacks))]
    main.stacks += other.stacks
    main.end_ns += ns(5)
    example = Session("profiles/x", {"command": ["python", "a b.py", "-n", "1"]}, [main])
    # The program's own loop is last, because its possible gain is unknown.
    rules = [diagnosis.rule for diagnosis in diagnose(example)]
    assert rules == ["configuration-objects", "logging", "line"]
    assert diagnose(example)[0].verify == (
        "hotloop profile --out profiles/x-after 'a b.py' -n 1 && "
        "hotloop compare profiles/x profiles/x-after"
    )
    lines = diagnosis_lines(example)
    assert lines[1].startswith("1. omegaconf objects are used in the loop: up to 1.7×")
    assert lines[1].endswith("confidence 95% [configuration-objects]")


# --- helpers of rules -----------------------------------------------------------------------------


def test_parallel_workers_count_once():
    """Two parallel workers that are busy for 8 and 4 s take 8 s of the program."""
    waiting = f"Future.result ({QUEUES}:1)"
    main = process(samples=[sample("f (a.py:1)", waiting, elapsed_s=10, on_core_s=0.0)])
    workers = [
        process(
            f"worker-{pid}",
            role="worker",
            pid=pid,
            samples=[sample("f (a.py:1)", path="update", elapsed_s=busy, on_core_s=busy)],
        )
        for pid, busy in ((201, 8), (202, 4))
    ]
    evidence = Evidence(session(main, *workers))
    assert evidence.stage_ns("update") == pytest.approx(8e9)


def test_children_that_replace_each_other_add_up():
    """Twenty children work for 0.2 s each, while main waits for 4 s."""
    waiting = f"Future.result ({QUEUES}:1)"
    main = process(
        samples=[
            sample("f (a.py:1)", waiting, elapsed_s=4, on_core_s=0.0),
            sample("f (a.py:2)", elapsed_s=6, on_core_s=6),
        ]
    )
    children = [
        process(
            f"child-{number}",
            role="helper",
            pid=201 + number,
            start_s=0.5 * number,
            end_s=0.5 * number + 0.2,
            samples=[sample("play (a.py:9)", elapsed_s=0.2, on_core_s=0.2)],
        )
        for number in range(20)
    ]
    evidence = Evidence(session(main, *children))
    played = sum(row.ns for row in evidence.rows if row.leaf.line == 9)
    assert played == pytest.approx(4e9)
    assert sum(row.ns for row in evidence.rows) == pytest.approx(10e9)


def test_a_thread_works_where_it_computes():
    """Beside long operations of torch, a thread is sampled where it releases the lock."""
    matmul = sample("main (a.py:1)", elapsed_s=8, on_core_s=8)
    sleeps = sample("watch (a.py:7)", elapsed_s=7, on_core_s=2, queued_s=1, thread=7, sleep=4)
    counts = sample("watch (a.py:7)", "count (a.py:9)", elapsed_s=1, on_core_s=1, thread=7)
    main = process(samples=[matmul, sleeps, counts], end_s=8)
    times = {
        row.leaf.line: (row.sample.elapsed_ns, row.sample.on_core_ns, row.sample.queued_ns)
        for row in Evidence(session(main)).rows_of(main, 7)
    }
    assert times == {7: (ns(4), 0, 0), 9: (ns(4), ns(4), 0)}


def test_lines_of_a_missing_file():
    assert sources.eager_log_lines("/nowhere/x.py") == frozenset()
    assert sources.sync_lines("/nowhere/x.py") == {}
    assert sources.function_at("/nowhere/x.py", 1) is None
    assert sources.loop_around("/nowhere/x.py", 1) is None


def test_functions_that_handle_tensors(tmp_path):
    file = tmp_path / "agent.py"
    file.write_text(
        "import torch\n"
        "def returns(rewards):\n"
        "    return [reward * 0.99 for reward in rewards]\n"
        "def soft(targets, params):\n"
        "    for target, param in zip(targets, params):\n"
        "        target.lerp_(param, 0.005)\n"
        "def norm(x):\n"
        "    return torch.linalg.norm(x)\n"
    )
    assert [sources.handles_tensors(str(file), line) for line in (3, 6, 8)] == [False, True, True]
    other = tmp_path / "other.py"
    other.write_text("def soft(x):\n    return x.data\n")
    assert not sources.handles_tensors(str(other), 2)


def test_limits_have_reasons():
    rows = read_catalogue(Path(limits.__file__).with_name("limits.json"))
    assert all(value > 0 and why.endswith(".") for value, why in rows.values())
    text = "".join(path.read_text() for path in Path(limits.__file__).parent.glob("*.py"))
    assert [name for name in rows if f"LIMITS.{name}" not in text] == []


def test_every_list_of_words_is_used():
    rows = read_catalogue(Path(catalogues.__file__).with_name("words.json"))
    assert all(why.endswith(".") and words for why, words in rows.values())
    text = "".join(path.read_text() for path in Path(limits.__file__).parent.glob("*.py"))
    assert [name for name in rows if f'WORDS["{name}"]' not in text] == []
