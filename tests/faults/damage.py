"""Ways to damage a file: its bytes, its JSON values, or the kind of file."""

from __future__ import annotations

import json
import os
import random
import socket
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

# --- bytes ----------------------------------------------------------------------------------------


def flip(content: bytes, rng: random.Random) -> bytes:
    """Flip one to three bits."""
    changed = bytearray(content)
    for _ in range(rng.randint(1, 3)):
        changed[rng.randrange(len(changed))] ^= 1 << rng.randrange(8)
    return bytes(changed)


def cut(content: bytes, rng: random.Random) -> bytes:
    """Keep only the beginning, or nothing."""
    return content[: rng.randrange(len(content))]


def zero(content: bytes, rng: random.Random) -> bytes:
    """Zero a block, like a disk that lost one."""
    size = min(len(content), rng.choice([1, 16, 512, 4096]))
    first = rng.randrange(len(content) - size + 1)
    return content[:first] + bytes(size) + content[first + size :]


def insert(content: bytes, rng: random.Random) -> bytes:
    """Insert random bytes, which are rarely UTF-8."""
    first = rng.randrange(len(content))
    return content[:first] + rng.randbytes(rng.choice([1, 2, 40])) + content[first:]


def space(content: bytes, rng: random.Random) -> bytes:
    """Turn one space into a tab, if there is one. JSON stays equivalent."""
    places = [i for i, byte in enumerate(content) if byte == ord(" ")]
    if not places:
        return flip(content, rng)
    first = rng.choice(places)
    return content[:first] + b"\t" + content[first + 1 :]


BYTES: dict[str, Callable[[bytes, random.Random], bytes]] = {
    "flip": flip,
    "cut": cut,
    "zero": zero,
    "insert": insert,
}

# --- JSON -----------------------------------------------------------------------------------------

# JSON texts of values. Large numbers that a user might mean are left out: 10¹² steps are valid.
VALUES = [
    *("Infinity", "-Infinity", "NaN", "1e999", "-1e999", "1e308", "1e-320", "-1", "0", "1", "0.5"),
    *("9" * 5000, "-" + "9" * 5000, str(10**30), "9223372036854775808", "null", "true", "false"),
    *('""', '"x"', '"1"', '"nan"', '"../../x"', '"\\ud800"', '"\\u0000"', json.dumps("x" * 10_000)),
    *('"hotloop_faults_stranger:make"', '"os:system"'),
    *("[]", "{}", "[null]", '{"": null}', "[[[[[1]]]]]", "[1, 2, 3]", '{"kind": "x"}'),
    "[" * 100_000 + "]" * 100_000,
]
WHOLE = {
    "empty": b"",
    "a line feed": b"\n",
    "null": b"null",
    "a list": b"[]",
    "an object": b"{}",
    "a text": b'"x"',
    "a number": b"1",
    "5,000 digits": b"9" * 5000,
    "NaN": b"NaN",
    "brackets": b"[" * 100_000,
    "closed brackets": b"[" * 100_000 + b"]" * 100_000,
    "braces": b'{"a":' * 100_000 + b"1" + b"}" * 100_000,
    "10 MB": b'"' + b"x" * 10_000_000 + b'"\n',
    "10 MB in an object": b'{"config": "' + b"x" * 10_000_000 + b'"}\n',
    "NUL bytes": bytes(4096),
    "UTF-16": "{}".encode("utf-16"),
    "a mark of UTF-8": b"\xef\xbb\xbf{}",
    "no UTF-8": b"\xff\xfe\xfd",
}
_HERE = "hotloop-faults-here"


def _paths(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Yield the path of each value within a document."""
    items = value.items() if isinstance(value, dict) else []
    if isinstance(value, list):
        items = list(enumerate(value))
    for key, item in items:
        yield (*path, key)
        yield from _paths(item, (*path, key))


def change_json(text: str, rng: random.Random) -> str:
    """Replace a value, remove it, or repeat its key."""
    document = json.loads(text)
    paths = list(_paths(document))
    *parents, last = rng.choice(paths)
    holder = document
    for key in parents:
        holder = holder[key]
    change = rng.choice(["another value", "another value", "another value", "missing", "twice"])
    if change == "missing":
        del holder[last]
        return json.dumps(document)
    value = rng.choice(VALUES)
    if change == "twice" and isinstance(holder, dict):
        holder[_HERE] = 0
        return json.dumps(document).replace(f'"{_HERE}": 0', f"{json.dumps(last)}: {value}")
    holder[last] = _HERE
    return json.dumps(document).replace(f'"{_HERE}"', value)


# --- other kinds of files -------------------------------------------------------------------------


def _socket(path: Path) -> None:
    # Use a short name: a socket's path has a limit.
    cwd = os.getcwd()
    os.chdir(path.parent)
    try:
        socket.socket(socket.AF_UNIX).bind(path.name)
    finally:
        os.chdir(cwd)


INSTEAD: dict[str, Callable[[Path], Any]] = {
    "a pipe": os.mkfifo,
    "a directory": os.mkdir,
    "/dev/zero": lambda path: path.symlink_to("/dev/zero"),
    "/dev/tty": lambda path: path.symlink_to("/dev/tty"),
    "a link to itself": lambda path: path.symlink_to(path.name),
    "a link to nothing": lambda path: path.symlink_to("nothing"),
    "nothing": lambda path: None,
}


def damage(path: Path, rng: random.Random) -> str:
    """Damage a file of JSON or of lines of JSON; return a short description."""
    how = rng.choice(["bytes", "JSON", "JSON", "JSON", "whole", "instead"])
    content = path.read_bytes()
    if how == "bytes":
        name, change = rng.choice(list(BYTES.items()))
        path.write_bytes(change(content, rng))
        return name
    if how == "whole":
        name, content = rng.choice(list(WHOLE.items()))
        path.write_bytes(content)
        return name
    if how == "instead":
        name, make = rng.choice(list(INSTEAD.items()))
        path.unlink()
        make(path)
        return name
    if path.suffix != ".jsonl":
        path.write_text(change_json(content.decode(), rng))
        return "JSON"
    lines = content.decode().splitlines()
    number = rng.randrange(len(lines))
    line_change = rng.choice(["changed", "changed", "changed", "replaced", "repeated", "swapped"])
    if line_change == "changed":
        lines[number] = change_json(lines[number], rng)
    elif line_change == "replaced":
        lines[number] = rng.choice(VALUES)
    elif line_change == "repeated":
        lines.insert(rng.randrange(len(lines)), lines[number])
    else:
        rng.shuffle(lines)
    path.write_text("\n".join(lines) + "\n")
    return f"line {line_change}"
