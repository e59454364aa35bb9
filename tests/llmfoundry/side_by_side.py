"""Trains a model that ranks share and the whole one side by side, and says how far apart they are.

Run it on gloo ranks. It needs no Trainer, so that a fault is the split's.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
import torch.distributed

from composer.algorithms.gradient_clipping import apply_gradient_clipping
from composer.distributed.context_parallel import prepare_cp_module
from composer.distributed.mesh import CONTEXT, SHARD, TENSOR, build_mesh, data_axes
from composer.distributed.parallelize import parallelize_composer_model
from composer.distributed.tensor_parallel import prepare_tp_module
from composer.models.huggingface import HuggingFaceModel
from composer.utils import dist
from composer.utils.gradients import total_norm
from composer.utils.parallelism import CPConfig, FSDP2Config, TPConfig
from llmfoundry.models.mpt.composer_mpt import ComposerMPTCausalLM
from llmfoundry.registry import tp_strategies

Batch = dict[str, torch.Tensor]
ROWS, VOCABULARY = 4, 64


class Split(NamedTuple):
    """How ranks share the model, and how it is trained."""

    tensor: int = 1
    context: int = 1
    strategy: str = "mpt"
    clip: tuple[str, float] | None = None
    microbatches: int = 1
    steps: int = 20
    length: int = 16
    recomputes: bool = False
    inputs: tuple[str, ...] = ()
    """What batches have beside tokens and labels."""


class Worst(NamedTuple):
    """The greatest difference between the two models."""

    loss: float
    norm: float
    logits: float


def mpt(**settings: Any) -> ComposerMPTCausalLM:
    torch.manual_seed(1)
    sizes = {"d_model": 32, "n_heads": 4, "n_layers": 2, "max_seq_len": 16}
    return ComposerMPTCausalLM(
        **{**sizes, "vocab_size": VOCABULARY, "use_train_metrics": False, **settings}
    )


def llama(kind: str = "Llama", **settings: Any) -> HuggingFaceModel:
    import transformers

    torch.manual_seed(1)
    sizes = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "head_dim": 8}
    heads = {"num_attention_heads": 4, "num_key_value_heads": 2, "vocab_size": VOCABULARY}
    config = getattr(transformers, f"{kind}Config")(
        **{**sizes, **heads, "use_cache": False, "pad_token_id": None, **settings}
    )
    return HuggingFaceModel(getattr(transformers, f"{kind}ForCausalLM")(config), use_logits=True)


def make_batch(length: int, seed: int, inputs: tuple[str, ...] = ()) -> Batch:
    """Makes rows with unequal numbers of targets; documents and padding differ between rows."""
    generator = torch.Generator().manual_seed(seed)
    tokens = torch.randint(0, VOCABULARY, (ROWS, length), generator=generator)
    labels = tokens.clone()
    labels[:, :3] = labels[0, :9] = -100
    batch = {"input_ids": tokens, "labels": labels}
    starts = (3, 5, 7, 9)
    place = torch.arange(length)
    if "sequence_id" in inputs:
        batch["sequence_id"] = torch.stack([(place >= s).long() + (place > 11) for s in starts])
    if "position_ids" in inputs:
        batch["position_ids"] = torch.stack(
            [torch.where(place < s, place, place - s) for s in starts]
        )
    if "attention_mask" in inputs:
        mask = torch.ones(ROWS, length, dtype=torch.bool)
        mask[1, -4:] = False
        batch["attention_mask"] = mask
        labels[1, -4:] = -100
    return batch


def spread(model: Any, optimizer: Any, split: Split) -> tuple[int, int]:
    """Has ranks share a model; returns which share of a batch is this rank's, of how many."""
    degrees = {SHARD: -1, CONTEXT: split.context, TENSOR: split.tensor}
    mesh = build_mesh("cpu", {axis: size for axis, size in degrees.items() if size != 1})
    if split.tensor > 1:
        plan = tp_strategies.get(split.strategy)(model)
        prepare_tp_module(model, optimizer, TPConfig(mesh[TENSOR], split.tensor, plan))
    if split.context > 1:
        prepare_cp_module(model, CPConfig(split.context, mesh[CONTEXT]))
    config = FSDP2Config(device_mesh=data_axes(mesh), activation_checkpointing=split.recomputes)
    parallelize_composer_model(model, optimizer, config)
    copies = split.tensor * split.context
    return dist.get_global_rank() // copies, dist.get_world_size() // copies


def _backward(model: Any, batch: Batch, share: tuple[int, int], pieces: int) -> torch.Tensor:
    """Adds the gradients of this rank's share of a batch, weighed by targets; returns its loss."""
    rank, size = share
    rows = torch.arange(ROWS).chunk(size)[rank]
    targets = (batch["labels"][:, 1:] != -100).sum()
    total = torch.zeros(())
    for some in rows.chunk(pieces):
        part = {key: value[some] for key, value in batch.items()}
        own = (part["labels"][:, 1:] != -100).sum()
        loss = model.loss(model(part), part) * (own * size / targets)
        loss.backward()
        total += loss.detach()
    return total


def worst_differences(
    build: Callable[..., Any], settings: dict[str, Any], split: Split, make_optimizer: Any = None
) -> Worst:
    """Trains both models; returns the worst of losses and norms, and of the last logits."""
    models = [build(**settings), build(**settings)]
    make_optimizer = make_optimizer or (lambda parameters: torch.optim.AdamW(parameters, lr=1e-2))
    optimizers = [make_optimizer(model.parameters()) for model in models]
    share = spread(models[0], optimizers[0], split)
    loss_difference = norm_difference = 0.0
    batch: Batch = {}
    for step in range(split.steps):
        batch = make_batch(split.length, step, split.inputs)
        shared = _backward(models[0].train(), batch, share, split.microbatches)
        whole = _backward(models[1].train(), batch, (0, 1), 1)
        torch.distributed.all_reduce(shared)
        shared /= dist.get_world_size()
        gradients = [[p.grad for p in m.parameters() if p.grad is not None] for m in models]
        norms = [total_norm(each).item() for each in gradients]
        loss_difference = max(loss_difference, abs(shared.item() - whole.item()))
        norm_difference = max(norm_difference, abs(norms[0] - norms[1]))
        for model, optimizer in zip(models, optimizers, strict=True):
            if split.clip is not None:
                apply_gradient_clipping(model, *split.clip)
            optimizer.step()
            optimizer.zero_grad()
    with torch.no_grad():
        ours, theirs = (model.eval().eval_forward(batch) for model in models)
    return Worst(loss_difference, norm_difference, (ours - theirs).abs().max().item())


def sgd(parameters: Any) -> torch.optim.SGD:
    """Adam would make much of differences in gradients that are nearly zero."""
    return torch.optim.SGD(parameters, lr=0.1)


def all_worst(cases: dict[str, tuple[Any, ...]]) -> dict[str, Worst]:
    """Runs `worst_differences` for each case."""
    return {name: worst_differences(*arguments) for name, arguments in cases.items()}


def check(found: dict[str, Worst]) -> None:
    """Holds differences to the bars."""
    for name, worst in found.items():
        assert worst.loss < 1e-5, (name, worst)
        assert worst.norm < 1e-5, (name, worst)
        assert worst.logits < 1e-4, (name, worst)
