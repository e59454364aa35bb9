"""What a recipe's fine-tuning rows would waste, packed at one ratio or another."""

from pathlib import Path

from omegaconf import OmegaConf

from llmfoundry.builders.tokenizers import build_tokenizer
from llmfoundry.config.loading import load_recipe, to_dict_container
from llmfoundry.data.packing import profile_packing

__all__ = ["print_packing_profile"]


def print_packing_profile(
    yaml_path: str | Path,
    num_devices: int,
    min_ratio: float,
    max_ratio: float,
    num_packing_ratios: int = 20,
) -> None:
    """Prints, for each ratio, the shares of padding and of waste in percent.

    Args:
        yaml_path: The recipe; its tokenizer, train loader and ``global_train_batch_size`` count.
        num_devices: Devices that share a batch.
        min_ratio: Lowest ratio, from 1 on.
        max_ratio: Highest ratio.
        num_packing_ratios: Ratios to try.

    Raises:
        FileNotFoundError: There is no such recipe.
        ValueError: A number is out of range, or the recipe lacks a setting.
    """
    for name, value in {
        "num_devices": num_devices,
        "num_packing_ratios": num_packing_ratios,
    }.items():
        if value < 1:
            raise ValueError(f"{name}={value} must be at least 1.")
    if not 1 <= min_ratio <= max_ratio:
        raise ValueError(f"1 <= min={min_ratio} <= max={max_ratio} must hold.")
    recipe = load_recipe(yaml_path)
    settings = to_dict_container(OmegaConf.select(recipe, "parameters") or recipe)
    wanted = ("tokenizer", "train_loader", "global_train_batch_size")
    if missing := [key for key in wanted if not settings.get(key)]:
        raise ValueError(f"Recipe {yaml_path} lacks {missing}.")
    batch_size, rest = divmod(settings["global_train_batch_size"], num_devices)
    if rest:
        raise ValueError(
            f"global_train_batch_size={settings['global_train_batch_size']} is no multiple of "
            f"num_devices={num_devices}."
        )
    tokenizer = build_tokenizer(
        settings["tokenizer"]["name"], settings["tokenizer"].get("kwargs") or {}
    )
    profiles = profile_packing(
        settings["train_loader"], tokenizer, min_ratio, max_ratio, num_packing_ratios, batch_size
    )
    print("packing_ratio | % PADDING | % WASTE")
    for ratio, padding, waste in profiles:
        shares = ["too few rows" if each is None else f"{each:.2f}%" for each in (padding, waste)]
        print(f"{ratio:13.1f} | {shares[0]:>9} | {shares[1]:>7}")
