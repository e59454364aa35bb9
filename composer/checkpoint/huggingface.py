"""Transformers models and folders out of one-file checkpoints."""

import tempfile
from pathlib import Path
from typing import Any

import torch

from composer.checkpoint.monolithic import opened_plain, safe_torch_load
from composer.models.adapters import filter_state_dict_peft, make_peft_config
from composer.models.hf_metadata import (
    get_hf_config_from_composer_state_dict,
    load_model_from_saved_state,
    load_tokenizer_from_saved_state,
    own_config_class,
    saved_hf_state,
)
from composer.utils.file_helpers import get_file

__all__ = [
    "hf_from_composer_checkpoint",
    "write_huggingface_pretrained_from_composer_checkpoint",
]

_PREFIX = "model."


def _read(checkpoint_path: str, local_checkpoint_save_location: str | Path | None) -> Any:
    """Reads a checkpoint wherever it is, keeping a copy if a place for it is given."""
    if Path(checkpoint_path).is_dir():
        raise ValueError(
            f"{checkpoint_path} is a folder, a sharded checkpoint; a transformers model comes out "
            "of a one-file checkpoint (state_dict_type 'full')."
        )
    with tempfile.TemporaryDirectory() as scratch:
        # The name's ending tells how the file is packed.
        local = local_checkpoint_save_location or Path(scratch) / Path(checkpoint_path).name
        if Path(local).resolve() != Path(checkpoint_path).resolve():
            get_file(str(checkpoint_path), str(local), overwrite=True)
        with opened_plain(str(local)) as plain:
            return safe_torch_load(plain)


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
    state_dict = _read(checkpoint_path, local_checkpoint_save_location)
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
        checkpoint_path: Path or address of a one-file checkpoint of a ``HuggingFaceModel``.
        output_folder: The folder, which is made if it does not exist.
        local_checkpoint_save_location: Where a remote checkpoint is kept, by default nowhere.

    Raises:
        ValueError: If the checkpoint has no tokenizer, or transformers would take the model for
            another one.
    """
    state_dict = _read(checkpoint_path, local_checkpoint_save_location)
    hf_state = saved_hf_state(state_dict)
    if not hf_state["tokenizer"]:
        raise ValueError(
            f"{checkpoint_path} holds no tokenizer, so the folder would not be complete; save it "
            "from a HuggingFaceModel that has one."
        )
    weights = {
        key.removeprefix(_PREFIX): value for key, value in state_dict["state"]["model"].items()
    }
    peft_config = make_peft_config(hf_state)
    if peft_config is None:
        config, name = get_hf_config_from_composer_state_dict(state_dict), "pytorch_model.bin"
        _check_that_transformers_knows(hf_state, config)
    else:
        config, name = peft_config, "adapter_model.bin"
        weights = filter_state_dict_peft(weights, peft_config)
    folder = Path(output_folder)
    folder.mkdir(parents=True, exist_ok=True)
    load_tokenizer_from_saved_state(hf_state, tokenizer_save_dir=folder)
    config.save_pretrained(folder)
    torch.save(weights, folder / name)


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
