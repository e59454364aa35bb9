"""Turns a checkpoint of the trainer into a folder that transformers loads.

Weights go from the checkpoint to the folder one by one. The folder is written aside, read again and
compared with the checkpoint; only then does it take its place.
"""

import contextlib
import copy
import filecmp
import importlib.util
import logging
import re
import tempfile
from argparse import Namespace
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from composer.checkpoint.saved_weights import SavedWeights, opened_weights
from composer.models.hf_metadata import (
    build_saved_model,
    load_tokenizer_from_saved_state,
    saved_hf_state,
)
from composer.utils.file_helpers import is_uri
from llmfoundry.command_utils._convert_adapters import (
    logits_of,
    merged_folder,
    merged_model,
    tokens_for,
    write_adapters,
)
from llmfoundry.command_utils.convert_hf_to_composer import describe_tokenizer_of
from llmfoundry.models.hf.hf_export import DTYPES, MAX_SHARD_SIZE, HFExport, settle_config
from llmfoundry.models.hf.load_whole import load_whole
from llmfoundry.models.hf.streamed_weights import check_weights, tied_copies
from llmfoundry.models.mpt.causal_lm import MPTForCausalLM
from llmfoundry.models.mpt.config import MPTConfig
from llmfoundry.utils.huggingface_hub_utils import upload_to_hub, weight_files
from llmfoundry.utils.meta_init_context import init_empty_weights
from llmfoundry.utils.stores import is_empty_in_store, uploaded_folder

__all__ = [
    "DTYPES",
    "convert_composer_to_hf",
    "write_huggingface_pretrained_from_composer_checkpoint",
]

log = logging.getLogger(__name__)


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


@contextlib.contextmanager
def _aside(final: Path) -> Iterator[Path]:
    """Gives the body a folder beside the final one, which takes its place if the body ends well."""
    final.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=final.parent, prefix=".convert-") as scratch:
        folder = Path(scratch) / final.name
        folder.mkdir()
        yield folder
        folder.rename(final)


def _hf_state(saved: SavedWeights, checkpoint_path: str) -> dict[str, Any]:
    """Returns what a checkpoint keeps of the Hugging Face model."""
    if "state" not in saved.content:
        raise RuntimeError(
            f"{checkpoint_path} has no entry 'state', so it is no checkpoint of the trainer. It "
            f"has {sorted(saved.content)}."
        )
    try:
        return saved_hf_state(saved.content)
    except ValueError as error:
        raise RuntimeError(str(error)) from error


def _build_model(hf_state: dict[str, Any], trust_remote_code: bool) -> Any:
    """Builds the model that a checkpoint describes, without memory for its weights."""
    from transformers import GenerationConfig

    described = hf_state["model"]["config"]
    is_mpt = described["content"].get("model_type") == "mpt"
    if is_mpt and not described["class"].endswith("MptForCausalLM"):
        model: Any = _build_mpt(described)
    else:
        with init_empty_weights():
            model = build_saved_model(hf_state, trust_remote_code)
        model.tie_weights()  # building without memory unties them
    generation = hf_state["model"].get("generation_config")
    if generation is not None:
        model.generation_config = GenerationConfig.from_dict(copy.deepcopy(generation["content"]))
    return model


def _build_mpt(described: dict[str, Any]) -> MPTForCausalLM:
    about_the_file = ("architectures", "auto_map", "dtype", "torch_dtype", "transformers_version")
    content = {
        key: copy.deepcopy(value)
        for key, value in described["content"].items()
        if key not in (*about_the_file, "model_type") and not key.startswith("_")
    }
    config = MPTConfig(**content)
    settle_config(config)
    config.init_device = "meta"
    model = MPTForCausalLM(config)
    config.init_device = "cpu"
    return model


def _named_as_in_model(
    model: Any, saved: SavedWeights, checkpoint_path: str
) -> tuple[dict[str, str], dict[str, str]]:
    """Returns the checkpoint's names by the model's, and the model's tied names that it has.

    Raises:
        RuntimeError: The weights are not the model's.
    """
    prefix = "model."
    keys = {key.removeprefix(prefix): key for key in saved.kinds if key.startswith(prefix)}
    foreign = [key for key in saved.kinds if not key.startswith(prefix)]
    wanted, copies = model.state_dict(), tied_copies(model)
    missing = sorted(name for name in wanted if name not in keys and name not in copies)
    known = model._keys_to_ignore_on_load_unexpected or ()  # buffers of older releases
    more = keys.keys() - wanted.keys()
    unexpected = sorted(n for n in more if not any(re.search(each, n) for each in known))
    shapes = [
        f"{name}: {tuple(saved.kinds[key][0])}, not {tuple(wanted[name].size())}"
        for name, key in keys.items()
        if name in wanted and saved.kinds[key][0] != wanted[name].size()
    ]
    if missing or unexpected or foreign or shapes:
        raise RuntimeError(
            f"The weights of {checkpoint_path} do not fit the model that it describes. Missing: "
            f"{missing or 'none'}. Not part of the model: {unexpected + foreign or 'none'}. Of "
            f"another shape: {shapes or 'none'}. Nothing was written."
        )
    keys = {name: key for name, key in keys.items() if name in wanted}
    for name, own in copies.items():
        if name in keys and not torch.equal(saved.read(keys[name]), saved.read(keys[own])):
            raise RuntimeError(
                f"{checkpoint_path} says that {name} is tied to {own}, and they differ. One of "
                "them would be lost; set tie_word_embeddings right. Nothing was written."
            )
    return keys, copies


def _load(folder: Path, export: HFExport, dtype: torch.dtype, **kwargs: Any) -> Any:
    """Loads the folder as a user will."""
    from transformers import AutoModelForCausalLM

    cls = AutoModelForCausalLM if export.needs_code else export.model_class
    code = {"trust_remote_code": True} if export.needs_code else {}
    return load_whole(cls, folder, dtype=dtype, **code, **kwargs)


def _can_place() -> bool:
    return importlib.util.find_spec("accelerate") is not None


def _compare(folder: Path, export: HFExport, tokens: Any, expected: torch.Tensor) -> str:
    """Loads the folder, and says how far its logits are from those that were expected.

    Raises:
        RuntimeError: Further than rounding explains.
    """
    found = logits_of(_load(folder, export, torch.float32), tokens)
    difference = (found - expected).abs().max().item()
    allowed = 1e-5 * max(1.0, expected.abs().max().item())
    if not difference <= allowed:
        raise RuntimeError(
            f"The converted model's logits differ from the checkpoint's by {difference:.2e}, more "
            f"than {allowed:.2e}. Nothing was written."
        )
    return f"its logits equal the checkpoint's (largest difference {difference:.1e})."


@dataclass(frozen=True)
class _Wanted:
    """What a folder is to be; see the public function."""

    dtype: torch.dtype
    max_shard_size: str
    compare_logits: bool | None
    merge_adapters: bool
    base_model: str | None
    trust_remote_code: bool


def _filled(
    model: Any, saved: SavedWeights, keys: dict[str, str], copies: dict[str, str], wanted: _Wanted
) -> Any:
    """Returns the model in fp32, but with weights as the folder holds them.

    So what is left to compare is the conversion.
    """

    def read(key: str) -> torch.Tensor:
        weight = saved.read(key)
        return weight.to(wanted.dtype).float() if weight.is_floating_point() else weight

    weights = {name: read(key) for name, key in keys.items() if name not in copies}
    model.load_state_dict(weights, strict=False, assign=True)
    model.tie_weights()
    return model


def _write_model(
    export: HFExport, folder: Path, wanted: _Wanted, model_to_compare: Callable[[], Any]
) -> str:
    """Writes and compares; returns what was found."""
    n_files = export.write(folder, wanted.max_shard_size)
    check_weights(export.weights, folder)
    compares = wanted.compare_logits
    if compares is None:
        compares = n_files == 1  # so that the model fits where a file of weights does
    code = " It holds its modelling code: load it with trust_remote_code=True."
    code = code if export.needs_code else ""
    if not compares:
        # Tensors were compared; what is left is that loading finds each. Where it stacks experts it
        # would need memory for all of them, and without accelerate transformers loads nowhere else.
        _load(folder, export, wanted.dtype, **({"device_map": "meta"} if _can_place() else {}))
        return f"its tensors equal the checkpoint's.{code}"
    model = model_to_compare()
    tokens = tokens_for(model)
    expected = logits_of(model, tokens)
    for parameter in model.parameters():  # two models are too much
        parameter.data = torch.empty(0)
    return _compare(folder, export, tokens, expected) + code


def _write_folder(
    saved: SavedWeights, path: str, folder: Path, tokenizer: Any | None, wanted: _Wanted
) -> tuple[Any, str]:
    """Writes all but the tokenizer; returns the configuration, and what was found."""
    hf_state = saved_hf_state(saved.content)
    model = _build_model(hf_state, wanted.trust_remote_code)
    has_adapters = "peft_config" in hf_state["model"]
    if has_adapters and not wanted.merge_adapters:
        config = write_adapters(model, hf_state, saved, folder, wanted.dtype, wanted.base_model)
        return config, "peft loads it onto its base."
    if has_adapters:
        model = merged_model(model, hf_state, saved, wanted.dtype, wanted.base_model)
        export = HFExport(model, wanted.dtype, tokenizer=tokenizer)
        told = _write_model(export, folder, _comparing(wanted), lambda: model)
    else:
        keys, copies = _named_as_in_model(model, saved, path)
        export = HFExport(model, wanted.dtype, lambda name: saved.read(keys[name]), tokenizer)
        told = _write_model(
            export, folder, wanted, lambda: _filled(model, saved, keys, copies, wanted)
        )
    return export.config, told


def _comparing(wanted: _Wanted) -> _Wanted:
    """Returns what is wanted of a model that is in memory anyway."""
    return replace(wanted, compare_logits=wanted.compare_logits is not False)


def _merge_folder(adapters: str, folder: Path, wanted: _Wanted) -> tuple[Any, Any | None, str]:
    """Writes a model with the adapters of a folder in it; returns what the caller returns."""
    if not wanted.merge_adapters:
        raise ValueError(
            f"{adapters} is a folder of adapters, which peft loads as it is. With merge_adapters "
            "it becomes that of the whole model."
        )
    trusted = wanted.trust_remote_code
    model, base = merged_folder(adapters, wanted.dtype, wanted.base_model, trusted)
    files = describe_tokenizer_of(Path(adapters), trusted) or describe_tokenizer_of(base, trusted)
    tokenizer = load_tokenizer_from_saved_state({"tokenizer": files}, trusted, folder)
    export = HFExport(model, wanted.dtype, tokenizer=tokenizer)
    told = _write_model(export, folder, _comparing(wanted), lambda: model)
    return export.config, tokenizer, told


def _check_settings_of_adapters(path: str, hf_state: dict[str, Any], wanted: _Wanted) -> None:
    has_adapters = "peft_config" in hf_state["model"]
    if not has_adapters and (wanted.merge_adapters or wanted.base_model is not None):
        raise ValueError(
            f"{path} has no adapters, so merge_adapters and base_model have no effect. Leave them "
            "out."
        )
    if has_adapters and not wanted.merge_adapters and wanted.compare_logits is not None:
        raise ValueError(
            f"{path} becomes a folder of adapters, on which compare_logits has no effect. Leave it "
            "out, or merge_adapters."
        )


def write_huggingface_pretrained_from_composer_checkpoint(
    checkpoint_path: str,
    output_path: str | Path,
    trust_remote_code: bool = False,
    output_precision: str = "fp32",
    local_checkpoint_save_location: str | None = None,
    max_shard_size: str = MAX_SHARD_SIZE,
    compare_logits: bool | None = None,
    merge_adapters: bool = False,
    base_model: str | None = None,
) -> tuple[Any, Any | None]:
    """Writes a folder that ``from_pretrained`` loads, and returns its configuration and tokenizer.

    Args:
        checkpoint_path: A checkpoint of the trainer, a file or a folder of shards, here or in an
            object store; or, with ``merge_adapters``, a folder of adapters as peft writes it.
        output_path: The folder, here or in a store, which must not exist.
        trust_remote_code: Whether code that the checkpoint's model and tokenizer carry may run.
        output_precision: fp32, fp16 or bf16.
        local_checkpoint_save_location: Where a copy of the checkpoint is kept, by default nowhere.
        max_shard_size: The size above which weights are split into several files, which is also
            about the memory that is used.
        compare_logits: Whether the folder's logits are compared with the checkpoint's, which needs
            memory for the model; by default if its weights are in one file. Tensors always are.
        merge_adapters: Of a checkpoint with adapters, write the model with them in it, which needs
            memory for the model; by default the folder is that of the adapters alone.
        base_model: A folder or hub name of the model that adapters were trained on, by default
            what the checkpoint says.

    Raises:
        FileExistsError: The folder exists.
        RuntimeError: The checkpoint's weights do not fit its model, or the folder does not hold
            them or does not give the same logits.
        ValueError: An unknown precision, or a setting about adapters where there are none.
    """
    if output_precision not in DTYPES:
        raise ValueError(f"output_precision is one of {sorted(DTYPES)}, not {output_precision!r}.")
    wanted = _Wanted(
        dtype=DTYPES[output_precision],
        max_shard_size=max_shard_size,
        compare_logits=compare_logits,
        merge_adapters=merge_adapters,
        base_model=base_model,
        trust_remote_code=trust_remote_code,
    )
    with _folder_for(output_path) as final, _aside(final) as folder:
        if Path(checkpoint_path, "adapter_config.json").is_file():
            if local_checkpoint_save_location is not None:
                raise ValueError(f"{checkpoint_path} is no checkpoint, of which a copy is kept.")
            config, tokenizer, told = _merge_folder(checkpoint_path, folder, wanted)
        else:
            with opened_weights(str(checkpoint_path), local_checkpoint_save_location) as saved:
                hf_state = _hf_state(saved, checkpoint_path)
                _check_settings_of_adapters(checkpoint_path, hf_state, wanted)
                tokenizer = load_tokenizer_from_saved_state(hf_state, trust_remote_code, folder)
                config, told = _write_folder(saved, checkpoint_path, folder, tokenizer, wanted)
    if tokenizer is None:
        log.warning("%s holds no tokenizer, so the folder has none.", checkpoint_path)
    print(f"Wrote {output_path} in {output_precision}; {told}")
    return config, tokenizer


def _test_upload(folder: Path, repo: str) -> None:
    """Fetches what the hub has, and holds each byte against the folder that was tested.

    Raises:
        RuntimeError: They differ.
    """
    from huggingface_hub import snapshot_download

    with tempfile.TemporaryDirectory() as scratch:
        theirs = Path(snapshot_download(repo, local_dir=scratch))
        names = [p.relative_to(folder) for p in folder.rglob("*") if p.is_file()]
        wrong = [
            str(name)
            for name in names
            if not (theirs / name).is_file()
            or not filecmp.cmp(folder / name, theirs / name, shallow=False)
        ]
        wrong += weight_files(each.name for each in theirs.iterdir()) - {str(n) for n in names}
    if wrong:
        raise RuntimeError(f"What is at {repo} is not {folder}: {', '.join(sorted(wrong))} differ.")
    print(f"What is at {repo} is what is in {folder}.")


def convert_composer_to_hf(args: Namespace) -> None:
    """Runs the command: writes the folder, and uploads it if a repository is named.

    Args:
        args: The flags of ``scripts/inference/convert_composer_to_hf.py``.

    Raises:
        ValueError: An upload is to be tested that is not made.
    """
    if args.test_uploaded_model and args.hf_repo_for_upload is None:
        raise ValueError("test_uploaded_model has no effect without hf_repo_for_upload.")
    with _folder_for(args.hf_output_path) as folder:
        write_huggingface_pretrained_from_composer_checkpoint(
            checkpoint_path=args.composer_path,
            output_path=folder,
            trust_remote_code=args.trust_remote_code,
            output_precision=args.output_precision,
            local_checkpoint_save_location=args.local_checkpoint_save_location,
            max_shard_size=getattr(args, "max_shard_size", MAX_SHARD_SIZE),
            compare_logits=getattr(args, "compare_logits", None),
            merge_adapters=getattr(args, "merge_adapters", False),
            base_model=getattr(args, "base_model", None),
        )
        if args.hf_repo_for_upload is not None:
            print(f"Uploaded it as {upload_to_hub(folder, args.hf_repo_for_upload)}.")
            if args.test_uploaded_model:
                _test_upload(folder, args.hf_repo_for_upload)
