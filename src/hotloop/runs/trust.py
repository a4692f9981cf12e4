"""Trust in run directories: whose names of modules may be imported and called.

Whoever writes a run directory decides what `eval`, `resume` and `export` import: an environment
`module:Id`, a network, an algorithm, a schedule. So a training signs `config.json` with a key that
only its user can read, and what is not signed by that key may name nothing but environments of
Gymnasium's registry and what hotloop has itself. A user's key lies in `$XDG_STATE_HOME/hotloop/key`
(`~/.local/state/hotloop/key`).
"""

from __future__ import annotations

import contextlib
import hashlib
import hmac
import json
import os
import re
import stat
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from hotloop.errors import RunDirectoryError
from hotloop.system.files import sync, write_new

_KEY_BYTES = 32
# What their ids begin with: hotloop looks names up in these libraries and imports nothing else.
_KNOWN_LIBRARIES = ("envpool:", "hotloop:", "gymnax:", "brax:", "playground:")
_SCHEDULE = re.compile(r"(linear|cosine|piecewise|steps):[-+.,=\deE]*")
_NEVER_SCHEDULED = ("algorithm", "network", "critic_network")
_PLACES = ("runs_dir", "run_dir", "device")  # options that may hold a colon and name no module


def named_objects(content: Mapping[str, Any]) -> list[str]:
    """Return what going on with a run imports or calls besides hotloop and registered environments.

    Args:
        content: of `config.json`.

    Returns:
        Each as "`option` 'module:name'", for a message; none of a run of hotloop's own parts.
    """
    found = [*named_environment(content)]
    options = {
        "algorithm": content["algorithm"],
        "network": content["network"],
        **_without_environment(content["config"]),
    }
    for option, value in options.items():
        names = [] if option in _PLACES else [x for x in _texts(value) if ":" in x]
        may_be_scheduled = option not in _NEVER_SCHEDULED
        found += [
            f"`{option}` '{x}'" for x in names if not (may_be_scheduled and _SCHEDULE.fullmatch(x))
        ]
    return list(dict.fromkeys(found))


def named_environment(content: Mapping[str, Any]) -> Iterator[str]:
    """Yield the same of what playing in the run's environment imports or calls.

    Numbers are handed to whatever environment; with texts, some of Gymnasium's import modules and
    open files.
    """
    env_id, env_kwargs = content["env_id"], content["config"].get("env_kwargs", {})
    if ":" in env_id and not env_id.startswith(_KNOWN_LIBRARIES):
        yield f"`env_id` '{env_id}'"
    if not all(isinstance(value, (int, float, type(None))) for value in env_kwargs.values()):
        yield f"`env_kwargs` {json.dumps(env_kwargs)}"


def signature(content: Mapping[str, Any]) -> str:
    """Return the user's signature of what `config.json` holds; empty where no key can be kept."""
    key = _key()
    return "" if key is None else _signature(key, content)


def is_signed(content: Mapping[str, Any]) -> bool:
    """Return whether this user has signed it, as it is now."""
    key, given = _key(), content.get("signature")
    if key is None or not isinstance(given, str) or not given.isascii():
        return False
    return hmac.compare_digest(given, _signature(key, content))


def refuse_ways_out(directory: Path, *, is_own: bool) -> None:
    """Refuse links that lead out of a run directory: what is written there would be elsewhere.

    Args:
        directory: the run's.
        is_own: whether this user has trained it: W&B makes such links in a directory of its own.

    Raises:
        RunDirectoryError: there is one, or something that is neither file nor directory.
        OSError: it can't be read.
    """
    root = os.path.realpath(directory)
    for folder, names, files in os.walk(directory):
        if is_own and Path(folder) == directory and not (directory / "wandb").is_symlink():
            names[:] = [name for name in names if name != "wandb"]
        for name in (*names, *files):
            path = os.path.join(folder, name)
            mode = os.lstat(path).st_mode
            if stat.S_ISLNK(mode):
                target = os.path.realpath(path)
                if os.path.commonpath([root, target]) != root:
                    raise RunDirectoryError(
                        f"a run is written within its directory alone, but {path} is a link to "
                        f"{target}: put there what it leads to, or remove it"
                    )
            elif not (stat.S_ISREG(mode) or stat.S_ISDIR(mode)):
                raise RunDirectoryError(
                    f"a run directory must hold files and directories, but {path} is neither: "
                    "remove it"
                )


def _signature(key: bytes, content: Mapping[str, Any]) -> str:
    signed = {name: value for name, value in content.items() if name != "signature"}
    text = json.dumps(signed, sort_keys=True, default=str)
    return hmac.new(key, text.encode(), hashlib.sha256).hexdigest()


def _key() -> bytes | None:
    """Return the user's key, which is made if need be; None: it can't be kept, or be secret."""
    state = os.environ.get("XDG_STATE_HOME", "")
    with contextlib.suppress(OSError, RuntimeError):  # no home
        folder = (Path(state) if state else Path.home() / ".local" / "state") / "hotloop"
        path = folder / "key"
        if not path.exists():
            folder.mkdir(parents=True, exist_ok=True, mode=0o700)
            # Linked when it is whole: of two processes that make one, the first one's stays.
            aside = folder / f".key.{os.getpid()}.{os.urandom(4).hex()}"
            try:
                write_new(aside, os.urandom(_KEY_BYTES), mode=0o600)
                sync(aside)
                with contextlib.suppress(FileExistsError):
                    os.link(aside, path)
            finally:
                aside.unlink(missing_ok=True)
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
        with open(descriptor, "rb") as file:
            about, key = os.fstat(descriptor), file.read(_KEY_BYTES + 1)
        is_secret = about.st_uid == os.geteuid() and not stat.S_IMODE(about.st_mode) & 0o077
        return key if is_secret and len(key) == _KEY_BYTES else None
    return None


def _without_environment(config: Mapping[str, Any]) -> dict[str, Any]:
    return {k: v for k, v in config.items() if k not in ("env_id", "env_kwargs")}


def _texts(value: Any) -> Iterator[str]:
    """Yield all texts in a JSON value, however deep."""
    waiting = [value]
    while waiting:
        one = waiting.pop()
        if isinstance(one, str):
            yield one
        elif isinstance(one, (list, tuple)):
            waiting += one
        elif isinstance(one, dict):
            waiting += [*one.keys(), *one.values()]
