"""The mixtures of experts that megablocks defined: mb_moe and mb_dmoe, with their losses.

Legend: N tokens, D model width, E experts.
"""

import functools
from types import SimpleNamespace
from typing import Any, NamedTuple

import torch
import torch.distributed
from torch.distributed import GroupMember
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Shard

from llmfoundry.models.layers.dmoe import GELU_TANH, DroplessMLP, ExpertMLP, dMoE
from llmfoundry.models.layers.ffn import MPTGLU, MPTMLP, Activation, resolve_ffn_act_fn
from llmfoundry.models.layers.moe_settings import config_moe_args

__all__ = [
    "MegaBlocksMoE",
    "Routing",
    "build_mb_dmoe",
    "build_mb_moe",
    "expert_mesh",
    "sum_routings",
]


ROUTER_KEYS = (
    "hidden_size",
    "ffn_hidden_size",
    "moe_num_experts",
    "moe_top_k",
    "moe_jitter_eps",
    "moe_normalize_expert_weights",
    "uniform_expert_assignment",
)


class Routing(NamedTuple):
    """How tokens were spread over experts, in a layer or in the layers of a model."""

    balance_loss: torch.Tensor
    """The layer's share of the load-balancing loss of all layers, weighted."""
    z_loss: torch.Tensor | None
    """Its share of the router's z-loss, weighted; None if that is off."""
    tokens_per_expert: torch.Tensor
    """``[E]``, or ``[layers, E]``."""


def sum_routings(routings: list[Routing]) -> Routing:
    """Adds up the losses of a model's layers."""
    z_losses = [each.z_loss for each in routings if each.z_loss is not None]
    return Routing(
        torch.stack([each.balance_loss for each in routings]).sum(),
        torch.stack(z_losses).sum() if z_losses else None,
        torch.stack([each.tokens_per_expert for each in routings]),
    )


@functools.cache
def expert_mesh(num_ranks: int, world_size: int, world: Any) -> Any:
    """Returns the mesh of all ranks: copies of the experts, and ranks that share one.

    Args:
        num_ranks: Ranks that share the experts.
        world_size: All ranks.
        world: Their group, if there is one; another one gets another mesh.

    Raises:
        ValueError: All ranks are no multiple of these.
    """
    if world_size % num_ranks:
        raise ValueError(
            f"moe_world_size={num_ranks} ranks share the experts, and {world_size} is no multiple "
            "of that. Change moe_world_size, or the number of ranks."
        )
    is_cuda = world is not None and torch.distributed.get_backend() == "nccl"
    return init_device_mesh(
        "cuda" if is_cuda else "cpu",
        (world_size // num_ranks, num_ranks),
        mesh_dim_names=("weight_parallel", "expert_parallel"),
    )


@functools.cache
def _neighbours(num_ranks: int, world: Any) -> Any:
    """Returns this rank's group of neighbours; ``world`` is what they are part of.

    Raises:
        ValueError: All ranks are no multiple of these.
    """
    if world.size() % num_ranks:
        raise ValueError(
            f"lbl_process_group={num_ranks} neighbouring ranks balance their load, and "
            f"{world.size()} is no multiple of that. Change lbl_process_group, or the number of "
            "ranks."
        )
    return torch.distributed.new_subgroups(num_ranks)[0]


class MegaBlocksMoE(dMoE):
    """A mixture of experts that keeps its load even by losses, and may drop tokens.

    The load-balancing loss is that of Switch (arXiv 2101.03961), a mean over layers, times
    ``moe_loss_weight``: ``E / (tokens K)`` times the sum over experts of the tokens that they got
    and their mean score; 1 where the load is even. The z-loss is that of ST-MoE (arXiv 2202.08906).

    Args:
        args: What ``config_moe_args`` returns.
        activation_fn: The experts' activation.
        capacity_factor: See ``DroplessMLP``.
        is_stacked: See ``ExpertMLP``.
        bias: Whether a bias is added to the experts' sum.
        device: Where the parameters are made.
    """

    gives_routing = True
    """Says that it returns its routing if asked."""

    def __init__(
        self,
        args: dict[str, Any],
        activation_fn: Activation,
        capacity_factor: float,
        is_stacked: bool,
        bias: bool,
        device: str | torch.device | None = None,
    ) -> None:
        num_ranks, is_glu = args["moe_world_size"], args["mlp_type"] == "glu"
        width, inner = args["hidden_size"], args["ffn_hidden_size"]
        own = args["moe_num_experts"] // num_ranks
        mlp = ExpertMLP(width, inner, own, is_glu, activation_fn, device, is_stacked)
        if num_ranks > 1:
            _share_experts(mlp, num_ranks)
        recomputes = args["memory_optimized_mlp"]
        super().__init__(
            **{key: args[key] for key in ROUTER_KEYS},
            device=device,
            experts=DroplessMLP(mlp, capacity_factor, recomputes, bias, device),
        )
        self.args = SimpleNamespace(**args)
        if isinstance(args["lbl_process_group"], int) and torch.distributed.is_initialized():
            _neighbours(args["lbl_process_group"], GroupMember.WORLD)
        self.shared_expert: MPTMLP | None = None
        if args["shared_expert"]:
            kind = MPTGLU if is_glu else MPTMLP
            inner = args["shared_expert_hidden_size"] or inner
            self.shared_expert = kind(width, 1, None, inner, activation_fn, device, bias)

    def forward(self, x: torch.Tensor, return_routing: bool = False) -> Any:
        """Returns what the experts make of tokens ``[..., D]``, and how these were spread.

        Args:
            x: The tokens.
            return_routing: Whether the losses and the load are returned too.
        """
        y, choice, logits_NE, counts_E = self._mix(x)
        if self.shared_expert is not None:
            shared, top_k = self.shared_expert(x), self.args.moe_top_k
            if self.args.shared_expert_weighted_sum:
                shared, y = shared / (top_k + 1), y * (top_k / (top_k + 1))
            y = y + shared
        if not return_routing:
            return y
        return y, self._routing(choice.scores_NE, logits_NE, counts_E)

    def _routing(
        self, scores_NE: torch.Tensor, logits_NE: torch.Tensor, counts_E: torch.Tensor
    ) -> Routing:
        args, z_loss = self.args, None
        all_E = self._summed_over_group(counts_E)
        if args.moe_lbl_in_fp32:
            scores_NE = scores_NE.float()
        share_E = all_E / all_E.sum().clamp(min=1)
        score_E = scores_NE.mean(dim=0) if len(scores_NE) else scores_NE.sum(dim=0)
        scale = args.moe_loss_weight * len(all_E) / args.num_layers
        if args.moe_zloss_weight:
            if args.moe_zloss_in_fp32:
                logits_NE = logits_NE.float()
            z_loss = logits_NE.logsumexp(dim=-1).square().float().sum() / max(len(logits_NE), 1)
            z_loss = z_loss * args.moe_zloss_weight / args.num_layers
        return Routing((share_E * score_E.float()).sum() * scale, z_loss, counts_E)

    def _summed_over_group(self, counts_E: torch.Tensor) -> torch.Tensor:
        """Returns counts of the ranks over which the load is to be even (arXiv 2501.11873)."""
        kind = self.args.lbl_process_group
        if kind is None or not torch.distributed.is_initialized():
            return counts_E
        if kind == "expert_group":
            group = self.experts.mlp.expert_mesh.get_group()
        else:
            group = None if kind == "global_group" else _neighbours(kind, GroupMember.WORLD)
        all_E = counts_E.clone()
        torch.distributed.all_reduce(all_E, group=group)
        return all_E


def _share_experts(mlp: ExpertMLP, num_ranks: int) -> None:
    """Makes a rank's own experts its part of the weights of all, which are sharded otherwise."""
    world = GroupMember.WORLD
    mesh = expert_mesh(num_ranks, 1 if world is None else world.size(), world)
    mlp.expert_mesh = mesh["expert_parallel"]
    mlp._fsdp_kwargs_dict = {"device_mesh": mesh["weight_parallel"]}  # type: ignore[assignment]
    for name, weight in list(mlp.named_parameters()):
        whole = DTensor.from_local(weight.data, mlp.expert_mesh, [Shard(0)], run_check=False)
        setattr(mlp, name, torch.nn.Parameter(whole))


def _build(
    kind: str,
    d_model: int,
    expansion_ratio: int | float,
    device: str | torch.device | None = None,
    bias: bool = True,
    num_layers: int = 1,
    ffn_act_fn: dict[str, Any] | None = None,
    **ffn_config: Any,
) -> MegaBlocksMoE:
    """Builds the mixture of experts of an ``ffn_type``.

    Raises:
        ValueError: A setting is unknown, out of range or without effect.
    """
    settings = {"ffn_type": kind, **ffn_config}
    args = config_moe_args(settings, d_model, expansion_ratio, num_layers)
    act_fn = resolve_ffn_act_fn(ffn_act_fn) if ffn_act_fn else GELU_TANH
    is_stacked = kind == "mb_moe"
    capacity_factor = args["moe_capacity_factor"] if is_stacked else 0
    return MegaBlocksMoE(args, act_fn, capacity_factor, is_stacked, bias, device)


build_mb_moe = functools.partial(_build, "mb_moe")
"""Builds experts that drop tokens beyond their capacity."""
build_mb_dmoe = functools.partial(_build, "mb_dmoe")
"""Builds experts that drop none."""
