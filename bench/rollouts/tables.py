"""The tables of docs/workers-speed.md, from what `python -m bench rollouts` has stored."""

from __future__ import annotations

from typing import Any

from bench import storage
from bench.markdown import scaled, table, times, why


def _percent(figure: dict[str, float]) -> str:
    """Median and range."""
    return f"{figure['median']:.1%} ({figure['min']:.1%}–{figure['max']:.1%})"


def lockstep_table(case: str) -> str:
    """Rates beside the ideal and beside the arithmetic, the learner idle and at work."""
    result = storage.load("rollouts_lockstep")["cases"][case]
    head = ["", "learner", "transitions/s", "of the ideal", "by arithmetic"]
    rows = [[*head, "environments at work"]]
    for way in result["ways"].values():
        if "missing" in way:
            rows.append([way["about"], "", why(way["missing"]), "", "", ""])
            continue
        about = way["about"]
        for load, law in result["law"].items():
            if f"rate {load}" not in way:
                continue
            rows.append(
                [
                    about,
                    "idle" if load == "0%" else f"{load} of the time",
                    scaled(way[f"rate {load}"], 1.0),
                    _percent(way[f"of_ideal {load}"]),
                    f"{law[way['law']] / law['ideal']:.1%}",
                    _percent(way[f"busy {load}"]),
                ]
            )
            about = ""
    return table(*rows)


def diagnostic_table() -> str:
    """The post's table, here and as its author published it."""
    result = storage.load("rollouts_diagnostic")
    head = ["", "sampling, s", "optimising, s", "reset, ms", "inference, ms", "step, ms"]
    head += ["step p50, p99, ms", "waited", "hours", "of them wasted"]
    rows = [head]
    for way in result["ways"].values():
        if "missing" in way:
            rows.append([way["about"], why(way["missing"]), *[""] * (len(head) - 2)])
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
    """The points of the figure that were measured."""
    result = storage.load("rollouts_curves")
    names = {"barrier": "`barrier`", "variable overlap": "`variable`, overlapped"}
    lines = {"barrier": "barrier", "variable overlap": "ideal"}
    head = ["", "standard deviation, over the mean", "lock-step, transitions/s"]
    for name in names.values():
        head += [f"{name}, measured", "expected"]
    rows = [head]
    for panel in result["panels"].values():
        about = panel["about"]
        for point in panel["points"]:
            row = [about, f"{point['std']:g}", f"{point['rates']['sb3']:,.0f}"]
            for how, line in lines.items():
                row += [
                    f"{point['speed_up'][how]:.2f}×",
                    f"{point['expected'][line]:.2f}×",
                ]
            rows.append(row)
            about = ""
    return table(*rows)


def cheap_table() -> str:
    """CartPole's rates."""
    rows = [["16 CartPoles, two cores", "transitions/s", "of the bare environments"]]
    for way in storage.load("rollouts_cheap")["ways"].values():
        if "missing" in way:
            rows.append([way["about"], why(way["missing"]), ""])
        else:
            rows.append([way["about"], scaled(way["rate"], 1.0), f"{way['of_bare']:.0%}"])
    return table(*rows)


def overhead_table() -> str:
    """A fragment by a worker, and inline."""
    rows = [["steps", "environments", "inline, ms", "one worker, ms", "the worker's more, ms"]]
    for row in storage.load("rollouts_overhead")["fragments"]:
        rows.append(
            [
                f"{row['num_steps']}",
                f"{row['num_envs']}",
                *(scaled(row[name], 1e3) for name in ("inline", "processes")),
                f"{row['overhead'] * 1e3:.2f}",
            ]
        )
    return table(*rows)


def start_table() -> str:
    """What a worker takes before its first step, and what it holds."""
    start = storage.load("rollouts_overhead")["start"]
    if "missing" in start:
        return why(start["missing"])
    rows = [["", "s", "resident, MB", "torch"]]
    alone = (scaled(start["imports_s"], 1.0), scaled(start["imports_bytes"], 1e-6))
    rows.append(["Gymnasium and one CartPole, by themselves", *alone, ""])
    ready = (scaled(start["ready_s"], 1.0), scaled(start["resident_bytes"], 1e-6))
    torch = "yes" if start["has_torch"]["max"] else "no"
    rows.append(["a worker with one CartPole, until it is ready", *ready, torch])
    more = start["resident_bytes"]["median"] - start["imports_bytes"]["median"]
    rows.append(["the worker's more", "", f"{more / 1e6:.0f}", ""])
    return table(*rows)


def ppo_table() -> str:
    """Whole trainings."""
    result = storage.load("rollouts_ppo")
    head = [f"PPO, CartPole, {result['timesteps']:,} steps", "steps/s", "ratio"]
    rows = [[*head, "from prompt to end, s", "ratio", "return, last tenth"]]
    for way in result["ways"].values():
        returns: list[Any] = way["return_last_tenth"]
        rows.append(
            [
                way["about"],
                scaled(way["steps_per_s"], 1.0),
                times(way["ratio"]),
                scaled(way["total_s"], 1.0),
                times(way["ratio_total"]),
                ", ".join(f"{one:.0f}" for one in returns),
            ]
        )
    return table(*rows)


def auto_table() -> str:
    """Whole trainings with what was chosen, and inline."""
    head = ["8 environments", "transitions", "inline, s", "`--workers auto`, s", "workers"]
    rows = [[*head, "as fast as inline"]]
    for case in storage.load("rollouts_auto")["cases"]:
        if "ratio" not in case:
            rows.append([case["about"], "", why("failed"), "", "", ""])
            continue
        low, high = (int(case["workers"][end]) for end in ("min", "max"))
        rows.append(
            [
                case["about"],
                f"{case['timesteps']:,}",
                *(scaled(case[name], 1.0) for name in ("inline", "auto")),
                f"{low}" if low == high else f"{low}–{high}",
                times(case["ratio"]),
            ]
        )
    return table(*rows)


def ray_table() -> str:
    """Uneven steps by actors of Ray, beside RLlib's."""
    result = storage.load("rollouts_ray")
    rows = [["", "workers", "nodes", "learner", "transitions/s", "of the ideal"]]
    for name, way in result["ways"].items():
        how, _, many = name.partition(", ")
        if how not in result["about"]:
            continue
        count = result["many" if many else "workers"]
        about = [result["about"][how], f"{count}", f"{result['nodes'] if many else 1}"]
        if "missing" in way:
            rows.append([*about, "", why(way["missing"]), ""])
            continue
        for load in ("0%", f"{result['load']:.0%}"):
            if f"rate {load}" in way:
                learner = "idle" if load == "0%" else f"{load} of the time"
                rate = scaled(way[f"rate {load}"], 1.0)
                rows.append([*about, learner, rate, _percent(way[f"of_ideal {load}"])])
                about = [""] * 3
    return table(*rows)


def ray_costs_table() -> str:
    """What a fragment, a start and a loss cost on Ray."""
    ways = storage.load("rollouts_ray")["ways"]
    own, actor = ways["fragment inline"], ways["fragment ray barrier"]
    start, lost = ways["start"], ways["recovery"]
    more = actor["seconds"]["median"] - own["seconds"]["median"]
    return table(
        ["", ""],
        ["a fragment of 128 steps of 8 environments beyond stepping them, ms", f"{more * 1e3:.1f}"],
        ["starting Ray, s", scaled(start["ray_s"], 1.0)],
        ["starting all workers, s", scaled(start["ready_s"], 1.0)],
        ["of it each worker's process on a core, s", scaled(start["cpu_s"], 1.0)],
        ["an actor is killed: until its work goes on, s", scaled(lost["actor_median_s"], 1.0)],
        ["at worst, s", scaled(lost["actor_worst_s"], 1.0)],
        ["a node is lost: until its work goes on, s", scaled(lost["node_median_s"], 1.0)],
        ["at worst, s", scaled(lost["node_worst_s"], 1.0)],
    )


def central_table() -> str:
    """Who asks the network of images."""
    result = storage.load("rollouts_central")
    rows = [["", "transitions/s", "CPU time of each, ms", "memory of the processes, MiB"]]
    for name, way in result["ways"].items():
        rows.append(
            [result["about"][name], why(way["missing"]), "", ""]
            if "missing" in way
            else [result["about"][name], *(scaled(way[x], 1.0) for x in ("rate", "cpu_ms", "mib"))]
        )
    return table(*rows)


def plan_table() -> str:
    """What is forecast beside what is measured."""
    result = storage.load("rollouts_plan")
    rows = [["schedule", "nodes", "workers", "forecast/s", "measured/s", "forecast / measured"]]
    for row in sorted(result["rows"], key=lambda row: row["schedule"]):
        about = [f"`{row['schedule']}`", f"{row['nodes']}", f"{row['workers']}"]
        about.append(f"{row['forecast']:,.0f}")
        if "missing" in row:
            rows.append([*about, why(row["missing"]), ""])
            continue
        rate = row["rate 0%"]
        rows.append([*about, scaled(rate, 1.0), times(row["forecast"] / rate["median"])])
    for one in result["only"]:
        nodes = one["workers"] // 8
        rows.append(
            ["`async`", f"{nodes}", f"{one['workers']:,}", f"{one['steps_per_s']:,.0f}", "–", ""]
        )
    return table(*rows)
