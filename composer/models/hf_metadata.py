"""The configuration and tokenizer of a Hugging Face model as plain data inside a checkpoint."""

from __future__ import annotations

import atexit
import copy
import importlib
import json
import shutil
import sys
import tempfile
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from composer.models.adapters import (
    add_adapters,
    describe_adapters,
    has_adapters,
    make_peft_config,
    maybe_get_underlying_model,
)

__all__ = [
    "build_saved_model",
    "defining_class",
    "describe_files",
    "describe_model",
    "describe_tokenizer",
    "get_hf_config_from_composer_state_dict",
    "get_peft_config_from_composer_state_dict",
    "load_model_from_saved_state",
    "load_tokenizer_from_saved_state",
    "own_config_class",
    "saved_hf_state",
]


def describe_model(model: Any) -> dict[str, Any]:
    """Returns a model's configurations, the path of its class and its adapters as plain data."""
    inner = maybe_get_underlying_model(model)
    own_class = defining_class(inner)
    config = inner.config.to_dict()
    config.pop("quantization_config", None)  # how this run holds the base, not what the base is
    described = {
        "config": {
            "file_extension": ".json",
            "content": config,
            "class": f"{own_class.__module__}.{own_class.__name__}",
        }
    }
    generation = getattr(inner, "generation_config", None)
    if generation is not None:
        content = json.loads(generation.to_json_string())
        described["generation_config"] = {"file_extension": ".json", "content": content}
    return described | ({"peft_config": describe_adapters(model)} if has_adapters(model) else {})


def defining_class(model: Any) -> type:
    """Returns the class that a module defines: sharding and its like put others before it."""
    from transformers import PreTrainedModel

    for kind in type(model).__mro__:
        home = sys.modules.get(kind.__module__)
        is_defined = getattr(home, kind.__name__, None) is kind or "<locals>" in kind.__qualname__
        if issubclass(kind, PreTrainedModel) and is_defined:
            return kind
    return type(model)


def describe_tokenizer(tokenizer: Any) -> dict[str, Any]:
    """Returns the files that a tokenizer saves, by name, as plain data.

    Raises:
        ValueError: If there is a file of a kind that has no plain form.
    """
    with tempfile.TemporaryDirectory() as folder:
        tokenizer.save_pretrained(folder)
        paths = sorted(path for path in Path(folder).rglob("*") if path.is_file())
        return {
            str(path.relative_to(folder)): {
                "file_extension": path.suffix,
                "content": _content(path),
            }
            for path in paths
        }


def describe_files(folder: Path, names: Iterable[str]) -> dict[str, Any]:
    """Returns files of a tokenizer as plain data, from which each byte of them can be written.

    Args:
        folder: Where they are.
        names: Their names in it.

    Raises:
        ValueError: If there is a file of a kind that has no plain form.
    """
    described = {}
    for name in names:
        path = folder / name
        described[name] = {"file_extension": path.suffix, "content": _content(path)}
        if path.suffix in (".json", ".txt"):  # how it is laid out is not in the content
            described[name]["text"] = _text(path)
    return described


def _text(path: Path) -> str:
    return path.read_bytes().decode("utf-8")  # with the ends of lines that it has


def _content(path: Path) -> Any:
    if path.suffix == ".txt":
        return _text(path).splitlines()
    if path.suffix == ".json":
        return json.loads(_text(path))
    if path.suffix in (".py", ".jinja"):
        return _text(path)
    if path.suffix == ".model":  # a sentencepiece model, which is a protocol buffer
        return path.read_bytes()
    raise ValueError(
        f"The tokenizer saved {path.name}, and a checkpoint can hold only its files of kind .txt, "
        ".json, .py, .jinja and .model; convert the tokenizer to a fast one (tokenizer.json)."
    )


def _write(path: Path, file_extension: str, content: Any, text: str | None) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    if text is not None:
        path.write_bytes(text.encode("utf-8"))
    elif file_extension == ".txt":
        path.write_text("".join(f"{line}\n" for line in content), encoding="utf-8")
    elif file_extension == ".json":
        path.write_text(json.dumps(content, ensure_ascii=False, indent=2), encoding="utf-8")
    elif file_extension in (".py", ".jinja"):
        path.write_bytes(content.encode("utf-8"))
    elif file_extension == ".model":
        path.write_bytes(content)
    else:
        raise ValueError(f"The checkpoint holds a tokenizer file {path.name} of an unknown kind.")


def load_tokenizer_from_saved_state(
    hf_state: dict[str, Any],
    trust_remote_code: bool = False,
    tokenizer_save_dir: str | Path | None = None,
) -> Any | None:
    """Returns the tokenizer of a checkpoint, or None if it has none.

    Args:
        hf_state: What ``HuggingFaceModel.get_metadata`` returned.
        trust_remote_code: Runs tokenizer code that the checkpoint carries.
        tokenizer_save_dir: Where the files are written, by default a folder that lives as long as
            the program (some tokenizers read their files again when they are copied).

    Raises:
        ValueError: If a file would be written outside the folder, or is of an unknown kind.
    """
    from transformers import AutoTokenizer

    files = hf_state["tokenizer"]
    if not files:
        return None
    if tokenizer_save_dir is None:
        tokenizer_save_dir = tempfile.mkdtemp(prefix="tokenizer-save-dir-")
        atexit.register(shutil.rmtree, tokenizer_save_dir, ignore_errors=True)
    folder = Path(tokenizer_save_dir).resolve()
    for name, saved in files.items():
        path = (folder / f"{name}").resolve()
        if folder not in path.parents:
            raise ValueError(f"The checkpoint's tokenizer file {name!r} points out of its folder.")
        content = saved["content"]
        if name == "tokenizer_config.json":
            # The place that the tokenizer once came from may exist no more, or be another one now.
            content = {k: v for k, v in content.items() if k != "name_or_path"}
        _write(path, saved["file_extension"], content, saved.get("text"))
    return AutoTokenizer.from_pretrained(str(folder), trust_remote_code=trust_remote_code)


def saved_hf_state(state_dict: dict[str, Any]) -> dict[str, Any]:
    """Returns what a checkpoint keeps of a Hugging Face model.

    Raises:
        ValueError: If it keeps nothing.
    """
    hf_state = state_dict.get("state", {}).get("integrations", {}).get("huggingface")
    if not hf_state:
        raise ValueError(
            "The checkpoint has no state/integrations/huggingface: it was not saved from a "
            "HuggingFaceModel, so neither configuration nor tokenizer can be made from it."
        )
    return hf_state


def get_hf_config_from_composer_state_dict(
    state_dict: dict[str, Any], config_overrides: dict[str, Any] | None = None
) -> Any:
    """Returns the transformers configuration that a checkpoint holds.

    Args:
        state_dict: The content of a checkpoint.
        config_overrides: Values that replace saved ones.

    Raises:
        ValueError: If the kind of the model is unknown to the installed transformers.
    """
    return _config(saved_hf_state(state_dict), config_overrides)


def get_peft_config_from_composer_state_dict(state_dict: dict[str, Any]) -> Any | None:
    """Returns the adapter settings that a checkpoint holds, or None if it has no adapters.

    Args:
        state_dict: The content of a checkpoint.

    Raises:
        ValueError: If it was not saved from a ``HuggingFaceModel``.
    """
    return make_peft_config(saved_hf_state(state_dict))


def _config(hf_state: dict[str, Any], overrides: dict[str, Any] | None) -> Any:
    from transformers import CONFIG_MAPPING, AutoConfig

    content = copy.deepcopy(hf_state["model"]["config"]["content"])
    content.update(overrides or {})
    model_type = content.pop("model_type", None)
    own_class = own_config_class(hf_state)
    if own_class is not None:
        return own_class(**content)
    if model_type in CONFIG_MAPPING:
        return AutoConfig.for_model(model_type, **content)
    name = content.pop("_name_or_path", None)
    if name:
        return AutoConfig.from_pretrained(name, **content)
    raise ValueError(
        f"The checkpoint's model is of type {model_type!r}, which the installed transformers does "
        "not know; import the package that registers it first."
    )


def own_config_class(hf_state: dict[str, Any]) -> Any | None:
    """Returns the configuration class of a model that is not transformers' own, if it is here.

    transformers may have a class of its own for the same ``model_type``, which is another model.
    """
    path = hf_state["model"]["config"]["class"]
    if path.startswith(("transformers.", "peft.")):
        return None
    try:
        return getattr(_resolve(path), "config_class", None)
    except (ImportError, AttributeError):
        return None


def build_saved_model(hf_state: dict[str, Any], trust_remote_code: bool = False) -> Any:
    """Builds the model of a checkpoint, without its adapters, **with fresh weights**.

    Args:
        hf_state: What ``HuggingFaceModel.get_metadata`` returned.
        trust_remote_code: Runs code that came with the model, from where it came from.

    Raises:
        ValueError: If the kind of the model is unknown to the installed transformers.
    """
    from transformers import AutoConfig, AutoModelForCausalLM

    described = hf_state["model"]["config"]
    if trust_remote_code and described["class"].startswith("transformers_modules."):
        content = {k: v for k, v in described["content"].items() if k != "model_type"}
        name = content.pop("_name_or_path")
        config = AutoConfig.from_pretrained(name, trust_remote_code=True, **copy.deepcopy(content))
        return AutoModelForCausalLM.from_config(config, trust_remote_code=True)
    config = _config(hf_state, None)
    model_class: Any = _resolve(_saved_class(hf_state))
    is_auto = hasattr(model_class, "from_config")
    return model_class.from_config(config) if is_auto else model_class(config)


def load_model_from_saved_state(
    hf_state: dict[str, Any],
    loaded_state_dict: dict[str, Any],
    model_instantiation_class: type | str | None,
    model_config_kwargs: dict[str, Any] | None,
) -> Any:
    """Builds the model of a checkpoint from its configuration, **with fresh weights**.

    Args:
        hf_state: What ``HuggingFaceModel.get_metadata`` returned.
        loaded_state_dict: The content of the checkpoint; its weights are not loaded.
        model_instantiation_class: A model class, an Auto class, or the dotted path of one; by
            default the class that was saved.
        model_config_kwargs: Values that replace saved ones in the configuration.

    Raises:
        ValueError: If the class is neither, or its path has no dot.
        AttributeError: If the module of the path has no such class.
    """
    del loaded_state_dict
    wanted = model_instantiation_class or _saved_class(hf_state)
    model_class = _resolve(wanted) if isinstance(wanted, str) else wanted
    if hasattr(model_class, "from_config"):  # an Auto class
        model = model_class.from_config(_config(hf_state, model_config_kwargs))
    else:
        # The model's own class: transformers may know another one by the same model_type.
        content = {**hf_state["model"]["config"]["content"], **(model_config_kwargs or {})}
        content.pop("model_type", None)
        model = model_class(model_class.config_class(**copy.deepcopy(content)))
    peft_config = make_peft_config(hf_state)
    return model if peft_config is None else add_adapters(model, peft_config)


_AUTO_CLASSES = {
    "CAUSAL_LM": "AutoModelForCausalLM",
    "SEQ_2_SEQ_LM": "AutoModelForSeq2SeqLM",
    "SEQ_CLS": "AutoModelForSequenceClassification",
    "TOKEN_CLS": "AutoModelForTokenClassification",
    "QUESTION_ANS": "AutoModelForQuestionAnswering",
}


def _saved_class(hf_state: dict[str, Any]) -> str:
    described = hf_state["model"]["config"]
    path = described["class"]
    if path.startswith("torch."):  # what sharding put before, or around, the model's own class
        name = path.rpartition(".")[2]
        known = described["content"].get("architectures") or ["AutoModelForCausalLM"]
        return f"transformers.{name[4:] if name.startswith('FSDP') else known[0]}"
    if not path.startswith("peft."):
        return path
    # Composer wrote the class of the wrapper here, not that of the model in it.
    task = hf_state["model"]["peft_config"]["content"]["task_type"]
    return f"transformers.{_AUTO_CLASSES.get(task, 'AutoModel')}"


def _resolve(path: str) -> type:
    from transformers import PreTrainedModel

    module_name, _, name = path.rpartition(".")
    if not module_name:
        raise ValueError(
            f"{path!r} does not name a class; write its dotted path, as in "
            "'transformers.AutoModelForCausalLM'."
        )
    found = getattr(importlib.import_module(module_name), name)
    # The path may come out of a checkpoint: nothing but a model may be called.
    is_model = isinstance(found, type) and issubclass(found, PreTrainedModel)
    if not is_model and not hasattr(found, "from_config"):
        raise ValueError(f"{path!r} is neither a transformers model nor an Auto class.")
    return found
