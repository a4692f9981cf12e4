"""Recurrent layers in torch: one step of plain operations, and whole sequences with resets.

A sequence is one operation, `hotloop::lstm` or `hotloop::gru`, with its own gradient. Unrolled into
a graph, 32 steps of an LSTM took 48 s to compile. With a separate gradient for each step, an update
took 1.5 times as long as with these operations. Everything independent of the previous step is
computed for all steps at once.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from hotloop.policies.encoders.base import Operations
from hotloop.policies.recurrent_layer import RecurrentKind, RecurrentLayer


def step(kind: RecurrentKind, inputs: Tensor, recurrent: Tensor, memory: Tensor) -> Tensor:
    """Return the hidden state after one step, (B, M). Its first H numbers are the output.

    Args:
        kind: kind of the layer.
        inputs: W x + b, float32, (B, G), with the gates in the order of `RecurrentLayer`.
        recurrent: U, float32, (H, G).
        memory: hidden state, float32, (B, M).
    """
    size = recurrent.shape[0]
    if kind == "lstm":
        output, cell = memory.split(size, 1)
        gates = inputs + output @ recurrent
        input_gate, forget_gate, output_gate = gates[:, : 3 * size].sigmoid().split(size, 1)
        cell = forget_gate * cell + input_gate * gates[:, 3 * size :].tanh()
        return torch.cat([output_gate * cell.tanh(), cell], 1)
    products = memory @ recurrent
    gates = (inputs[:, : 2 * size] + products[:, : 2 * size]).sigmoid()
    reset_gate, keep_gate = gates.split(size, 1)
    candidate = (inputs[:, 2 * size :] + reset_gate * products[:, 2 * size :]).tanh()
    return candidate + keep_gate * (memory - candidate)


def unroll_features(
    layer: RecurrentLayer,
    operations: Operations,
    params: Mapping[str, Tensor],
    features: Tensor,
    memory: Tensor,
    begins: Tensor,
) -> Tensor:
    """Return the outputs for the rows of sequences, (L · S, H), see `unroll`.

    Args:
        layer: the recurrent layer.
        operations: its operations.
        params: its parameters by name.
        features: its inputs x, step by step, float32, (L · S, F).
        memory: hidden state before the first step, float32, (S, M).
        begins: whether an episode starts, bool, (L, S).
    """
    weight, num_features = params["memory.weight"], features.shape[1]
    inputs = operations.linear(features, weight[:num_features], params["memory.bias"])
    inputs, recurrent = inputs.unflatten(0, begins.shape), weight[num_features:]
    return unroll(layer, inputs, recurrent, memory, begins).flatten(0, 1)


def unroll(
    layer: RecurrentLayer, inputs: Tensor, recurrent: Tensor, initial_memory: Tensor, begins: Tensor
) -> Tensor:
    """Return the outputs of sequences, (L, B, H).

    Args:
        layer: the recurrent layer.
        inputs: W x + b, float32, (L, B, G).
        recurrent: U, float32, (H, G).
        initial_memory: hidden state before the first step, float32, (B, M), without a gradient.
        begins: whether an episode starts with a hidden state of 0, bool, (L, B).
    """
    # 0 at the start of an episode, else 1.
    mask = (~begins).to(inputs.dtype).unsqueeze(-1)
    if layer.kind == "lstm":
        return _lstm(inputs, recurrent, initial_memory, mask)[0]
    return _gru(inputs, recurrent, initial_memory, mask)[0]


@torch.library.custom_op("hotloop::lstm", mutates_args=())
def _lstm(
    inputs: Tensor, recurrent: Tensor, initial_memory: Tensor, mask: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """Return the outputs, (L, B, H), the gates, (L, B, G), and the hidden states, (L, B, M)."""
    # The returned hidden states precede each step, and are 0 at the start of an episode.
    size = recurrent.shape[0]
    outputs, gates, memories = _lstm_like(inputs, recurrent, initial_memory, mask)
    state, buffer = initial_memory.clone(), torch.empty_like(initial_memory[:, :size])
    output, cell = state.split(size, 1)
    # Make the views of all steps at once: a slice costs as much as an operation on it.
    input_gates, forget_gates, output_gates, candidates = (
        gates[..., k : k + size].unbind() for k in range(0, 4 * size, size)
    )
    sigmoids = gates[..., : 3 * size].unbind()
    previous_outputs, previous_cells = memories[..., :size].unbind(), memories[..., size:].unbind()
    steps = zip(inputs, mask, gates, memories, outputs, strict=True)
    for t, (step_inputs, step_mask, step_gates, memory, step_output) in enumerate(steps):
        torch.mul(state, step_mask, out=memory)
        torch.addmm(step_inputs, previous_outputs[t], recurrent, out=step_gates)
        sigmoids[t].sigmoid_()
        candidates[t].tanh_()
        torch.mul(forget_gates[t], previous_cells[t], out=cell)
        cell.addcmul_(input_gates[t], candidates[t])
        torch.tanh(cell, out=buffer)
        torch.mul(output_gates[t], buffer, out=step_output)
        output.copy_(step_output)
    return outputs, gates, memories


@_lstm.register_fake
def _lstm_like(
    inputs: Tensor, recurrent: Tensor, initial_memory: Tensor, mask: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    length, rows, _ = inputs.shape
    outputs = inputs.new_empty((length, rows, recurrent.shape[0]))
    return outputs, torch.empty_like(inputs), inputs.new_empty((length, *initial_memory.shape))


@torch.library.custom_op("hotloop::lstm_backward", mutates_args=())
def _lstm_backward(
    grad: Tensor, recurrent: Tensor, gates: Tensor, memories: Tensor, mask: Tensor
) -> Tensor:
    """Return the gradient of the inputs, (L, B, G), from the outputs' gradient, (L, B, H)."""
    size = recurrent.shape[0]
    input_gate, forget_gate, output_gate, candidate = gates.split(size, 2)
    cells = memories[..., size:]
    # The factors of the gradients of h' and c', for all steps at once.
    tanh = torch.addcmul(forget_gate * cells, input_gate, candidate).tanh_()
    cell_factor = output_gate * (1.0 - tanh * tanh)
    gate_factors = torch.empty_like(gates)
    torch.mul(candidate * input_gate, 1.0 - input_gate, out=gate_factors[..., :size])
    torch.mul(cells * forget_gate, 1.0 - forget_gate, out=gate_factors[..., size : 2 * size])
    torch.mul(tanh * output_gate, 1.0 - output_gate, out=gate_factors[..., 2 * size : 3 * size])
    torch.mul(input_gate, 1.0 - candidate * candidate, out=gate_factors[..., 3 * size :])
    previous_factor = (forget_gate * mask).unbind()
    transposed = recurrent.t()
    result = torch.empty_like(gates)
    output_grad, cell_grad = torch.zeros_like(grad[0]), torch.zeros_like(grad[0])
    # As (L, B, 4, H): multiply the third gate by the gradient of h', the others by that of c'.
    gate_grads, factors = result.unflatten(2, (4, size)), gate_factors.unflatten(2, (4, size))
    rows, cell_column = zip(result, gate_grads, factors, strict=True), cell_grad.unsqueeze(1)
    output_gate_grads, output_gate_factors = gate_grads[:, :, 2].unbind(), factors[:, :, 2].unbind()
    for t, (step_grads, step_parts, step_factors) in reversed(list(enumerate(rows))):
        output_grad += grad[t]
        cell_grad.addcmul_(output_grad, cell_factor[t])
        torch.mul(step_factors, cell_column, out=step_parts)
        torch.mul(output_gate_factors[t], output_grad, out=output_gate_grads[t])
        torch.mm(step_grads, transposed, out=output_grad).mul_(mask[t])
        cell_grad.mul_(previous_factor[t])
    return result


@_lstm_backward.register_fake
def _lstm_backward_like(
    grad: Tensor, recurrent: Tensor, gates: Tensor, memories: Tensor, mask: Tensor
) -> Tensor:
    return torch.empty_like(gates)


@torch.library.custom_op("hotloop::gru", mutates_args=())
def _gru(
    inputs: Tensor, recurrent: Tensor, initial_memory: Tensor, mask: Tensor
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return the outputs of `_lstm`, and U h of the candidate n, (L, B, H)."""
    size = recurrent.shape[0]
    outputs, gates, memories, products = _gru_like(inputs, recurrent, initial_memory, mask)
    output, buffer = initial_memory, torch.empty_like(inputs[0])
    reset_gates, keep_gates, candidates = (
        gates[..., k : k + size].unbind() for k in range(0, 3 * size, size)
    )
    sigmoids, sigmoid_inputs = gates[..., : 2 * size].unbind(), inputs[..., : 2 * size].unbind()
    candidate_inputs = inputs[..., 2 * size :].unbind()
    sigmoid_products, candidate_product = buffer.split((2 * size, size), 1)
    steps = zip(mask, memories, products, outputs, strict=True)
    for t, (step_mask, memory, product, step_output) in enumerate(steps):
        torch.mul(output, step_mask, out=memory)
        torch.mm(memory, recurrent, out=buffer)
        torch.add(sigmoid_inputs[t], sigmoid_products, out=sigmoids[t]).sigmoid_()
        product.copy_(candidate_product)
        torch.addcmul(candidate_inputs[t], reset_gates[t], product, out=candidates[t]).tanh_()
        output = torch.lerp(candidates[t], memory, keep_gates[t], out=step_output)
    return outputs, gates, memories, products


@_gru.register_fake
def _gru_like(
    inputs: Tensor, recurrent: Tensor, initial_memory: Tensor, mask: Tensor
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    outputs, gates, memories = _lstm_like(inputs, recurrent, initial_memory, mask)
    return outputs, gates, memories, torch.empty_like(outputs)


@torch.library.custom_op("hotloop::gru_backward", mutates_args=())
def _gru_backward(
    grad: Tensor,
    recurrent: Tensor,
    gates: Tensor,
    memories: Tensor,
    products: Tensor,
    mask: Tensor,
) -> tuple[Tensor, Tensor]:
    """Return the gradients of the inputs and of U h, (L, B, G) each."""
    size = recurrent.shape[0]
    reset_gate, keep_gate, candidate = gates.split(size, 2)
    # The factors of the gradient of h', for all steps at once.
    candidate_factor = (1.0 - keep_gate) * (1.0 - candidate * candidate)
    reset_factor = candidate_factor * products * reset_gate * (1.0 - reset_gate)
    keep_factor = (memories - candidate) * keep_gate * (1.0 - keep_gate)
    factors = torch.cat([reset_factor, keep_factor, candidate_factor], 2)
    product_grads = torch.cat([reset_factor, keep_factor, candidate_factor * reset_gate], 2)
    previous_factor = (keep_gate * mask).unbind()
    transposed = recurrent.t()
    output_grad, output_grads = torch.zeros_like(grad[0]), torch.empty_like(grad)
    parts = product_grads.unflatten(2, (3, size)).unbind()
    rows = zip(grad, output_grads, output_grads.unsqueeze(2), product_grads, parts, strict=True)
    for t, (step_grad, total, column, product_grad, gate_grad) in reversed(list(enumerate(rows))):
        torch.add(output_grad, step_grad, out=total)
        gate_grad.mul_(column)
        torch.mm(product_grad, transposed, out=output_grad).mul_(mask[t])
        output_grad.addcmul_(total, previous_factor[t])
    input_grads = factors.unflatten(2, (3, size)) * output_grads.unsqueeze(2)
    return input_grads.flatten(2), product_grads


@_gru_backward.register_fake
def _gru_backward_like(
    grad: Tensor,
    recurrent: Tensor,
    gates: Tensor,
    memories: Tensor,
    products: Tensor,
    mask: Tensor,
) -> tuple[Tensor, Tensor]:
    return torch.empty_like(gates), torch.empty_like(gates)


def _save_for_backward(ctx: Any, inputs: tuple[Tensor, ...], output: tuple[Tensor, ...]) -> None:
    ctx.save_for_backward(inputs[1], *output[1:], inputs[3])


def _lstm_gradient(ctx: Any, grad: Tensor, *_: Tensor) -> tuple[Any, ...]:
    recurrent, gates, memories, mask = ctx.saved_tensors
    input_grads = _lstm_backward(grad.contiguous(), recurrent, gates, memories, mask)
    outputs = memories[..., : recurrent.shape[0]]
    return input_grads, _recurrent_gradient(outputs, input_grads), None, None


def _gru_gradient(ctx: Any, grad: Tensor, *_: Tensor) -> tuple[Any, ...]:
    recurrent, gates, memories, products, mask = ctx.saved_tensors
    input_grads, product_grads = _gru_backward(
        grad.contiguous(), recurrent, gates, memories, products, mask
    )
    return input_grads, _recurrent_gradient(memories, product_grads), None, None


def _recurrent_gradient(outputs: Tensor, product_grads: Tensor) -> Tensor:
    """Return the gradient of U, (H, G), from that of U h and the previous outputs, (L, B, H)."""
    return outputs.flatten(0, 1).t() @ product_grads.flatten(0, 1)


torch.library.register_autograd(_lstm, _lstm_gradient, setup_context=_save_for_backward)
torch.library.register_autograd(_gru, _gru_gradient, setup_context=_save_for_backward)
