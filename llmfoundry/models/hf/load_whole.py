"""Models out of folders, no weight of which is a fresh one."""

from pathlib import Path
from typing import Any

__all__ = ["load_whole"]

_LANGUAGE_MODEL = {
    r"^language_model\.model\.": "model.",
    r"^language_model\.lm_head\.": "lm_head.",
    r"^model\.language_model\.": "model.",
}
"""What the parts of a language model are called in a model that sees or hears too."""


def load_whole(
    model_class: Any, name_or_path: str | Path, may_have_more: bool = False, **kwargs: Any
) -> Any:
    """Loads a model with ``from_pretrained``, which alone would make up weights that it misses.

    With the ``config`` of the language model in one that sees or hears too, that part is loaded.

    Args:
        model_class: The model's class, or an Auto class.
        name_or_path: A folder, or a name on the hub.
        may_have_more: Whether the files may hold weights that the model has not.
        **kwargs: Arguments of ``from_pretrained``.

    Raises:
        RuntimeError: The files are not the model's.
    """
    from transformers import PretrainedConfig

    content, _ = PretrainedConfig.get_config_dict(name_or_path, token=kwargs.get("token"))
    is_part = "config" in kwargs and kwargs["config"].model_type != content.get("model_type")
    if is_part:
        kwargs["key_mapping"] = _LANGUAGE_MODEL
    model, told = model_class.from_pretrained(
        name_or_path, output_loading_info=True, ignore_mismatched_sizes=True, **kwargs
    )
    if may_have_more or is_part:
        told.pop("unexpected_keys")
    wrong = {kind: sorted(map(str, names)) for kind, names in told.items() if names}
    if wrong:
        raise RuntimeError(
            f"The weights of {name_or_path} are not those of {type(model).__name__}: {wrong}."
        )
    return model
