"""Transformers models and folders out of checkpoints."""

from pathlib import Path
from typing import Any

import torch

from composer.checkpoint.saved_weights import opened_weights
from composer.models.adapters import filter_state_dict_peft, make_peft_config
from composer.models.hf_metadata import (
    get_hf_config_from_composer_state_dict,
    load_model_from_saved_state,
    load_tokenizer_from_saved_state,
    own_config_class,
    saved_hf_state,
)

__all__ = [
    "hf_from_composer_checkpoint",
    "write_huggingface_pretrained_from_composer_checkpoint",
]

_PREFIX = "model."


def hf_from_composer_checkpoint(
    checkpoint_path: str,
    model_instantiation_class: type | str | None = None,
    model_config_kwargs: dict[str, Any] | None = None,
    local_checkpoint_save_location: str | Path | None = None,
    trust_remote_code: bool = False,
) -> tuple[Any, Any | None]:
    """Returns model (**with fresh weights**) and tokenizer of a checkpoint.

    See ``HuggingFaceModel.hf_from_composer_checkpoint``, by which this is called.
    """
    with opened_weights(checkpoint_path, local_checkpoint_save_location) as saved:
        state_dict = saved.content
    hf_state = saved_hf_state(state_dict)
    tokenizer = load_tokenizer_from_saved_state(hf_state, trust_remote_code)
    model = load_model_from_saved_state(
        hf_state, state_dict, model_instantiation_class, model_config_kwargs
    )
    return model, tokenizer


def write_huggingface_pretrained_from_composer_checkpoint(
    checkpoint_path: str,
    output_folder: str | Path,
    local_checkpoint_save_location: str | Path | None = None,
) -> None:
    """Writes a folder that ``from_pretrained`` reads: configuration, tokenizer and weights.

    Of a model with adapters it holds the adapter alone, in the form of the peft package.

    Args:
        checkpoint_path: A checkpoint of a ``HuggingFaceModel``: a file, a folder, or its address.
        output_folder: The folder, which is made if it does not exist.
        local_checkpoint_save_location: Where a remote checkpoint is kept, by default nowhere.

    Raises:
        ValueError: If the checkpoint has no tokenizer, or transformers would take the model for
            another one.
    """
    with opened_weights(checkpoint_path, local_checkpoint_save_location) as saved:
        hf_state = saved_hf_state(saved.content)
        if not hf_state["tokenizer"]:
            raise ValueError(
                f"{checkpoint_path} holds no tokenizer, so the folder would not be complete; save "
                "it from a HuggingFaceModel that has one."
            )
        keys = {key.removeprefix(_PREFIX): key for key in saved.kinds}
        peft_config = make_peft_config(hf_state)
        if peft_config is None:
            config = get_hf_config_from_composer_state_dict(saved.content)
            name = "pytorch_model.bin"
            _check_that_transformers_knows(hf_state, config)
        else:
            config, name = peft_config, "adapter_model.bin"
            keys = filter_state_dict_peft(keys, peft_config)
        folder = Path(output_folder)
        folder.mkdir(parents=True, exist_ok=True)
        load_tokenizer_from_saved_state(hf_state, tokenizer_save_dir=folder)
        config.save_pretrained(folder)
        torch.save({own: saved.read(key) for own, key in keys.items()}, folder / name)


def _check_that_transformers_knows(hf_state: dict[str, Any], config: Any) -> None:
    """Refuses a model whose ``model_type`` makes transformers load another model than it is."""
    from transformers import CONFIG_MAPPING

    own_class = own_config_class(hf_state)
    if own_class is None or config.model_type not in CONFIG_MAPPING:
        return
    if CONFIG_MAPPING[config.model_type] is not own_class:
        raise ValueError(
            f"{hf_state['model']['config']['class']} is not the model that transformers knows by "
            f"model_type={config.model_type!r}, so from_pretrained would misread the folder. Use "
            "the converter of the package that the class comes from, which adds what it needs."
        )
