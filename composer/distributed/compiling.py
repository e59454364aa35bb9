"""torch.compile for a whole model, or for each of its repeated blocks."""

from typing import Any

import torch


def compile_model(model: torch.nn.Module, config: dict[str, Any]) -> None:
    """Compiles a model in place, so that its parameters and checkpoints keep their names.

    Args:
        model: the model, wrapped as it will run.
        config: arguments of ``torch.compile``; ``per_block: true`` compiles each block instead of
            the whole: blocks of one shape share one compilation, so that it is over sooner.

    Raises:
        ValueError: if there are no blocks to compile.
    """
    config = dict(config)
    if not config.pop("per_block", False):
        model.compile(**config)
        return
    for block in blocks_of(model):
        block.compile(**config)


def take_meshes_in_graphs() -> None:
    """Lets the compiler plan graphs that hold a mesh, as those of split layers and sequences do."""
    import torch._functorch.config as planning

    # torch 2.13 does not know how much memory a mesh takes, and by default stops there: none.
    if hasattr(planning, "unsafe_treat_script_objects_as_zero_size"):
        planning.unsafe_treat_script_objects_as_zero_size = True


def blocks_of(model: torch.nn.Module) -> list[torch.nn.Module]:
    """Returns the repeated blocks of a model: those it wants sharded, or its longest ModuleList."""
    for module in model.modules():
        wants = getattr(module, "fsdp_wrap_fn", None)
        if callable(wants):
            blocks = [m for m in module.modules() if m is not module and wants(m)]
            if blocks:
                return blocks
    lists = [list(m) for m in model.modules() if isinstance(m, torch.nn.ModuleList)]
    if not lists:
        raise ValueError(
            "compile_config={'per_block': True, ...}: the model has no repeated blocks (no "
            "fsdp_wrap_fn, no ModuleList); leave per_block out to compile it whole."
        )
    return max(lists, key=len)
