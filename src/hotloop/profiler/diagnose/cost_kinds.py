"""Known kinds of costs, recognized by library functions, by calls on a line, or by waits.

A kind gives a cost its name and the advice. `costs` finds costs and their size without kinds.
"""

from __future__ import annotations

import re
from functools import lru_cache
from typing import NamedTuple

from hotloop.profiler.session import Frame


class Kind(NamedTuple):
    """A kind of cost.

    Attributes:
        rule: identifier.
        title: the cause, in a few words.
        advice: the change to make.
        is_sure: whether it is a cost at any place in a program, and never inherent work.
        is_usual: whether a healthy program has some of it.
        wait: overrides the wait that the kernel reports for its samples. Empty: no override.
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
    "Write them every few minutes instead of every few steps, or from a separate thread.",
)
RENDERING = Kind(
    "rendering",
    "environments are rendered during training",
    "Render only in evaluations (`render_mode=None` for training), or every hundredth episode.",
)
FIGURES = Kind(
    "figures",
    "figures or videos are drawn in the loop",
    "Store the numbers and draw once at the end, or in a separate process.",
)
RECREATED_ENVIRONMENTS = Kind(
    "environments-made-anew",
    "environments are created again in the loop",
    "Create them once, before the loop, and call `reset` for each episode.",
)
COPYING = Kind(
    "copies",
    "objects are deep-copied",
    "Copy only the arrays that change, into existing arrays (`target[...] = source`), or avoid the "
    "copy.",
)
DEBUG_MODE = Kind(
    "debug-mode",
    "a debug mode is on",
    "Switch it off for training: `torch.autograd.set_detect_anomaly(False)`, "
    "`asyncio.run(…, debug=False)`, no PYTHONASYNCIODEBUG, no tracemalloc, no trace functions.",
)
MODE_FLIPS = Kind(
    "mode-flips",
    "a network is switched between training and evaluation mode repeatedly",
    "Switch once or not at all: without dropout and batch norm both modes are the same. To save "
    "time while acting, use `torch.no_grad()`.",
)
NETWORK_COPIES = Kind(
    "network-copies",
    "whole networks are copied through their state dictionaries",
    "Copy or average all parameters in place in one call: `torch._foreach_lerp_(target, source, "
    "tau)` under `torch.no_grad()`, and only every few updates.",
)
SUBPROCESSES = Kind(
    "subprocess",
    "other programs are started in the loop",
    "Start one program once and communicate with it, or call a library in this process instead.",
    wait="child",
)
PROCESSES = Kind(
    "processes-started",
    "processes are started again and again",
    "Start them once, before the loop, and send them work through a queue. If the work is short, "
    "do it in this process.",
)
REQUESTS = Kind(
    "network-requests",
    "the loop waits for the network",
    "Send requests from a thread with a queue, in batches, or once per episode, so that the loop "
    "does not wait for the answer.",
    wait="network",
)
INTERPRETER = Kind(
    "interpreter-lock",
    "another thread holds the interpreter's lock (GIL)",
    "Run that thread's work in a separate process, in calls that release the lock (NumPy, torch), "
    "or less often.",
    wait="interpreter",
)
FILES = Kind(
    "file-writes",
    "the loop waits for file access",
    "Keep the file open, write every thousandth step, and flush only at the end "
    "(in a database: one commit for many rows).",
    wait="disk",
)
SLEEP = Kind("sleep", "the loop sleeps", "Wait for the event itself instead of a fixed time.")
LOCKS = Kind(
    "lock",
    "the loop waits for a lock",
    "Hold it only while copying a reference, or give each thread its own data.",
)
WAITING_FOR_OTHERS = Kind(
    "waits-for-others",
    "the loop waits for other threads or processes",
    "Request results earlier and fetch them later, send fewer and larger messages, or do the work "
    "in this thread if that takes less time than the hand-over.",
    is_usual=True,
    wait="lock",
)
EVALUATION = Kind(
    "evaluation",
    "evaluations take a large part of the time",
    "Evaluate less often, with fewer episodes, or in a separate process.",
    is_usual=True,
)
TEXT_CONVERSION = Kind(
    "text-and-bytes",
    "objects are converted to text or bytes in the loop",
    "Convert once, before the loop, or only for output. Compare and count arrays directly.",
    is_usual=True,
)
COMPILATION = Kind(
    "compiles-again",
    "functions are compiled repeatedly",
    "Pass arrays of the same shapes and types, pass varying values as arguments instead of "
    "constants, and create the compiled function once, outside the loop.",
    wait="computing",
)
EAGER_OPERATIONS = Kind(
    "eager-operations",
    "JAX operations run one at a time, outside a compiled function",
    "Convert the arrays to NumPy once (`numpy.asarray`), or work inside the compiled function.",
    is_usual=True,
    wait="computing",
)
WRAPPERS = Kind(
    "wrapper",
    "a wrapper around an environment takes much of the time",
    "Do its work for a whole batch after the step, on integers instead of floats, or let the "
    "environment return what is needed (small gray frames). Remove it if nothing needs it.",
    is_sure=False,
)
GARBAGE = Kind(
    "garbage-collection",
    "garbage collection is triggered by hand",
    "Leave it to Python. If its pauses matter, call `gc.freeze()` after start-up.",
)
SAMPLING = Kind(
    "linear-sampling",
    "drawing a sample scans all stored data",
    "Draw indices (`rng.integers`), O(1) each. For weighted draws use a tree, O(log N): "
    "`hotloop.replay.ReplayBuffer(…, sampler=Proportional())`.",
    is_sure=False,
)
SORTING = Kind(
    "sorting",
    "data is sorted again each time",
    "Keep it sorted while it grows (`bisect`, a heap), or select only the elements you need "
    "(`argpartition`, `max`).",
    is_sure=False,
)
HOST_TENSORS = Kind(
    "host-made-tensors",
    "tensors are created from Python objects in the loop",
    "Store the data in one array from the start and convert it with `torch.from_numpy`, instead of "
    "lists of arrays or single numbers.",
    is_sure=False,
)
WALKED_EACH_STEP = Kind(
    "walked-each-step",
    "a whole data structure is traversed or copied each time",
    "Update the result whenever the structure changes (a running mean, an array filled in place, "
    "a set, a deque).",
    is_sure=False,
)
CONVERSIONS = Kind(
    "conversions",
    "numbers are extracted from arrays one by one",
    "Work on whole arrays and extract the results once.",
    is_sure=False,
)
LOGGING = Kind(
    "logging",
    "logging takes a large part of the loop",
    "Log every thousandth step or once per episode, and keep metrics as numbers until then.",
)
CONFIGURATION = Kind(
    "configuration-objects",
    "configuration objects are used in the loop",
    "Convert them to plain values once, before the loop.",
)
ONE_AT_A_TIME = Kind(
    "one-at-a-time",
    "a network is called for one state at a time, in a loop",
    "Stack the states and call it once: a hundred states take hardly longer than one.",
    is_sure=False,
)
PYTHON_LOOP = Kind(
    "python-loop",
    "a Python loop processes elements one by one",
    "Write it as operations on whole arrays, or compile it (Numba).",
    is_usual=True,
)

# (kind, file pattern, function pattern) of library functions called by the user's line.
_FRAME_PATTERNS: tuple[tuple[Kind, str, str | None], ...] = (
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
        RECREATED_ENVIRONMENTS,
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
        COMPILATION,
        r"/jax/_src/(interpreters/(mlir|partial_eval|pxla)|compiler|stages|linear_util)|"
        r"/torch/_inductor/(compile_fx|codecache|async_compile)\.py$|/numba/core/",
        r"compile(?!d)|lower|trace_to|cache_miss|codegen|_trace",  # not calls of compiled functions
    ),
    (COMPILATION, r"/torch/_dynamo/convert_frame\.py$", None),
    (
        TEXT_CONVERSION,
        _PYTHON + r"(json/|re/|csv\.py|pickle\.py|gzip\.py|zipfile|base64\.py|hashlib\.py|"
        r"_strptime\.py|datetime\.py|pprint\.py|string\.py|textwrap\.py|difflib\.py)|/yaml/",
        None,
    ),
)
_FRAME_KINDS = tuple(
    (kind, re.compile(file), re.compile(function) if function else None)
    for kind, file, function in _FRAME_PATTERNS
)
_EVALUATION_NAMES = re.compile(
    r"(?i)(^|\.)_?(evaluate|evaluation|run_eval|do_eval|eval_policy|eval_agent|test_policy|"
    r"test_agent|validate|eval_episode|evaluate_)\w*$"
)
# Functions that wait for a result, such as `__int__` and `__array__`, are not included.
_EAGER_JAX = re.compile(r"/jax/_src/(numpy/|lax/|random\.py|ops/|array\.py:.*__(getitem|iter)__)")
_TRACEBACK_FILES = re.compile(_PYTHON + r"(traceback|linecache|tokenize)\.py$")

_STARTS_FILES = re.compile(
    _PYTHON + r"(multiprocessing/(process|context|pool|popen_\w+|forkserver|spawn)"
    r"|concurrent/futures/process)\.py$"
)
_STARTS_FUNCTIONS = re.compile(r"(^|\.)(start|_Popen|_launch|Pool|_repopulate_pool\w*|_spawn_\w+)$")
# Names of calls that make processes, for waits in the same function.
PROCESS_MAKERS = frozenset(("Process", "Pool", "ProcessPoolExecutor", "AsyncVectorEnv"))

_WAIT_FILES = re.compile(
    _PYTHON + r"(threading|queue)\.py$|" + _PYTHON + r"(concurrent/futures|multiprocessing)/"
)

# (kind, names called on the line), for samples whose innermost frame is the user's own line.
_CALL_KINDS: tuple[tuple[Kind, frozenset[str]], ...] = tuple(
    (kind, frozenset(names))
    for kind, names in (
        (GARBAGE, ("gc.collect",)),
        (COPYING, ("deepcopy", "copy.deepcopy", "copy.copy")),
        (SAMPLING, ("choice", "choices", "sample", "shuffle", "permutation", "permuted")),
        (SORTING, ("sort", "sorted", "argsort", "nlargest", "nsmallest", "unique", "lexsort")),
        (
            TEXT_CONVERSION,
            (
                *("dumps", "loads", "hexdigest", "digest", "sha256", "sha1", "md5", "blake2b"),
                *("compress", "decompress", "strftime", "strptime", "b64encode", "encode"),
                *("re.sub", "re.match", "re.search", "re.findall", "format", "tobytes"),
                *("getvalue", "packb", "unpackb", "crc32"),
            ),
        ),
        (CHECKPOINTS, ("torch.save", "np.save", "np.savez", "pickle.dump", "dump", "savetxt")),
        (FILES, ("open", "write", "writelines", "flush", "fsync", "commit", "execute", "stat")),
        (RECREATED_ENVIRONMENTS, ("gym.make", "gymnasium.make")),
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
            WALKED_EACH_STEP,
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
def for_frame(frame: Frame) -> Kind | None:
    """Return the kind of cost that a library function stands for, if any."""
    for kind, file, function in _FRAME_KINDS:
        if file.search(frame.file) and (function is None or function.search(frame.function)):
            return kind
    return None


@lru_cache(maxsize=65536)
def is_eager_jax(frame: Frame) -> bool:
    """Return whether a function is a JAX operation outside a compiled function."""
    return bool(_EAGER_JAX.search(f"{frame.file}:{frame.function}"))


@lru_cache(maxsize=65536)
def is_evaluation(frame: Frame) -> bool:
    """Return whether a function evaluates a policy, judging by its name."""
    return bool(_EVALUATION_NAMES.search(frame.function)) and "/torch/" not in frame.file


@lru_cache(maxsize=65536)
def waits_for_thread(frame: Frame) -> bool:
    """Return whether a function belongs to a module that waits for threads or processes."""
    return bool(_WAIT_FILES.search(frame.file))


@lru_cache(maxsize=65536)
def starts_process(frame: Frame) -> bool:
    """Return whether a function of Python's libraries starts a process."""
    is_start = _STARTS_FUNCTIONS.search(frame.function)
    return is_start is not None and _STARTS_FILES.search(frame.file) is not None


@lru_cache(maxsize=65536)
def formats_tracebacks(frame: Frame) -> bool:
    """Return whether a function formats stacks, which a debug mode does in each operation."""
    return bool(_TRACEBACK_FILES.search(frame.file))


def for_calls(names: frozenset[str]) -> Kind | None:
    """Return the kind of cost of a line, given the names that it calls."""
    return next((kind for kind, known in _CALL_KINDS if names & known), None)


def for_wait(wait: str) -> Kind | None:
    """Return the kind of cost of a blocking wait."""
    return _BY_WAIT.get(wait)


def for_stage(stage: str) -> Kind | None:
    """Return the kind of cost of a stage that no program needs in its loop."""
    return _BY_STAGE.get(stage)
