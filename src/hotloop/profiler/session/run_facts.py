"""Facts of a hotloop run that its spans do not contain, from files of the run directory."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from hotloop.base import documents
from hotloop.base.crowding import Crowding
from hotloop.profiler.session import Session


def add_run_facts(session: Session, run_directory: Path) -> None:
    """Add what a hotloop run's spans do not contain: environments, and options for advice."""
    try:
        content = documents.read(run_directory / "config.json")
        config, auto = content["config"], content.get("auto") or {}
        num_envs, workers = int(config["num_envs"]), int(config.get("workers") or 0)
        float(num_envs)  # JSON's integers have no limit
        options = {
            "num_envs": num_envs,
            "execution": str(config.get("execution")),
            "has_replay": "save_replay" in config,
            "has_auto_workers": auto.get("asked", {}).get("workers") == "auto",
        }
    except (OSError, ValueError, KeyError, TypeError, AttributeError, OverflowError):
        return
    session.metadata.setdefault("training", options)
    for process in session.processes:
        num_stepped = num_envs // workers if workers and process.role == "worker" else num_envs
        process.facts.setdefault("num_envs", float(num_stepped))


def read_crowding(run_directories: Iterable[Path], problems: list[str]) -> dict[str, Any]:
    """Return how long threads of a hotloop run waited for cores, as metadata."""
    for directory in run_directories:
        path = directory / "cores.json"
        try:
            crowding = Crowding.from_json(documents.read(path))
            if crowding is None:
                raise ValueError("this version does not write such fields or values")
        except FileNotFoundError:
            continue
        except (OSError, ValueError) as error:
            reason = getattr(error, "strerror", None) or error
            problems.append(f"{path} is damaged ({reason}) and is ignored: remove it")
            continue
        return {"crowding": vars(crowding)}
    return {}
