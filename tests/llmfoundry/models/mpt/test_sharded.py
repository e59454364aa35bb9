"""Two ranks with sharded parameters give the loss and gradients of one."""

from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

from llmfoundry.models.mpt.causal_lm import MPTForCausalLM
from llmfoundry.models.mpt.config import MPTConfig
from tests.launch import run_ranks


def _model(tied: bool, init_device: str) -> MPTForCausalLM:
    sizes = {"d_model": 32, "n_heads": 4, "n_layers": 2, "max_seq_len": 16, "vocab_size": 64}
    return MPTForCausalLM(
        MPTConfig(
            **sizes,
            attn_config={"alibi": True},
            tie_word_embeddings=tied,
            init_device=init_device,
        )
    )


def _is_unit(model: MPTForCausalLM, module: torch.nn.Module, children_too: bool) -> bool:
    is_child = children_too and module in set(model.transformer.children())
    has_parameters = next(module.parameters(), None) is not None
    is_list = isinstance(module, torch.nn.ModuleList)
    return has_parameters and not is_list and bool(is_child or model.fsdp_wrap_fn(module))


def _sharded_step(tied: bool, children_too: bool) -> tuple[float, float, float]:
    """Shards a meta model, initialises it, and compares a step with that of the whole model."""
    rank, mesh = dist.get_rank(), init_device_mesh("cpu", (dist.get_world_size(),))
    model, whole = _model(tied, "meta"), _model(tied, "cpu")
    for module in reversed(list(model.modules())[1:]):
        if _is_unit(model, module, children_too):
            fully_shard(module, mesh=mesh)
    fully_shard(model, mesh=mesh, reshard_after_forward=True)
    model.to_empty(device="cpu")
    model.apply(model.param_init_fn)
    whole.load_state_dict({key: value.full_tensor() for key, value in model.state_dict().items()})

    tokens = torch.randint(0, 64, (4, 16), generator=torch.Generator().manual_seed(5))
    expected = whole(tokens, labels=tokens, return_logits=False).loss
    expected.backward()
    share = tokens[2 * rank : 2 * rank + 2]
    loss = model(share, labels=share, return_logits=False).loss
    loss.backward()
    mean = loss.detach().clone()
    dist.all_reduce(mean)
    pairs: Any = zip(model.parameters(), whole.parameters(), strict=True)
    worst = max(
        (ours.grad.full_tensor() - theirs.grad).abs().max().item() for ours, theirs in pairs
    )
    return mean.item() / 2, expected.item(), worst


def _every_way() -> list[tuple[float, float, float]]:
    return [_sharded_step(tied, more) for tied in (True, False) for more in (True, False)]


def test_sharded_equals_whole() -> None:
    for loss, expected, worst in run_ranks(_every_way, 2)[0]:
        assert abs(loss - expected) < 1e-5
        assert worst < 1e-6
