"""Tables of `python -m bench rollouts`, most of them in docs/workers-speed.md."""

from __future__ import annotations

from typing import Any

from bench import storage
from bench.markdown import format_figure, format_ratio, short_reason, table
from bench.rollouts.clusters import ON_RAY


def _percent(figure: dict[str, float]) -> str:
    """Return median and range in percent."""
    return f"{figure['median']:.1%} ({figure['min']:.1%}–{figure['max']:.1%})"


def lockstep_table(case: str) -> str:
    """Return a table of rates compared with the ideal and the arithmetic, by load."""
    result = storage.load("rollouts_lockstep")["cases"][case]
    head = ["", "learner", "transitions/s", "over the ideal", "expected over the ideal"]
    rows = [[*head, "environments busy"]]
    for way in result["ways"].values():
        if "missing" in way:
            rows.append([way["about"], "", short_reason(way["missing"]), "", "", ""])
            continue
        label = way["about"]
        for load, law in result["law"].items():
            if f"rate {load}" not in way:
                continue
            rows.append(
                [
                    label,
                    "idle" if load == "0%" else f"busy {load} of the time",
                    format_figure(way[f"rate {load}"], 1.0),
                    _percent(way[f"of_ideal {load}"]),
                    f"{law[way['law']] / law['ideal']:.1%}",
                    _percent(way[f"busy {load}"]),
                ]
            )
            label = ""
    return table(*rows)


def diagnostic_table() -> str:
    """Return the post's table with measured and published figures."""
    result = storage.load("rollouts_diagnostic")
    head = ["", "sampling, s", "optimizing, s", "reset, ms", "inference, ms", "step, ms"]
    head += ["step p50, p99, ms", "waiting", "hours", "wasted hours"]
    rows = [head]
    for way in result["ways"].values():
        if "missing" in way:
            rows.append([way["about"], short_reason(way["missing"]), *[""] * (len(head) - 2)])
            continue
        tail = (f"{way[name]['median'] * 1e3:.1f}" for name in ("step_p50_s", "step_p99_s"))
        rows.append(
            [
                way["about"],
                *(f"{way[name]['median']:.2f}" for name in ("sampling_s", "optimising_s")),
                f"{way['reset_s']['median'] * 1e3:.0f}",
                f"{way['inference_s']['median'] * 1e3:.3f}",
                f"{way['step_s']['median'] * 1e3:.1f}",
                ", ".join(tail),
                f"{way['waited']['median']:.0%}",
                f"{way['hours']:.1f}",
                f"{way['hours_wasted']:.1f}",
            ]
        )
    for name, way in result["published"].items():
        rows.append(
            [
                f"the post: {name}",
                *(f"{way[part]:g}" for part in ("sampling_s", "optimising_s")),
                *(f"{way[part] * 1e3:g}" for part in ("reset_s", "inference_s", "step_s")),
                *("", ""),
                "{:g}–{:g}".format(*way["hours"]),
                "6" if "Stable" in name else "",
            ]
        )
    return table(*rows)


def curves_table() -> str:
    """Return a table of the measured points."""
    result = storage.load("rollouts_curves")
    names = {"barrier": "`barrier`", "variable overlap": "`variable`, overlapped"}
    lines = {"barrier": "barrier", "variable overlap": "ideal"}
    head = ["", "standard deviation, over the mean", "lock-step, transitions/s"]
    for name in names.values():
        head += [f"{name}, measured", "expected"]
    rows = [head]
    for panel in result["panels"].values():
        label = panel["about"]
        for point in panel["points"]:
            row = [label, f"{point['std']:g}", f"{point['rates']['sb3']:,.0f}"]
            for method, line in lines.items():
                row += [
                    f"{point['speed_up'][method]:.2f}×",
                    f"{point['expected'][line]:.2f}×",
                ]
            rows.append(row)
            label = ""
    return table(*rows)


def cheap_table() -> str:
    """Return a table of CartPole's rates."""
    rows = [["16 CartPoles, two cores", "transitions/s", "over the bare environments"]]
    for way in storage.load("rollouts_cheap")["ways"].values():
        if "missing" in way:
            rows.append([way["about"], short_reason(way["missing"]), ""])
        else:
            rows.append([way["about"], format_figure(way["rate"], 1.0), f"{way['of_bare']:.0%}"])
    return table(*rows)


def overhead_table() -> str:
    """Return a table of a fragment's duration by a worker and inline."""
    rows = [["steps", "environments", "inline, ms", "one worker, ms", "overhead, ms"]]
    for row in storage.load("rollouts_overhead")["fragments"]:
        rows.append(
            [
                f"{row['num_steps']}",
                f"{row['num_envs']}",
                *(format_figure(row[name], 1e3) for name in ("inline", "processes")),
                f"{row['overhead'] * 1e3:.2f}",
            ]
        )
    return table(*rows)


def start_table() -> str:
    """Return a table of a worker's start and memory."""
    start = storage.load("rollouts_overhead")["start"]
    if "missing" in start:
        return short_reason(start["missing"])
    rows = [["", "time, s", "resident memory, MB", "torch imported"]]
    alone = (format_figure(start["imports_s"], 1.0), format_figure(start["imports_bytes"], 1e-6))
    rows.append(["Gymnasium and one CartPole alone", *alone, ""])
    ready = (format_figure(start["ready_s"], 1.0), format_figure(start["resident_bytes"], 1e-6))
    torch = "yes" if start["has_torch"]["max"] else "no"
    rows.append(["a worker with one CartPole until it is ready", *ready, torch])
    extra_bytes = start["resident_bytes"]["median"] - start["imports_bytes"]["median"]
    rows.append(["overhead of the worker", "", f"{extra_bytes / 1e6:.0f}", ""])
    return table(*rows)


def ppo_table() -> str:
    """Return a table of whole trainings."""
    result = storage.load("rollouts_ppo")
    head = [f"PPO, CartPole, {result['timesteps']:,} steps", "steps/s", "ratio"]
    rows = [[*head, "from prompt to end, s", "ratio", "return, last tenth"]]
    for way in result["ways"].values():
        returns: list[Any] = way["return_last_tenth"]
        rows.append(
            [
                way["about"],
                format_figure(way["steps_per_s"], 1.0),
                format_ratio(way["ratio"]),
                format_figure(way["total_s"], 1.0),
                format_ratio(way["ratio_total"]),
                ", ".join(f"{value:.0f}" for value in returns),
            ]
        )
    return table(*rows)


def auto_table() -> str:
    """Return a table of whole trainings with the chosen workers and inline."""
    head = ["8 environments", "transitions", "inline, s", "`--workers auto`, s", "workers"]
    rows = [[*head, "speed over inline"]]
    for case in storage.load("rollouts_auto")["cases"]:
        if "ratio" not in case:
            rows.append([case["about"], "", short_reason("failed"), "", "", ""])
            continue
        low, high = (int(case["workers"][end]) for end in ("min", "max"))
        rows.append(
            [
                case["about"],
                f"{case['timesteps']:,}",
                *(format_figure(case[name], 1.0) for name in ("inline", "auto")),
                f"{low}" if low == high else f"{low}–{high}",
                format_ratio(case["ratio"]),
            ]
        )
    return table(*rows)


def ray_table() -> str:
    """Return a table of uneven steps by Ray actors, compared with RLlib's env runners."""
    result = storage.load("rollouts_ray")
    rows = [["", "workers", "nodes", "learner", "transitions/s", "over the ideal"]]
    for name, way in result["ways"].items():
        method, _, many_nodes = name.partition(", ")
        if method not in ON_RAY:
            continue
        count = result["many" if many_nodes else "workers"]
        label = [ON_RAY[method], f"{count}", f"{result['nodes'] if many_nodes else 1}"]
        if "missing" in way:
            rows.append([*label, "", short_reason(way["missing"]), ""])
            continue
        for load in ("0%", f"{result['load']:.0%}"):
            if f"rate {load}" in way:
                learner = "idle" if load == "0%" else f"busy {load} of the time"
                rate = format_figure(way[f"rate {load}"], 1.0)
                rows.append([*label, learner, rate, _percent(way[f"of_ideal {load}"])])
                label = [""] * 3
    return table(*rows)


def ray_costs_table() -> str:
    """Return a table of a fragment's overhead, the start and the recovery on Ray."""
    ways = storage.load("rollouts_ray")["ways"]
    inline, actor = ways["fragment inline"], ways["fragment ray barrier"]
    start, lost = ways["start"], ways["recovery"]
    extra_s = actor["seconds"]["median"] - inline["seconds"]["median"]
    return table(
        ["", ""],
        ["overhead of a fragment of 128 steps of 8 environments, ms", f"{extra_s * 1e3:.1f}"],
        ["start of Ray, s", format_figure(start["ray_s"], 1.0)],
        ["start of all workers, s", format_figure(start["ready_s"], 1.0)],
        ["CPU time of each worker's process, s", format_figure(start["cpu_s"], 1.0)],
        ["recovery after an actor is killed, s", format_figure(lost["actor_median_s"], 1.0)],
        ["slowest recovery of an actor, s", format_figure(lost["actor_worst_s"], 1.0)],
        ["recovery after a node is lost, s", format_figure(lost["node_median_s"], 1.0)],
        ["slowest recovery of a node, s", format_figure(lost["node_worst_s"], 1.0)],
    )


def central_table() -> str:
    """Return a table of inference by workers and in a central process."""
    result = storage.load("rollouts_central")
    rows = [["", "transitions/s", "CPU time per transition, ms", "memory of the processes, MiB"]]
    for name, way in result["ways"].items():
        rows.append(
            [result["about"][name], short_reason(way["missing"]), "", ""]
            if "missing" in way
            else [
                result["about"][name],
                *(format_figure(way[x], 1.0) for x in ("rate", "cpu_ms", "mib")),
            ]
        )
    return table(*rows)


def plan_table() -> str:
    """Return a table of forecasts and measurements."""
    result = storage.load("rollouts_plan")
    rows = [["schedule", "nodes", "workers", "forecast, transitions/s", "measured, transitions/s"]]
    rows[0] += ["forecast / measured"]
    for row in sorted(result["rows"], key=lambda row: row["schedule"]):
        label = [f"`{row['schedule']}`", f"{row['nodes']}", f"{row['workers']}"]
        label.append(f"{row['forecast']:,.0f}")
        if "missing" in row:
            rows.append([*label, short_reason(row["missing"]), ""])
            continue
        rate = row["rate 0%"]
        rows.append(
            [*label, format_figure(rate, 1.0), format_ratio(row["forecast"] / rate["median"])]
        )
    for forecast in result["only"]:
        nodes = forecast["workers"] // 8
        rows.append(
            [
                "`async`",
                f"{nodes}",
                f"{forecast['workers']:,}",
                f"{forecast['steps_per_s']:,.0f}",
                "–",
                "",
            ]
        )
    return table(*rows)
