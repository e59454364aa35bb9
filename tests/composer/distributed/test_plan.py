"""What happens to a model that is spread, in the order that the documentation gives."""

import contextlib
from typing import Any
from unittest import mock

import pytest
import torch

from composer import Trainer
from composer.distributed import parallelize, plan
from llmfoundry.registry import tp_strategies
from tests.launch import run_ranks
from tests.llmfoundry.side_by_side import make_batch, mpt

STAGES = {
    "prepare_tp_module": plan,
    "prepare_cp_module": plan,
    "apply_ac": parallelize,
    "compile_model": plan,
    "prepare_fully_shard": parallelize,
    "meta_init": parallelize,
}


def _order() -> tuple[list[str], bool, list[str]]:
    """Spreads a model in every way; returns the stages as they came."""
    model, order = mpt(init_device="meta"), []
    with contextlib.ExitStack() as stack:
        for name, module in STAGES.items():
            stage: Any = getattr(module, name)

            def noted(*args: Any, name: str = name, stage: Any = stage, **settings: Any) -> Any:
                order.append(name)
                return stage(*args, **settings)

            stack.enter_context(mock.patch.object(module, name, noted))
        trainer = Trainer(
            model=model,
            optimizers=torch.optim.SGD(model.parameters(), lr=0.1),
            train_dataloader=[make_batch(16, 0)],
            device_train_microbatch_size=4,
            max_duration="1ba",
            parallelism_config={
                "fsdp2": {"activation_checkpointing": True},
                "cp": {"context_parallel_degree": 2},
                "tp": {"tensor_parallel_degree": 2, "layer_plan": tp_strategies.get("mpt")(model)},
            },
            compile_config={"backend": "aot_eager"},
            device="cpu",
            progress_bar=False,
        )
    held = {id(p) for p in trainer.state.optimizers[0].param_groups[0]["params"]}
    compiled = [type(m).__name__ for m in model.modules() if m._compiled_call_impl is not None]
    trainer.fit()
    return order, held == {id(p) for p in model.parameters()}, compiled


@pytest.mark.slow
def test_a_model_is_spread_in_order() -> None:
    for order, optimizer_follows, compiled in run_ranks(_order, 4):
        assert order == list(STAGES)
        assert optimizer_follows
        assert len(compiled) == 2 and len(set(compiled)) == 1, "each block"
