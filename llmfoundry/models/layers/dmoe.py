"""Mixtures of experts: a router gives each token to a few of many FFNs.

Legend: N tokens, D model width, F hidden width, E experts, K experts of a token, R rows (each token
has one for each of its experts), I and O widths in and out of a product.
"""

import functools
from typing import Any, NamedTuple

import torch
import torch.distributed
import torch.nn.functional as F
from torch.utils.checkpoint import checkpoint

from llmfoundry.models.layers.ffn import Activation, resolve_ffn_act_fn
from llmfoundry.models.layers.moe_settings import config_moe_args
from llmfoundry.models.layers.norm import autocast_dtype

__all__ = ["Choice", "DroplessMLP", "ExpertMLP", "LearnedRouter", "build_torch_dmoe", "dMoE"]

GELU_TANH = resolve_ffn_act_fn({"name": "gelu", "approximate": "tanh"})


class Choice(NamedTuple):
    """What a router says of tokens."""

    scores_NE: torch.Tensor
    """The softmax of the logits."""
    weights_NK: torch.Tensor
    """What the outputs of a token's experts are multiplied by."""
    experts_NK: torch.Tensor


class LearnedRouter(torch.nn.Module):
    """Scores experts by a linear layer and a softmax, and takes the best for each token.

    Args:
        hidden_size: Width of tokens.
        moe_num_experts: Experts to choose from.
        moe_top_k: Experts of a token.
        moe_jitter_eps: In training, inputs are multiplied by noise from ``1 - eps`` to ``1 + eps``.
        moe_normalize_expert_weights: The order of the norm by which a token's weights are divided;
            none if empty or 0.
        uniform_expert_assignment: Whether experts take turns, whatever the scores; for benchmarks.
        device: Where the parameters are made.
    """

    def __init__(
        self,
        hidden_size: int,
        moe_num_experts: int,
        moe_top_k: int,
        moe_jitter_eps: float | None = None,
        moe_normalize_expert_weights: float | None = None,
        uniform_expert_assignment: bool = False,
        device: str | torch.device | None = None,
    ) -> None:
        super().__init__()
        self.moe_num_experts = moe_num_experts
        self.moe_top_k = moe_top_k
        self.moe_jitter_eps = moe_jitter_eps
        self.moe_normalize_expert_weights = moe_normalize_expert_weights
        self.uniform_expert_assignment = uniform_expert_assignment
        self.layer = torch.nn.Linear(hidden_size, moe_num_experts, bias=False, device=device)

    def forward(self, x_ND: torch.Tensor, return_logits: bool = False) -> Any:
        """Returns which experts compute each token, and with what weights: a ``Choice``.

        Args:
            x_ND: The tokens.
            return_logits: Whether the logits ``[N, E]`` are returned too.
        """
        if self.training and self.moe_jitter_eps:
            eps = self.moe_jitter_eps
            x_ND = x_ND * torch.empty_like(x_ND).uniform_(1 - eps, 1 + eps)
        logits_NE = self.layer(x_ND)
        scores_NE = logits_NE.softmax(dim=-1)
        weights_NK, experts_NK = scores_NE.topk(self.moe_top_k, dim=-1)
        if self.moe_normalize_expert_weights:
            order = float(self.moe_normalize_expert_weights)
            weights_NK = weights_NK / torch.linalg.vector_norm(
                weights_NK, ord=order, dim=-1, keepdim=True
            )
        if self.uniform_expert_assignment:
            turns = torch.arange(experts_NK.numel(), device=x_ND.device)
            experts_NK = turns.remainder(self.moe_num_experts).view_as(experts_NK)
        choice = Choice(scores_NE, weights_NK, experts_NK)
        return (choice, logits_NE) if return_logits else choice

    def count(self, experts_NK: torch.Tensor) -> torch.Tensor:
        """Returns how many tokens each expert got."""
        chosen_R = experts_NK.flatten()
        counts_E = torch.zeros(self.moe_num_experts, dtype=torch.int64, device=chosen_R.device)
        return counts_E.scatter_add(0, chosen_R, torch.ones_like(chosen_R))


def _kernel_takes(x_RI: torch.Tensor, w_EIO: torch.Tensor) -> bool:
    """Says whether torch's grouped matrix product computes these, and their gradients."""
    if not hasattr(F, "grouped_mm") or x_RI.dtype == torch.float64 or not len(x_RI):
        return False
    if torch.compiler.is_compiling() and x_RI.dtype != torch.bfloat16:
        return False  # which is all that torch 2.13's compiler knows of it
    if x_RI.is_cuda and torch.cuda.get_device_capability(x_RI.device) < (8, 0):
        return False
    # Rows of all operands begin at multiples of 16 bytes.
    return all(n * x_RI.element_size() % 16 == 0 for n in w_EIO.shape[1:])


def grouped_product(x_RI: torch.Tensor, w_EIO: torch.Tensor, ends_E: torch.Tensor) -> torch.Tensor:
    """Multiplies each expert's rows by its matrix.

    Args:
        x_RI: Rows, those of the first expert first.
        w_EIO: A matrix for each expert.
        ends_E: Where each expert's rows end (int32).
    """
    if _kernel_takes(x_RI, w_EIO):
        return F.grouped_mm(x_RI, w_EIO, offs=ends_E)
    pieces = x_RI.tensor_split(ends_E[:-1].tolist())
    return torch.cat([piece @ w for piece, w in zip(pieces, w_EIO.unbind(), strict=True)])


class ExpertMLP(torch.nn.Module):
    """The weights of all experts, which are MLPs without biases, gated if there is ``v1``.

    Args:
        hidden_size: Width in and out.
        ffn_hidden_size: Hidden width of an expert.
        num_experts: How many experts there are.
        is_glu: Whether experts are gated: ``(act(x w1) * (x v1)) w2``.
        activation_fn: The activation.
        device: Where the parameters are made.
        is_stacked: Whether weights are ``[E, D, F]`` and ``[E, F, D]``, as checkpoints of mb_moe
            have them, and not ``[E F, D]`` all.
    """

    inits_whole = False
    """Whether initialisation draws each weight as one matrix, not each expert's for itself."""
    expert_mesh: Any = None
    """The ranks that share the experts, if they do."""

    def __init__(
        self,
        hidden_size: int,
        ffn_hidden_size: int,
        num_experts: int,
        is_glu: bool,
        activation_fn: Activation,
        device: str | torch.device | None = None,
        is_stacked: bool = False,
    ) -> None:
        super().__init__()
        self.is_stacked = is_stacked
        self.act = activation_fn
        self.sizes = (ffn_hidden_size, hidden_size)
        rows = (num_experts * ffn_hidden_size, hidden_size)
        first = (num_experts, hidden_size, ffn_hidden_size) if is_stacked else rows
        last = (num_experts, ffn_hidden_size, hidden_size) if is_stacked else rows
        names = {"w1": first, **({"v1": first} if is_glu else {}), "w2": last}
        for name, shape in names.items():
            self.register_parameter(name, torch.nn.Parameter(torch.empty(shape, device=device)))
        self.reset_parameters()

    def by_expert(self, name: str, weight: torch.Tensor) -> torch.Tensor:
        """Returns a weight as matrices ``[E, I, O]``, which share its memory."""
        if self.is_stacked:
            return weight
        w_EFD = weight.view(-1, *self.sizes)
        return w_EFD if name == "w2" else w_EFD.mT

    @torch.no_grad()
    def reset_parameters(self) -> None:
        """Draws each expert's matrices as ``torch.nn.Linear`` draws its weight."""
        for name, weight in self.named_parameters(recurse=False):
            for w_IO in self.by_expert(name, weight):
                torch.nn.init.kaiming_uniform_(w_IO.mT, a=5**0.5)

    def forward(self, x_RD: torch.Tensor, ends_E: torch.Tensor) -> torch.Tensor:
        """Returns what each expert makes of its rows; see ``grouped_product``."""

        def times(x: torch.Tensor, name: str) -> torch.Tensor:
            weight = getattr(self, name)
            if self.expert_mesh is not None:
                weight = _own_experts(weight, self.expert_mesh.size())
            return grouped_product(x, self.by_expert(name, weight).to(x.dtype), ends_E)

        h_RF = self.act(times(x_RD, "w1"))
        if hasattr(self, "v1"):
            h_RF = h_RF * times(x_RD, "v1")
        return times(h_RF, "w2")


class DroplessMLP(torch.nn.Module):
    """Computes each token by its experts and adds up what they give, weighted.

    Args:
        mlp: The experts' weights.
        capacity_factor: In training, an expert takes no more than this many times its even share of
            the tokens, and drops the rest; 0 for all it gets. Evaluation drops none, as a text's
            result must not depend on what stands beside it.
        recomputes: Whether the experts' inner activations are computed again in the backward pass.
        bias: Whether a bias is added to the sum.
        device: Where it is made.
    """

    def __init__(
        self,
        mlp: ExpertMLP,
        capacity_factor: float = 0,
        recomputes: bool = False,
        bias: bool = False,
        device: str | torch.device | None = None,
    ) -> None:
        super().__init__()
        self.mlp = mlp
        self.capacity_factor = capacity_factor
        self.recomputes = recomputes
        self.bias = torch.nn.Parameter(torch.zeros(mlp.sizes[1], device=device)) if bias else None

    def forward(self, x_ND: torch.Tensor, choice: Choice, counts_E: torch.Tensor) -> torch.Tensor:
        """Returns the weighted sums, in the dtype of the computation.

        Args:
            x_ND: Tokens.
            choice: What the router says of them.
            counts_E: How many of them each expert got.
        """
        chosen_R, weights_NK = choice.experts_NK.flatten(), choice.weights_NK
        capacity = int(self.capacity_factor * len(chosen_R) / len(counts_E)) if self.training else 0
        order_R, ends_E = chosen_R.argsort(stable=True), counts_E.cumsum(0)
        place_R = torch.arange(len(order_R), device=order_R.device)
        row_S = order_R
        if capacity:
            capacity = min(capacity, len(x_ND))  # no expert gets a token twice
            kept = _within_capacity(order_R, chosen_R[order_R], counts_E, capacity)
            row_S, place_R, ends_E = kept
        place_NK = torch.empty_like(order_R).scatter(0, order_R, place_R).view_as(weights_NK)
        if capacity:
            weights_NK = weights_NK.masked_fill(place_NK < 0, 0)
            place_NK = place_NK.clamp(min=0)
        token_R = row_S // weights_NK.size(1)
        y_RD = self._compute(x_ND.to(autocast_dtype(x_ND)).index_select(0, token_R), ends_E)
        y_NKD = y_RD.index_select(0, place_NK.flatten()).view(*place_NK.shape, y_RD.size(1))
        y_ND = (y_NKD * weights_NK.to(y_RD.dtype)[..., None]).sum(dim=1, dtype=y_RD.dtype)
        return y_ND if self.bias is None else y_ND + self.bias.to(y_ND.dtype)

    def _compute(self, x_RD: torch.Tensor, ends_E: torch.Tensor) -> torch.Tensor:
        run: Any = self.mlp
        if self.mlp.expert_mesh is not None:
            run = functools.partial(_on_ranks_with_experts, self.mlp)
        if self.recomputes and torch.is_grad_enabled():
            return checkpoint(run, x_RD, ends_E.int(), use_reentrant=False)
        return run(x_RD, ends_E.int())


def _within_capacity(
    order_R: torch.Tensor, chosen_R: torch.Tensor, counts_E: torch.Tensor, capacity: int
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Gives each expert as many slots, a size that the host knows.

    Args:
        order_R: Rows in the order of their experts.
        chosen_R: The expert of each of these.
        counts_E: How many rows each expert got.
        capacity: How many of them it takes.

    Returns:
        The row in each slot, any where an expert got fewer; the slot of each of ``order_R``, -1 if
        it is dropped; and where each expert's slots end.
    """
    starts_E = counts_E.cumsum(0) - counts_E
    rank_R = torch.arange(len(order_R), device=order_R.device) - starts_E[chosen_R]
    place_R = (chosen_R * capacity + rank_R).masked_fill(rank_R >= capacity, -1)
    slot_C = torch.arange(capacity, device=order_R.device)
    slot_EC = (starts_E[:, None] + slot_C).clamp(max=len(order_R) - 1)
    ends_E = torch.arange(1, len(counts_E) + 1, device=order_R.device) * capacity
    return order_R[slot_EC.flatten()], place_R, ends_E


def _own_experts(weight: Any, num_ranks: int) -> torch.Tensor:
    """Returns this rank's part of a weight, whose gradient comes from the tokens of all ranks.

    Each rank's loss is a mean of its own tokens, and ranks average the gradients of other weights;
    of this one they get a sum.
    """
    local = weight.to_local()
    if local.requires_grad:
        local.register_hook(lambda gradient: gradient / num_ranks)
    return local


class _Exchange(torch.autograd.Function):
    """Gives each rank its rows, and in the backward pass brings their gradients home."""

    @staticmethod
    def forward(  # pyright: ignore[reportIncompatibleMethodOverride]  # as torch means it
        ctx: Any, x_RD: torch.Tensor, sent: list[int], received: list[int], group: Any
    ) -> torch.Tensor:
        ctx.back = (received, sent, group)
        out_RD = x_RD.new_empty(sum(received), x_RD.size(1))
        torch.distributed.all_to_all_single(out_RD, x_RD.contiguous(), received, sent, group=group)
        return out_RD

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        return _Exchange.apply(gradients[0], *ctx.back), None, None, None


def _on_ranks_with_experts(
    mlp: ExpertMLP, x_RD: torch.Tensor, ends_E: torch.Tensor
) -> torch.Tensor:
    """Sends rows to the ranks that have their experts, and gets back what these make of them."""
    group, num_ranks = mlp.expert_mesh.get_group(), mlp.expert_mesh.size()
    # By rank and expert there: what goes, what comes.
    goes = ends_E.diff(prepend=ends_E.new_zeros(1)).view(num_ranks, -1)
    comes = torch.empty_like(goes)
    torch.distributed.all_to_all_single(comes, goes.contiguous(), group=group)
    sent, received = goes.sum(1).tolist(), comes.sum(1).tolist()  # the host must know the sizes
    own_RD: Any = _Exchange.apply(x_RD, sent, received, group)
    expert = torch.arange(comes.size(1), device=comes.device).repeat(num_ranks)
    order = expert.repeat_interleave(comes.flatten()).argsort(stable=True)
    y_RD = mlp(own_RD[order], comes.sum(0).cumsum(0).int())
    y_RD = torch.zeros_like(y_RD).index_copy(0, order, y_RD)
    back_RD: Any = _Exchange.apply(y_RD, received, sent, group)
    return back_RD


class dMoE(torch.nn.Module):
    """A router and the experts among which it chooses, for each token by itself.

    Args:
        device: Where the parameters are made.
        hidden_size: Width in and out.
        ffn_hidden_size: Hidden width of an expert.
        moe_num_experts: See ``LearnedRouter``.
        moe_top_k: See ``LearnedRouter``.
        mlp_type: What an expert is: ``mlp`` or ``glu``.
        activation_fn: The experts' activation; GELU by its tanh approximation by default.
        moe_jitter_eps: See ``LearnedRouter``.
        moe_normalize_expert_weights: See ``LearnedRouter``.
        uniform_expert_assignment: See ``LearnedRouter``.
        bias: Whether a bias is added to the experts' sum.
        experts: The experts, instead of those that ``ffn_hidden_size``, ``mlp_type``,
            ``activation_fn`` and ``bias`` describe.
    """

    def __init__(
        self,
        device: str | torch.device | None = None,
        hidden_size: int = 1024,
        ffn_hidden_size: int = 4096,
        moe_num_experts: int = 1,
        moe_top_k: int = 1,
        mlp_type: str = "mlp",
        activation_fn: Activation = GELU_TANH,
        moe_jitter_eps: float | None = 0.0,
        moe_normalize_expert_weights: float | None = None,
        uniform_expert_assignment: bool = False,
        bias: bool = True,
        experts: DroplessMLP | None = None,
    ) -> None:
        super().__init__()
        self.router = LearnedRouter(
            hidden_size,
            moe_num_experts,
            moe_top_k,
            moe_jitter_eps,
            moe_normalize_expert_weights,
            uniform_expert_assignment,
            device,
        )
        if experts is None:
            sizes = (hidden_size, ffn_hidden_size, moe_num_experts)
            mlp = ExpertMLP(*sizes, mlp_type == "glu", activation_fn, device)
            experts = DroplessMLP(mlp, bias=bias, device=device)
        self.experts = experts

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Returns what the experts make of tokens ``[..., D]``."""
        return self._mix(x)[0]

    def _mix(self, x: torch.Tensor) -> tuple[torch.Tensor, Choice, torch.Tensor, torch.Tensor]:
        """Returns that, what the router says, its logits, and how many tokens each expert got."""
        x_ND = x.flatten(0, -2)
        choice, logits_NE = self.router(x_ND, return_logits=True)
        counts_E = self.router.count(choice.experts_NK)
        return self.experts(x_ND, choice, counts_E).view_as(x), choice, logits_NE, counts_E


def build_torch_dmoe(
    d_model: int,
    expansion_ratio: int | float,
    device: str | torch.device | None = None,
    bias: bool = True,
    ffn_act_fn: dict[str, Any] | None = None,
    **ffn_config: Any,
) -> dMoE:
    """Builds the mixture of experts of ``ffn_type: torch_dmoe``, which has no biases and no losses.

    Raises:
        KeyError: A setting that it needs is missing.
        ValueError: A setting is unknown or out of range.
    """
    del bias
    settings = {"ffn_type": "torch_dmoe", **ffn_config}
    args = config_moe_args(settings, d_model, expansion_ratio, n_layers=1)
    del args["num_layers"]
    act = resolve_ffn_act_fn(ffn_act_fn)
    ffn = dMoE(**args, activation_fn=act, device=device, bias=False)
    ffn.experts.mlp.inits_whole = True
    return ffn
