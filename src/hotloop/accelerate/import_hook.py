"""Replace Stable-Baselines3's classes by hotloop's when a script imports them."""

from __future__ import annotations

import sys
from pathlib import Path
from types import ModuleType
from typing import Any

from hotloop.base.import_hooks import ImportHooks

LIBRARIES = ("stable_baselines3", "sb3_contrib")


def install(settings: dict[str, Any]) -> ImportHooks:
    """Replace the classes as soon as a program imports a library.

    Args:
        settings: `execution` and `precision` of `hotloop.accelerate.acceleration.Settings`, and
            `directory`, where child processes store their results for the report.
    """

    def replace(library: ModuleType) -> None:
        from hotloop.accelerate import acceleration, report

        acceleration.SETTINGS.execution = settings["execution"]
        acceleration.SETTINGS.precision = settings["precision"]
        report.begin(settings["directory"])
        replace_classes(library)

    hooks = ImportHooks(dict.fromkeys(LIBRARIES, replace))
    hooks.install()
    return hooks


def replace_classes(library: ModuleType) -> None:
    """Replace the classes of a library that has been imported, wherever its modules name them."""
    from hotloop.accelerate import report
    from hotloop.accelerate.classes import CLASSES, accelerated_class

    # The accelerated classes import their originals, so all of them are imported first.
    pairs: list[tuple[type, type]] = []
    for name, (module, _) in CLASSES.items():
        if module.partition(".")[0] == library.__name__:
            original = getattr(sys.modules[module], name)
            accelerated = accelerated_class(original)
            if accelerated is not None:  # otherwise it was replaced before, or has no counterpart
                pairs.append((original, accelerated))
    modules = [
        module
        for name, module in list(sys.modules.items())
        if name.partition(".")[0] == library.__name__
    ]
    for original, accelerated in pairs:
        report.measure_class(accelerated)
        for module in modules:
            if vars(module).get(original.__name__) is original:
                setattr(module, original.__name__, accelerated)


def final_report(hooks: ImportHooks, directory: Path) -> str:
    """Return the report that is printed after the script's end.

    Args:
        hooks: the hooks of this process.
        directory: the directory with the records of child processes.
    """
    problems = "; ".join(f"{name}: {problem}" for name, problem in hooks.problems.items())
    if problems:
        return f"hotloop accelerate: Stable-Baselines3's classes are not replaced: {problems}"
    has_records = any(directory.glob("*.json"))
    if not hooks.called and not has_records:
        return (
            "hotloop accelerate: nothing is accelerated, since the script has not imported "
            "stable_baselines3 or sb3_contrib"
        )
    from hotloop.accelerate.report import report_lines

    lines = report_lines(directory)
    if not lines:
        return (
            "hotloop accelerate: nothing is accelerated, since the script has not called `learn` "
            "of a model of Stable-Baselines3"
        )
    return "\n".join(["hotloop accelerate:", *(f"  {line}" for line in lines)])
