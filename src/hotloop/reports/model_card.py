"""The model card of a run: a Markdown page with metadata, as the Hugging Face Hub shows it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from hotloop.base.rounding import format_number
from hotloop.runs.hub import huggingface_hub
from hotloop.runs.learning_curve import CURVE_FILE
from hotloop.runs.trust import imported_environment

if TYPE_CHECKING:
    from hotloop.training.trained_policy import EvaluationResult

_URL = "https://github.com/hotloop/hotloop"
_TASK = "reinforcement-learning"
# Characters with a meaning in Markdown or HTML.
_SPECIAL = "\\`*_[]<>|#&"


def eval_command(content: Mapping[str, Any], repo: str) -> str:
    """Return the command that evaluates a published policy.

    Args:
        content: the content of `config.json`.
        repo: the repository, `user/name`.
    """
    is_own = _needs_modules(content) or any(imported_environment(content))
    return f"hotloop eval hf://{repo}" + " --trust" * is_own


def model_card(
    content: Mapping[str, Any],
    repo: str,
    *,
    timesteps: int,
    played: EvaluationResult | None,
    license_id: str | None,
) -> str:
    """Return the page `README.md` of a repository.

    Args:
        content: the published content of `config.json`.
        repo: the repository, `user/name`.
        timesteps: the training steps of the checkpoint.
        played: the evaluation of the checkpoint, or None.
        license_id: the licence of the weights, or None.
    """
    algorithm, env_id = content["algorithm"], content["env_id"]
    seed = content["config"]["seed"]
    lines = [
        f"# {_text(algorithm)} on {_text(env_id)}",
        "",
        f"[hotloop]({_URL}) trained this policy for {timesteps:,} steps, with seed {seed}.",
        *_returns(played),
        "",
        f"![learning curve]({CURVE_FILE})",
        "",
        *_usage(content, repo),
        *_table("Options", "option", _changed_options(content)),
        "The other options have their defaults.",
        "",
        *_table("Versions", "library", content["versions"]),
        "## Licence",
        "",
        f"The weights are published under `{license_id}`."
        if license_id
        else "The author states no licence: ask before you use the weights in your work.",
        "",
    ]
    return f"---\n{_metadata(content, repo, played, license_id)}\n---\n\n" + "\n".join(lines)


def _metadata(
    content: Mapping[str, Any], repo: str, played: EvaluationResult | None, license_id: str | None
) -> str:
    """Return the metadata in YAML."""
    hub = huggingface_hub()
    algorithm, env_id = content["algorithm"], content["env_id"]
    options: dict[str, Any] = {}
    if played is not None:
        result = hub.EvalResult(
            task_type=_TASK,
            task_name=_TASK,
            dataset_type=env_id,
            dataset_name=env_id,
            metric_type="mean_reward",
            metric_name="mean_reward",
            metric_value=_value_text(played),
            verified=False,
        )
        options = {"model_name": repo.partition("/")[2], "eval_results": [result]}
    card = hub.ModelCardData(
        library_name="hotloop",
        pipeline_tag=_TASK,
        license=license_id,
        tags=[env_id, algorithm, _TASK, "deep-reinforcement-learning", "hotloop"],
        **options,
    )
    return card.to_yaml()


def _value_text(played: EvaluationResult) -> str:
    """Return the mean return and its spread, without the commas that leaderboards can't read."""
    spread = played.std_return
    text = f"{format_number(played.mean_return, spread)} +/- {format_number(spread, spread)}"
    return text.replace(",", "")


def _returns(played: EvaluationResult | None) -> list[str]:
    if played is None:
        return []
    returns, lengths = played.returns, played.lengths
    spread = played.std_return
    mean, low, high = (
        format_number(value, spread) for value in (played.mean_return, min(returns), max(returns))
    )
    rows = {
        "mean return": f"{mean} ± {format_number(spread)} (standard deviation)",
        "lowest and highest return": f"{low}, {high}",
        "episodes": f"{len(returns)}, with the most probable actions",
        "mean length": format_number(sum(lengths) / len(lengths)),
    }
    return ["", *_table("", "evaluation", rows)[:-1]]


def _usage(content: Mapping[str, Any], repo: str) -> list[str]:
    """Return how to load the policy."""
    command = eval_command(content, repo)
    extra = ", trust=True" if _needs_modules(content) else ""
    lines = [
        "## Use it",
        "",
        "```",
        f"git clone {_URL}",
        "pip install './hotloop[train,hub]'",
        command,
        "```",
        "",
        "```python",
        "import hotloop",
        "",
        f'policy = hotloop.load("hf://{repo}"{extra})',
        "action = policy.act(obs)",
        "```",
        "",
    ]
    if command.endswith("--trust"):
        lines += [
            "`trust` imports modules of the author, or passes texts to the environment: read them "
            "before.",
            "",
        ]
    return lines


def _needs_modules(content: Mapping[str, Any]) -> bool:
    """Return whether the policy itself needs modules of its author."""
    return bool(content["network"]) or ":" in content["algorithm"]


def _changed_options(content: Mapping[str, Any]) -> dict[str, str]:
    options, defaults = content["config"], content.get("defaults")
    names = options if defaults is None else [name for name in options if name in defaults]
    return {name: json.dumps(options[name]) for name in names}


def _table(title: str, label: str, rows: Mapping[str, str]) -> list[str]:
    if not rows:
        return []
    lines = [f"| {label} | |", "|---|---|"]
    lines += [f"| {_text(name)} | {_text(value)} |" for name, value in rows.items()]
    return [*([f"## {title}", ""] if title else []), *lines, ""]


def _text(value: str) -> str:
    """Return a text, escaped for Markdown and HTML."""
    return "".join(f"\\{char}" if char in _SPECIAL else char for char in " ".join(value.split()))
