"""A checkpoint's adapters as a folder of their own, or in the model that they were trained on."""

import copy
from pathlib import Path
from typing import Any

import torch
import transformers
from safetensors.torch import load_file

from composer.checkpoint.saved_weights import SavedWeights
from composer.models.adapters import (
    add_adapters,
    filter_state_dict_peft,
    make_peft_config,
    sum_of_base,
)
from llmfoundry.command_utils.convert_hf_to_composer import load_folder, local_folder
from llmfoundry.models.hf.adapters import (
    merge_adapters,
    restore_adapters,
    with_trained_adapters,
    write_adapter_folder,
)
from llmfoundry.models.hf.hf_export import DTYPES
from llmfoundry.models.hf.load_whole import load_whole

__all__ = ["logits_of", "merged_folder", "merged_model", "tokens_for", "write_adapters"]

_GIVE_IT = "Give its folder or hub name as base_model."


def write_adapters(
    model: Any,
    hf_state: dict[str, Any],
    saved: SavedWeights,
    folder: Path,
    dtype: torch.dtype,
    base_model: str | None,
) -> Any:
    """Writes the folder of adapters that peft loads, and returns their settings.

    Args:
        model: The base model, without memory for its weights.
        hf_state: What the checkpoint keeps of the model.
        saved: The checkpoint.
        folder: An existing folder.
        dtype: What weights are stored in.
        base_model: The base's folder or hub name to record; by default what the checkpoint says.

    Raises:
        RuntimeError: The checkpoint's weights are not those of its adapters.
    """
    config = make_peft_config(hf_state)
    adapted = add_adapters(model, config).state_dict()
    keys = {key.removeprefix("model."): key for key in saved.kinds}
    own = filter_state_dict_peft(adapted, config, remove_adapter_names=False)
    missing, unexpected = sorted(own.keys() - keys.keys()), sorted(keys.keys() - adapted.keys())
    shapes = [
        name for name in own if name in keys and saved.kinds[keys[name]][0] != own[name].shape
    ]
    if missing or unexpected or shapes:
        raise RuntimeError(
            f"The checkpoint's weights do not fit the adapters that it describes. Missing: "
            f"{missing or 'none'}. Not part of them: {unexpected or 'none'}. Of another shape: "
            f"{shapes or 'none'}. Nothing was written."
        )
    weights = {name: saved.read(keys[name]).to(dtype) for name in own}
    write_adapter_folder(folder, config, weights, base_model)
    found = load_file(folder / "adapter_model.safetensors")
    expected = filter_state_dict_peft(weights, config)
    if found.keys() != expected.keys() or any(
        not torch.equal(found[name], weight) for name, weight in expected.items()
    ):
        raise RuntimeError("The folder does not hold the adapters. Nothing was written.")
    return config


def merged_model(
    model: Any,
    hf_state: dict[str, Any],
    saved: SavedWeights,
    dtype: torch.dtype,
    base_model: str | None,
) -> Any:
    """Returns the model, in fp32, with a checkpoint's adapters in its weights.

    Args:
        model: The base model, without memory for its weights.
        hf_state: What the checkpoint keeps of the model.
        saved: The checkpoint; if it has the base's weights too, they are used.
        dtype: What weights will be stored in, and are rounded to.
        base_model: The base's folder or hub name; by default what the checkpoint says.

    Raises:
        ValueError: There is no base, or the adapters are of another one.
        RuntimeError: The base's files are of another model, or merging changes what it computes.
    """
    config = make_peft_config(hf_state)
    assert config is not None
    weights = {key.removeprefix("model."): _in_fp32(saved.read(key)) for key in saved.kinds}
    has_base = len(filter_state_dict_peft(weights, config)) < len(weights)
    if has_base and base_model is not None:
        raise ValueError("The checkpoint has its base's weights: leave base_model out.")
    if has_base:
        return _merged(restore_adapters(model, config, weights), dtype)
    name = base_model or config.base_model_name_or_path
    if not name:
        raise ValueError(
            f"The checkpoint holds adapters alone, and does not say of which model. {_GIVE_IT}"
        )
    folder = local_folder(name, _revision_of(config, name))

    def on_base(dtype: torch.dtype) -> Any:
        settings = copy.deepcopy(model.config)
        content, _ = transformers.PretrainedConfig.get_config_dict(folder)
        # Adapters with rows for new tokens enlarge the base, which is loaded as it was.
        text, own = settings.get_text_config(), content.get("text_config", content)
        text.vocab_size = own.get("vocab_size", text.vocab_size)  # which may be the class's default
        base = load_whole(type(model), folder, config=settings, dtype=dtype)
        return restore_adapters(base, config, weights)

    expected = saved.content["state"]["integrations"].get("sum_of_base")
    # The sum is over bits, so it depends on the type that the base had in training.
    for kind in DTYPES.values():
        adapted = on_base(kind)
        if expected in (None, sum_of_base(adapted)):
            return _merged(adapted if kind is torch.float32 else on_base(torch.float32), dtype)
    raise ValueError(
        f"The adapters were trained on another base than {name}: the bits of its weights sum to "
        "another number, be they fp32, bf16 or fp16. Give the folder or hub name of theirs as "
        "base_model. Nothing was written."
    )


def _revision_of(config: Any, name: str) -> str | None:
    """Returns the revision of a base that settings of adapters name, if it is theirs."""
    return config.revision if name == config.base_model_name_or_path else None


def _in_fp32(weight: torch.Tensor) -> torch.Tensor:
    return weight.float() if weight.is_floating_point() else weight


def merged_folder(
    adapters: str, dtype: torch.dtype, base_model: str | None, trust_remote_code: bool
) -> tuple[Any, Path]:
    """Returns the model, in fp32, with a folder's adapters in its weights, and the base's folder.

    Args:
        adapters: A folder of adapters, as peft writes it.
        dtype: What weights will be stored in, and are rounded to.
        base_model: The base's folder or hub name; by default what the adapters' settings say.
        trust_remote_code: Whether code that comes with the base may run.

    Raises:
        ValueError: There is no base, or the adapters are of another one.
        RuntimeError: The base's files are of another model, or merging changes what it computes.
    """
    import peft

    config = peft.PeftConfig.from_pretrained(adapters)
    name = base_model or config.base_model_name_or_path
    if not name:
        raise ValueError(f"{adapters} does not say of which model it is. {_GIVE_IT}")
    base = local_folder(name, _revision_of(config, name))
    model = load_folder(base, torch.float32, trust_remote_code)
    return _merged(with_trained_adapters(model, adapters), dtype), base


@torch.no_grad()
def logits_of(model: Any, tokens: torch.Tensor) -> torch.Tensor:
    """Returns what a model of transformers or peft computes, be it a decoder alone or not."""
    decoder = {"decoder_input_ids": tokens} if model.config.is_encoder_decoder else {}
    outputs = model.eval()(input_ids=tokens, **decoder)
    return (outputs.logits if "logits" in outputs else outputs[0]).float()


def tokens_for(model: Any) -> torch.Tensor:
    """Returns tokens on which two models can be compared."""
    config = model.config.get_text_config()
    length = min(64, getattr(config, "max_position_embeddings", None) or 64)
    generator = torch.Generator().manual_seed(0)
    return torch.randint(config.vocab_size, (2, length), generator=generator)


def _merged(adapted: Any, dtype: torch.dtype) -> Any:
    tokens = tokens_for(adapted)
    expected = logits_of(adapted, tokens)
    merged = merge_adapters(adapted)
    found = logits_of(merged, tokens)
    difference, scale = (found - expected).abs().max().item(), expected.abs().max().item()
    if not difference <= 1e-4 * max(1.0, scale):
        raise RuntimeError(
            f"The merged model's logits differ from the adapted one's by {difference:.2e}. Nothing "
            "was written."
        )
    for parameter in merged.parameters():
        parameter.data = parameter.data.to(dtype).float()
    return merged
