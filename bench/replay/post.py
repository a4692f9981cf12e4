"""O(N) procedures to draw a batch in proportion to shifted returns, and a post's published figures.

The procedure is that of the post "Code Optimization: 8h to gain 26h" (CC BY 4.0). For returns B:

    m = min(min(B), 0),   w = B + |m|,   p = w / Σ w

A batch is drawn without replacement in proportion to p. `NumpyOld` and `TorchNew` are the author's
code before and after. The others are careful versions of attempts that the author describes.
"""

from __future__ import annotations

import importlib
import importlib.util
import shutil
import subprocess
import sysconfig
import tempfile
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from bench.measuring import Missing

Floats = npt.NDArray[np.float64]
Slots = npt.NDArray[np.int64]

# Published seconds on the author's three machines: the old way (NumPy) and the new (PyTorch).
PUBLISHED: dict[str, dict[str, tuple[float, float]]] = {
    "probability": {
        "Home": (0.0069, 0.00114),
        "Deeplar": (0.0244, 0.00648),
        "Larcc": (0.00647, 0.000930),
    },
    "sampling": {
        "Home": (0.0174, 0.0073),
        "Deeplar": (0.0168, 0.00905),
        "Larcc": (0.0135, 0.00675),
    },
    "total": {
        "Home": (0.0243, 0.00844),
        "Deeplar": (0.0412, 0.01553),
        "Larcc": (0.0200, 0.00768),
    },
}


class Procedure(Protocol):
    """A procedure that draws a batch of slots from returns."""

    def fill(self, size: int) -> None:
        """Set the number of live entries."""

    def probabilities(self) -> Any:
        """Return the probabilities of all entries, for `draw`."""

    def draw(self, probabilities: Any, count: int) -> Slots:
        """Return slots drawn without replacement."""
        ...

    def write(self, slots: int | Slots, returns: float | Floats) -> None:
        """Set the returns of some slots."""


class NumpyOld:
    """The author's original code, which computes the minimum every time."""

    def __init__(self, returns: Floats, seed: int) -> None:
        self.returns = returns
        self.size = len(returns)
        self.rng = np.random.default_rng(seed)

    def fill(self, size: int) -> None:
        """Set the number of live entries."""
        self.size = size

    def probabilities(self) -> Floats:
        """Compute minimum, shift, sum and quotient."""
        live = self.returns[: self.size]
        weight = live + abs(min(live.min(), 0.0))
        return weight / weight.sum()

    def draw(self, probabilities: Floats, count: int) -> Slots:
        """Draw by `choice` without replacement."""
        return self.rng.choice(self.size, count, replace=False, p=probabilities)

    def write(self, slots: int | Slots, returns: float | Floats) -> None:
        """Set the returns of some slots."""
        self.returns[slots] = returns


class NumpyRunning(NumpyOld):
    """A version with a running minimum, which never rises."""

    def __init__(self, returns: Floats, seed: int) -> None:
        super().__init__(returns, seed)
        self.least = float(returns.min())

    def probabilities(self) -> Floats:
        """Compute shift, sum and quotient."""
        weight = self.returns[: self.size] + abs(min(self.least, 0.0))
        return weight / weight.sum()

    def write(self, slots: int | Slots, returns: float | Floats) -> None:
        """Set the returns of some slots."""
        self.returns[slots] = returns
        self.least = min(self.least, float(np.min(returns)))


class TorchNew:
    """The author's final code: a running minimum and `multinomial`, in torch's float32."""

    def __init__(self, returns: Floats, seed: int) -> None:
        self.torch: Any = importlib.import_module("torch")
        self.torch.set_num_threads(2)
        self.torch.manual_seed(seed)
        self.returns = self.torch.from_numpy(returns.astype(np.float32))
        self.least = float(returns.min())
        self.size = len(returns)

    def fill(self, size: int) -> None:
        """Set the number of live entries."""
        self.size = size

    def probabilities(self) -> Any:
        """Compute shift, sum and quotient."""
        weight = self.returns[: self.size] + abs(min(self.least, 0.0))
        return weight / weight.sum()

    def draw(self, probabilities: Any, count: int) -> Slots:
        """Draw by `multinomial` without replacement."""
        return self.torch.multinomial(probabilities, count, replacement=False).numpy()

    def write(self, slots: int | Slots, returns: float | Floats) -> None:
        """Set the returns of some slots."""
        values = np.asarray(returns, np.float32)
        self.returns.numpy()[slots] = values
        self.least = min(self.least, float(values.min()))


def _compiled() -> tuple[Any, Any]:
    """Return the two compiled loops of the Numba version."""
    numba: Any = importlib.import_module("numba")

    # Allow sums in any order, so that the loop is vectorized like NumPy's.
    @numba.njit(fastmath={"reassoc", "contract", "nsz"})
    def weigh(returns: Any, shift: float, weight: Any) -> float:
        total = 0.0
        for i in range(len(returns)):
            weight[i] = returns[i] + shift
            total += weight[i]
        return total

    @numba.njit
    def draw(weight: Any, cumulative: Any, is_drawn: Any, chosen: Any) -> None:
        total = 0.0
        for i in range(len(weight)):
            total += weight[i]
            cumulative[i] = total
        num_drawn = 0
        while num_drawn < len(chosen):
            target = np.random.random() * total  # noqa: NPY002 (Numba's own generator)
            low, high = 0, len(weight)
            while low < high:
                middle = (low + high) // 2
                if cumulative[middle] <= target:
                    low = middle + 1
                else:
                    high = middle
            if low < len(weight) and not is_drawn[low]:
                is_drawn[low] = True
                chosen[num_drawn] = low
                num_drawn += 1
        for slot in chosen:
            is_drawn[slot] = False

    return weigh, draw


class NumbaRunning(NumpyRunning):
    """A version with two compiled O(N) loops and without temporary arrays.

    `draw` scales its random number instead of dividing the weights by their sum.
    """

    def __init__(self, returns: Floats, seed: int) -> None:
        super().__init__(returns, seed)
        self._weigh, self._draw = _compiled()
        self._weight = np.empty_like(returns)
        self._cumulative = np.empty_like(returns)
        self._drawn = np.zeros(len(returns), np.bool_)

    def probabilities(self) -> Floats:
        """Compute shift and sum in one loop."""
        weight = self._weight[: self.size]
        self._weigh(self.returns[: self.size], abs(min(self.least, 0.0)), weight)
        return weight

    def draw(self, probabilities: Floats, count: int) -> Slots:
        """Draw by cumulative sums and binary search, with rejection of repeats."""
        chosen = np.empty(count, np.int64)
        self._draw(probabilities, self._cumulative, self._drawn, chosen)
        return chosen


def build_cpp(directory: str) -> Any:
    """Compile post.cpp and import it.

    Raises:
        Missing: there is no compiler or no pybind11, or compilation failed.
    """
    compiler = shutil.which("g++") or shutil.which("c++")
    if compiler is None:
        raise Missing("no C++ compiler")
    try:
        pybind11: Any = importlib.import_module("pybind11")
    except ImportError:
        raise Missing("not installed") from None
    target = Path(directory) / f"post{sysconfig.get_config_var('EXT_SUFFIX')}"
    includes = [pybind11.get_include(), sysconfig.get_paths()["include"]]
    command = [
        *(compiler, "-O3", "-march=native", "-std=c++17", "-shared", "-fPIC"),
        *(f"-I{folder}" for folder in includes),
        *(str(Path(__file__).with_name("post.cpp")), "-o", str(target)),
    ]
    if subprocess.run(command, capture_output=True).returncode:
        raise Missing("does not compile")
    spec: Any = importlib.util.spec_from_file_location("post", target)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


class CppRunning(NumpyRunning):
    """The Numba version in C++."""

    def __init__(self, returns: Floats, seed: int) -> None:
        super().__init__(returns, seed)
        with tempfile.TemporaryDirectory() as directory:
            self._sampler = build_cpp(directory).Sampler(len(returns), seed)

    def probabilities(self) -> Any:
        """Compute shift and sum. The weights stay in C++."""
        return self._sampler.weigh(self.returns[: self.size], abs(min(self.least, 0.0)))

    def draw(self, probabilities: Any, count: int) -> Slots:
        """Draw by cumulative sums and binary search, with rejection of repeats."""
        return self._sampler.draw(count)


PROCEDURES: dict[str, tuple[str, type[Any]]] = {
    "numpy_old": ("NumPy, as written", NumpyOld),
    "numpy_running": ("NumPy, running minimum", NumpyRunning),
    "torch_new": ("PyTorch, the author's new way", TorchNew),
    "numba": ("Numba", NumbaRunning),
    "cpp": ("C++ with pybind11", CppRunning),
}
