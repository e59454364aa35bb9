"""Turns a folder or a name of the Hugging Face hub into a checkpoint that the trainer loads."""

import contextlib
import json
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch

from composer.checkpoint.monolithic import write_checkpoint_file
from composer.checkpoint.saved_weights import opened_weights
from composer.checkpoint.state_dict import get_metadata_state_dict
from composer.core.timestamp import Timestamp
from composer.models.hf_metadata import (
    describe_files,
    describe_model,
    describe_tokenizer,
    load_tokenizer_from_saved_state,
)
from composer.utils.file_helpers import is_uri, maybe_create_object_store_from_uri, parse_uri
from llmfoundry.models.hf.load_whole import load_whole
from llmfoundry.models.mpt.causal_lm import MPTForCausalLM
from llmfoundry.models.mpt.config import MPTConfig
from llmfoundry.models.mpt.transformers_mpt import from_transformers_config
from llmfoundry.utils.model_download_utils import wanted_files
from llmfoundry.utils.stores import fetched_folder

__all__ = [
    "describe_tokenizer_of",
    "load_folder",
    "local_folder",
    "write_composer_checkpoint_from_huggingface",
]

_TOKENIZER_FILES = (
    *("added_tokens.json", "chat_template.jinja", "merges.txt", "sentencepiece.bpe.model"),
    *("special_tokens_map.json", "spiece.model", "tokenizer.json", "tokenizer.model"),
    *("tokenizer_config.json", "vocab.json", "vocab.txt"),
)
_OTHER_FORMS = ["*/*.bin", "*/*.safetensors", "*.gguf", "*.onnx*", "*.ot", "*.pth", "consolidated*"]
"""What repositories hold beside the files that transformers reads."""


@contextlib.contextmanager
def _file_for(output_path: str) -> Iterator[str]:
    """Gives the body the path of a file that it writes; one for a store is uploaded after it.

    Raises:
        FileExistsError: There is such a file.
    """
    if not is_uri(output_path):
        if Path(output_path).exists():
            raise FileExistsError(f"{output_path} exists. Give a file that does not.")
        yield output_path
        return
    store, name = maybe_create_object_store_from_uri(output_path), parse_uri(output_path)[2]
    assert store is not None
    with store, tempfile.TemporaryDirectory() as scratch:
        with contextlib.suppress(FileNotFoundError):
            store.get_object_size(name)
            raise FileExistsError(f"{output_path} exists. Give a file that does not.")
        local = str(Path(scratch, Path(name).name))
        yield local
        store.upload_object(name, local)


def local_folder(hf_path: str, revision: str | None = None) -> Path:
    """Returns where a model is on this machine, after fetching it if it is not.

    Args:
        hf_path: A folder, or a name on the hub. Without a connection it is what the cache has.
        revision: A branch, tag or commit of the hub's repository, by default its main branch.

    Raises:
        ValueError: The repository has no weights that PyTorch loads.
    """
    if os.path.isdir(hf_path):
        return Path(hf_path)
    from huggingface_hub import HfApi, snapshot_download
    from huggingface_hub.errors import HfHubHTTPError

    transport_error: Any = HfHubHTTPError.__bases__[0]  # of httpx or of httpx2
    try:
        siblings = HfApi().model_info(hf_path, revision=revision).siblings or []
    except HfHubHTTPError:  # the hub's own answer
        raise
    except (ConnectionError, transport_error):  # also HF_HUB_OFFLINE
        # Only loading tells whether all weights are there: in one form they are enough.
        patterns: dict[str, Any] = {"allow_patterns": ["config.json", "*.py", *_TOKENIZER_FILES]}
        return Path(
            snapshot_download(hf_path, revision=revision, local_files_only=True, **patterns)
        )
    patterns = wanted_files(hf_path, [each.rfilename for each in siblings])
    patterns["ignore_patterns"] += _OTHER_FORMS
    return Path(snapshot_download(hf_path, revision=revision, **patterns))


def _dtype_of(folder: Path) -> torch.dtype:
    """Returns the type in which every floating-point weight of a folder can be kept as it is.

    Raises:
        FileNotFoundError: There are no weights.
    """
    from safetensors import safe_open

    found: set[torch.dtype] = set()
    paths = sorted(folder.glob("model*.safetensors"))
    for path in paths:
        with safe_open(path, framework="pt") as file:
            kinds = {file.get_slice(name).get_dtype() for name in file.keys()}
        found |= {_FLOATS[kind] for kind in kinds & _FLOATS.keys()}
    for path in [] if paths else sorted(folder.glob("pytorch_model*.bin")):
        weights = torch.load(path, map_location="meta", weights_only=True)
        found |= {weight.dtype for weight in weights.values() if weight.is_floating_point()}
    if not found:
        raise FileNotFoundError(
            f"{folder} has no weights: neither model*.safetensors nor pytorch_model*.bin."
        )
    dtype = found.pop()
    for other in found:
        dtype = torch.promote_types(dtype, other)
    return dtype


_FLOATS = {
    "F64": torch.float64,
    "F32": torch.float32,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
}


def _class_and_config(folder: Path, trust_remote_code: bool) -> tuple[Any, Any]:
    """Returns what of ours or of transformers loads a folder, as a recipe would."""
    import transformers

    content = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    architecture = (content.get("architectures") or [""])[0]
    if content.get("model_type") == "mpt":
        # transformers' own class is another than that of the hub's folders, which bring theirs.
        if architecture == "MptForCausalLM" and "auto_map" not in content:
            return MPTForCausalLM, from_transformers_config(content)
        config = MPTConfig.from_pretrained(folder)
        config.attn_config["attn_impl"] = "torch"
        config.init_device = "cpu"
        config.auto_map = None
        return MPTForCausalLM, config
    config = transformers.AutoConfig.from_pretrained(folder, trust_remote_code=trust_remote_code)
    text_config = getattr(config, "text_config", None)
    if text_config is not None:  # of what sees or hears too, recipes train the language model
        return transformers.AutoModelForCausalLM, text_config
    return getattr(transformers, architecture, transformers.AutoModelForCausalLM), config


def load_folder(folder: Path, dtype: torch.dtype, trust_remote_code: bool) -> Any:
    """Loads a folder's model as a recipe would; in its own type, weights stay in their files.

    Args:
        folder: The folder.
        dtype: What floating-point weights become.
        trust_remote_code: Whether code that comes with the model may run.

    Raises:
        RuntimeError: The files are not the model's.
    """
    model_class, config = _class_and_config(folder, trust_remote_code)
    code = {"trust_remote_code": True} if trust_remote_code else {}
    return load_whole(model_class, folder, config=config, dtype=dtype, **code)


def describe_tokenizer_of(folder: Path, trust_remote_code: bool) -> dict[str, Any]:
    """Returns the tokenizer's files, as they are if they suffice; none if it has no tokenizer."""
    from transformers import AutoTokenizer

    own = [name for name in _TOKENIZER_FILES if (folder / name).is_file()]
    own += sorted(str(p.relative_to(folder)) for p in folder.glob("additional_chat_templates/*"))
    if not own:
        return {}
    if trust_remote_code and "tokenizer_config.json" in own:
        if "auto_map" in json.loads((folder / "tokenizer_config.json").read_text("utf-8")):
            own += sorted(path.name for path in folder.glob("*.py"))
    files = describe_files(folder, own)
    with tempfile.TemporaryDirectory() as scratch:
        try:
            load_tokenizer_from_saved_state({"tokenizer": files}, trust_remote_code, scratch)
        except (OSError, ValueError):
            # Some say only in the model's configuration of which class they are.
            tokenizer = AutoTokenizer.from_pretrained(folder, trust_remote_code=trust_remote_code)
            return describe_tokenizer(tokenizer)
    return files


def write_composer_checkpoint_from_huggingface(
    hf_path: str, output_path: str, trust_remote_code: bool = False
) -> dict[str, Any]:
    """Writes a one-file checkpoint for ``load_path``, and returns what it says of the model.

    Every weight is kept as it is; they go from file to file, and are not in memory at once. An MPT,
    also one of transformers' own class, becomes this project's; the recipe's model must be the
    same, as ``mpt_causal_lm`` or ``hf_causal_lm`` builds it.

    Args:
        hf_path: A folder, here or in an object store, or a name on the hub.
        output_path: The file, here or in an object store, which must not exist.
        trust_remote_code: Whether code that comes with the model may run.

    Raises:
        FileExistsError: The file exists.
        FileNotFoundError: There is no such model, or it has no weights.
        RuntimeError: The weights are not the model's.
    """
    with _file_for(str(output_path)) as path, fetched_folder(hf_path) as source:
        folder = local_folder(source)
        model = load_folder(folder, _dtype_of(folder), trust_remote_code)
        tokenizer = describe_tokenizer_of(folder, trust_remote_code)
        hf_state = {"model": describe_model(model), "tokenizer": tokenizer}
        weights = {f"model.{name}": weight for name, weight in model.state_dict().items()}
        content = {
            "state": {
                "model": weights,
                "timestamp": {"Timestamp": Timestamp().state_dict()},
                "integrations": {"huggingface": hf_state},
                "metadata": get_metadata_state_dict(),
            },
        }
        write_checkpoint_file(content, path)
        with opened_weights(path) as saved:
            wrong = [n for n, weight in weights.items() if not torch.equal(saved.read(n), weight)]
        if wrong:
            os.remove(path)
            raise RuntimeError(f"{path} does not hold the weights {wrong}. It was deleted.")
    print(f"Wrote {output_path}: {type(model).__name__}, {len(weights)} weights in {model.dtype}.")
    return hf_state
