"""Export of trained policies for use without hotloop: as an ONNX graph, or for NumPy alone."""

from __future__ import annotations

from hotloop.policies.export.numpy_file import export_numpy
from hotloop.policies.export.onnx_graph import OPSET, export_onnx

__all__ = ["OPSET", "export_numpy", "export_onnx"]
