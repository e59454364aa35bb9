"""The one file that knows the packages of the extra ``onnx``."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import Any

import torch

from composer.utils.import_helpers import MissingConditionalImportError


def save_onnx(
    program: torch.export.ExportedProgram,
    path: str,
    input_names: list[str],
    output_names: list[str],
    axis_names: dict[str, Any] | None,
    opset_version: int | None,
) -> list[int]:
    """Writes a program as an ONNX graph that asks for no input that it does not read.

    Args:
        program: The program.
        path: The file.
        input_names: Names of its inputs, in order; further ones keep the exporter's.
        output_names: Names of its outputs, likewise.
        axis_names: Names of the axes that vary, shaped like the arguments of the program.
        opset_version: The version of the operators; torch's default if None.

    Returns:
        Which of the program's tensors are inputs of the graph, in order.
    """
    try:
        import onnxscript  # noqa: F401  # torch's exporter needs it
    except ImportError as error:
        raise MissingConditionalImportError("onnx", "onnx") from error
    import torch.onnx

    with warnings.catch_warnings():
        # Two inputs may share an axis, and its name.
        warnings.filterwarnings("ignore", message="# The axis name", category=UserWarning)
        # Torch's own, when it copies a program.
        warnings.filterwarnings("ignore", message=".*LeafSpec", category=FutureWarning)
        exported = torch.onnx.export(
            program,
            (),
            input_names=input_names,
            output_names=output_names,
            dynamic_shapes=axis_names,
            opset_version=opset_version,
            verbose=False,
        )
    assert exported is not None
    # A batch holds targets too, which a forward pass does not read.
    inputs = exported.model.graph.inputs
    read = [index for index, value in enumerate(inputs) if value.uses()]
    for value in [value for value in inputs if not value.uses()]:
        inputs.remove(value)
    exported.save(path)
    return read


def run_onnx(path: str, tensors: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """Runs an ONNX graph on its inputs, in order, and returns its outputs."""
    try:
        import onnxruntime
    except ImportError as error:
        raise MissingConditionalImportError("onnx", "onnxruntime") from error
    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    names = [value.name for value in session.get_inputs()]
    feed = {name: tensor.numpy() for name, tensor in zip(names, tensors, strict=True)}
    return [torch.as_tensor(output) for output in session.run(None, feed)]
