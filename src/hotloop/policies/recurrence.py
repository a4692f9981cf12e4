"""Recurrent layers in torch: one step of plain operations, and whole sequences with resets.

A sequence is one operation, `hotloop::lstm` or `hotloop::gru`, with a gradient of its own. Unrolled
into graphs, 32 steps of an LSTM took 48 s to compile; differentiated step by step, they took 1.5
times as long as this does. All that does not depend on the step before is computed for all steps at
once.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from hotloop.policies.memory import Memory, MemoryKind


def step(kind: MemoryKind, inputs: Tensor, recurrent: Tensor, memory: Tensor) -> Tensor:
    """Return what is remembered after one step, (B, M); its first H numbers are the output.

    Args:
        kind: of the layer.
        inputs: W x + b, float32, (B, G), with the gates in the order of `Memory`.
        recurrent: U, float32, (H, G).
        memory: float32, (B, M).
    """
    size = recurrent.shape[0]
    if kind == "lstm":
        output, cell = memory.split(size, 1)
        gates = inputs + output @ recurrent
        into, forget, out = gates[:, : 3 * size].sigmoid().split(size, 1)
        cell = forget * cell + into * gates[:, 3 * size :].tanh()
        return torch.cat([out * cell.tanh(), cell], 1)
    products = memory @ recurrent
    gates = (inputs[:, : 2 * size] + products[:, : 2 * size]).sigmoid()
    reset, keep = gates.split(size, 1)
    new = (inputs[:, 2 * size :] + reset * products[:, 2 * size :]).tanh()
    return new + keep * (memory - new)


def unroll(
    memory: Memory, inputs: Tensor, recurrent: Tensor, first: Tensor, begins: Tensor
) -> Tensor:
    """Return the outputs of sequences, (L, B, H).

    Args:
        memory: which layer.
        inputs: W x + b, float32, (L, B, G).
        recurrent: U, float32, (H, G).
        first: float32, (B, M), what is remembered before the first step; not differentiated.
        begins: bool, (L, B), where an episode begins: nothing is remembered from before.
    """
    going_on = (~begins).to(inputs.dtype).unsqueeze(-1)
    if memory.kind == "lstm":
        return _lstm(inputs, recurrent, first, going_on)[0]
    return _gru(inputs, recurrent, first, going_on)[0]


@torch.library.custom_op("hotloop::lstm", mutates_args=())
def _lstm(
    inputs: Tensor, recurrent: Tensor, first: Tensor, going_on: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """Return the outputs, (L, B, H), the gates, (L, B, G), and what was remembered, (L, B, M).

    Where an episode begins, that is nothing.
    """
    size = recurrent.shape[0]
    outputs, gates, memories = _lstm_like(inputs, recurrent, first, going_on)
    state, scratch = first.clone(), torch.empty_like(first[:, :size])
    output, cell = state.split(size, 1)
    # Views of all steps at once: a slice costs as much as an operation on it.
    into, forget, out, new = (gates[..., k : k + size].unbind() for k in range(0, 4 * size, size))
    squashed = gates[..., : 3 * size].unbind()
    outputs_before, cells_before = memories[..., :size].unbind(), memories[..., size:].unbind()
    steps = zip(inputs, going_on, gates, memories, outputs, strict=True)
    for t, (given, goes_on, now, before, result) in enumerate(steps):
        torch.mul(state, goes_on, out=before)
        torch.addmm(given, outputs_before[t], recurrent, out=now)
        squashed[t].sigmoid_()
        new[t].tanh_()
        torch.mul(forget[t], cells_before[t], out=cell)
        cell.addcmul_(into[t], new[t])
        torch.tanh(cell, out=scratch)
        torch.mul(out[t], scratch, out=result)
        output.copy_(result)
    return outputs, gates, memories


@_lstm.register_fake
def _lstm_like(
    inputs: Tensor, recurrent: Tensor, first: Tensor, going_on: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    length, rows, _ = inputs.shape
    outputs = inputs.new_empty((length, rows, recurrent.shape[0]))
    return outputs, torch.empty_like(inputs), inputs.new_empty((length, *first.shape))


@torch.library.custom_op("hotloop::lstm_backward", mutates_args=())
def _lstm_backward(
    grad: Tensor, recurrent: Tensor, gates: Tensor, memories: Tensor, going_on: Tensor
) -> Tensor:
    """Return the gradient by the inputs, (L, B, G), from that by the outputs, (L, B, H)."""
    size = recurrent.shape[0]
    into, forget, out, new = gates.split(size, 2)
    cells = memories[..., size:]
    # Of all steps at once: what the gradients by h' and by c' are multiplied with.
    tanh = torch.addcmul(forget * cells, into, new).tanh_()
    to_cell = out * (1.0 - tanh * tanh)
    to_gates = torch.empty_like(gates)
    torch.mul(new * into, 1.0 - into, out=to_gates[..., :size])
    torch.mul(cells * forget, 1.0 - forget, out=to_gates[..., size : 2 * size])
    torch.mul(tanh * out, 1.0 - out, out=to_gates[..., 2 * size : 3 * size])
    torch.mul(into, 1.0 - new * new, out=to_gates[..., 3 * size :])
    to_before = (forget * going_on).unbind()
    transposed = recurrent.t()
    result = torch.empty_like(gates)
    of_output, of_cell = torch.zeros_like(grad[0]), torch.zeros_like(grad[0])
    # As (L, B, 4, H): the gradient by c' is the factor of three gates, that by h' of the third.
    given, factors = result.unflatten(2, (4, size)), to_gates.unflatten(2, (4, size))
    rows, by_cell = zip(result, given, factors, strict=True), of_cell.unsqueeze(1)
    outs, to_outs = given[:, :, 2].unbind(), factors[:, :, 2].unbind()
    for t, (now, parts, to_parts) in reversed(list(enumerate(rows))):
        of_output += grad[t]
        of_cell.addcmul_(of_output, to_cell[t])
        torch.mul(to_parts, by_cell, out=parts)
        torch.mul(to_outs[t], of_output, out=outs[t])
        torch.mm(now, transposed, out=of_output).mul_(going_on[t])
        of_cell.mul_(to_before[t])
    return result


@_lstm_backward.register_fake
def _(grad: Tensor, recurrent: Tensor, gates: Tensor, memories: Tensor, going_on: Tensor) -> Tensor:
    return torch.empty_like(gates)


@torch.library.custom_op("hotloop::gru", mutates_args=())
def _gru(
    inputs: Tensor, recurrent: Tensor, first: Tensor, going_on: Tensor
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return as `_lstm` does, and U h of n, (L, B, H)."""
    size = recurrent.shape[0]
    outputs, gates, memories, products = _gru_like(inputs, recurrent, first, going_on)
    output, scratch = first, torch.empty_like(inputs[0])
    reset, keep, new = (gates[..., k : k + size].unbind() for k in range(0, 3 * size, size))
    squashed, given = gates[..., : 2 * size].unbind(), inputs[..., : 2 * size].unbind()
    given_new = inputs[..., 2 * size :].unbind()
    of_squashed, of_new = scratch.split((2 * size, size), 1)
    steps = zip(going_on, memories, products, outputs, strict=True)
    for t, (goes_on, before, product, result) in enumerate(steps):
        torch.mul(output, goes_on, out=before)
        torch.mm(before, recurrent, out=scratch)
        torch.add(given[t], of_squashed, out=squashed[t]).sigmoid_()
        product.copy_(of_new)
        torch.addcmul(given_new[t], reset[t], product, out=new[t]).tanh_()
        output = torch.lerp(new[t], before, keep[t], out=result)
    return outputs, gates, memories, products


@_gru.register_fake
def _gru_like(
    inputs: Tensor, recurrent: Tensor, first: Tensor, going_on: Tensor
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    outputs, gates, memories = _lstm_like(inputs, recurrent, first, going_on)
    return outputs, gates, memories, torch.empty_like(outputs)


@torch.library.custom_op("hotloop::gru_backward", mutates_args=())
def _gru_backward(
    grad: Tensor,
    recurrent: Tensor,
    gates: Tensor,
    memories: Tensor,
    products: Tensor,
    going_on: Tensor,
) -> tuple[Tensor, Tensor]:
    """Return the gradients by the inputs and by U h, (L, B, G) each."""
    size = recurrent.shape[0]
    reset, keep, new = gates.split(size, 2)
    # Of all steps at once: what the gradient by h' is multiplied with.
    to_new = (1.0 - keep) * (1.0 - new * new)
    to_reset = to_new * products * reset * (1.0 - reset)
    to_keep = (memories - new) * keep * (1.0 - keep)
    factors = torch.cat([to_reset, to_keep, to_new], 2)
    of_products = torch.cat([to_reset, to_keep, to_new * reset], 2)
    to_before = (keep * going_on).unbind()
    transposed = recurrent.t()
    of_output, of_all = torch.zeros_like(grad[0]), torch.empty_like(grad)
    parts = of_products.unflatten(2, (3, size)).unbind()
    rows = zip(grad, of_all, of_all.unsqueeze(2), of_products, parts, strict=True)
    for t, (one, whole, by_output, now, to_parts) in reversed(list(enumerate(rows))):
        torch.add(of_output, one, out=whole)
        to_parts.mul_(by_output)
        torch.mm(now, transposed, out=of_output).mul_(going_on[t])
        of_output.addcmul_(whole, to_before[t])
    by_input = factors.unflatten(2, (3, size)) * of_all.unsqueeze(2)
    return by_input.flatten(2), of_products


@_gru_backward.register_fake
def _(
    grad: Tensor,
    recurrent: Tensor,
    gates: Tensor,
    memories: Tensor,
    products: Tensor,
    going_on: Tensor,
) -> tuple[Tensor, Tensor]:
    return torch.empty_like(gates), torch.empty_like(gates)


def _keep_lstm(ctx: Any, inputs: tuple[Tensor, ...], output: tuple[Tensor, ...]) -> None:
    ctx.save_for_backward(inputs[1], *output[1:], inputs[3])


def _differentiate_lstm(ctx: Any, grad: Tensor, *_: Tensor) -> tuple[Any, ...]:
    recurrent, gates, memories, going_on = ctx.saved_tensors
    of_inputs = _lstm_backward(grad.contiguous(), recurrent, gates, memories, going_on)
    outputs = memories[..., : recurrent.shape[0]]
    return of_inputs, _by_recurrent(outputs, of_inputs), None, None


def _differentiate_gru(ctx: Any, grad: Tensor, *_: Tensor) -> tuple[Any, ...]:
    recurrent, gates, memories, products, going_on = ctx.saved_tensors
    of_inputs, of_products = _gru_backward(
        grad.contiguous(), recurrent, gates, memories, products, going_on
    )
    return of_inputs, _by_recurrent(memories, of_products), None, None


def _by_recurrent(outputs: Tensor, of_products: Tensor) -> Tensor:
    """Return the gradient by U, (H, G), from that by U h and the outputs before, (L, B, H)."""
    return outputs.flatten(0, 1).t() @ of_products.flatten(0, 1)


torch.library.register_autograd(_lstm, _differentiate_lstm, setup_context=_keep_lstm)
torch.library.register_autograd(_gru, _differentiate_gru, setup_context=_keep_lstm)
