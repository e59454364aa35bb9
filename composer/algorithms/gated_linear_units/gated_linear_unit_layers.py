"""The feed-forward network of BERT with a gate."""

from collections.abc import Callable

import torch


class BERTGatedFFOutput(torch.nn.Module):
    """A feed-forward network in which one projection gates another, with norm and residual.

    Args:
        d_embed: The model's width.
        d_ff: The width of the hidden layer.
        dropout_rate: Of the hidden layer.
        act_fn: What the gate goes through.
        layernorm_eps: Of the norm.
        gated_layer_bias: Whether the projection that is gated has a bias.
        non_gated_layer_bias: Whether the other one has a bias.
    """

    def __init__(
        self,
        d_embed: int,
        d_ff: int,
        dropout_rate: float,
        act_fn: Callable[[torch.Tensor], torch.Tensor],
        layernorm_eps: float,
        gated_layer_bias: bool = False,
        non_gated_layer_bias: bool = False,
    ) -> None:
        super().__init__()
        self.gated_layer = torch.nn.Linear(d_embed, d_ff, bias=gated_layer_bias)
        self.non_gated_layer = torch.nn.Linear(d_embed, d_ff, bias=non_gated_layer_bias)
        self.wo = torch.nn.Linear(d_ff, d_embed)
        self.dropout = torch.nn.Dropout(dropout_rate)
        self.act = act_fn
        self.layernorm = torch.nn.LayerNorm(d_embed, eps=layernorm_eps)

    def forward(
        self, hidden_states: torch.Tensor, residual_connection: torch.Tensor
    ) -> torch.Tensor:
        """Returns the normed sum of the network's output and the residual.

        Args:
            hidden_states: What the network reads.
            residual_connection: The residual.
        """
        hidden_states = self.act(self.gated_layer(hidden_states)) * self.non_gated_layer(
            hidden_states
        )
        return self.layernorm(self.wo(self.dropout(hidden_states)) + residual_connection)
