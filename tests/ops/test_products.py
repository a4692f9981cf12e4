import contextlib
import shutil
import warnings
from functools import partial

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from hotloop.errors import ConfigError
from hotloop.ops import products
from hotloop.ops.products import convolution, gpu_arithmetic, product, rounded, warn_of_slow


def through_bfloat16(x):
    return x.to(torch.bfloat16).to(torch.float32)


def every(first, last):
    """All float32 numbers whose bits are in a range."""
    return torch.arange(first, last, dtype=torch.int32).view(torch.float32)


@pytest.mark.parametrize("sign", [1.0, -1.0])
@pytest.mark.parametrize("scale", [2.0**-100, 1.0, 2.0**100])
def test_rounding_is_the_casts(sign, scale):
    """Every number from 1 to 4, to either side of an even and of an odd last bit."""
    x = sign * scale * every(0x3F800000, 0x40800000)
    assert x.abs().min() == scale
    torch.testing.assert_close(rounded(x), through_bfloat16(x), rtol=0, atol=0)


def test_ties_go_to_the_even_neighbour():
    # 8 bits of mantissa: between 1 and 1 + 2⁻⁷, between that and 1 + 2⁻⁶, and just beside them.
    ulp = 2.0**-7
    x = torch.tensor([1 + ulp / 2, 1 + 1.5 * ulp, 1 + ulp / 2 + 2**-23, 1 + 1.5 * ulp - 2**-23])
    want = [1.0, 1 + 2 * ulp, 1 + ulp, 1 + ulp]
    assert rounded(x).tolist() == want
    assert rounded(-x).tolist() == [-y for y in want]
    assert rounded(torch.tensor([1.99999])).tolist() == [2.0]


def test_zero_and_what_is_tiny_or_vast():
    normal = 2.0**-126  # the least number with all its digits
    x = torch.tensor([0.0, -0.0, normal, -1.00390625 * normal, 1e-30, 5e33, -5e33])
    got = rounded(x)
    assert got.tolist() == through_bfloat16(x).tolist()
    assert got.signbit().tolist() == x.signbit().tolist()
    # Below, a digit more may be kept than bfloat16 has; it makes no difference.
    x = every(1, 1 << 20)
    assert (rounded(x) - through_bfloat16(x)).abs().max() <= 2.0**-134
    # Not finite stays not finite: an update with it is refused.
    assert not rounded(torch.tensor([float("inf"), -float("inf"), float("nan")])).isfinite().any()


def test_the_gradient_is_rounded_too():
    x = torch.tensor([3.0, 4.0], requires_grad=True)
    (grad,) = torch.autograd.grad(rounded(x), x, torch.tensor([1.001, -(2.0**-9) - 1.0]))
    assert grad.tolist() == [1.0, -1.0]
    # So it is where a compiler or vmap asks for it.
    grads = torch.func.vmap(torch.func.grad(lambda x: 1.001 * rounded(x)))(x.detach())
    assert grads.tolist() == [through_bfloat16(torch.tensor(1.001)).item()] * 2


def operands(shape, seed=0):
    generator = torch.Generator().manual_seed(seed)
    rows, inner, columns = shape[-3:]
    stack = shape[:-3]
    left = torch.randn(*stack, rows, inner, generator=generator, requires_grad=True)
    right = torch.randn(*stack, inner, columns, generator=generator, requires_grad=True)
    wanted = torch.randn(*stack, rows, columns, generator=generator)
    return left, right, wanted


def product_and_gradients(left, right, wanted, precision):
    out = product(left, right, precision)
    assert out.dtype == torch.float32
    return out.detach(), *torch.autograd.grad((out * wanted).sum(), (left, right))


SHAPES = [(7, 33, 5), (64, 17, 256), (2, 9, 33, 6), (3, 16, 64, 64)]


@pytest.mark.parametrize("shape", SHAPES)
def test_emulated_products_are_torchs_but_for_one_rounding(monkeypatch, shape):
    """Values and gradients; sums in another order may come to lie on the other side of a tie."""
    left, right, wanted = operands(shape)
    monkeypatch.setattr(products, "HAS_FAST_BFLOAT16", True)  # torch's own
    theirs = product_and_gradients(left, right, wanted, "bfloat16")
    monkeypatch.setattr(products, "HAS_FAST_BFLOAT16", False)
    ours = product_and_gradients(left, right, wanted, "bfloat16")
    exact = product_and_gradients(left, right, wanted, "float32")
    for got, want, unrounded in zip(ours, theirs, exact, strict=True):
        assert torch.equal(got, through_bfloat16(got))
        # A sum close to zero differs by what its terms are, not by what it is itself.
        torch.testing.assert_close(got, want, rtol=2.0**-7, atol=1e-5)
        assert (got != want).float().mean() < 0.02
        assert (got != unrounded).float().mean() > 0.9


@pytest.mark.parametrize("shape", SHAPES)
def test_float32_products_are_left_alone(shape):
    left, right, wanted = operands(shape)
    out, by_left, by_right = product_and_gradients(left, right, wanted, "float32")
    double = left.detach().double() @ right.detach().double()
    torch.testing.assert_close(out.double(), double, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(by_left, wanted @ right.detach().mT, rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(by_right, left.detach().mT @ wanted, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
def test_a_stack_is_one_product_after_another(monkeypatch, precision):
    monkeypatch.setattr(products, "HAS_FAST_BFLOAT16", False)
    left, right, _ = operands((3, 9, 33, 6))
    got = product(left, right, precision)
    want = torch.stack([product(*pair, precision) for pair in zip(left, right, strict=True)])
    torch.testing.assert_close(got, want, rtol=2.0**-7, atol=1e-5)
    assert got.shape == (3, 9, 6)


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
def test_what_the_cpu_can_do(monkeypatch, capabilities, is_fast):
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
    found = []

    class Watch(TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            if func.overloadpacket in (torch.ops.aten.mm, torch.ops.aten.convolution):
                found.append(args[0].dtype)
            return func(*args, **(kwargs or {}))

    with Watch():
        function(*operands)
    return found


@pytest.mark.parametrize(("major", "dtype"), [(9, torch.bfloat16), (7, torch.float32)])
@pytest.mark.parametrize("has_fast_cpu", [True, False])
def test_a_gpu_multiplies_bfloat16_whatever_the_cpu_can_do(
    monkeypatch, gpu, major, dtype, has_fast_cpu
):
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
        warn_of_slow("bfloat16", torch.device("cuda", 0))
    assert [("this GPU has no instructions" in str(one.message)) for one in caught] == (
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
def test_a_precision_sets_the_flags_of_a_gpu_and_sets_them_back(
    gpu, restored_flags, precision, setting
):
    gpu(9)
    torch.backends.cudnn.benchmark = True  # the user's own
    before, is_on = flags(), setting == "tf32"
    with gpu_arithmetic(precision, torch.device("cuda")) as record:
        assert flags() == {
            "matmul": (is_on, setting),
            "convolution": (is_on, setting, setting),
            "cudnn": (True, False),
        }
        # What the two sets of flags disagree about, torch refuses to read.
        assert torch.get_float32_matmul_precision() == ("high" if is_on else "highest")
        assert (record["gpu"], record["gpu_float32"]) == ("a GPU", setting)
    assert flags() == before


def test_flags_of_a_user_who_allowed_tf32_everywhere_do_not_count(gpu, restored_flags):
    gpu(9)
    torch.backends.fp32_precision = "tf32"
    with gpu_arithmetic("float32", torch.device("cuda")):
        assert flags()["matmul"] == (False, "ieee")
        assert flags()["convolution"] == (False, "ieee", "ieee")
    assert torch.backends.cuda.matmul.fp32_precision == "tf32"


def test_the_cpu_keeps_its_flags_and_refuses_tf32():
    before = flags()
    with gpu_arithmetic("float32", torch.device("cpu")) as record:
        assert (flags(), record) == (before, {})
    expected = "`precision` 'tf32' needs a CUDA device, .*: choose 'float32' or 'bfloat16', or set"
    with pytest.raises(ConfigError, match=expected), gpu_arithmetic("tf32", torch.device("cpu")):
        pass


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("g++") is None, reason="no C++ compiler")
def test_a_compiler_does_not_take_it_for_nothing():
    """x + c − c is x to a compiler that may reorder sums."""
    x = torch.randn(4096, generator=torch.Generator().manual_seed(0))
    compiled = torch.compile(lambda x: rounded(x * 1.5), fullgraph=True)
    torch.testing.assert_close(compiled(x), through_bfloat16(x * 1.5), rtol=0, atol=0)
