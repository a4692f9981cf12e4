"""Trust in run directories: protection against imports of untrusted modules.

The `config.json` of a run names the modules that `eval`, `resume` and `export` import: an
environment `module:Id`, a network, an algorithm, a schedule. A training therefore signs
`config.json` with a key that only its user can read. Without a valid signature, a run may only use
environments in Gymnasium's registry and parts of hotloop. The key is stored in
`$XDG_STATE_HOME/hotloop/key` (`~/.local/state/hotloop/key`).

The signed content includes the files and digests of the named modules. It does not include the
run's path: a user may move and copy runs.
"""

from __future__ import annotations

import contextlib
import hashlib
import hmac
import json
import os
import re
import stat
import warnings
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import Any

from hotloop.base.files import sync, write_new
from hotloop.errors import RunDirectoryError, UntrustedError, shortened
from hotloop.runs import module_digests

_KEY_BYTES = 32
# Prefixes of environment ids that import known libraries only.
_KNOWN_LIBRARIES = ("envpool:", "hotloop:", "gymnax:", "brax:", "playground:")
_DATA = re.compile(r"(constant|linear|cosine|piecewise|steps|lstm|gru|lag):[-+.,=\deE]*")
_MODULE = re.compile(r"[^\W\d]\w*(\.[^\W\d]\w*)*")
_NEVER_SCHEDULED = ("algorithm", "network", "critic_network")
# Options whose value may contain a colon but names no module.
_NEVER_MODULES = ("runs_dir", "run_dir", "device")


def imported_objects(content: Mapping[str, Any]) -> list[str]:
    """Return the objects outside of hotloop and Gymnasium's registry that resuming a run imports.

    Returns:
        A text "`option` 'module:name'" for each object.
    """
    descriptions = [*imported_environment(content)]
    options = {
        "algorithm": content["algorithm"],
        "network": content["network"],
        **_without_environment(content["config"]),
    }
    for option, value in options.items():
        names = [] if option in _NEVER_MODULES else [x for x in _strings(value) if ":" in x]
        may_be_scheduled = option not in _NEVER_SCHEDULED
        descriptions += [
            f"`{option}` '{x}'" for x in names if not (may_be_scheduled and _DATA.fullmatch(x))
        ]
    return list(dict.fromkeys(descriptions))


def imported_environment(content: Mapping[str, Any]) -> Iterator[str]:
    """Yield a text for each object that creating the run's environment imports.

    Numeric keyword arguments are safe. With strings, some of Gymnasium's environments import
    modules and open files.
    """
    env_id, env_kwargs = content["env_id"], content["config"].get("env_kwargs", {})
    if ":" in env_id and not env_id.startswith(_KNOWN_LIBRARIES):
        yield f"`env_id` '{env_id}'"
    if not all(isinstance(value, (int, float, type(None))) for value in env_kwargs.values()):
        yield f"`env_kwargs` {json.dumps(env_kwargs)}"
    policies = content["config"].get("policies")
    if isinstance(policies, str) and ":" in policies:  # a function that returns an agent's policy
        yield f"`policies` '{policies}'"


def named_modules(content: Mapping[str, Any]) -> list[str]:
    """Return the modules outside of hotloop that the run may import."""
    options = _without_environment(content["config"])
    objects = [content["algorithm"], content["network"] or "", *_strings(options)]
    modules = [text.partition(":")[0] for text in objects if ":" in text]
    if not content["env_id"].startswith(_KNOWN_LIBRARIES):
        is_game = content["env_id"].startswith("pettingzoo:")
        modules.append(content["env_id"].rpartition(":")[2 if is_game else 0])
    names = dict.fromkeys(modules).keys() - {"__main__"}  # a script is never imported
    return sorted(name for name in names if _MODULE.fullmatch(name))


def names(content: Mapping[str, Any], part: str, name: str) -> bool:
    """Return whether a signed run names a network, or a module that defines or imports a head."""
    if part == "network":
        return name == content["network"]
    return name.partition(":")[0] in module_digests.imported_from(named_modules(content))


def check_modules(path: Path, content: Mapping[str, Any]) -> None:
    """Check that a signed run's modules are those that it was trained with.

    Warns if the user has edited them since.

    Raises:
        UntrustedError: A module has a different file with different content.
    """
    stored = content["modules"]
    for name, module in module_digests.digests(named_modules(content)).items():
        before = stored.get(name, {})
        if module["sha256"] == before.get("sha256"):
            continue
        if module["file"] != before.get("file"):
            trained_with = f", not {before['file']} with which it was trained" if before else ""
            raise UntrustedError(
                f"{path} would import {module['file']}{trained_with}: change to the directory of "
                "the right module, or pass --trust if you trust this one"
            )
        warnings.warn(
            f"{module['file']}, or a module that it imports, was changed since {path} was "
            "trained: results may differ",
            RuntimeWarning,
            stacklevel=3,
        )


def check_unchanged(path: Path, content: Mapping[str, Any]) -> None:
    """Check that `config.json` has not changed since this user's training wrote it.

    Raises:
        UntrustedError: It was changed.
    """
    if is_changed(content):
        raise UntrustedError(
            f"{path / 'config.json'} was changed after your training had signed it: restore it, "
            "or pass --trust to resume, eval or export to use it as it is"
        )


def reject(path: Path, names: Collection[str]) -> None:
    """Raise an error if an unsigned run has objects or options that may run code.

    Raises:
        UntrustedError: There are such objects or options.
    """
    if names:
        raise UntrustedError(
            f"{path} was not trained by you on this machine, or was changed since, and it could "
            f"run code by {shortened(', '.join(names))}: check it, and pass --trust if you trust "
            "its author"
        )


def signature(content: Mapping[str, Any]) -> str:
    """Return the user's signature of the content of `config.json`, or "" without a key."""
    key = _key()
    return "" if key is None else _signature(key, content)


def is_signed(content: Mapping[str, Any]) -> bool:
    """Return whether the content has a valid signature of this user."""
    key, stored = _key(), content.get("signature")
    if key is None or not isinstance(stored, str) or not stored.isascii():
        return False
    return hmac.compare_digest(stored, _signature(key, content))


def is_changed(content: Mapping[str, Any]) -> bool:
    """Return whether this user's key signed a different content."""
    key, stored = _key(), content.get("signature")
    if key is None or not isinstance(stored, str) or is_signed(content):
        return False
    return stored.startswith(f"{_key_id(key)}:")


def check_links(directory: Path, *, is_own_run: bool) -> None:
    """Raise an error for links that lead out of a run directory, since a run would write there.

    Args:
        directory: the run directory.
        is_own_run: whether this user trained the run. Then the links that W&B creates in `wandb/`
            are allowed.

    Raises:
        RunDirectoryError: there is such a link, or something that is neither file nor directory.
        OSError: the directory cannot be read.
    """
    root = os.path.realpath(directory)
    for folder, names, files in os.walk(directory):
        if is_own_run and Path(folder) == directory and not (directory / "wandb").is_symlink():
            names[:] = [name for name in names if name != "wandb"]
        for name in (*names, *files):
            path = os.path.join(folder, name)
            mode = os.lstat(path).st_mode
            if stat.S_ISLNK(mode):
                target = os.path.realpath(path)
                if os.path.commonpath([root, target]) != root:
                    raise RunDirectoryError(
                        f"all files of a run must be in its directory, but {path} is a link to "
                        f"{target}: replace the link by its target, or remove it"
                    )
            elif not (stat.S_ISREG(mode) or stat.S_ISDIR(mode)):
                raise RunDirectoryError(
                    f"a run directory must hold files and directories, but {path} is neither: "
                    "remove it"
                )


def _signature(key: bytes, content: Mapping[str, Any]) -> str:
    signed = {name: value for name, value in content.items() if name != "signature"}
    text = json.dumps(signed, sort_keys=True, default=str)
    return f"{_key_id(key)}:{hmac.new(key, text.encode(), hashlib.sha256).hexdigest()}"


def _key_id(key: bytes) -> str:
    return hmac.new(key, b"the name of this key", hashlib.sha256).hexdigest()[:16]


def _key() -> bytes | None:
    """Return the user's key, created on first use. None if it cannot be stored secretly."""
    state = os.environ.get("XDG_STATE_HOME", "")
    with contextlib.suppress(OSError, RuntimeError):  # there is no home directory
        folder = (Path(state) if state else Path.home() / ".local" / "state") / "hotloop"
        path = folder / "key"
        if not path.exists():
            folder.mkdir(parents=True, exist_ok=True, mode=0o700)
            # Link the complete file: if two processes create a key, the first key remains.
            temp_path = folder / f".key.{os.getpid()}.{os.urandom(4).hex()}"
            try:
                write_new(temp_path, os.urandom(_KEY_BYTES), mode=0o600)
                sync(temp_path)
                with contextlib.suppress(FileExistsError):
                    os.link(temp_path, path)
            finally:
                temp_path.unlink(missing_ok=True)
        flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC  # the file may be a pipe
        with open(os.open(path, flags), "rb") as file:
            status, key = os.fstat(file.fileno()), file.read(_KEY_BYTES + 1)
        is_secret = status.st_uid == os.geteuid() and not stat.S_IMODE(status.st_mode) & 0o077
        return key if is_secret and len(key) == _KEY_BYTES else None
    return None


def _without_environment(config: Mapping[str, Any]) -> dict[str, Any]:
    return {k: v for k, v in config.items() if k not in ("env_id", "env_kwargs")}


def _strings(value: Any) -> Iterator[str]:
    pending = [value]
    while pending:
        item = pending.pop()
        if isinstance(item, str):
            yield item
        elif isinstance(item, (list, tuple)):
            pending += item
        elif isinstance(item, dict):
            pending += [*item.keys(), *item.values()]
