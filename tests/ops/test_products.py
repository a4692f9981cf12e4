import contextlib
import shutil
import warnings
from functools import partial

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from hotloop.errors import ConfigError
from hotloop.ops import products
from hotloop.ops.products import (
    convolution,
    gpu_arithmetic,
    product,
    round_to_bfloat16,
    warn_if_slow,
)


def cast_to_bfloat16(x):
    return x.to(torch.bfloat16).to(torch.float32)


def floats_between(first, last):
    """Return all float32 numbers with bit patterns in a range."""
    return torch.arange(first, last, dtype=torch.int32).view(torch.float32)


@pytest.mark.parametrize("sign", [1.0, -1.0])
@pytest.mark.parametrize("scale", [2.0**-100, 1.0, 2.0**100])
def test_rounding_matches_the_cast(sign, scale):
    """Check every number from 1 to 4, on both sides of even and odd last bits."""
    x = sign * scale * floats_between(0x3F800000, 0x40800000)
    assert x.abs().min() == scale
    torch.testing.assert_close(round_to_bfloat16(x), cast_to_bfloat16(x), rtol=0, atol=0)


def test_ties_round_to_even():
    # With 8 bits of mantissa: halfway from 1 to 1 + 2⁻⁷, from there to 1 + 2⁻⁶, and next to these.
    ulp = 2.0**-7
    x = torch.tensor([1 + ulp / 2, 1 + 1.5 * ulp, 1 + ulp / 2 + 2**-23, 1 + 1.5 * ulp - 2**-23])
    expected = [1.0, 1 + 2 * ulp, 1 + ulp, 1 + ulp]
    assert round_to_bfloat16(x).tolist() == expected
    assert round_to_bfloat16(-x).tolist() == [-y for y in expected]
    assert round_to_bfloat16(torch.tensor([1.99999])).tolist() == [2.0]


def test_rounding_of_zero_tiny_vast_and_nonfinite_values():
    normal = 2.0**-126  # the least normal number
    x = torch.tensor([0.0, -0.0, normal, -1.00390625 * normal, 1e-30, 5e33, -5e33])
    actual = round_to_bfloat16(x)
    assert actual.tolist() == cast_to_bfloat16(x).tolist()
    assert actual.signbit().tolist() == x.signbit().tolist()
    # Subnormal numbers may keep one digit more than bfloat16.
    x = floats_between(1, 1 << 20)
    assert (round_to_bfloat16(x) - cast_to_bfloat16(x)).abs().max() <= 2.0**-134
    # Values stay nonfinite, so that updates with them are refused.
    assert (
        not round_to_bfloat16(torch.tensor([float("inf"), -float("inf"), float("nan")]))
        .isfinite()
        .any()
    )


def test_gradient_is_rounded():
    x = torch.tensor([3.0, 4.0], requires_grad=True)
    (grad,) = torch.autograd.grad(round_to_bfloat16(x), x, torch.tensor([1.001, -(2.0**-9) - 1.0]))
    assert grad.tolist() == [1.0, -1.0]
    # It is rounded under vmap and a compiler too.
    grads = torch.func.vmap(torch.func.grad(lambda x: 1.001 * round_to_bfloat16(x)))(x.detach())
    assert grads.tolist() == [cast_to_bfloat16(torch.tensor(1.001)).item()] * 2


def operands(shape, seed=0):
    generator = torch.Generator().manual_seed(seed)
    rows, inner, columns = shape[-3:]
    stack = shape[:-3]
    a = torch.randn(*stack, rows, inner, generator=generator, requires_grad=True)
    b = torch.randn(*stack, inner, columns, generator=generator, requires_grad=True)
    weights = torch.randn(*stack, rows, columns, generator=generator)
    return a, b, weights


def product_and_gradients(a, b, weights, precision):
    out = product(a, b, precision)
    assert out.dtype == torch.float32
    return out.detach(), *torch.autograd.grad((out * weights).sum(), (a, b))


SHAPES = [(7, 33, 5), (64, 17, 256), (2, 9, 33, 6), (3, 16, 64, 64)]


@pytest.mark.parametrize("shape", SHAPES)
def test_emulated_products_match_torchs_up_to_one_rounding(monkeypatch, shape):
    """Compare values and gradients. Sums in another order may fall on the other side of a tie."""
    a, b, weights = operands(shape)
    monkeypatch.setattr(products, "HAS_FAST_BFLOAT16", True)  # torch's products
    torchs = product_and_gradients(a, b, weights, "bfloat16")
    monkeypatch.setattr(products, "HAS_FAST_BFLOAT16", False)
    emulated = product_and_gradients(a, b, weights, "bfloat16")
    exact = product_and_gradients(a, b, weights, "float32")
    for actual, expected, unrounded in zip(emulated, torchs, exact, strict=True):
        assert torch.equal(actual, cast_to_bfloat16(actual))
        # Sums close to zero differ relative to their terms.
        torch.testing.assert_close(actual, expected, rtol=2.0**-7, atol=1e-5)
        assert (actual != expected).float().mean() < 0.02
        assert (actual != unrounded).float().mean() > 0.9


@pytest.mark.parametrize("shape", SHAPES)
def test_float32_products_are_exact(shape):
    a, b, weights = operands(shape)
    out, grad_a, grad_b = product_and_gradients(a, b, weights, "float32")
    double = a.detach().double() @ b.detach().double()
    torch.testing.assert_close(out.double(), double, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(grad_a, weights @ b.detach().mT, rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(grad_b, a.detach().mT @ weights, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
def test_stacked_products_equal_single_ones(monkeypatch, precision):
    monkeypatch.setattr(products, "HAS_FAST_BFLOAT16", False)
    a, b, _ = operands((3, 9, 33, 6))
    actual = product(a, b, precision)
    expected = torch.stack([product(*pair, precision) for pair in zip(a, b, strict=True)])
    torch.testing.assert_close(actual, expected, rtol=2.0**-7, atol=1e-5)
    assert actual.shape == (3, 9, 6)


@pytest.mark.parametrize(
    ("capabilities", "is_fast"),
    [
        ({"avx512_bf16": False, "amx_bf16": True}, True),
        ({"avx512_bf16": True}, True),
        ({"avx2": True, "avx512_bf16": False, "amx_bf16": False}, False),
        ({"bf16": True}, True),
        ({}, False),
    ],
)
def test_cpu_capabilities(monkeypatch, capabilities, is_fast):
    monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: capabilities, raising=False)
    assert products.has_fast_bfloat16() is is_fast


class OnGpu(torch.Tensor):
    """A tensor on the CPU that says that it is on a GPU."""

    device = torch.device("cuda", 0)
    is_cuda = True


@pytest.fixture
def gpu(monkeypatch):
    """Return a function that pretends a GPU of this compute capability."""

    def pretend(major):
        class Properties:
            pass

        Properties.major = major
        monkeypatch.setattr(torch.cuda, "device", lambda index: contextlib.nullcontext())
        monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
        monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
        monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: Properties)
        monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: "a GPU")
        products._gpu_multiplies_bfloat16.cache_clear()

    yield pretend
    products._gpu_multiplies_bfloat16.cache_clear()


def dtypes_multiplied(function, *operands):
    """Return the dtypes that products and convolutions are called with."""
    dtypes = []

    class Watch(TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            if func.overloadpacket in (torch.ops.aten.mm, torch.ops.aten.convolution):
                dtypes.append(args[0].dtype)
            return func(*args, **(kwargs or {}))

    with Watch():
        function(*operands)
    return dtypes


@pytest.mark.parametrize(("major", "dtype"), [(9, torch.bfloat16), (7, torch.float32)])
@pytest.mark.parametrize("has_fast_cpu", [True, False])
def test_gpu_multiplies_bfloat16_on_any_cpu(monkeypatch, gpu, major, dtype, has_fast_cpu):
    monkeypatch.setattr(products, "HAS_FAST_BFLOAT16", has_fast_cpu)
    gpu(major)
    matrix = torch.ones(4, 4).as_subclass(OnGpu)
    assert dtypes_multiplied(product, matrix, matrix, "bfloat16") == [dtype]
    images = torch.ones(1, 1, 4, 4).as_subclass(OnGpu)
    kernel, bias = torch.ones(1, 1, 2, 2).as_subclass(OnGpu), torch.zeros(1)
    convolve = partial(convolution, images, kernel, bias, 1, 0, "bfloat16")
    assert dtypes_multiplied(convolve) == [dtype]
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        warn_if_slow("bfloat16", torch.device("cuda", 0))
    assert [("this GPU has no instructions" in str(warning.message)) for warning in caught] == (
        [] if major == 9 else [True]
    )


# --- TF32, cuDNN ----------------------------------------------------------------------------------


def flags():
    """Return torch's flags, by both of its interfaces."""
    cuda, cudnn = torch.backends.cuda, torch.backends.cudnn
    return {
        "matmul": (cuda.matmul.allow_tf32, cuda.matmul.fp32_precision),
        "convolution": (cudnn.allow_tf32, cudnn.conv.fp32_precision, cudnn.rnn.fp32_precision),
        "cudnn": (cudnn.deterministic, cudnn.benchmark),
    }


@pytest.fixture
def restored_flags():
    before = flags()
    yield
    torch.backends.fp32_precision = "none"
    products._set_float32_precision([before["matmul"][1], *before["convolution"][1:]])
    torch.backends.cudnn.deterministic, torch.backends.cudnn.benchmark = before["cudnn"]


@pytest.mark.parametrize(
    ("precision", "setting"), [("float32", "ieee"), ("tf32", "tf32"), ("bfloat16", "ieee")]
)
def test_precision_sets_and_restores_the_flags_of_a_gpu(gpu, restored_flags, precision, setting):
    gpu(9)
    torch.backends.cudnn.benchmark = True  # set by the user
    before, is_on = flags(), setting == "tf32"
    with gpu_arithmetic(precision, torch.device("cuda")) as record:
        assert flags() == {
            "matmul": (is_on, setting),
            "convolution": (is_on, setting, setting),
            "cudnn": (True, False),
        }
        # torch raises if its two sets of flags disagree.
        assert torch.get_float32_matmul_precision() == ("high" if is_on else "highest")
        assert (record["gpu"], record["gpu_float32"]) == ("a GPU", setting)
    assert flags() == before


def test_precision_overrides_tf32_set_by_the_user(gpu, restored_flags):
    gpu(9)
    products._set_float32_precision(["none"] * 3)  # other tests may have set them
    torch.backends.fp32_precision = "tf32"
    with gpu_arithmetic("float32", torch.device("cuda")):
        assert flags()["matmul"] == (False, "ieee")
        assert flags()["convolution"] == (False, "ieee", "ieee")
    assert torch.backends.cuda.matmul.fp32_precision == "tf32"


def test_cpu_keeps_its_flags_and_refuses_tf32():
    before = flags()
    with gpu_arithmetic("float32", torch.device("cpu")) as record:
        assert (flags(), record) == (before, {})
    expected = "`precision` 'tf32' needs a CUDA device, .*: choose 'float32' or 'bfloat16', or set"
    with pytest.raises(ConfigError, match=expected), gpu_arithmetic("tf32", torch.device("cpu")):
        pass


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("g++") is None, reason="no C++ compiler")
def test_compiler_does_not_remove_the_rounding():
    """A compiler that may reorder sums simplifies x + c − c to x."""
    x = torch.randn(4096, generator=torch.Generator().manual_seed(0))
    compiled = torch.compile(lambda x: round_to_bfloat16(x * 1.5), fullgraph=True)
    torch.testing.assert_close(compiled(x), cast_to_bfloat16(x * 1.5), rtol=0, atol=0)
