"""The page of a run: charts, configuration, videos and the time of its parts."""

from __future__ import annotations

import dataclasses
import json
import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import quote

from hotloop.base.durations import duration
from hotloop.base.files import read_regular
from hotloop.base.html_page import Page, Section, data_uri, escaped, figure_list
from hotloop.base.redaction import redacted_options
from hotloop.base.statistics import running_mean
from hotloop.base.svg_charts import ChartData, ChartSeries, chart
from hotloop.profiler.render.findings import Findings
from hotloop.profiler.render.html import profile_page
from hotloop.reports.learning_curves import LearningCurves, format_number
from hotloop.reports.self_play import self_play_section
from hotloop.types import Array

WINDOW = 100  # number of episodes in a running mean
# Maximum size of all embedded videos before encoding, so that a page stays below 2 MB.
_EMBEDDED_BYTES = 900_000
_VIDEO_TYPES = {".mp4": "video/mp4", ".webm": "video/webm", ".gif": "image/gif"}
_WIDE, _SMALL = (1100, 380), (360, 210)

# Descriptions of metrics, with their units.
_DESCRIPTIONS = {
    "policy_loss": "loss of the policy",
    "value_loss": "loss of the value function, squared returns",
    "critic_loss": "loss of the critics, squared returns",
    "loss": "loss of the Q network, squared returns",
    "alpha_loss": "loss of the temperature",
    "entropy": "entropy of the policy, nats",
    "approx_kl": "KL of the policy before and after an update, nats",
    "clip_fraction": "share of clipped ratios",
    "policy_std": "mean standard deviation of the actions, before scaling",
    "clipped_actions": "share of the actions' numbers outside the bounds",
    "explained_variance": "explained share of the variance of returns",
    "grad_norm": "norm of the gradient, before clipping",
    "q_value": "mean Q value, discounted return",
    "td_error": "mean |TD error|, discounted return",
    "alpha": "temperature α",
    "clip_range": "clip range of the ratio",
    "num_updates": "updates",
    "replay_size": "transitions in the replay buffer",
    "torch_threads": "threads of the update",
    "dropped": "dropped transitions",
    "policy_age_mean": "mean age of the acting policy, updates",
    "policy_age_max": "maximum age of the acting policy, updates",
    "steps_per_s": "steps per second",
    "score": "mean score since the last snapshot, a win is 1",
    "rating": "Elo rating of the latest snapshot",
    "rating_interval": "half-width of the rating's 95 % interval",
}
# Groups of metrics. A metric belongs to the first group with a word of its name.
_GROUPS = (
    ("Losses", ("loss",)),
    (
        "Policy",
        ("entropy", "kl", "clip_fraction", "_std", "_actions", "alpha", "temperature", "epsilon"),
    ),
    ("Values", ("q_value", "td_error", "explained_variance", "value")),
    ("Steps and schedules", ("",)),
)


def run_page(
    results: Mapping[Path, LearningCurves],
    page: Path,
    *,
    problems: Sequence[str],
    findings: Findings | None,
) -> Page:
    """Return the page of a run or a profile.

    Args:
        results: learning curves of the run by directory, or of each of several policies. Empty if
            the directory is not a run or is damaged.
        page: path of the page, for relative links to videos.
        problems: sentences about missing data.
        findings: the profile of the directory, None if there is none.
    """
    text = "".join(f'<p class="card">{escaped(problem)}</p>' for problem in problems)
    profile = None if findings is None else profile_page(findings)
    if not results and not text:
        assert profile is not None
        return profile
    title, figures = "a damaged run", list[tuple[str, str]]()
    parts = [Section("problems", "Missing data", text)]
    for run, curves in results.items():
        summary = curves.summary
        title = f"{summary.algorithm} on {summary.env_id}, seed {summary.seed}: {summary.status}"
        run_sections = sections(curves, run, page)
        if len(results) > 1:
            title = f"{summary.algorithm} on {summary.env_id}: {len(results)} policies"
            figures += [(f"{run.name}: {label}", text) for label, text in key_figures(curves)[3:]]
            parts += [
                part._replace(name=f"{run.name}-{part.name}", title=f"{run.name}: {part.title}")
                for part in run_sections
            ]
        else:
            figures, parts = key_figures(curves), parts + run_sections
    result = Page(
        kind="run",
        title=title,
        overview=title,
        figures=figures,
        sections=parts,
        has_media=True,
    )
    if profile is None:
        return result
    speed = f"<p>{escaped(profile.overview)}</p>{figure_list(profile.figures)}"
    return dataclasses.replace(
        result,
        sections=[*result.sections, Section("speed", "Speed", speed), *profile.sections],
        footer=profile.footer,
        script=profile.script,
        chart_data=profile.chart_data,
    )


def key_figures(curves: LearningCurves) -> list[tuple[str, str]]:
    """Return the labels and values of the key figures."""
    summary = curves.summary
    labeled = [
        ("environment", summary.env_id),
        ("algorithm", summary.algorithm),
        ("seed", str(summary.seed)),
        ("status", summary.status),
        (f"steps, of {summary.total_timesteps:,}", f"{summary.timesteps:,}"),
        ("training time, h:mm:ss", _clock(curves.elapsed_s)),
    ]
    if summary.mean_return is not None:
        count = min(WINDOW, summary.num_episodes)
        text = format_number(summary.mean_return, summary.std_return)
        labeled.append((f"mean return, last {count} episodes", text))
    if summary.best_evaluation is not None:
        text = format_number(summary.best_evaluation, summary.best_evaluation_std)
        labeled.append(("best evaluation", text))
    for name, series in curves.info.items():
        if len(series):
            recent = series.values[-WINDOW:]
            text = format_number(recent.mean(), recent.std())
            labeled.append((f"{name}, last {len(recent)} episodes", text))
    return labeled


def sections(curves: LearningCurves, run: Path, page: Path) -> list[Section]:
    """Return the sections on the results of a run. Those without content are empty.

    Args:
        curves: learning curves of the run.
        run: the run directory.
        page: path of the page, for relative links to videos.
    """
    return [
        Section("returns", "Returns", _returns(curves)),
        Section("episodes", "Episodes", _episodes(curves)),
        Section("self-play", "Self-play", self_play_section(run)),
        Section("metrics", "Updates", _metrics(curves)),
        Section("configuration", "Configuration", _configuration(curves.content)),
        Section("videos", "Videos", _videos(run, page)),
    ]


def _returns(curves: LearningCurves) -> str:
    """Return the chart of returns, with notes and a legend."""
    parts: list[str] = []
    if curves.problem:
        parts.append(f'<p class="card">Later lines are not shown: {escaped(curves.problem)}.</p>')
    if curves.summary.status == "running":
        parts.append('<p class="card">The run is in progress: this is its state so far.</p>')
    evaluations = curves.evaluations
    if not len(curves.returns) and not len(evaluations.mean):
        steps = curves.summary.timesteps
        so_far = f"in {steps:,} steps" if steps else "and no iteration is logged yet"
        return "".join([*parts, f"<p>No episode has ended {so_far}.</p>"])
    legend: list[str] = []
    if len(curves.returns):
        legend.append(_legend_item("dots", "training episode"))
        legend.append(_legend_item("mean", f"mean of the last {WINDOW} training episodes"))
    if len(evaluations.mean):
        count = evaluations.num_episodes
        episodes = f" of {count} episode{'s' * (count > 1)}" if count else ""
        bar = ", bar: lowest to highest return" if count > 1 else ""
        legend.append(_legend_item("eval", f"evaluation, mean{episodes}{bar}"))
        parts.append(
            "<p>The policy explores and learns during training episodes. An evaluation uses its "
            "most probable actions.</p>"
        )
    data = _episode_chart(curves.returns, marks=evaluations.mean, mark_bounds=evaluations.bounds)
    width, height = _WIDE
    picture = chart(
        data,
        label="undiscounted return",
        end=curves.end,
        width=width,
        height=height,
        description=f"Returns of {len(curves.returns):,} training episodes and "
        f"{len(evaluations.mean):,} evaluations over {curves.end:,.0f} steps",
    )
    parts.append(f'<ul class="legend">{"".join(legend)}</ul>')
    parts.append(f'<div class="scroll wide">{picture}</div>')
    return "\n".join(parts)


def _episodes(curves: LearningCurves) -> str:
    """Return charts of the episodes' lengths and of logged values of `info`."""
    evaluations = curves.evaluations
    panels: list[str] = []
    series = [("length: steps in an episode", curves.lengths, evaluations.lengths)]
    empty = ChartSeries(name="", steps=curves.returns.steps[:0], values=curves.returns.steps[:0])
    suffix = "at the last step of an episode"
    series += [
        (f"{name}: {suffix}", training, evaluations.info.get(name, empty))
        for name, training in curves.info.items()
    ]
    series += [
        (f"{name}: {suffix}", empty, marks)
        for name, marks in evaluations.info.items()
        if name not in curves.info
    ]
    for label, dots, marks in series:
        if len(dots) or len(marks):
            last = running_mean(dots.values, WINDOW)[-1] if len(dots) else marks.values[-1]
            panels.append(_panel(_episode_chart(dots, marks=marks), label, last, curves.end))
    if not panels:
        return ""
    return (
        f"<p>Dots are training episodes and diamonds are evaluations. The line is the mean of the "
        f"last {WINDOW} episodes. Its last value is next to the name.</p>{_grid(panels)}"
    )


def _metrics(curves: LearningCurves) -> str:
    grouped: dict[str, list[str]] = {title: [] for title, _ in _GROUPS}
    for name, series in curves.metrics.items():
        title = next(title for title, words in _GROUPS if any(word in name for word in words))
        description = (
            "learning rate" if name.endswith("learning_rate") else _DESCRIPTIONS.get(name, "")
        )
        label = f"{name}: {description}"
        data = ChartData(averaged=series)
        grouped[title].append(_panel(data, label, series.values[-1], curves.end))
    parts = [f"<h3>{title}</h3>\n{_grid(panels)}" for title, panels in grouped.items() if panels]
    if not parts:
        return ""
    return (
        "<p>Metrics of each iteration over steps. The last value is next to the name. If there are "
        "more iterations than pixels, the line is their mean and the band goes from their minimum "
        "to their maximum.</p>\n" + "\n".join(parts)
    )


def _episode_chart(
    episodes: ChartSeries, *, marks: ChartSeries, mark_bounds: Array | None = None
) -> ChartData:
    if not len(episodes):
        return ChartData(marks=marks, mark_bounds=mark_bounds)
    mean = running_mean(episodes.values, WINDOW)
    return ChartData(
        dots=episodes,
        lines=ChartSeries(name=episodes.name, steps=episodes.steps, values=mean),
        marks=marks,
        mark_bounds=mark_bounds,
    )


def _panel(data: ChartData, label: str, last: float, end: float) -> str:
    width, height = _SMALL
    name, _, unit = label.rpartition(": ")
    picture = chart(data, label=unit, end=end, width=width, height=height, description=label)
    head = f"<span>{escaped(name)}</span><b>{escaped(format_number(float(last)))}</b>"
    return f"<figure><figcaption>{head}</figcaption>{picture}</figure>"


def _grid(panels: list[str]) -> str:
    return f'<div class="panels">{"".join(panels)}</div>' if panels else ""


def _configuration(content: Mapping[str, Any]) -> str:
    """Return a table of options. Those that differ from the defaults are first and marked."""
    config, known = redacted_options(content["config"]), "defaults" in content
    defaults = redacted_options(content.get("defaults", {}))
    differ = [name for name in config if name in defaults]
    rows = [
        (f"<b>{escaped(name)}</b>", f"<b>{_value(config[name])}</b>", _value(defaults[name]))
        for name in differ
    ]
    rows += [(escaped(name), _value(config[name]), "") for name in config if name not in differ]
    body = "\n".join(
        f'<tr{" class=changed" if k < len(differ) else ""}><th scope="row">{name}</th>'
        f"<td>{value}</td><td>{default}</td></tr>"
        for k, (name, value, default) in enumerate(rows)
    )
    note = (
        "<p>Options that differ from the algorithm's defaults come first.</p>"
        if known
        else "<p>The algorithm's defaults are unknown, because an earlier version of hotloop "
        "wrote this run.</p>"
    )
    versions = ", ".join(f"{name} {version}" for name, version in content["versions"].items())
    return (
        f'{note}<div class="scroll"><table class="options"><caption><span>Options of the run'
        "</span></caption><thead><tr><th>option</th><th>value</th>"
        f"<th>default, if different</th></tr></thead><tbody>\n{body}\n</tbody></table></div>"
        f'<p class="dim">{escaped(versions)}</p>'
    )


def _value(value: Any) -> str:
    text = value if isinstance(value, str) else json.dumps(value)
    return f"<code>{escaped(text)}</code>"


def _videos(run: Path, page: Path) -> str:
    """Return the videos in `videos/`: the latest ones embedded, up to a limit, others as links."""
    try:
        paths = sorted(
            path
            for path in (run / "videos").iterdir()
            if path.suffix.lower() in _VIDEO_TYPES and path.is_file() and not path.is_symlink()
        )
    except OSError:
        return ""
    remaining_bytes, figures = _EMBEDDED_BYTES, []
    for path in reversed(paths):
        kind = _VIDEO_TYPES[path.suffix.lower()]
        link = quote(os.fsencode(os.path.relpath(path, page.resolve().parent)))
        steps = re.fullmatch(r"step-(\d+)", path.stem)
        title = f"at {int(steps[1]):,} steps" if steps else path.stem
        body = f'<a href="{escaped(link)}">{escaped(path.name)}</a>'
        try:
            size = path.stat().st_size
            if 0 < size <= remaining_bytes:
                source = data_uri(read_regular(path), kind)
                remaining_bytes -= size
                body = (
                    f'<img alt="{escaped(title)}" src="{source}">'
                    if kind.startswith("image")
                    else f'<video controls loop muted preload="metadata" src="{source}"></video>'
                )
        except OSError as error:
            body += f" can't be read: {escaped(error.strerror or error)}"
        figures.append(f"<figure><figcaption><span>{escaped(title)}</span></figcaption>{body}")
    return _grid([f"{figure}</figure>" for figure in figures])


def _legend_item(kind: str, label: str) -> str:
    picture = '<path class="dots" d="M5 9h0M13 5h0M21 10h0"/>'
    if kind == "mean":
        picture = '<path class="mean" d="M1 8h24"/>'
    if kind == "eval":
        picture = (
            '<path class="eval" d="M1 8h24"/><path class="diamonds" d="M13 3l5 5l-5 5l-5-5z"/>'
        )
    key = f'<svg class="chart key" viewBox="0 0 26 16" aria-hidden="true">{picture}</svg>'
    return f"<li>{key}{escaped(label)}</li>"


def _clock(seconds: float) -> str:
    text = duration(seconds)
    return text if text.count(":") == 2 else f"0:{text:0>5}"
