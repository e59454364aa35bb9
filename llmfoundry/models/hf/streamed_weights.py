"""Weights as safetensors files, which are written and compared one tensor at a time."""

import json
import re
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

__all__ = ["OutgoingWeights", "check_weights", "tied_copies", "write_weights"]

Read = Callable[[str], torch.Tensor]

_NAMES = {
    torch.float64: "F64",
    torch.float32: "F32",
    torch.float16: "F16",
    torch.bfloat16: "BF16",
    torch.int64: "I64",
    torch.int32: "I32",
    torch.int16: "I16",
    torch.int8: "I8",
    torch.uint8: "U8",
    torch.bool: "BOOL",
}
_LAYER = re.compile(r".*?\.\d+(?=\.)")


def tied_copies(model: Any) -> dict[str, str]:
    """Returns the names that are other names of a weight, and what its own name is."""
    tied = getattr(model, "all_tied_weights_keys", None) or {}
    weights = model.state_dict(keep_vars=True)
    own: dict[int, str] = {}
    for name in sorted(weights, key=lambda name: name in tied):
        own.setdefault(id(weights[name]), name)
    return {name: own[id(weight)] for name, weight in weights.items() if own[id(weight)] != name}


class OutgoingWeights:
    """What a folder is to hold: a model's weights under the names that files give them.

    Tied weights are there once. Where transformers keeps several weights of the files as one
    (experts, for example), a layer is taken apart at a time.

    Args:
        model: The transformers model; its own weights may be without memory.
        read: Returns a weight by the model's name for it.
        dtype: What floating-point weights become.
    """

    def __init__(self, model: Any, read: Read, dtype: torch.dtype) -> None:
        self._model, self._source, self._dtype = model, read, dtype
        left_out = {*tied_copies(model), *(model._keys_to_ignore_on_save or ())}
        kept = {
            name: torch.empty_like(self._cast(weight), device="meta")
            for name, weight in model.state_dict().items()
            if name not in left_out
        }
        self._parts = self._taken_apart(kept)
        # Parts of a whole would count as large as the whole.
        self.kinds = {n: kind.clone() for _, found in self._parts for n, kind in found.items()}
        """Tensors without memory, by the names in the files."""
        self._part_of = {name: i for i, (_, found) in enumerate(self._parts) for name in found}
        self._at_hand: tuple[int, dict[str, torch.Tensor]] = (-1, {})

    def _cast(self, weight: torch.Tensor) -> torch.Tensor:
        return weight.detach().to(self._dtype) if weight.is_floating_point() else weight.detach()

    def _as_in_files(self, weights: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        from transformers.core_model_loading import revert_weight_conversion

        return revert_weight_conversion(self._model, weights)

    def _taken_apart(
        self, kept: dict[str, torch.Tensor]
    ) -> list[tuple[list[str], dict[str, torch.Tensor]]]:
        """Returns groups of weights that can be turned into those of files by themselves."""
        whole = self._as_in_files(dict(kept))
        if all(whole.get(name) is kept[name] for name in kept) and len(whole) == len(kept):
            return [([name], {name: kept[name]}) for name in kept]
        layers: dict[str, list[str]] = {}
        for name in kept:
            found = _LAYER.match(name)
            layers.setdefault(found.group() if found else name, []).append(name)
        parts = [
            (names, self._as_in_files({name: kept[name] for name in names}))
            for names in layers.values()
        ]
        sizes = {name: kind.size() for _, found in parts for name, kind in found.items()}
        if sizes == {name: kind.size() for name, kind in whole.items()}:
            return parts
        return [(list(kept), whole)]

    def read(self, name: str) -> torch.Tensor:
        """Returns a weight as a file is to hold it; it stays at hand until the next is read."""
        part = self._part_of[name]
        if self._at_hand[0] != part:
            self._at_hand = (-1, {})
            names, kinds = self._parts[part]
            weights = {each: self._cast(self._source(each)) for each in names}
            is_plain = list(kinds) == names == [name]
            self._at_hand = part, weights if is_plain else self._as_in_files(weights)
        return self._at_hand[1][name].cpu().contiguous()


def write_weights(weights: OutgoingWeights, folder: Path, max_shard_size: str) -> int:
    """Writes the files and, if they are several, their index; returns how many they are.

    Args:
        weights: The weights.
        folder: An existing folder.
        max_shard_size: The size above which weights are split into several files.
    """
    from huggingface_hub import split_torch_state_dict_into_shards

    split = split_torch_state_dict_into_shards(
        weights.kinds,
        filename_pattern="model{suffix}.safetensors",
        max_shard_size=max_shard_size,
    )
    for file, names in split.filename_to_tensors.items():
        _write_file(folder / file, names, weights)
    if split.is_sharded:
        count = sum(kind.numel() for kind in weights.kinds.values())
        index = {
            "metadata": {"total_parameters": count, **split.metadata},
            "weight_map": split.tensor_to_filename,
        }
        text = json.dumps(index, indent=2, sort_keys=True) + "\n"
        (folder / "model.safetensors.index.json").write_text(text)
    return len(split.filename_to_tensors)


def _write_file(path: Path, names: list[str], weights: OutgoingWeights) -> None:
    """Writes one file: the length of its header, the header, the tensors' bytes."""
    kinds = weights.kinds
    # The largest elements first, so that each tensor begins at a multiple of its element's size.
    names = sorted(names, key=lambda name: -kinds[name].element_size())
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    end = 0
    for name in names:
        start, end = end, end + kinds[name].nbytes
        header[name] = {
            "dtype": _NAMES[kinds[name].dtype],
            "shape": list(kinds[name].size()),
            "data_offsets": [start, end],
        }
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with open(path, "wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        for name in names:
            weight = weights.read(name)
            assert (weight.size(), weight.dtype) == (kinds[name].size(), kinds[name].dtype), name
            file.write(_bytes(weight).numpy().data)


def _bytes(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.reshape(-1).view(torch.uint8)


def check_weights(weights: OutgoingWeights, folder: Path) -> None:
    """Reads the files again, and holds every bit against what they were to hold.

    Raises:
        RuntimeError: A tensor is missing, foreign or different.
    """
    from safetensors import safe_open

    left, wrong = set(weights.kinds), []
    for path in sorted(folder.glob("model*.safetensors")):
        with safe_open(path, framework="pt") as file:
            stored = set(file.keys())
            wrong += sorted(stored - left)
            for name in [name for name in weights.kinds if name in stored & left]:
                found, expected = file.get_tensor(name), weights.read(name)
                same_kind = found.dtype == expected.dtype and found.size() == expected.size()
                if not same_kind or not torch.equal(_bytes(found), _bytes(expected)):
                    wrong.append(name)
            left -= stored
    if left or wrong:
        raise RuntimeError(
            f"The files do not hold the weights. Missing: {sorted(left) or 'none'}. Foreign or "
            f"different: {wrong or 'none'}. Nothing was written."
        )
