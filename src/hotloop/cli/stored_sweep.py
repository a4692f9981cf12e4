"""Opening the file of a sweep. Its plan names code, so the user must have written or trust it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

from hotloop.base.importing import enable_local_imports, names_module
from hotloop.errors import ConfigError, UntrustedError, shortened

if TYPE_CHECKING:
    from hotloop.experiments import Plan, Results


def open_results(path: Path, *, is_trusted: bool) -> tuple[Results, Plan]:
    """Open the file of a sweep, or of the trainings in a directory. Return it and its plan.

    Raises:
        ConfigError: the file does not exist, or has no sweep.
        UntrustedError: another user may have written the file.
    """
    from hotloop.experiments import Results
    from hotloop.experiments.results import results_path

    results = Results(results_path(path))
    try:
        plan = results.plan
        if plan is None:
            raise ConfigError(f"{path} has no sweep: `hotloop sweep ALGORITHM …` starts one")
        if not (is_trusted or results.is_signed):
            raise UntrustedError(
                f"{path} was not written by your sweeps on this machine, or was changed since, and "
                f"it could run code by {shortened(_describe(plan), 1000)}: check it, and pass "
                "--trust if you trust its author"
            )
        if names_module(json.dumps([plan.algorithm, plan.config, plan.space])):
            enable_local_imports()
    except BaseException:
        results.close()
        raise
    return results, plan


def _describe(plan: Plan) -> str:
    """Return the parts of a plan that may name code, as text."""
    ray = {
        "ray_address": plan.ray_address,
        "ray_runtime_env": plan.ray_runtime_env,
        "trial_resources": plan.trial_resources,
    }
    names = {name: x for name, x in plan.config.items() if isinstance(x, str | list | dict)}
    options = {"algorithm": plan.algorithm, **plan.space, **ray, **names}
    return ", ".join(f"`{name}` {json.dumps(x)}" for name, x in options.items() if x)
