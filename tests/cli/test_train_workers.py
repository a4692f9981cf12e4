"""`hotloop train … --workers`: the report on workers at the start and at the end."""

import json
import re
from types import SimpleNamespace

import pytest

from hotloop.algorithms import ppo
from hotloop.cli import main
from hotloop.reports.workers import balance, select_workers
from hotloop.rollouts.accounting import WorkerAccount
from hotloop.rollouts.planning import probe
from hotloop.rollouts.planning.forecast import EnvTiming
from hotloop.training.sources import describe_workers

TINY = [
    *("--num-envs", "4", "--num-steps", "32", "--num-minibatches", "2", "--update-epochs", "2"),
    *("--total-timesteps", "512", "--execution", "eager"),
]


def train(capsys, *args):
    assert main(["train", "ppo", *TINY, *map(str, args)]) == 0
    return capsys.readouterr().out


def test_the_summary_reports_the_workers(capsys, tmp_path):
    out = train(capsys, "--workers", 2, "--run-dir", tmp_path / "run")
    assert out.startswith("workers: 2 × 2 environments, barrier\nupdate: ")
    assert re.search(r"^2 workers +100\.0%", out, re.MULTILINE)  # their trees, merged
    head = (
        r"worker +steps +stepping +resetting +acting +waiting +step p50 +p99 +reset p50 +p99 "
        r"+restarts +failures"
    )
    row = r"(?: \(slowest\))? +256(?: +\d+\.\d%){4}(?: +[\d.]+ (?:s|ms|µs)){4} +0 +0"
    assert re.search(rf"^{head}\n0{row}\n1{row}$", out, re.MULTILINE)
    assert out.count("(slowest)") == 1
    assert "\n512 collected = 512 trained + 0 dropped + 0 in flight\n" in out
    assert re.search(r"^collecting: [\d,]+ steps/s$", out, re.MULTILINE)
    # The report stands between the learner's tree and the curve.
    places = [out.index(x) for x in ("\nlearner ", "\n2 workers", "\nworker ", "\nlearning curve")]
    assert places == sorted(places)


def test_auto_prints_the_forecast_and_the_measured_speed(capsys, tmp_path, monkeypatch):
    measured = EnvTiming(step_s=0.5, step_p99_s=0.625, busy_share=0.01, act_s={1: 6e-6})
    monkeypatch.setattr(probe, "measure", lambda *args, **options: measured)
    monkeypatch.setattr(probe, "available_memory", lambda: 4 * probe._WORKER_BYTES)
    out = train(capsys, "--workers", "auto", "--run-dir", tmp_path / "run")
    # Two environments of 0.5 s in each of two workers: 4 steps a second.
    assert out.startswith(
        "workers: 2 × 2 environments, barrier (auto): forecast 4 steps/s, 2 without workers; a "
        "step takes 500 ms (sd 0 ns, p99 625 ms, 1% computing), acting for one environment "
        "6.00 µs\n"
    )
    printed = re.search(r"collecting: ([\d,]+) steps/s, ([\d,.]+) × the forecast of 4", out)
    accounting = json.loads((tmp_path / "run" / "accounting.json").read_text())
    assert float(printed[1].replace(",", "")) == round(accounting["collected_per_s"])
    ratio = accounting["collected_per_s"] / accounting["forecast_per_s"]
    assert float(printed[2].replace(",", "")) == pytest.approx(ratio, abs=0.006)


@pytest.mark.parametrize("acting_s", [1e-6, 4e-3])
def test_the_inference_mode_is_chosen_once(capsys, tmp_path, monkeypatch, acting_s):
    """The times of a step and of inference decide; a resumed run keeps the choice."""
    measured = EnvTiming(step_s=4e-3, act_s={1: acting_s, 2: acting_s, 4: acting_s})
    monkeypatch.setattr(probe, "measure", lambda *args, **options: measured)
    run = tmp_path / "run"
    out = train(capsys, "--workers", 4, "--inference", "auto", "--run-dir", run)
    is_central = acting_s == 4e-3
    description = "one process acts for all workers" if is_central else "each worker acts by itself"
    assert out.startswith(f"workers: 4 × 1 environments; {description} (auto): ")
    assert ("\ninference " in out) == is_central
    config = json.loads((run / "config.json").read_text())
    assert config["config"]["inference"] == ("central" if is_central else "worker")
    if is_central:
        monkeypatch.delattr(probe, "measure")  # a resumed run does not measure again
        assert main(["resume", str(run), "--total-timesteps", "1024"]) == 0
        out = capsys.readouterr().out
        assert out.startswith("resumed at 512 steps")
        assert f"\nworkers: 4 × 1 environments; {description} (auto): " in out
        trees = [out.index(x) for x in ("\nlearner ", "\ninference ", "\n4 workers", "\nworker ")]
        assert trees == sorted(trees)
        assert re.search(r"^  act +\d", out, re.MULTILINE)
        assert re.search(r"^  wait_for_inference .* wait$", out, re.MULTILINE)
        # The counts start at the resume.
        assert "\n512 collected = 512 trained + 0 dropped + 0 in flight\n" in out


def test_requested_central_inference_is_named():
    run = SimpleNamespace(auto_choice=None)
    config = ppo.Config(workers=2, num_envs=4, inference="central")
    description = describe_workers(config, run)
    assert description == "2 × 2 environments, barrier, central inference"


def test_the_balance_is_one_line():
    accounting = {
        "collected": 12_345,
        "trained": 12_288,
        "dropped": {"worker died": 8, "run ended": 49},
        "in_flight": 0,
    }
    assert balance(accounting) == (
        "12,345 collected = 12,288 trained + 57 dropped (worker died 8, run ended 49) + 0 in flight"
    )


def test_a_long_list_shows_the_first_slowest_and_last_worker():
    def worker(number, steps):
        shares = {"step_share": 0.5, "reset_share": 0.2, "act_share": 0.1}
        return WorkerAccount(worker=number, steps=steps, lived_s=10.0, **shares)

    workers = [worker(i, 40 if i == 5 else 100) for i in range(24)]
    assert [name for name, _ in select_workers(workers)] == ["0", "5 (slowest)", "23"]
    workers[0] = worker(0, 0)  # no worker is slower than one without steps
    assert [name for name, _ in select_workers(workers)] == ["0 (slowest)", "23"]
    assert [name for name, _ in select_workers(workers[4:7])] == ["4", "5 (slowest)", "6"]
    assert [name for name, _ in select_workers(workers[5:6])] == ["5"]
