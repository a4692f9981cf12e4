"""Matrix products and convolutions in float32 or bfloat16, as torch functions."""

from __future__ import annotations

import contextlib
import functools
import warnings
from collections.abc import Iterator
from typing import Any, Literal

import torch
from torch import Tensor
from torch.nn.functional import conv2d

from hotloop.errors import ConfigError

Precision = Literal["float32", "tf32", "bfloat16"]


def has_fast_bfloat16() -> bool:
    """Return whether this CPU has instructions that multiply bfloat16 matrices."""
    capabilities = getattr(torch.cpu, "get_capabilities", dict)()
    names = ("avx512_bf16", "amx_bf16", "bf16")
    return any(capabilities.get(name) for name in names)


HAS_FAST_BFLOAT16 = has_fast_bfloat16()


def multiplies_bfloat16(device: torch.device) -> bool:
    """Return whether a device has instructions that multiply bfloat16 matrices."""
    if device.type == "cuda":
        return _gpu_multiplies_bfloat16(device.index)
    return HAS_FAST_BFLOAT16


@functools.cache
def _gpu_multiplies_bfloat16(index: int | None) -> bool:
    with torch.cuda.device(index):
        return torch.cuda.is_bf16_supported(including_emulation=False)


def warn_if_slow(precision: Precision, device: torch.device) -> None:
    """Warn if a device is slow in a precision."""
    if precision == "bfloat16" and not multiplies_bfloat16(device):
        is_gpu = device.type == "cuda"
        instructions = "Ampere or newer" if is_gpu else "AVX512-BF16 or AMX"
        warnings.warn(
            f"this {'GPU' if is_gpu else 'CPU'} has no instructions for bfloat16 ({instructions}): "
            "rounded numbers are multiplied in float32 instead, which gives the same result except "
            "for the order of sums, and is slower than `precision` 'float32'",
            RuntimeWarning,
            stacklevel=2,
        )


@contextlib.contextmanager
def gpu_arithmetic(precision: Precision, device: torch.device) -> Iterator[dict[str, str]]:
    """Set how CUDA multiplies and convolves float32 while the body runs.

    'tf32' allows TF32 in products and convolutions, every other precision forbids it. Convolutions
    use deterministic algorithms, and cuDNN does not choose them by measuring. Torch's defaults
    would use TF32 in convolutions and algorithms that add in a different order each time.

    Args:
        precision: The run's precision.
        device: The learner's device. Nothing changes on the CPU.

    Yields:
        The GPU's name and the settings, for `config.json`. Empty on the CPU.

    Raises:
        ConfigError: the precision is 'tf32' and the device is not a GPU.
    """
    if device.type != "cuda":
        if precision == "tf32":
            raise ConfigError(
                "`precision` 'tf32' needs a CUDA device, but updates run on the CPU: choose "
                "'float32' or 'bfloat16', or set `device` 'cuda' on a machine with a GPU"
            )
        yield {}
        return
    # Values are "ieee", "tf32", or "none", torch's default for products: no TF32.
    previous = [operation.fp32_precision for operation in _float32_operations()]
    cudnn: Any = torch.backends.cudnn
    flags = cudnn.deterministic, cudnn.benchmark
    try:
        setting = "tf32" if precision == "tf32" else "ieee"
        _set_float32_precision([setting] * len(previous))
        cudnn.deterministic, cudnn.benchmark = True, False
        yield {
            "gpu": torch.cuda.get_device_name(device),
            "gpu_float32": setting,
            "cudnn": f"{cudnn.version()}, deterministic, without benchmark",
        }
    finally:
        _set_float32_precision(previous)
        cudnn.deterministic, cudnn.benchmark = flags


def _float32_operations() -> list[Any]:
    backends: Any = torch.backends
    return [backends.cuda.matmul, backends.cudnn.conv, backends.cudnn.rnn]


def _set_float32_precision(values: list[str]) -> None:
    """Set the precision of products, convolutions and recurrent layers."""
    # Torch has two sets of flags and raises an error if they disagree, and its compiler reads the
    # older one. So both are set, the older first, since it overwrites the newer.
    matmul, conv, _ = values
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the older flag is deprecated
        torch.backends.cuda.matmul.allow_tf32 = matmul == "tf32"
        torch.backends.cudnn.allow_tf32 = conv == "tf32"
    for operation, value in zip(_float32_operations(), values, strict=True):
        operation.fp32_precision = value


def product(left: Tensor, right: Tensor, precision: Precision) -> Tensor:
    """Return left · right for two matrices or two stacks of K matrices.

    In bfloat16, operands and result are rounded to 8 bits of mantissa, in the gradient too, and
    sums are kept in float32, as `torch.autocast` does. A device without instructions for bfloat16
    multiplies the rounded operands in float32. That gives the same numbers except for the order of
    the sums, and is 20 to 70 times as fast as torch's bfloat16 on such a CPU.

    Args:
        left: float32, (B, D) or (K, B, D).
        right: float32, (D, H) or (K, D, H).
        precision: The precision of operands and result.

    Returns:
        float32, (B, H) or (K, B, H).
    """
    multiply = torch.mm if left.ndim == 2 else torch.bmm
    if precision != "bfloat16":
        return multiply(left, right)
    if multiplies_bfloat16(left.device):
        left = left.to(torch.bfloat16)
        if left.ndim == 3 and not left.is_contiguous():
            # Otherwise one core copies it, in 45 µs for (2, 256, 256). A compiler removes
            # `contiguous`, but fuses a stack with the operation before it.
            left = torch.stack(left.unbind(0))
        return multiply(left, right.to(torch.bfloat16)).to(torch.float32)
    return round_to_bfloat16(multiply(round_to_bfloat16(left), round_to_bfloat16(right)))


def convolution(
    inputs: Tensor, kernel: Tensor, bias: Tensor, stride: int, padding: int, precision: Precision
) -> Tensor:
    """Return the convolution of images, with operands rounded as `product` rounds them.

    Args:
        inputs: float32, (B, C, height, width).
        kernel: float32, (H, C, k, k).
        bias: float32, (H,).
        stride: Pixels between two positions.
        padding: Pixels of zeros on each side.
        precision: The precision of operands and result.

    Returns:
        float32, (B, H, …, …).
    """
    if precision != "bfloat16":
        return conv2d(inputs, kernel, bias, stride, padding)
    if multiplies_bfloat16(inputs.device):
        low = inputs.to(torch.bfloat16), kernel.to(torch.bfloat16)
        return conv2d(*low, None, stride, padding).to(torch.float32) + bias[:, None, None]
    return (
        round_to_bfloat16(
            conv2d(round_to_bfloat16(inputs), round_to_bfloat16(kernel), None, stride, padding)
        )
        + (bias[:, None, None])
    )


def round_to_bfloat16(x: Tensor) -> Tensor:
    """Return float32 numbers rounded to bfloat16. The gradient is rounded too."""
    return _Rounded.apply(x)  # pyright: ignore[reportReturnType]


class _Rounded(torch.autograd.Function):
    """Rounding without a cast, since a compiler removes two opposite casts."""

    generate_vmap_rule = True

    @staticmethod
    def forward(x: Tensor) -> Tensor:
        return _round(x)

    @staticmethod
    def setup_context(ctx: object, inputs: tuple[Tensor], output: Tensor) -> None:
        pass

    @staticmethod
    def backward(ctx: object, *grad_outputs: Tensor) -> Tensor:
        return _round(grad_outputs[0])


def _round(x: Tensor) -> Tensor:
    """Round to the nearest 8 bits of mantissa, by Veltkamp's splitting: Dekker 1971, section 5."""
    # Rounding the bits as integers would also be exact above 1e33, but compiles to scalar code.
    raised = x * 65537.0  # 2^16 + 1
    return raised - (raised - x)
