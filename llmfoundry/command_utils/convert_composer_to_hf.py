"""Turns a checkpoint of the trainer into a folder that transformers loads.

A folder is written aside, loaded again as a user will, and compared with the checkpoint's model;
only then does it take its place.
"""

import contextlib
import copy
import logging
import shutil
import tempfile
from argparse import Namespace
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from composer.checkpoint.monolithic import opened_plain, safe_torch_load
from composer.models.hf_metadata import load_tokenizer_from_saved_state, saved_hf_state
from composer.utils.file_helpers import is_uri
from llmfoundry.models.hf.hf_export import DTYPES, MAX_SHARD_SIZE, write_hf_folder
from llmfoundry.models.mpt.causal_lm import MPTForCausalLM
from llmfoundry.models.mpt.config import MPTConfig
from llmfoundry.utils.stores import is_empty_in_store, local_file, uploaded_folder

__all__ = [
    "DTYPES",
    "convert_composer_to_hf",
    "write_huggingface_pretrained_from_composer_checkpoint",
]

log = logging.getLogger(__name__)


@dataclass
class Restored:
    """A checkpoint's model and tokenizer.

    Args:
        model: The model with the checkpoint's weights, in fp32.
        tokenizer: Its tokenizer, if the checkpoint has one.
    """

    model: Any
    tokenizer: Any


@contextlib.contextmanager
def _folder_for(output_path: str | Path) -> Iterator[Path]:
    """Gives the body the path of a folder that it makes; one for a store is uploaded after it.

    Raises:
        FileExistsError: There is such a folder.
    """
    address = str(output_path)
    is_free = is_empty_in_store(address) if is_uri(address) else not Path(address).exists()
    if not is_free:
        raise FileExistsError(f"{output_path} exists. Give a folder that does not.")
    if not is_uri(address):
        yield Path(address)
        return
    # Without its configuration nobody takes a part of a folder for a model.
    with uploaded_folder(address, last=["config.json"]) as folder:
        yield folder
    print(f"Uploaded it to {address}.")


def _read(checkpoint_path: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """Returns a checkpoint's weights, and what it keeps of the Hugging Face model."""
    if Path(checkpoint_path).is_dir():
        raise ValueError(
            f"{checkpoint_path} is a folder, and this command reads one file. Make it of a folder "
            f"of shards with: python -m composer.checkpoint.convert {checkpoint_path} FILE.pt"
        )
    with opened_plain(str(checkpoint_path)) as plain:
        content = safe_torch_load(plain)
    if "state" not in content:
        raise RuntimeError(
            f"{checkpoint_path} has no entry 'state', so it is no checkpoint of the trainer. It "
            f"has {sorted(content)}."
        )
    try:
        return content["state"]["model"], saved_hf_state(content)
    except ValueError as error:
        raise RuntimeError(str(error)) from error


def _build_model(described: dict[str, Any], trust_remote_code: bool) -> Any:
    """Builds the model that a checkpoint describes, with fresh weights."""
    from transformers import AutoConfig, AutoModelForCausalLM

    about_the_file = ("architectures", "auto_map", "dtype", "torch_dtype", "transformers_version")
    content = {
        key: copy.deepcopy(value)
        for key, value in described["content"].items()
        if key not in about_the_file and not key.startswith("_")
    }
    model_type = content.pop("model_type")
    if model_type == "mpt":
        config = MPTConfig(**content)
        config.attn_config["attn_impl"] = "torch"
        config.init_device = "meta"  # the checkpoint's tensors take the place of all parameters
        model = MPTForCausalLM(config)
        config.init_device = "cpu"
        return model
    config = AutoConfig.for_model(model_type, **content)
    return AutoModelForCausalLM.from_config(config, trust_remote_code=trust_remote_code)


def _load_weights(model: Any, weights: dict[str, torch.Tensor], checkpoint_path: str) -> None:
    """Gives the model the checkpoint's weights, all of them and no others."""
    prefix = "model."
    foreign = [key for key in weights if not key.startswith(prefix)]
    own = {key.removeprefix(prefix): value.float() for key, value in weights.items()}
    wanted = set(model.state_dict())
    missing, unexpected = sorted(wanted - own.keys()), sorted(own.keys() - wanted)
    if missing or unexpected or foreign:
        raise RuntimeError(
            f"The weights of {checkpoint_path} do not fit the model that it describes. Missing: "
            f"{missing or 'none'}. Not part of the model: {unexpected + foreign or 'none'}. "
            "Nothing was written."
        )
    model.load_state_dict(own, strict=True, assign=True)
    model.tie_weights()
    model.eval()


def _restore(checkpoint_path: str, trust_remote_code: bool) -> Restored:
    weights, hf_state = _read(checkpoint_path)
    if "peft_config" in hf_state["model"]:
        raise NotImplementedError(
            f"{checkpoint_path} holds adapters, which this command does not convert yet."
        )
    model = _build_model(hf_state["model"]["config"], trust_remote_code)
    _load_weights(model, weights, checkpoint_path)
    with tempfile.TemporaryDirectory() as folder:
        tokenizer = load_tokenizer_from_saved_state(hf_state, trust_remote_code, folder)
    if tokenizer is None:
        log.warning("%s holds no tokenizer, so the folder will have none.", checkpoint_path)
    return Restored(model, tokenizer)


@torch.no_grad()
def _logits(model: Any, tokens: torch.Tensor) -> torch.Tensor:
    return model(input_ids=tokens).logits.float()


def _probe(model: Any) -> torch.Tensor:
    """Returns tokens on which two models can be compared."""
    config = model.config.get_text_config()
    length = min(64, getattr(config, "max_position_embeddings", None) or 64)
    generator = torch.Generator().manual_seed(0)
    return torch.randint(config.vocab_size, (2, length), generator=generator)


def _compare(folder: Path, tokens: torch.Tensor, expected: torch.Tensor, needs_code: bool) -> float:
    """Loads the folder as a user will, and returns how far its logits are from the checkpoint's.

    Raises:
        RuntimeError: Further than rounding explains.
    """
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(
        folder, trust_remote_code=needs_code, dtype=torch.float32
    )
    difference = (_logits(model.eval(), tokens) - expected).abs().max().item()
    allowed = 1e-5 * max(1.0, expected.abs().max().item())
    if not difference <= allowed:
        raise RuntimeError(
            f"The converted model's logits differ from the checkpoint's by {difference:.2e}, more "
            f"than {allowed:.2e}. Nothing was written."
        )
    return difference


def write_huggingface_pretrained_from_composer_checkpoint(
    checkpoint_path: str,
    output_path: str | Path,
    trust_remote_code: bool = False,
    output_precision: str = "fp32",
    local_checkpoint_save_location: str | None = None,
    max_shard_size: str = MAX_SHARD_SIZE,
) -> tuple[Any, Any | None]:
    """Writes a folder that ``from_pretrained`` loads, and returns its configuration and tokenizer.

    Args:
        checkpoint_path: A one-file checkpoint of the trainer, here or in an object store.
        output_path: The folder, here or in a store, which must not exist.
        trust_remote_code: Whether code that the checkpoint's tokenizer carries may run.
        output_precision: fp32, fp16 or bf16.
        local_checkpoint_save_location: Where a copy of the checkpoint is kept, by default nowhere.
        max_shard_size: The size above which weights are split into several files.

    Raises:
        FileExistsError: The folder exists.
        RuntimeError: The checkpoint's weights do not fit its model, or the folder does not give the
            checkpoint's logits.
        ValueError: An unknown precision.
    """
    if output_precision not in DTYPES:
        raise ValueError(f"output_precision is one of {sorted(DTYPES)}, not {output_precision!r}.")
    dtype = DTYPES[output_precision]
    with _folder_for(output_path) as final:
        with local_file(str(checkpoint_path)) as path:
            if local_checkpoint_save_location is not None:
                shutil.copyfile(path, local_checkpoint_save_location)
            restored = _restore(path, trust_remote_code)
        tokens = _probe(restored.model)
        # In fp32 from here on, but with weights as the folder will hold them: what is left to
        # compare is the conversion.
        expected = _logits(restored.model.to(dtype).float(), tokens)
        final.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=final.parent, prefix=".convert-") as scratch:
            folder = Path(scratch) / final.name
            folder.mkdir()
            needs_code = write_hf_folder(
                restored.model, restored.tokenizer, folder, dtype, max_shard_size
            )
            difference = _compare(folder, tokens, expected, needs_code)
            folder.rename(final)
    print(f"Wrote {output_path} in {output_precision}; its logits equal the checkpoint's "
          f"(largest difference {difference:.1e}).")  # fmt: skip
    if needs_code:
        print("It holds its modelling code: load it with trust_remote_code=True.")
    return restored.model.config, restored.tokenizer


def _upload(folder: Path, repo: str) -> None:
    from huggingface_hub import HfApi

    api = HfApi()
    api.create_repo(repo, private=True, exist_ok=True)
    api.upload_folder(folder_path=str(folder), repo_id=repo)
    print(f"Uploaded {folder} to https://huggingface.co/{repo}.")


def _test_upload(folder: Path, repo: str) -> None:
    """Loads what the hub has, and compares it with the folder."""
    from transformers import AutoModelForCausalLM

    needs_code = (folder / "modeling_mpt.py").exists()
    ours = AutoModelForCausalLM.from_pretrained(folder, trust_remote_code=needs_code)
    tokens = _probe(ours)
    theirs = AutoModelForCausalLM.from_pretrained(repo, trust_remote_code=needs_code)
    if not torch.equal(_logits(ours.eval(), tokens), _logits(theirs.eval(), tokens)):
        raise RuntimeError(f"The model at {repo} does not give the logits of {folder}.")
    print(f"The model at {repo} gives the logits of {folder}.")


def convert_composer_to_hf(args: Namespace) -> None:
    """Runs the command: writes the folder, and uploads it if a repository is named.

    Args:
        args: The flags of ``scripts/inference/convert_composer_to_hf.py``.
    """
    with _folder_for(args.hf_output_path) as folder:
        write_huggingface_pretrained_from_composer_checkpoint(
            checkpoint_path=args.composer_path,
            output_path=folder,
            trust_remote_code=args.trust_remote_code,
            output_precision=args.output_precision,
            local_checkpoint_save_location=args.local_checkpoint_save_location,
            max_shard_size=getattr(args, "max_shard_size", MAX_SHARD_SIZE),
        )
        if args.hf_repo_for_upload is not None:
            _upload(folder, args.hf_repo_for_upload)
            if args.test_uploaded_model:
                _test_upload(folder, args.hf_repo_for_upload)
