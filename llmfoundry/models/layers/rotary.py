"""Rotary position embeddings: queries and keys turn by an angle that grows with position.

Angles are computed in each forward, once for all layers, so there is no buffer that a sharded, cast
or meta initialisation could leave wrong.

Legend: B batch, S positions, K some of them, H heads, D head width, R half of it (the number of
frequencies).
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch

__all__ = ["RotaryEmbedding", "RotaryTables", "gen_rotary_embedding", "tokens_of"]


def tokens_of(x_BHSD: torch.Tensor, index_BK: torch.Tensor) -> torch.Tensor:
    """Returns some tokens of each row, ``[B, H, K, D]``."""
    rows, _, _, width = x_BHSD.shape
    index_BHKD = index_BK[:, None, :, None].expand(-1, x_BHSD.size(1), -1, width)
    return x_BHSD.expand(max(rows, index_BK.size(0)), -1, -1, -1).gather(2, index_BHKD)


def _rotate_half(x_BHSD: torch.Tensor) -> torch.Tensor:
    first, second = x_BHSD.chunk(2, dim=-1)
    return torch.cat([-second, first], dim=-1)


@dataclass
class RotaryTables:
    """Cosines and sines of one forward, ``[B or 1, 1, S, D]``, for queries and for keys.

    With ``after_cache`` the keys' are those of all keys, which the cache holds as they were
    computed: what they turn by changes as the sequence grows.
    """

    q_cos: torch.Tensor
    q_sin: torch.Tensor
    k_cos: torch.Tensor
    k_sin: torch.Tensor
    after_cache: bool = False

    def rotate_queries(self, q_BHSD: torch.Tensor) -> torch.Tensor:
        """Turns queries to their positions."""
        return q_BHSD * self.q_cos + _rotate_half(q_BHSD) * self.q_sin

    def of_tokens(self, index_BK: torch.Tensor) -> "RotaryTables":
        """Returns the tables of some tokens of each row."""
        tables = (self.q_cos, self.q_sin, self.k_cos, self.k_sin)
        q_cos, q_sin, k_cos, k_sin = (tokens_of(table, index_BK) for table in tables)
        return RotaryTables(q_cos, q_sin, k_cos, k_sin)

    def rotate_keys(self, k_BHSD: torch.Tensor) -> torch.Tensor:
        """Turns keys to their positions."""
        return k_BHSD * self.k_cos + _rotate_half(k_BHSD) * self.k_sin


class RotaryEmbedding(torch.nn.Module):
    """Makes the tables with which attention rotates queries and keys.

    Args:
        dim: The head width.
        theta: The base of the frequencies.
        max_position: The longest sequence of training.
        scaling: ``type`` (no_scaling, linear, dynamic, llama3, yarn) and its keys, as in
            ``rope_hf_config``.
        xpos_scale_base: Adds xPos decay with this base (arXiv 2212.10554).
        follows_padding: Whether positions are counted from a row's first token (True), or from the
            row's beginning even where that is padding.
    """

    def __init__(
        self,
        dim: int,
        theta: float,
        max_position: int,
        scaling: Mapping[str, Any] | None = None,
        xpos_scale_base: float | None = None,
        follows_padding: bool = True,
    ) -> None:
        super().__init__()
        self.dim = dim
        self.theta = float(theta)
        self.max_position = max_position
        self.scaling = dict(scaling or {"type": "no_scaling"})
        self.xpos_scale_base = xpos_scale_base
        self.follows_padding = follows_padding

    def extra_repr(self) -> str:
        """Shows the settings in the model's printout."""
        return f"dim={self.dim}, theta={self.theta}, scaling={self.scaling['type']}"

    def frequencies(self, length: int, device: torch.device | str | None = None) -> torch.Tensor:
        """Returns the inverse frequencies ``[R]`` for sequences of ``length`` positions."""
        kind, theta, dim = self.scaling["type"], self.theta, self.dim
        if kind == "dynamic" and length > self.max_position:
            factor = self.scaling["factor"]
            stretch = factor * length / self.max_position - (factor - 1)
            theta = theta * stretch ** (dim / (dim - 2))
        exponent_R = torch.arange(0, dim, 2, dtype=torch.int64, device=device).float() / dim
        frequency_R = 1.0 / (theta**exponent_R)
        if kind == "linear":
            return frequency_R / self.scaling["factor"]
        if kind == "llama3":
            return self._llama3(frequency_R)
        if kind == "yarn":
            return self._yarn(frequency_R)
        return frequency_R

    @property
    def grows(self) -> bool:
        """Whether all positions turn by other angles in a longer sequence."""
        return self.scaling["type"] == "dynamic"

    @property
    def amplitude(self) -> float:
        """What cosines and sines are multiplied by; 1 but for YaRN."""
        if self.scaling["type"] != "yarn":
            return 1.0
        given = self.scaling.get("attention_factor")
        return 0.1 * math.log(max(1.0, self.scaling["factor"])) + 1 if given is None else given

    def _llama3(self, frequency_R: torch.Tensor) -> torch.Tensor:
        """Slows low frequencies by ``factor``, leaves high ones, and blends between."""
        factor, original = self.scaling["factor"], self.scaling["original_max_position_embeddings"]
        low, high = self.scaling["low_freq_factor"], self.scaling["high_freq_factor"]
        turns_R = original * frequency_R / (2 * math.pi)
        blend_R = ((turns_R - low) / (high - low)).clamp(0, 1)
        return frequency_R * (blend_R + (1 - blend_R) / factor)

    def _yarn(self, frequency_R: torch.Tensor) -> torch.Tensor:
        """Slows frequencies with fewer turns than ``beta_slow``, leaves those over ``beta_fast``.

        Peng et al., *YaRN*, arXiv 2309.00071: between the two the share goes linearly with the
        index of the frequency, whose bounds are whole numbers.
        """
        original, factor = self.scaling["original_max_position_embeddings"], self.scaling["factor"]

        def index_of(turns: float) -> float:
            period = math.log(original / (2 * math.pi * turns))
            return self.dim * period / (2 * math.log(self.theta))

        first = max(math.floor(index_of(self.scaling.get("beta_fast", 32))), 0)
        last = min(math.ceil(index_of(self.scaling.get("beta_slow", 1))), self.dim - 1)
        index_R = torch.arange(len(frequency_R), device=frequency_R.device)
        slowed_R = ((index_R - first) / max(last - first, 1e-3)).clamp(0, 1)
        return frequency_R * (slowed_R / factor + 1 - slowed_R)

    @torch.no_grad()
    def forward(
        self,
        positions_BS: torch.Tensor,
        length: int,
        dtype: torch.dtype,
        n_queries: int | None = None,
    ) -> RotaryTables:
        """Returns the tables for ``positions_BS`` in ``dtype``.

        With ``n_queries``, the positions are those of all keys, in the cache too, and the queries
        stand at the last ones.
        """
        position_BS = positions_BS.float()
        angle_BSR = position_BS[..., None] * self.frequencies(length, positions_BS.device)
        angle_BSD = torch.cat([angle_BSR, angle_BSR], dim=-1)
        cos, sin = angle_BSD.cos()[:, None], angle_BSD.sin()[:, None]
        if self.xpos_scale_base is None:
            cos, sin = (cos * self.amplitude).to(dtype), (sin * self.amplitude).to(dtype)
            if n_queries is not None:
                return RotaryTables(
                    cos[:, :, -n_queries:], sin[:, :, -n_queries:], cos, sin, after_cache=True
                )
            return RotaryTables(cos, sin, cos, sin)
        decay_R = torch.arange(0, self.dim, 2, device=positions_BS.device).float()
        decay_R = (decay_R + 0.4 * self.dim) / (1.4 * self.dim)
        # A product of query and key depends on the difference of the powers only, so the centre
        # is free; a fixed one keeps keys in the cache right.
        power_BS = (position_BS - self.max_position // 2) / self.xpos_scale_base
        scale = decay_R ** power_BS[..., None]
        scale = torch.cat([scale, scale], dim=-1)[:, None]
        q_cos, q_sin = (cos * scale).to(dtype), (sin * scale).to(dtype)
        return RotaryTables(q_cos, q_sin, (cos / scale).to(dtype), (sin / scale).to(dtype))


def gen_rotary_embedding(
    rope_impl: str,
    rope_theta: float,
    rope_dail_config: Mapping[str, Any],
    rope_hf_config: Mapping[str, Any],
    max_seq_len: int,
    d_model: int,
    n_heads: int,
    head_dim: int | None = None,
) -> RotaryEmbedding:
    """Builds the rotary embedding that a model's ``attn_config`` asks for.

    Raises:
        ValueError: ``rope_impl`` is neither dail nor hf.
    """
    dim = head_dim or d_model // n_heads
    if rope_impl == "dail":
        is_xpos = rope_dail_config["type"] == "xpos"
        return RotaryEmbedding(
            dim,
            rope_theta,
            max_seq_len,
            xpos_scale_base=rope_dail_config["xpos_scale_base"] if is_xpos else None,
            follows_padding=False,
        )
    if rope_impl == "hf":
        return RotaryEmbedding(dim, rope_theta, max_seq_len, scaling=rope_hf_config)
    raise ValueError(f"rope_impl must be dail or hf, but got {rope_impl!r}.")
