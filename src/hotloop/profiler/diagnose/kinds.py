"""Kinds of costs that are known: by the functions that are seen, by what a line calls, by waits.

A kind gives a cost its name and its cure. Whether there is one, and how large it is, `costs` says
without any of these.
"""

from __future__ import annotations

import re
from functools import lru_cache
from typing import NamedTuple

from hotloop.profiler.session import Frame


class Kind(NamedTuple):
    """A kind of cost.

    Attributes:
        rule: its name.
        title: the cause, in a few words.
        advice: the change to make.
        is_sure: it is nobody's inherent work, wherever it stands.
        is_usual: a program that is as it should be has some of it.
        wait: what it waits for, whatever the kernel says of its parts; empty: what the kernel says.
    """

    rule: str
    title: str
    advice: str
    is_sure: bool = True
    is_usual: bool = False
    wait: str = ""


_PYTHON = r"/lib/python3[^/]*/"

CHECKPOINTS = Kind(
    "checkpoints",
    "checkpoints are written in the loop",
    "Write them every so many minutes, not every so many steps, or from a thread of their own.",
)
RENDERING = Kind(
    "rendering",
    "environments are rendered while training",
    "Render in evaluations alone (`render_mode=None` for training), or every hundredth episode.",
)
FIGURES = Kind(
    "figures",
    "figures and films are drawn in the loop",
    "Keep the numbers and draw once, at the end, or in a process of its own.",
)
MADE_ANEW = Kind(
    "environments-made-anew",
    "environments are made anew in the loop",
    "Make them once, before the loop, and call `reset` for each episode.",
)
COPYING = Kind(
    "copies",
    "objects are copied deeply",
    "Copy the arrays that change, into places that are there already (`target[...] = source`), or "
    "nothing at all.",
)
DEBUG_MODE = Kind(
    "debug-mode",
    "a debug mode was left on",
    "Switch it off for training: `torch.autograd.set_detect_anomaly(False)`, "
    "`asyncio.run(…, debug=False)`, no PYTHONASYNCIODEBUG, no tracemalloc, no trace functions.",
)
MODE_FLIPS = Kind(
    "mode-flips",
    "a network is switched between training and evaluation over and over",
    "Switch once, or not at all: without dropout and batch norm the modes are the same; "
    "`torch.no_grad()` is what saves time while acting.",
)
NETWORK_COPIES = Kind(
    "network-copies",
    "whole networks are copied by their state dictionaries",
    "Copy or average parameters in place, all at once: `torch._foreach_lerp_(target, source, tau)` "
    "under `torch.no_grad()`, and only every so many updates.",
)
SUBPROCESSES = Kind(
    "subprocess",
    "programs are started in the loop",
    "Start one, once, and talk to it; or call the library that does the same in this process.",
    wait="child",
)
REQUESTS = Kind(
    "network-requests",
    "the loop waits for the network",
    "Send it from a thread with a queue, many at once, or once an episode; the loop need not wait "
    "for an answer.",
    wait="network",
)
INTERPRETER = Kind(
    "interpreter-lock",
    "another thread holds the interpreter's lock",
    "Let it run in a process of its own, or do its work in calls that let go of the lock (NumPy, "
    "torch), or less often.",
    wait="interpreter",
)
FILES = Kind(
    "file-writes",
    "the loop waits for files",
    "Keep the file open, write every thousandth step, and leave flushing to the end "
    "(a database: one commit for many rows).",
    wait="disk",
)
SLEEP = Kind("sleep", "the loop sleeps", "Wait for what has to be waited for, not for a time.")
LOCKS = Kind(
    "lock",
    "the loop waits for a lock",
    "Hold it for the copy of a reference alone, or give each thread its own data.",
)
OTHERS = Kind(
    "waits-for-others",
    "the loop waits for other threads or processes",
    "Ask for it earlier and fetch it later, send less and more at a time, or do it here, where it "
    "takes less than handing it over.",
    is_usual=True,
    wait="lock",
)
EVALUATION = Kind(
    "evaluation",
    "evaluations take a large part of the time",
    "Evaluate less often, with fewer episodes, or in another process.",
    is_usual=True,
)
TEXT = Kind(
    "text-and-bytes",
    "objects are turned into text or bytes in the loop",
    "Do it once, before the loop, or when somebody reads it; compare and count arrays as they are.",
    is_usual=True,
)
COMPILES = Kind(
    "compiles-again",
    "functions are compiled again and again",
    "Give them arrays of the same shapes and types, mark what varies as an argument and not as a "
    "constant, and make the compiled function once, outside of the loop.",
    wait="computing",
)
EAGER = Kind(
    "eager-operations",
    "arrays of an accelerator's library are worked on one operation at a time",
    "Take NumPy arrays of them once (`numpy.asarray`), or do it within the compiled function.",
    is_usual=True,
    wait="computing",
)
WRAPPERS = Kind(
    "wrapper",
    "a wrapper costs more than the environment that it wraps",
    "Leave it out, or do its work for a whole batch at once.",
    is_sure=False,
)
GARBAGE = Kind(
    "garbage-collection",
    "garbage is collected by hand",
    "Leave it to Python; `gc.freeze()` after the start where its pauses matter.",
)
SAMPLING = Kind(
    "linear-sampling",
    "a draw goes through all that is stored",
    "Draw indices (`rng.integers`), O(1) each; in proportion to weights by a tree, O(log N): "
    "`hotloop.replay.ReplayBuffer(…, sampler=Proportional())`.",
    is_sure=False,
)
SORTING = Kind(
    "sorting",
    "data is sorted again each time",
    "Keep it in order as it grows (`bisect`, a heap), or look for what is needed alone "
    "(`argpartition`, `max`).",
    is_sure=False,
)
HOST_TENSORS = Kind(
    "host-made-tensors",
    "tensors are made from Python's objects in the loop",
    "Keep what is stored in one array from the beginning, and take `torch.from_numpy` of it: no "
    "lists of arrays, no numbers one by one.",
    is_sure=False,
)
WALKED = Kind(
    "walked-each-step",
    "a whole structure is walked or copied each time",
    "Keep what is asked of it up to date as it changes (a running mean, an array that is filled in "
    "place, a set, a deque).",
    is_sure=False,
)
CONVERSIONS = Kind(
    "conversions",
    "numbers are taken out of arrays one by one",
    "Work on whole arrays, and take what is needed out of them once.",
    is_sure=False,
)
LOGGING = Kind(
    "logging",
    "logging takes a large part of the loop",
    "Log every thousandth step, or once an episode, and let metrics stay numbers until then.",
)
CONFIGURATION = Kind(
    "configuration-objects",
    "configuration objects are used in the loop",
    "Make plain values of them once, before the loop.",
)
ONE_BY_ONE = Kind(
    "one-at-a-time",
    "a network is asked for one state at a time, in a loop",
    "Stack the states and ask once: a hundred cost hardly more than one.",
    is_sure=False,
)
PYTHON_LOOP = Kind(
    "python-loop",
    "a Python loop goes through elements one by one",
    "Write it as operations on whole arrays, or compile it (Numba).",
    is_usual=True,
)

# (kind, file, function): of library functions, what is known of any below the user's line.
_FRAMES: tuple[tuple[Kind, str, str | None], ...] = (
    (
        CHECKPOINTS,
        r"/torch/serialization\.py$|/safetensors/|/stable_baselines3/common/(save_util|base_class)"
        r"\.py$|/numpy/lib/(_npyio_impl|npyio|format|_format_impl)\.py$|/joblib/|/orbax/",
        r"(?i)(^|\.|_)(save|savez|dump|write)",
    ),
    (RENDERING, r"/(gymnasium|gym|mujoco|dm_control|pybullet)", r"(^|\.|_)render"),
    (FIGURES, r"/(matplotlib|seaborn|plotly|moviepy|imageio)/", None),
    (FIGURES, r"/PIL/", r"(^|\.|_)save"),
    (
        MADE_ANEW,
        r"/(gymnasium|gym)/(envs/registration\.py$)|/stable_baselines3/common/env_util\.py$",
        r"^make",
    ),
    (COPYING, _PYTHON + r"copy\.py$", None),
    (DEBUG_MODE, r"/asyncio/format_helpers\.py$|" + _PYTHON + r"tracemalloc\.py$", None),
    (MODE_FLIPS, r"/torch/nn/modules/module\.py$", r"(^|\.)(train|eval|requires_grad_)$"),
    (
        NETWORK_COPIES,
        r"/torch/nn/modules/module\.py$",
        r"(^|\.)(load_state_dict|state_dict|_save_to_state_dict|_load_from_state_dict)$",
    ),
    (SUBPROCESSES, _PYTHON + r"(subprocess|pty|popen2)\.py$", None),
    (
        REQUESTS,
        _PYTHON + r"(http|urllib|xmlrpc)/|" + _PYTHON + r"(ssl|socket|smtplib|ftplib)\.py$|"
        r"/(requests|urllib3|httpx|httpcore|aiohttp|websockets|grpc|redis|pymongo|boto3)/",
        None,
    ),
    (
        COMPILES,
        r"/jax/_src/(interpreters/(mlir|partial_eval|pxla)|compiler|stages|linear_util)|"
        r"/torch/(_dynamo|_inductor)/|/numba/core/",
        r"(?i)(compile|lower|trace_to|cache_miss|codegen|_trace)",
    ),
    (
        TEXT,
        _PYTHON + r"(json/|re/|csv\.py|pickle\.py|gzip\.py|zipfile|base64\.py|hashlib\.py|"
        r"_strptime\.py|datetime\.py|pprint\.py|string\.py|textwrap\.py|difflib\.py)|/yaml/",
        None,
    ),
)
_COMPILED_FRAMES = tuple(
    (kind, re.compile(file), re.compile(function) if function else None)
    for kind, file, function in _FRAMES
)
_EVALUATES = re.compile(
    r"(?i)(^|\.)_?(evaluate|evaluation|run_eval|do_eval|eval_policy|eval_agent|test_policy|"
    r"test_agent|validate|eval_episode|evaluate_)\w*$"
)
# Not what waits for a result, as `__int__` and `__array__` do.
_EAGER = re.compile(r"/jax/_src/(numpy/|lax/|random\.py|ops/|array\.py:.*__(getitem|iter)__)")
_TRACEBACKS = re.compile(_PYTHON + r"(traceback|linecache|tokenize)\.py$")

_OTHERS = re.compile(
    _PYTHON + r"(threading|queue)\.py$|" + _PYTHON + r"(concurrent/futures|multiprocessing)/"
)

# (kind, what one of is called on the line): of calls whose innermost frame is the user's own line.
_CALLS: tuple[tuple[Kind, frozenset[str]], ...] = tuple(
    (kind, frozenset(names))
    for kind, names in (
        (GARBAGE, ("gc.collect",)),
        (COPYING, ("deepcopy", "copy.deepcopy", "copy.copy")),
        (SAMPLING, ("choice", "choices", "sample", "shuffle", "permutation", "permuted")),
        (SORTING, ("sort", "sorted", "argsort", "nlargest", "nsmallest", "unique", "lexsort")),
        (
            TEXT,
            (
                *("dumps", "loads", "hexdigest", "digest", "sha256", "sha1", "md5", "blake2b"),
                *("compress", "decompress", "strftime", "strptime", "b64encode", "encode"),
                *("re.sub", "re.match", "re.search", "re.findall", "format", "tobytes"),
                *("getvalue", "packb", "unpackb", "crc32"),
            ),
        ),
        (CHECKPOINTS, ("torch.save", "np.save", "np.savez", "pickle.dump", "dump", "savetxt")),
        (FILES, ("open", "write", "writelines", "flush", "fsync", "commit", "execute", "stat")),
        (MADE_ANEW, ("gym.make", "gymnasium.make")),
        (RENDERING, ("render",)),
        (
            HOST_TENSORS,
            tuple(
                f"{module}.{name}"
                for module in ("torch", "th", "jnp", "jax.numpy")
                for name in ("tensor", "as_tensor", "Tensor", "FloatTensor", "asarray", "array")
            ),
        ),
        (
            WALKED,
            (
                *("mean", "np.mean", "std", "var", "sum", "median", "percentile", "quantile"),
                *("array", "asarray", "stack", "vstack", "hstack", "concatenate", "np.append"),
                *("list", "tuple", "dict", "set", "pop", "insert", "remove", "index", "count"),
                *("copy", "cumsum", "bincount", "histogram", "max", "min", "any", "all", "len"),
                *("deque", "fromkeys", "zip", "enumerate", "repeat", "tile", "roll", "delete"),
            ),
        ),
        (CONVERSIONS, ("item", "tolist", "float", "int")),
    )
)
_BY_WAIT = {
    "sleep": SLEEP,
    "network": REQUESTS,
    "disk": FILES,
    "child": SUBPROCESSES,
    "lock": LOCKS,
}
_BY_STAGE = {"logging": LOGGING, "config": CONFIGURATION}


@lru_cache(maxsize=65536)
def of_frame(frame: Frame) -> Kind | None:
    """What a function of a library's is known for."""
    for kind, file, function in _COMPILED_FRAMES:
        if file.search(frame.file) and (function is None or function.search(frame.function)):
            return kind
    return None


@lru_cache(maxsize=65536)
def is_eager(frame: Frame) -> bool:
    """Whether a function is an operation of JAX's outside of a compiled function."""
    return bool(_EAGER.search(f"{frame.file}:{frame.function}"))


@lru_cache(maxsize=65536)
def is_evaluation(frame: Frame) -> bool:
    """Whether a function evaluates a policy, by its name."""
    return bool(_EVALUATES.search(frame.function)) and "/torch/" not in frame.file


@lru_cache(maxsize=65536)
def is_of_others(frame: Frame) -> bool:
    """Whether a function waits for what another thread or process does."""
    return bool(_OTHERS.search(frame.file))


@lru_cache(maxsize=65536)
def is_of_tracebacks(frame: Frame) -> bool:
    """Whether a function takes stacks as text: in an operation's call, a debug mode does."""
    return bool(_TRACEBACKS.search(frame.file))


def of_calls(names: frozenset[str]) -> Kind | None:
    """What a line is known for, by the names that it calls."""
    return next((kind for kind, known in _CALLS if names & known), None)


def of_wait(wait: str) -> Kind | None:
    """What it is to be blocked on something."""
    return _BY_WAIT.get(wait)


def of_stage(stage: str) -> Kind | None:
    """What a stage is that no program needs in its loop."""
    return _BY_STAGE.get(stage)
