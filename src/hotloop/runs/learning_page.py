"""Learning of a run as sections of a page: charts, configuration, videos. Text in it is escaped."""

from __future__ import annotations

import base64
import html
import json
import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from urllib.parse import quote

from hotloop.durations import duration
from hotloop.runs.charts import Drawn, Series, chart
from hotloop.runs.learning import Learning, number
from hotloop.runs.plots import running_mean
from hotloop.types import Array

WINDOW = 100  # episodes that a curve is the mean of
# Of videos, before they are encoded: a page should stay below 2 MB.
_EMBEDDED_BYTES = 900_000
_VIDEO_TYPES = {".mp4": "video/mp4", ".webm": "video/webm", ".gif": "image/gif"}
_WIDE, _SMALL = (1100, 380), (360, 210)

# What metrics are, with their units; others are called by their names.
_ABOUT = {
    "policy_loss": "loss of the policy",
    "value_loss": "loss of the value function, squared returns",
    "critic_loss": "loss of the critics, squared returns",
    "loss": "loss of the Q network, squared returns",
    "alpha_loss": "loss of the temperature",
    "entropy": "entropy of the policy, nats",
    "approx_kl": "KL of the policy before and after, nats",
    "clip_fraction": "share of ratios that were clipped",
    "explained_variance": "share of the returns' variance that is explained",
    "grad_norm": "norm of the gradient, before clipping",
    "q_value": "mean Q value, discounted return",
    "td_error": "mean |TD error|, discounted return",
    "alpha": "temperature α",
    "clip_range": "clip range of the ratio",
    "num_updates": "updates",
    "replay_size": "transitions in the replay buffer",
    "torch_threads": "threads of the update",
    "dropped": "transitions that were dropped",
    "policy_age_mean": "age of the policy that acted, updates (mean)",
    "policy_age_max": "age of the policy that acted, updates (greatest)",
    "steps_per_s": "steps a second",
}
# The first of these groups that has one of the words in a metric's name is the metric's.
_GROUPS = (
    ("Losses", ("loss",)),
    ("Policy", ("entropy", "kl", "clip_fraction", "alpha", "temperature", "epsilon")),
    ("Values", ("q_value", "td_error", "explained_variance", "value")),
    ("Steps and schedules", ("",)),
)


def overview(learning: Learning) -> str:
    """What was trained on what, and how far it is."""
    about = learning.summary
    return f"{about.algorithm} on {about.env_id}, seed {about.seed}: {about.status}"


def figures(learning: Learning) -> list[tuple[str, str]]:
    """The few numbers that one looks for first, by their names."""
    about = learning.summary
    found = [
        ("environment", about.env_id),
        ("algorithm", about.algorithm),
        ("seed", str(about.seed)),
        ("status", about.status),
        (f"steps, of {about.total_timesteps:,}", f"{about.timesteps:,}"),
        ("training time, h:mm:ss", _clock(learning.elapsed_s)),
    ]
    if about.mean_return is not None:
        count = min(WINDOW, about.num_episodes)
        found.append((f"mean return, last {count} episodes", number(about.mean_return)))
    if about.best_evaluation is not None:
        found.append(("best evaluation", number(about.best_evaluation)))
    for name, series in learning.info.items():
        if len(series):
            recent = series.values[-WINDOW:]
            found.append((f"{name}, last {len(recent)} episodes", number(recent.mean())))
    return found


def sections(learning: Learning, run: Path, page: Path) -> list[tuple[str, str, str]]:
    """Make the sections.

    Args:
        learning: of the run.
        run: its directory.
        page: where the page is going to lie, which videos are linked from.

    Returns:
        Of each its name, its title and its HTML, empty where there is nothing to show.
    """
    return [
        ("returns", "Returns", _returns(learning)),
        ("episodes", "Episodes", _episodes(learning)),
        ("metrics", "Updates", _metrics(learning)),
        ("configuration", "Configuration", _configuration(learning.content)),
        ("videos", "Videos", _videos(run, page)),
    ]


def _returns(learning: Learning) -> str:
    parts: list[str] = []
    if learning.problem:
        parts.append(
            f'<p class="card">What follows is not shown: {_escaped(learning.problem)}.</p>'
        )
    if learning.summary.status == "running":
        parts.append('<p class="card">It runs at this moment: this is how far it was.</p>')
    evaluations = learning.evaluations
    if not len(learning.returns) and not len(evaluations.mean):
        steps = learning.summary.timesteps
        so_far = f"in {steps:,} steps" if steps else "and no iteration is logged yet"
        return "".join([*parts, f"<p>No episode has ended {so_far}.</p>"])
    legend: list[str] = []
    if len(learning.returns):
        legend.append(_key("dots", "a training episode"))
        legend.append(_key("mean", f"mean of the last {WINDOW} training episodes"))
    if len(evaluations.mean):
        count = evaluations.num_episodes
        of = f" of {count} episode{'s' * (count > 1)}" if count else ""
        bar = "; bar: its lowest to its highest return" if count > 1 else ""
        legend.append(_key("eval", f"an evaluation, mean{of}{bar}"))
        parts.append(
            "<p>A training episode is played by a policy that explores and learns meanwhile, an "
            "evaluation by the best that it knows.</p>"
        )
    drawn = _of_episodes(learning.returns, marks=evaluations.mean, spread=evaluations.spread)
    width, height = _WIDE
    picture = chart(
        drawn,
        label="undiscounted return",
        end=learning.end,
        width=width,
        height=height,
        about=f"Returns of {len(learning.returns):,} training episodes and "
        f"{len(evaluations.mean):,} evaluations over {learning.end:,.0f} steps",
    )
    parts.append(f'<ul class="legend">{"".join(legend)}</ul>')
    parts.append(f'<div class="scroll wide">{picture}</div>')
    return "\n".join(parts)


def _episodes(learning: Learning) -> str:
    evaluations = learning.evaluations
    shown: list[str] = []
    series = [("length: steps in an episode", learning.lengths, evaluations.lengths)]
    nothing = Series(name="", at=learning.returns.at[:0], values=learning.returns.at[:0])
    own = "at the last step of an episode"
    series += [
        (f"{name}: {own}", one, evaluations.info.get(name, nothing))
        for name, one in learning.info.items()
    ]
    series += [
        (f"{name}: {own}", nothing, one)
        for name, one in evaluations.info.items()
        if name not in learning.info
    ]
    for label, one, marks in series:
        if len(one) or len(marks):
            last = running_mean(one.values, WINDOW)[-1] if len(one) else marks.values[-1]
            shown.append(_panel(_of_episodes(one, marks=marks), label, last, learning.end))
    if not shown:
        return ""
    return (
        f"<p>Dots are training episodes, the line is the mean of the last {WINDOW}, whose last "
        f"value stands beside the name; diamonds are evaluations.</p>{_grid(shown)}"
    )


def _metrics(learning: Learning) -> str:
    grouped: dict[str, list[str]] = {title: [] for title, _ in _GROUPS}
    for name, series in learning.metrics.items():
        title = next(title for title, words in _GROUPS if any(word in name for word in words))
        about = "learning rate" if name.endswith("learning_rate") else _ABOUT.get(name, "")
        label = f"{name}: {about}"
        drawn = Drawn(averaged=series)
        grouped[title].append(_panel(drawn, label, series.values[-1], learning.end))
    parts = [f"<h3>{title}</h3>\n{_grid(panels)}" for title, panels in grouped.items() if panels]
    if not parts:
        return ""
    return (
        "<p>Of each iteration, over steps; the last value stands beside the name. Where there are "
        "more iterations than pixels, the line is their mean and the band goes from the least to "
        "the greatest.</p>\n" + "\n".join(parts)
    )


def _of_episodes(episodes: Series, *, marks: Series, spread: Array | None = None) -> Drawn:
    if not len(episodes):
        return Drawn(marks=marks, spread=spread)
    mean = running_mean(episodes.values, WINDOW)
    return Drawn(
        dots=episodes,
        lines=Series(name=episodes.name, at=episodes.at, values=mean),
        marks=marks,
        spread=spread,
    )


def _panel(drawn: Drawn, label: str, last: float, end: float) -> str:
    width, height = _SMALL
    name, _, unit = label.rpartition(": ")
    picture = chart(drawn, label=unit, end=end, width=width, height=height, about=label)
    head = f"<span>{_escaped(name)}</span><b>{_escaped(number(float(last)))}</b>"
    return f"<figure><figcaption>{head}</figcaption>{picture}</figure>"


def _grid(panels: list[str]) -> str:
    return f'<div class="panels">{"".join(panels)}</div>' if panels else ""


def _configuration(content: Mapping[str, Any]) -> str:
    """What differs from the algorithm's defaults first, and marked."""
    config, known = content["config"], "defaults" in content
    defaults = content.get("defaults", {})
    differ = [name for name in config if name in defaults]
    rows = [
        (f"<b>{_escaped(name)}</b>", f"<b>{_value(config[name])}</b>", _value(defaults[name]))
        for name in differ
    ]
    rows += [(_escaped(name), _value(config[name]), "") for name in config if name not in differ]
    body = "\n".join(
        f'<tr{" class=changed" if k < len(differ) else ""}><th scope="row">{name}</th>'
        f"<td>{value}</td><td>{default}</td></tr>"
        for k, (name, value, default) in enumerate(rows)
    )
    about = (
        "<p>What differs from the algorithm's defaults comes first.</p>"
        if known
        else "<p>Which of them differ from the algorithm's defaults is not known: an earlier "
        "version did not write that down.</p>"
    )
    versions = ", ".join(f"{name} {version}" for name, version in content["versions"].items())
    return (
        f'{about}<div class="scroll"><table class="options"><caption><span>Options of the run'
        "</span></caption><thead><tr><th>option</th><th>value</th>"
        f"<th>default, where it differs</th></tr></thead><tbody>\n{body}\n</tbody></table></div>"
        f'<p class="dim">{_escaped(versions)}</p>'
    )


def _value(value: Any) -> str:
    text = value if isinstance(value, str) else json.dumps(value)
    return f"<code>{_escaped(text)}</code>"


def _videos(run: Path, page: Path) -> str:
    """Those in `videos/`: the latest ones in the page as far as there is room, links to others."""
    try:
        found = sorted(
            path
            for path in (run / "videos").iterdir()
            if path.suffix.lower() in _VIDEO_TYPES and path.is_file() and not path.is_symlink()
        )
    except OSError:
        return ""
    left, shown = _EMBEDDED_BYTES, []
    for path in reversed(found):
        kind = _VIDEO_TYPES[path.suffix.lower()]
        link = quote(os.path.relpath(path, page.resolve().parent))
        steps = re.fullmatch(r"step-(\d+)", path.stem)
        title = f"at {int(steps[1]):,} steps" if steps else path.stem
        seen = f'<a href="{_escaped(link)}">{_escaped(path.name)}</a>'
        try:
            size = path.stat().st_size
            if 0 < size <= left:
                content = base64.b64encode(path.read_bytes()).decode()
                source = f"data:{kind};base64,{content}"
                left -= size
                seen = (
                    f'<img alt="{_escaped(title)}" src="{source}">'
                    if kind.startswith("image")
                    else f'<video controls loop muted preload="metadata" src="{source}"></video>'
                )
        except OSError as error:
            seen += f" can't be read: {_escaped(error.strerror or error)}"
        shown.append(f"<figure><figcaption><span>{_escaped(title)}</span></figcaption>{seen}")
    return _grid([f"{one}</figure>" for one in shown])


def _key(kind: str, words: str) -> str:
    picture = '<path class="dots" d="M5 9h0M13 5h0M21 10h0"/>'
    if kind == "mean":
        picture = '<path class="mean" d="M1 8h24"/>'
    if kind == "eval":
        picture = (
            '<path class="eval" d="M1 8h24"/><path class="diamonds" d="M13 3l5 5l-5 5l-5-5z"/>'
        )
    key = f'<svg class="chart key" viewBox="0 0 26 16" aria-hidden="true">{picture}</svg>'
    return f"<li>{key}{_escaped(words)}</li>"


def _clock(seconds: float) -> str:
    text = duration(seconds)
    return text if text.count(":") == 2 else f"0:{text:0>5}"


def _escaped(words: object) -> str:
    return html.escape(str(words), quote=True)
