"""Settings that exclude each other are refused before anything is built."""

from pathlib import Path
from typing import Any

import pytest

from llmfoundry.config.loading import load_recipe
from llmfoundry.config.parse import parse_train_config
from llmfoundry.config.validate import validate_config

YAMLS = Path(__file__).parents[3] / "yamls"


def config(model: dict[str, Any], **dataset: Any) -> Any:
    config = parse_train_config(load_recipe(YAMLS / "mpt-125m.yaml"))
    config.model.clear()
    config.model.update(model)
    config.train_loader["dataset"].update(dataset)
    return config


MPT = {"name": "mpt_causal_lm"}
MASKED = {**MPT, "attn_config": {"attn_uses_sequence_id": True}}


def test_b75_packing_needs_a_model_that_masks() -> None:
    validate_config(config(MPT))
    validate_config(config(MPT, packing_ratio=1.0))
    validate_config(config(MASKED, packing="best_fit", packing_ratio="auto"))
    with pytest.raises(
        ValueError, match="packing=best_fit.*attn_uses_sequence_id: true, or remove"
    ):
        validate_config(config(MPT, packing="best_fit"))
    with pytest.warns(UserWarning, match="packing_ratio=auto the documents.*see each other"):
        validate_config(config(MPT, packing_ratio="auto"))
    model = {"name": "hf_causal_lm", "attn_implementation": "sdpa"}
    validate_config(config(model, packing="best_fit"))
    with pytest.raises(ValueError, match="attn_implementation='flash_attention_2' cannot keep"):
        model["attn_implementation"] = "flash_attention_2"
        validate_config(config(model, packing="best_fit"))
    with pytest.raises(ValueError, match="attn_implementation='flash_attention_2' cannot keep"):
        model = {"name": "hf_causal_lm", "use_flash_attention_2": True}
        validate_config(config(model, packing="best_fit"))
