"""Recordings that another process damages while they are written, and later."""

import os
import random
import signal
import subprocess
import sys
import zlib
from pathlib import Path

import pytest

from hotloop import timing
from hotloop.timing import RecordingError
from hotloop.timing import _format as fmt

# A program that records spans in two threads while its own file is damaged.
_PROGRAM = """
import os, random, sys, threading, warnings
warnings.simplefilter("error")
from pathlib import Path
from hotloop import timing

path, rng = timing.start(sys.argv[1], component="learner"), random.Random(sys.argv[3])

def damage():
    size = path.stat().st_size
    if sys.argv[2] == "fill":
        with open(path, "r+b") as file:
            file.seek(rng.choice([0, 65536]))
            file.write(rng.randbytes(size))
    else:
        os.truncate(path, int(sys.argv[2]))

def work(first):
    for k in range(first, first + 40):
        with timing.span(f"span {k}"), timing.span("inner", kind="wait"):
            for _ in range(300):
                with timing.span("innermost"):
                    pass
        if k % 10 == 3:
            assert timing.current().component == "learner"
            assert len(timing.totals()) > 0
            timing.open_paths()
            timing.report()

for first in (0, 0, 40):
    with timing.span("around"):
        thread = threading.Thread(target=work, args=(first,))
        thread.start()
        work(first)
        thread.join()
        damage()
timing.stop()
print("survived")
"""


@pytest.mark.parametrize("kind", ["fill", "0", "200000"])
@pytest.mark.parametrize("recorder", ["c", "python"])
def test_a_program_survives_damage_to_its_recording(tmp_path, recorder, kind, request):
    env = {**os.environ, "HOTLOOP_PURE_TIMING": "1" if recorder == "python" else ""}
    seed = request.node.name
    command = [sys.executable, "-c", _PROGRAM, str(tmp_path), kind, seed]
    done = subprocess.run(command, env=env, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, "survived\n", "")
    recordings, problems = timing.read_directory(tmp_path)
    assert len(recordings) == 0
    assert len(problems) == 1


_BUS_ERROR = """
import faulthandler, mmap, os, resource, sys, threading
from hotloop import timing

def record():
    with timing.span("a"):
        pass

resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
resource.setrlimit(resource.RLIMIT_CPU, (5, 5))
path = timing.start(sys.argv[1])
record()
faulthandler.enable()  # its handler passes bus errors on to the recorder's
thread = threading.Thread(target=record)
thread.start()
thread.join()
os.truncate(path, 0)
record()
print("survived", flush=True)
with open(path, "r+b") as file:
    file.truncate(8192)
    other = mmap.mmap(file.fileno(), 8192)
    file.truncate(0)
    other[0]
"""


def test_a_bus_error_of_the_program_ends_it(tmp_path):
    command = [sys.executable, "-c", _BUS_ERROR, str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (-signal.SIGBUS, "survived\n")
    assert done.stderr.count("Fatal Python error: Bus error") == 1


@pytest.fixture(scope="module")
def recorded(tmp_path_factory):
    """Content of a closed recording."""
    folder = tmp_path_factory.mktemp("recorded")
    program = (
        "import sys; from hotloop import timing; timing.start(sys.argv[1])\n"
        "for _ in range(5000):\n    with timing.span('a'), timing.span('b'): pass\n"
    )
    subprocess.run([sys.executable, "-c", program, str(folder)], check=True)
    (path,) = folder.glob("*.hlt")
    return path.read_bytes()


def test_a_closed_recording_has_a_checksum(recorded, tmp_path):
    content = recorded[: fmt.CHECKSUM_OFFSET] + recorded[fmt.HEADER_SIZE :]
    stored = int.from_bytes(recorded[fmt.CHECKSUM_OFFSET :][:8], "little")
    assert stored == 2**32 + zlib.crc32(content)
    (tmp_path / "a.hlt").write_bytes(recorded)
    assert timing.read(tmp_path / "a.hlt").num_spans == 10_000


def test_flips_in_a_closed_recording_are_found(recorded, tmp_path):
    rng = random.Random(1)
    used = [*range(fmt.CHECKSUM_OFFSET + 8), *range(fmt.HEADER_SIZE, len(recorded))]
    path = tmp_path / "a.hlt"
    for _ in range(60):
        damaged = bytearray(recorded)
        damaged[rng.choice(used)] ^= 1 << rng.randrange(8)
        path.write_bytes(damaged)
        with pytest.raises(RecordingError):
            timing.read(path)


def test_recordings_of_older_versions_are_read(recorded, tmp_path):
    older = bytearray(recorded)
    older[fmt.CHECKSUM_OFFSET : fmt.CHECKSUM_OFFSET + 8] = bytes(8)
    (tmp_path / "a.hlt").write_bytes(older)
    assert timing.read(tmp_path / "a.hlt").num_spans == 10_000


def _make_large(path):
    with open(path, "wb") as file:
        file.truncate(2**40)


@pytest.mark.parametrize(
    "make", [os.mkfifo, lambda path: path.symlink_to("/dev/zero"), os.mkdir, _make_large]
)
def test_only_regular_files_of_a_sensible_size_are_read(tmp_path, make):
    make(tmp_path / "a.hlt")
    make(tmp_path / "clocks.json")
    recordings, (problem,) = timing.read_directory(tmp_path)
    assert recordings == []
    assert str(tmp_path / "a.hlt") in str(problem)
    with pytest.raises(OSError, match=r"regular|bytes|directory|memory"):
        timing.read(Path(tmp_path / "a.hlt"))
