"""Linear layers, by the name in ``fc_type``."""

from typing import Any

import torch

from llmfoundry.layers_registry import fcs
from llmfoundry.utils.registry_utils import construct_from_registry

__all__ = ["build_fc"]


def build_fc(in_features: int, out_features: int, fc_kwargs: dict[str, Any]) -> Any:
    """Builds the linear layer that ``fc_kwargs["name"]`` names with the rest of them."""
    kwargs = dict(fc_kwargs)
    name = kwargs.pop("name")
    return construct_from_registry(
        name=name,
        registry=fcs,
        partial_function=True,
        pre_validation_function=torch.nn.Module,
        kwargs={"in_features": in_features, "out_features": out_features, **kwargs},
    )
