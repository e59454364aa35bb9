"""Value embeddings: what attention adds to the values of each token, by the token alone.

Legend: B batch, S sequence, E model width, K key and value heads, D head width.
"""

import torch

__all__ = ["GATE_CHANNELS", "ValueEmbedding", "ValueGate"]

GATE_CHANNELS = 32
"""How many of the first channels of a layer's input its gate reads, as nanochat has it."""


class ValueGate(torch.nn.Linear):
    """The heads' gates before the sigmoid, which begin at zero whatever ``init_config`` says."""

    def reset_parameters(self) -> None:
        """Sets the weight to zero, where the gates are one."""
        torch.nn.init.zeros_(self.weight)


class ValueEmbedding(torch.nn.Module):
    """Gives each token a row of a table of its own, by which its values differ in this layer.

    To the values of head k is added ``2 * sigmoid(gate_k(x)) * row_k``: the row of the table that
    the token's id names, cut into heads, times a gate that is linear in the first channels of the
    layer's input. Gates begin at one, and the table as the model's embeddings do, whose rows are
    small beside values. The form is that of nanochat; modded-nanogpt brought the tables, after the
    value residual of Zhou et al. (arXiv 2410.17897), which takes the first layer's values instead.

    Args:
        vocab_size: Rows of the table.
        kv_n_heads: Key and value heads of the layer.
        head_dim: Their width.
        d_model: Width of the layer's input.
        device: Where the parameters are made.
    """

    def __init__(
        self,
        vocab_size: int,
        kv_n_heads: int,
        head_dim: int,
        d_model: int,
        device: str | torch.device | None = None,
    ) -> None:
        super().__init__()
        self.head_dim = head_dim
        self.table = torch.nn.Embedding(vocab_size, kv_n_heads * head_dim, device=device)
        channels = min(GATE_CHANNELS, d_model)
        self.gate = ValueGate(channels, kv_n_heads, bias=False, device=device)

    def forward(
        self, v_BKSD: torch.Tensor, x_BSE: torch.Tensor, ids_BS: torch.Tensor | None
    ) -> torch.Tensor:
        """Returns the values with the tokens' rows added.

        Args:
            v_BKSD: The values.
            x_BSE: The layer's input.
            ids_BS: The tokens.

        Raises:
            ValueError: There are no tokens.
        """
        if ids_BS is None:
            raise ValueError(
                "attn_config.value_embeddings looks up rows by token, and this forward was given "
                "inputs_embeds or key_value_states in place of input_ids; give input_ids, or leave "
                "value_embeddings out of the model."
            )
        gate_BSK = 2 * torch.sigmoid(self.gate(x_BSE[..., : self.gate.in_features]))
        rows_BSKD = self.table(ids_BS).unflatten(-1, (-1, self.head_dim))
        return v_BKSD + (gate_BSK[..., None] * rows_BSKD).transpose(1, 2).to(v_BKSD.dtype)

    @torch.no_grad()
    def resize(self, vocab_size: int) -> None:
        """Gives the table another number of rows; new ones are zero, which adds nothing."""
        old = self.table
        if old.num_embeddings == vocab_size:
            return
        weight = old.weight.new_zeros(vocab_size, old.embedding_dim)
        kept = min(vocab_size, old.num_embeddings)
        weight[:kept] = old.weight[:kept]
        old.weight = torch.nn.Parameter(weight, requires_grad=old.weight.requires_grad)
        old.num_embeddings = vocab_size
