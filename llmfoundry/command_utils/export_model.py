"""Language models as programs that run without their modelling code: torch.export here, and ONNX.

Both forms are traced once, with a batch and a length that may vary, and are called alike:
``(input_ids, attention_mask) -> logits``.
"""

from typing import Any

import torch

from composer.utils.inference import ExportFormat, export_for_inference
from llmfoundry.models.layers.moe_settings import MIXTURES
from llmfoundry.utils.stores import fetched_folder

__all__ = ["export_language_model", "export_to_torch_program"]


class _Logits(torch.nn.Module):
    """Takes and returns tensors only, so that what is exported asks for no class of transformers.

    Args:
        model: The language model.
    """

    def __init__(self, model: Any) -> None:
        super().__init__()
        self.model = model

    def forward(self, input_ids: torch.Tensor, attention_mask: torch.Tensor) -> torch.Tensor:
        """Returns the logits of all positions."""
        return self.model(
            input_ids=input_ids, attention_mask=attention_mask, use_cache=False
        ).logits


def export_to_torch_program(
    pretrained_model_name_or_path: str,
    output_folder: str,
    export_batch_size: int = 8,
    max_seq_len: int | None = None,
    verify_export: bool = False,
    from_pretrained_kwargs: dict[str, Any] | None = None,
) -> None:
    """Writes ``model.pt2``: ``torch.export.load(path).module()(input_ids, attention_mask)``.

    Loading it needs torch alone. See `export_language_model` for the arguments.
    """
    export_language_model(
        ExportFormat.TORCH_EXPORT,
        f"{output_folder.rstrip('/')}/model.pt2",
        pretrained_model_name_or_path,
        export_batch_size,
        max_seq_len,
        verify_export,
        from_pretrained_kwargs,
    )


def export_language_model(
    save_format: ExportFormat,
    save_path: str,
    pretrained_model_name_or_path: str,
    export_batch_size: int,
    max_seq_len: int | None,
    verify_export: bool,
    from_pretrained_kwargs: dict[str, Any] | None,
) -> None:
    """Traces a causal language model and writes it, if it gives the model's logits.

    Args:
        save_format: torch.export or ONNX.
        save_path: The file, here or in an object store; there it appears when all is done.
        pretrained_model_name_or_path: A folder, here or in an object store, or a name on the hub.
        export_batch_size: Rows of the batch that is traced; what is exported takes any number.
        max_seq_len: Tokens of its rows, by default as many as an MPT can read; what is exported
            takes any number up to the model's own limit.
        verify_export: Whether what was saved is also held against the model at other shapes than
            the traced one, before it takes its place.
        from_pretrained_kwargs: Arguments of ``from_pretrained``, such as ``revision``. Weights are
            fp32 unless ``dtype`` is among them.

    Raises:
        RuntimeError: What is exported does not give the model's logits.
        ValueError: There is no ``max_seq_len``, or it is more than the model can read, or the
            model is a mixture of experts.
    """
    kwargs = {"dtype": torch.float32, **(from_pretrained_kwargs or {})}
    with fetched_folder(pretrained_model_name_or_path) as source:
        model, length = _loaded(source, max_seq_len, export_batch_size, kwargs)
    # A size of one would be traced as a constant.
    rows, vocab_size = max(2, export_batch_size), model.config.get_text_config().vocab_size
    others = [(1, length - 1), (rows + 1, length // 2 + 1)] if verify_export else []
    axes = {0: "batch", 1: "sequence"}
    export_for_inference(
        _Logits(model.eval()),
        save_format,
        save_path,
        sample_input=_sample(rows, length, vocab_size),
        dynamic_axes={"input_ids": axes, "attention_mask": axes},
        input_names=["input_ids", "attention_mask"],
        further_inputs=[_sample(*shape, vocab_size) for shape in others],
    )


def _loaded(
    source: str, max_seq_len: int | None, export_batch_size: int, kwargs: dict[str, Any]
) -> tuple[Any, int]:
    """Returns the model, and the length to trace it with."""
    from transformers import AutoConfig, AutoModelForCausalLM

    hub = {key: value for key, value in kwargs.items() if key != "dtype"}
    config = AutoConfig.from_pretrained(source, **hub)
    length = _checked_length(config, max_seq_len, export_batch_size)
    if isinstance(getattr(config, "attn_config", None), dict):  # an MPT of ours
        ffn_type = config.ffn_config["ffn_type"]
        if ffn_type in MIXTURES:
            raise ValueError(
                f"An MPT with ffn_type: {ffn_type} cannot be exported: which expert computes a "
                "token follows from the token, and a traced program always takes the same way."
            )
        config.attn_config["attn_impl"] = "torch"
        config.init_device = "cpu"
    return AutoModelForCausalLM.from_pretrained(source, config=config, **kwargs), length


def _checked_length(config: Any, max_seq_len: int | None, export_batch_size: int) -> int:
    limit = getattr(config, "max_seq_len", None)
    length = limit if max_seq_len is None else max_seq_len
    limit = limit or getattr(config, "max_position_embeddings", None)
    if length is None:
        raise ValueError(
            f"max_seq_len is needed to export a model of type {config.model_type}: give the number "
            f"of tokens to trace it with, from 3 up to {limit or 'what it can read'}."
        )
    if export_batch_size < 1:
        raise ValueError(f"export_batch_size={export_batch_size} must be at least 1.")
    if length < 3 or (limit is not None and length > limit):
        raise ValueError(
            f"max_seq_len={length} must be at least 3 and at most {limit}, which is what the model "
            "can read."
        )
    return length


def _sample(rows: int, length: int, vocab_size: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Returns a call with arbitrary tokens, some of which are hidden in the first row.

    Not the first ones, as by padding on the left: kernels differ in what a query gets that may see
    nothing, and rounding shows where it sees little. Nor the last, whose mask an MPT drops.
    """
    tokens = torch.randint(vocab_size, (rows, length), generator=torch.Generator().manual_seed(0))
    mask = torch.ones(rows, length, dtype=torch.bool)
    mask[0, length // 2 : -1 : 2] = False
    return tokens, mask
