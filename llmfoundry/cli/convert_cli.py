"""``llmfoundry convert``: models in, out, and into the forms of other programs."""

from argparse import Namespace
from collections.abc import Callable
from enum import Enum
from typing import Annotated, Any

import typer

from llmfoundry import command_utils

__all__ = ["convert"]


class Form(str, Enum):
    """What a model can become."""

    HF = "hf"
    COMPOSER = "composer"
    ONNX = "onnx"
    TORCH_EXPORT = "torch-export"
    GGUF = "gguf"


def _to_hf(source: str, destination: str, given: dict[str, Any]) -> None:
    command_utils.convert_composer_to_hf_from_args(
        Namespace(
            composer_path=source,
            hf_output_path=destination,
            local_checkpoint_save_location=given.pop("keep_checkpoint", None),
            output_precision=given.pop("precision", "fp32"),
            hf_repo_for_upload=given.pop("hub_repo", None),
            test_uploaded_model=given.pop("test_uploaded_model", False),
            trust_remote_code=given.pop("trust_remote_code", False),
            **given,
        )
    )


def _to_composer(source: str, destination: str, given: dict[str, Any]) -> None:
    command_utils.write_composer_checkpoint_from_huggingface(source, destination, **given)


def _traced(export: Any, source: str, destination: str, given: dict[str, Any]) -> None:
    export(
        source,
        destination,
        given.get("batch_size", 8),
        given.get("max_seq_len"),
        given.get("verify", False),
        {"trust_remote_code": given.get("trust_remote_code", False)},
    )


def _to_onnx(source: str, destination: str, given: dict[str, Any]) -> None:
    _traced(command_utils.export_to_onnx, source, destination, given)


def _to_torch_program(source: str, destination: str, given: dict[str, Any]) -> None:
    _traced(command_utils.export_to_torch_program, source, destination, given)


def _to_gguf(source: str, destination: str, given: dict[str, Any]) -> None:
    command_utils.export_to_gguf(source, destination, **given)


_OF_CHECKPOINTS = {
    *("precision", "max_shard_size", "keep_checkpoint", "compare_logits", "merge_adapters"),
    *("base_model", "hub_repo", "test_uploaded_model", "trust_remote_code"),
}
_OF_TRACES = {"max_seq_len", "batch_size", "verify", "trust_remote_code"}
_WAYS: dict[Form, tuple[Callable[[str, str, dict[str, Any]], None], set[str]]] = {
    Form.HF: (_to_hf, _OF_CHECKPOINTS),
    Form.COMPOSER: (_to_composer, {"trust_remote_code"}),
    Form.ONNX: (_to_onnx, _OF_TRACES),
    Form.TORCH_EXPORT: (_to_torch_program, _OF_TRACES),
    Form.GGUF: (_to_gguf, {"outtype", "converter"}),
}
"""What does the work, and the options that have an effect on it."""


_REFUSALS = (OSError, RuntimeError, ValueError)
"""What says which setting, file or name is wrong; a traceback would hide it."""


def convert(
    source: Annotated[
        str,
        typer.Argument(
            help="A checkpoint of the trainer (file or folder) to make hf of it; to make anything "
            "else, a Hugging Face folder or name."
        ),
    ],
    destination: Annotated[
        str, typer.Argument(help="The new folder, or file for composer and gguf.")
    ],
    to: Annotated[Form, typer.Option(help="What it becomes.")] = Form.HF,
    from_hf: Annotated[
        bool, typer.Option("--from-hf", help="The same as --to composer: for load_path.")
    ] = False,
    precision: Annotated[
        str | None, typer.Option(help="hf: fp32 (the default), fp16 or bf16.")
    ] = None,
    max_shard_size: Annotated[
        str | None, typer.Option(help="hf: weights above it are split; 5GB by default.")
    ] = None,
    keep_checkpoint: Annotated[
        str | None, typer.Option(help="hf: where a copy of the checkpoint is kept.")
    ] = None,
    compare_logits: Annotated[
        bool | None, typer.Option(help="hf: by default if the weights are in one file.")
    ] = None,
    merge_adapters: Annotated[
        bool | None, typer.Option("--merge-adapters", help="hf: put adapters into the weights.")
    ] = None,
    base_model: Annotated[
        str | None, typer.Option(help="hf: the model that adapters were trained on.")
    ] = None,
    hub_repo: Annotated[
        str | None, typer.Option(help="hf: a hub repository to upload the folder to.")
    ] = None,
    test_uploaded_model: Annotated[
        bool | None, typer.Option("--test-uploaded-model", help="hf: fetch and compare it.")
    ] = None,
    trust_remote_code: Annotated[
        bool | None,
        typer.Option("--trust-remote-code", help="Run code that model or tokenizer bring."),
    ] = None,
    max_seq_len: Annotated[
        int | None, typer.Option(help="onnx, torch-export: tokens of the traced rows.")
    ] = None,
    batch_size: Annotated[
        int | None, typer.Option(help="onnx, torch-export: rows that are traced; 8 by default.")
    ] = None,
    verify: Annotated[
        bool | None, typer.Option("--verify", help="onnx, torch-export: try other shapes too.")
    ] = None,
    outtype: Annotated[
        str | None, typer.Option(help="gguf: f32, f16, bf16, q8_0 or auto, the default.")
    ] = None,
    converter: Annotated[
        str | None, typer.Option(help="gguf: llama.cpp's converter, if it is not on the PATH.")
    ] = None,
) -> None:
    """Make a model's checkpoint a Hugging Face folder, and the other way round; export it."""
    given = {name: value for name, value in locals().items() if value is not None}
    for name in ("source", "destination", "to", "from_hf"):
        given.pop(name)
    if from_hf and to is not Form.HF:
        raise typer.BadParameter(f"--from-hf makes a checkpoint, and --to {to.value} does not.")
    to = Form.COMPOSER if from_hf else to
    work, known = _WAYS[to]
    for name in given.keys() - known:
        option = f"--{name.replace('_', '-')}"
        raise typer.BadParameter(f"{option} has no effect on {to.value}; leave it out.")
    try:
        work(source, destination, given)
    except _REFUSALS as error:
        raise typer.BadParameter(str(error)) from error
