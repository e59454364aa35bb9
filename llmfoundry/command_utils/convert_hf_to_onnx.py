"""Turns a language model in the Hugging Face format into an ONNX graph."""

from typing import Any

from composer.utils.inference import ExportFormat
from llmfoundry.command_utils.export_model import export_language_model

__all__ = ["export_to_onnx"]


def export_to_onnx(
    pretrained_model_name_or_path: str,
    output_folder: str,
    export_batch_size: int = 8,
    max_seq_len: int | None = None,
    verify_export: bool = False,
    from_pretrained_kwargs: dict[str, Any] | None = None,
) -> None:
    """Writes ``model.onnx``, with ``input_ids`` (int64), ``attention_mask`` (bool) and ``output``.

    Above 2 GB the weights are in a second file beside it. See `export_language_model` for the
    arguments.
    """
    export_language_model(
        ExportFormat.ONNX,
        f"{output_folder.rstrip('/')}/model.onnx",
        pretrained_model_name_or_path,
        export_batch_size,
        max_seq_len,
        verify_export,
        from_pretrained_kwargs,
    )
