"""Models for inference: exported to a file that runs without this program."""

from __future__ import annotations

import contextlib
import copy
import inspect
import logging
import os
import shutil
import tempfile
import warnings
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, Protocol, TypeAlias

import torch
from torch import nn

from composer.utils import dist
from composer.utils._onnx import run_onnx, save_onnx
from composer.utils.file_helpers import (
    get_file,
    is_uri,
    maybe_create_object_store_from_uri,
    parse_uri,
)
from composer.utils.iter_helpers import ensure_tuple
from composer.utils.lazy import handed_on
from composer.utils.misc import is_model_ddp, is_model_fsdp, unwrap_model
from composer.utils.module_surgery import replace_module_classes
from composer.utils.object_store.object_store import ObjectStore
from composer.utils.string_enum import StringEnum

__all__ = [
    "ExportFormat",
    "Transform",
    "export_for_inference",
    "export_with_logger",
    "quantize_dynamic",
]

log = logging.getLogger(__name__)

Transform: TypeAlias = Callable[[nn.Module], nn.Module]

# Reading a checkpoint is the affair of a higher floor; only who names one needs it.
_reader = handed_on({"safe_torch_load": "composer.checkpoint.monolithic"})


class ExportFormat(StringEnum):
    """What an exported model is: a torch.export program, an ONNX graph, or TorchScript."""

    TORCH_EXPORT = "torch_export"
    """``.pt2``: load with ``torch.export.load(path).module()``."""
    ONNX = "onnx"
    """``.onnx``: load with onnxruntime and others; needs the extra ``onnx``."""
    TORCHSCRIPT = "torchscript"
    """Deprecated, as torch.jit itself is; load with ``torch.jit.load(path)``."""


class _UploadsFiles(Protocol):
    def has_file_upload_destination(self) -> bool: ...

    def upload_file(
        self, remote_file_name: str, file_path: str, *, overwrite: bool = False
    ) -> None: ...


def export_for_inference(
    model: nn.Module,
    save_format: str | ExportFormat,
    save_path: str,
    save_object_store: ObjectStore | None = None,
    sample_input: Any = None,
    dynamic_axes: dict[str, Any] | None = None,
    surgery_algs: Transform | Sequence[Transform] | None = None,
    transforms: Transform | Sequence[Transform] | None = None,
    onnx_opset_version: int | None = None,
    load_path: str | None = None,
    load_object_store: ObjectStore | None = None,
    load_strict: bool = False,
    input_names: Sequence[str] | None = None,
    output_names: Sequence[str] | None = None,
    further_inputs: Sequence[Any] = (),
) -> None:
    """Writes a copy of the model, on the CPU and in eval mode, in a form for inference.

    Rank 0 exports; other ranks do nothing. What was exported is run on the sample and compared with
    the model before anything is saved.

    Args:
        model: The model; it is not changed.
        save_format: ``"torch_export"``, ``"onnx"`` or ``"torchscript"``.
        save_path: A local path, an address (``s3://...``), or the object's name in
            ``save_object_store``.
        save_object_store: The store to save to.
        sample_input: What ``forward`` is called with: one argument, a tuple of several, or a tuple
            of them whose last element is a dict of keyword arguments, as ``torch.onnx.export`` has
            it. Only TorchScript may do without.
        dynamic_axes: Which axes of which inputs vary, by the input's name: a list of axes, or a
            dict of axes and names. Those of the outputs follow from them. All others are fixed to
            the sample's.
        surgery_algs: Functions that change the model before weights are loaded, such as those of
            `composer.functional` that the checkpoint was trained with.
        transforms: Functions that change the model after that, such as `quantize_dynamic`.
        onnx_opset_version: The version of ONNX's operators; torch's default if None.
        load_path: A checkpoint to take the weights of.
        load_object_store: Where ``load_path`` is an object's name.
        load_strict: Whether missing and unknown weights in it are an error.
        input_names: Names for the inputs' tensors, in order, in an ONNX graph and for
            ``dynamic_axes``; ``["input"]`` by default. Further ones have the exporter's.
        output_names: Names for the outputs of an ONNX graph; ``["output"]`` by default.
        further_inputs: More like ``sample_input``, such as batches of other shapes, on which the
            saved file is compared with the model before it takes its place.

    Raises:
        ValueError: If the model is wrapped or sharded, a sample is missing, or ``dynamic_axes``
            names an unknown input.
        RuntimeError: If the exported model does not compute what the model does.
    """
    save_format = ExportFormat(save_format)
    is_spread = any(hasattr(parameter, "ds_id") for parameter in model.parameters())  # ZeRO 3
    if is_model_ddp(model) or is_model_fsdp(model) or is_spread:
        raise ValueError(
            f"A {type(model).__name__} that is wrapped for DDP, or sharded by FSDP or DeepSpeed, "
            "cannot be exported: give the model itself (trainer.export_for_inference takes DDP "
            "off), or save a full checkpoint and load it into an unsharded model by load_path."
        )
    if sample_input is None and save_format is not ExportFormat.TORCHSCRIPT:
        raise ValueError(
            f"sample_input is needed to export to {save_format.value}: give a batch, as "
            "(batch, {}), that forward can be called with."
        )
    if dist.get_global_rank() != 0:
        return
    model = _prepared(
        model, surgery_algs, transforms, load_path, load_object_store, strict=load_strict
    )
    with _saved_to(save_path, save_object_store) as path, torch.no_grad():
        if save_format is ExportFormat.TORCHSCRIPT:
            _save_torchscript(model, sample_input, path, further_inputs)
            return
        args, kwargs = _call_of(model, sample_input)
        names = list(input_names or ["input"]), list(output_names or ["output"])
        axis_names = _axis_names(model, args, kwargs, names, dynamic_axes)
        program = _to_program(model, args, kwargs, axis_names)
        if save_format is ExportFormat.TORCH_EXPORT:
            torch.export.save(program, path)
            if further_inputs:
                _require_same(model, torch.export.load(path).module(), further_inputs)
            return
        read = save_onnx(program, path, *names, axis_names, onnx_opset_version)
        if any(weight.dtype is torch.bfloat16 for weight in program.state_dict.values()):
            log.warning("onnxruntime has no bfloat16 on CPUs, so %s was not checked.", save_path)
            return

        def run(*args: Any, **kwargs: Any) -> list[torch.Tensor]:
            return run_onnx(path, [_tensors((args, kwargs))[index] for index in read])

        _require_same(model, run, [sample_input, *further_inputs])


def export_with_logger(
    model: nn.Module,
    save_format: str | ExportFormat,
    save_path: str,
    logger: _UploadsFiles,
    save_object_store: ObjectStore | None = None,
    sample_input: Any = None,
    transforms: Transform | Sequence[Transform] | None = None,
    input_names: Sequence[str] | None = None,
    output_names: Sequence[str] | None = None,
) -> None:
    """Exports a model as `export_for_inference` does, and uploads it through a logger if it can.

    Args:
        model: The model.
        save_format: ``"torch_export"``, ``"onnx"`` or ``"torchscript"``.
        save_path: Where to; its name there if the logger uploads it.
        logger: The run's logger; it uploads if one of its destinations keeps files and there is no
            ``save_object_store``.
        save_object_store: The store to save to.
        sample_input: What ``forward`` is called with.
        transforms: Functions that change the model first.
        input_names: Names for the inputs.
        output_names: Names for the outputs.
    """
    uploads = save_object_store is None and logger.has_file_upload_destination()
    with tempfile.TemporaryDirectory() if uploads else contextlib.nullcontext() as folder:
        path = save_path if folder is None else os.path.join(folder, os.path.basename(save_path))
        export_for_inference(
            model,
            save_format,
            path,
            save_object_store=save_object_store,
            sample_input=sample_input,
            transforms=transforms,
            input_names=input_names,
            output_names=output_names,
        )
        if uploads and dist.get_global_rank() == 0:
            logger.upload_file(parse_uri(save_path)[2], path, overwrite=True)


class _Int8Linear(nn.Module):
    """A linear layer that keeps its weights in eight bits, with a scale for each output."""

    scale: torch.Tensor
    weight: torch.Tensor

    def __init__(self, linear: nn.Linear) -> None:
        super().__init__()
        weight = linear.weight.detach()
        scale = weight.abs().amax(dim=1, keepdim=True).clamp(min=1e-12) / 127
        self.in_features, self.out_features = linear.in_features, linear.out_features
        self.register_buffer("scale", scale)
        self.register_buffer("weight", (weight / scale).round().to(torch.int8))
        self.bias = linear.bias

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        """Returns what the linear layer would, but for the rounding of its weights."""
        weight = self.weight.to(self.scale.dtype) * self.scale
        return nn.functional.linear(input, weight, self.bias)


def quantize_dynamic(model: nn.Module, inplace: bool = False) -> nn.Module:
    """Keeps the weights of linear layers in eight bits: a transform for exports.

    The file is nearly a quarter as large, and runs wherever the export runs: weights are expanded
    as they are used. torch.ao's function of this name is deprecated, and what it makes cannot be
    exported.

    Args:
        model: The model.
        inplace: Whether to change it instead of a copy.
    """
    model = model if inplace else copy.deepcopy(model)
    if isinstance(model, nn.Linear):
        return _Int8Linear(model)

    def in_int8(module: nn.Module, _index: int) -> nn.Module | None:
        return _Int8Linear(module) if type(module) is nn.Linear else None

    replace_module_classes(model, {nn.Linear: in_int8})
    return model


def _prepared(
    model: nn.Module,
    surgery_algs: Any,
    transforms: Any,
    load_path: str | None,
    load_object_store: ObjectStore | None,
    *,
    strict: bool,
) -> nn.Module:
    """Returns a copy of the model for inference."""
    model = copy.deepcopy(unwrap_model(model)).cpu()
    for module in list(model.modules()):  # parts may be wrapped, too, and wrappers name weights
        for name, child in module._modules.items():
            if child is not None:
                module._modules[name] = unwrap_model(child)
    for surgery in ensure_tuple(surgery_algs):
        model = _changed(surgery, model)
    if load_path is not None:
        _load_weights(model, load_path, load_object_store, strict)
    for module in model.modules():
        config: Any = getattr(module, "config", None)
        if getattr(config, "use_cache", False):
            config.use_cache = False  # a cache of keys and values is no output for a file
    model.eval()
    for transform in ensure_tuple(transforms):
        model = _changed(transform, model)
    return model.eval()


def _changed(change: Transform, model: nn.Module) -> nn.Module:
    changed = change(model)
    return model if not isinstance(changed, nn.Module) else changed  # some change it in place


def _load_weights(
    model: nn.Module, load_path: str, store: ObjectStore | None, strict: bool
) -> None:
    with tempfile.TemporaryDirectory() as folder:
        local = os.path.join(folder, os.path.basename(load_path) or "weights.pt")
        get_file(load_path, local, store, progress_bar=False)
        checkpoint = _reader("safe_torch_load")(local)
    weights = checkpoint.get("state", {}).get("model")
    if weights is None:
        raise ValueError(
            f"load_path={load_path!r} has no model in it: a checkpoint that the Trainer saved is "
            "needed, with the weights under state/model."
        )
    missing, unknown = model.load_state_dict(weights, strict=strict)
    if missing or unknown:
        log.warning(
            "Weights of %s: missing %s; unknown %s. load_strict=True makes that an error.",
            load_path,
            missing,
            unknown,
        )


def _call_of(model: nn.Module, sample: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Returns the arguments that a sample stands for, on the CPU."""
    sample = _pytree().tree_map_only(torch.Tensor, lambda tensor: tensor.detach().cpu(), sample)
    if not isinstance(sample, tuple):
        return (sample,), {}
    if sample and isinstance(sample[-1], dict):
        return sample[:-1], sample[-1]
    try:
        inspect.signature(model.forward).bind(*sample)
    except TypeError:
        return (sample,), {}  # a batch that is a tuple, such as (inputs, targets)
    return sample, {}


def _axis_names(
    model: nn.Module,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    names: tuple[list[str], list[str]],
    dynamic_axes: dict[str, Any] | None,
) -> dict[str, Any] | None:
    """Returns, for each argument of forward, names of the axes that vary, shaped like it.

    An input goes by its name in ``names``, by position, or by its key in the batch.
    """
    if not dynamic_axes:
        return None
    leaves, structure = _pytree().tree_flatten_with_path((args, kwargs))
    known: set[str] = set(names[1])
    axes_of_leaves: list[dict[int, str] | None] = []
    for index, (path, _leaf) in enumerate(leaves):
        own_names = {str(getattr(path[-1], "key", index)), *names[0][index : index + 1]}
        known |= own_names
        axes = next((dynamic_axes[name] for name in own_names if name in dynamic_axes), ())
        named = axes if isinstance(axes, dict) else {axis: f"axis_{axis}" for axis in axes}
        axes_of_leaves.append(dict(named) or None)
    unknown = set(dynamic_axes) - known
    if unknown:
        raise ValueError(
            f"dynamic_axes names {sorted(unknown)}, but the inputs and outputs are "
            f"{sorted(known)}: name them so, or give input_names in the order of the batch."
        )
    args, kwargs = _pytree().tree_unflatten(axes_of_leaves, structure)
    return dict(inspect.signature(model.forward).bind(*args, **kwargs).arguments)


def _to_program(
    model: nn.Module, args: Any, kwargs: Any, axis_names: dict[str, Any] | None
) -> torch.export.ExportedProgram:
    shapes = _pytree().tree_map_only(str, lambda _name: torch.export.Dim.DYNAMIC, axis_names)
    program = torch.export.export(model, args, kwargs, dynamic_shapes=shapes)
    _require_same(model, program.module(), [(*args, kwargs)])
    return program


def _save_torchscript(
    model: nn.Module, sample: Any, path: str, further_samples: Sequence[Any]
) -> None:
    """Scripts the model, or traces it on a sample if it cannot be scripted."""
    log.warning("save_format='torchscript' is deprecated, as torch.jit is: use 'torch_export'.")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # what there is to say is said above
        args, kwargs = ((), {}) if sample is None else _call_of(model, sample)
        exported: Any
        try:
            exported = torch.jit.script(model)
        except Exception as error:  # torch.jit raises whatever its compiler met
            if sample is None:
                raise RuntimeError(
                    "The model cannot be scripted, and without sample_input it cannot be traced: "
                    "give sample_input, or better use save_format='torch_export'."
                ) from error
            log.info("The model cannot be scripted, so it is traced: %s", error)
            named = dict(inspect.signature(model.forward).bind(*args, **kwargs).arguments)
            exported = torch.jit.trace(model, example_kwarg_inputs=named, strict=False)
        _require_same(model, exported, [*([] if sample is None else [sample]), *further_samples])
        torch.jit.save(exported, path)


def _require_same(model: nn.Module, exported: Any, samples: Sequence[Any]) -> None:
    """Raises if the exported model does not return what the model does.

    A model that draws random numbers in eval mode never does; it cannot be exported.
    """
    for sample in samples:
        args, kwargs = _call_of(model, sample)
        expected = _tensors(model(*args, **kwargs))
        found = _tensors(exported(*args, **kwargs))
        try:
            assert len(found) == len(expected), f"{len(found)} tensors, not {len(expected)}"
            for one, other in zip(found, expected, strict=True):
                atol = 1e-4 * _scale(other)
                torch.testing.assert_close(one, other, rtol=1e-3, atol=atol, equal_nan=True)
        except AssertionError as error:
            shapes = [tuple(tensor.shape) for tensor in _tensors(sample)]
            raise RuntimeError(
                "The exported model does not return what the model returns for inputs of the "
                f"shapes {shapes}, so it was not saved: {error}"
            ) from error


def _scale(tensor: torch.Tensor) -> float:
    """Returns how large a tensor's numbers are, at least 1; small ones are sums of such.

    Numbers that stand for minus infinity do not count, or anything would be close to the rest.
    """
    if not tensor.is_floating_point():
        return 1.0
    numbers = tensor[tensor.abs() < min(1e30, torch.finfo(tensor.dtype).max / 2)].double()
    return max(1.0, float(numbers.square().mean().sqrt())) if numbers.numel() else 1.0


def _pytree() -> Any:
    """Returns torch's functions on nested containers, which are private by name."""
    from torch.utils import _pytree

    return _pytree


def _tensors(tree: Any) -> list[torch.Tensor]:
    return [leaf for leaf in _pytree().tree_leaves(tree) if isinstance(leaf, torch.Tensor)]


@contextlib.contextmanager
def _saved_to(path: str, store: ObjectStore | None) -> Iterator[str]:
    """Gives the body a local path, and takes the files that it wrote there to their place."""
    if store is None and is_uri(path):
        store, path = maybe_create_object_store_from_uri(path), parse_uri(path)[2]
    if store is None:
        Path(path).parent.mkdir(parents=True, exist_ok=True)
    # Models above 2 GiB have a second file beside the ONNX graph, so it is a folder that moves.
    with tempfile.TemporaryDirectory() as folder:
        yield os.path.join(folder, os.path.basename(path))
        for name in os.listdir(folder):
            target = os.path.join(os.path.dirname(path), name)
            if store is None:
                shutil.move(os.path.join(folder, name), target)
            else:
                store.upload_object(target, os.path.join(folder, name))
