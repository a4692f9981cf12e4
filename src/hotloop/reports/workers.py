"""A summary of the workers of a run, printed at its end and in its report."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hotloop import timing
from hotloop.base import documents
from hotloop.base.rounding import format_rate
from hotloop.base.streams import notify
from hotloop.base.text_tables import print_rows, terminal_width
from hotloop.reports import bottleneck
from hotloop.rollouts.accounting import WorkerAccount
from hotloop.timing.clocks import read_clocks
from hotloop.timing.table import duration

# If there are more workers, only the first, the last and the slowest are printed.
_MAX_ROWS = 8
# Spans with a smaller share of the time of all workers are omitted.
_MIN_SHARE = 0.002


@dataclass(kw_only=True)
class _Account:
    """Schema of `accounting.json`, see `Accounting`."""

    collected: int
    trained: int
    dropped: dict[str, int]
    in_flight: int
    policy_age_mean: float
    policy_age_max: float
    workers: list[dict[str, Any]]
    collected_per_s: float | None = None
    forecast_per_s: float | None = None


def print_workers(run_dir: Path) -> None:
    """Print the content of `accounting.json`, if the run has one."""
    account = _account(run_dir)
    if account is None:
        return
    workers = account["workers"]
    if workers:
        _print_tree(run_dir, len(workers))
        _print_table(workers)
        _print_clocks(run_dir)
        bottleneck.print_bottleneck(run_dir)
    print(f"\n{balance(account)}")
    if account["policy_age_max"]:
        print(
            f"policy lag: {account['policy_age_mean']:.1f} versions on average, "
            f"{account['policy_age_max']:,} at most"
        )
    if account["collected_per_s"]:
        text = f"collecting: {format_rate(account['collected_per_s'])} steps/s"
        if account["forecast_per_s"]:
            ratio = account["collected_per_s"] / account["forecast_per_s"]
            text += f", {ratio:.2f} × the forecast of {format_rate(account['forecast_per_s'])}"
        print(text)


def print_nodes(run_dir: Path) -> None:
    """Print the workers of a cluster by node, if the run used several machines."""
    workers = (_account(run_dir) or {}).get("workers", [])
    if any(worker.node for worker in workers):
        _print_table(workers)
        _print_clocks(run_dir)


def _account(run_dir: Path) -> dict[str, Any] | None:
    """Return the content of `accounting.json`, or None after a message if it is damaged."""
    path = run_dir / "accounting.json"
    try:
        account = vars(documents.record(_Account, documents.read(path)))
        for index, worker in enumerate(account["workers"]):
            known = {name: value for name, value in worker.items() if value is not None}
            account["workers"][index] = documents.record(
                WorkerAccount, known, where="workers", ignore_unknown=True
            )
        return account
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        notify(f"{path} is damaged ({reason}) and is ignored: remove it")
        return None


def balance(account: dict[str, Any]) -> str:
    """Return the line collected = trained + dropped + in flight, with the reasons."""
    dropped = account["dropped"]
    reasons = ", ".join(f"{reason} {count:,}" for reason, count in dropped.items())
    return (
        f"{account['collected']:,} collected = {account['trained']:,} trained + "
        f"{sum(dropped.values()):,} dropped{f' ({reasons})' if reasons else ''} + "
        f"{account['in_flight']:,} in flight"
    )


def select_workers(workers: list[WorkerAccount]) -> list[tuple[str, WorkerAccount]]:
    """Return the workers to print, with their names. Of more than `_MAX_ROWS` workers, these are
    the first, the last, and the slowest, which has the longest time per transition."""
    slowest = min(workers, key=lambda worker: worker.active_steps_per_s)
    if len(workers) <= _MAX_ROWS:
        chosen = workers
    else:
        chosen = [worker for worker in workers if worker in (workers[0], slowest, workers[-1])]
    has_several = len(workers) > 1
    return [
        (f"{worker.worker}{' (slowest)' if has_several and worker is slowest else ''}", worker)
        for worker in chosen
    ]


def _print_tree(run_dir: Path, num_workers: int) -> None:
    _, recordings = bottleneck.last_processes(run_dir)
    names = {"inference-": "inference", "worker-": f"{num_workers} workers"}
    if num_workers == 1:
        names["worker-"] = "worker"
    for kind, name in names.items():
        trees = [item.tree() for item in recordings if item.component.startswith(kind)]
        if trees:
            tree = timing.merge(trees, name)
            print()
            print(timing.render(tree, min_share=_MIN_SHARE, max_width=terminal_width()))


def _print_table(workers: list[WorkerAccount]) -> None:
    headings = ["worker"]
    nodes = sorted({worker.node for worker in workers})
    if nodes != [""]:  # the first characters of Ray's long node names are unique
        headings.append("node")
        workers = sorted(workers, key=lambda worker: (worker.node, worker.worker))
    num_labels = len(headings)
    headings += ["steps", "stepping", "resetting", "acting", "waiting"]
    headings += ["step p50", "p99", "reset p50", "p99", "restarts", "failures"]
    rows: list[list[str]] = []
    for name, worker in select_workers(workers):
        shares = worker.step_share, worker.reset_share, worker.act_share, worker.wait_share
        times = worker.step_p50_s, worker.step_p99_s, worker.reset_p50_s, worker.reset_p99_s
        rows.append(
            [
                name,
                *([] if nodes == [""] else [worker.node[:8] or "–"]),
                f"{worker.steps:,}",
                *(f"{share:.1%}" for share in shares),
                *(duration(1e9 * seconds) for seconds in times),
                str(worker.restarts),
                str(worker.env_failures),
            ]
        )
    print()
    print_rows(headings, rows, num_labels=num_labels, num_texts=0)


def _print_clocks(run_dir: Path) -> None:
    for clock in read_clocks(run_dir / "timing").by_boot.values():
        print(
            f"node {clock.node[:8]}: its clock is {clock.offset_ns / 1e9:+.6f} s from this "
            f"machine's, ± {clock.error_ns / 1e3:,.0f} µs; its times are converted to this one"
        )
