"""Low-rank factors of matrices and convolutions that keep what they compute on given inputs."""

import dataclasses
from typing import Any

import torch
import torch.nn.functional as F


@dataclasses.dataclass
class LowRankSolution:
    """Two factors that together replace one map, and how well they do."""

    Wa: torch.Tensor | None = None
    """The first factor: ``[in, rank]``, or a convolution's weights."""
    Wb: torch.Tensor | None = None
    """The second factor: ``[rank, out]``, or the weights of a 1 x 1 convolution."""
    bias: torch.Tensor | None = None
    """What is added to the output of the second."""
    rank: int = -1
    """How many numbers pass from the first to the second."""
    nmse: float = 0
    """The mean squared error, relative to the variance of what should come out."""


def factorize_matrix(
    X: torch.Tensor,
    Y: torch.Tensor,
    Wa: torch.Tensor,
    Wb: torch.Tensor | None = None,
    bias: torch.Tensor | None = None,
    rank: float = 0.25,
    n_iters: int = 3,
) -> LowRankSolution:
    """Finds factors of low rank, and a bias, that make of ``X`` nearly ``Y + bias``.

    It starts from the largest singular values of the matrix, then fits one factor after the other
    by least squares. The bias takes up what they are wrong by on average.

    Args:
        X: Inputs ``[n, in]``.
        Y: What the matrix makes of them, before the bias, ``[n, out]``.
        Wa: The matrix ``[in, out]``, or its first factor.
        Wb: Its second factor.
        bias: What is added to the product.
        rank: How many numbers pass between the factors; below 1, as a part of the inputs, or of
            those that pass now.
        n_iters: How often each factor is fitted.
    """
    X, Y, Wa = X.detach(), Y.detach(), Wa.detach()
    W = Wa if Wb is None else Wa @ Wb.detach()
    size = max(1, int(rank * Wa.shape[0 if Wb is None else 1])) if rank < 1 else int(rank)
    size = min(size, *W.shape)
    U, S, Vt = torch.linalg.svd(W, full_matrices=False)
    first, second = U[:, :size] * S[:size].sqrt(), S[:size, None].sqrt() * Vt[:size]
    for _ in range(n_iters):
        second = torch.linalg.pinv(X @ first) @ Y
        first = torch.linalg.pinv(X) @ (Y @ torch.linalg.pinv(second))
    residual = Y - X @ first @ second
    offset = residual.mean(dim=0)
    nmse = float((residual - offset).square().mean() / Y.var())
    return LowRankSolution(
        first, second, offset if bias is None else bias.detach() + offset, size, nmse
    )


def factorize_conv2d(
    X: torch.Tensor,
    Wa: torch.Tensor,
    Wb: torch.Tensor | None = None,
    rank: float = 0.25,
    biasA: torch.Tensor | None = None,
    biasB: torch.Tensor | None = None,
    n_iters: int = 3,
    **conv2d_kwargs: Any,
) -> LowRankSolution:
    """Finds a convolution to few channels, and a 1 x 1 convolution, that do what one does.

    Args:
        X: Inputs ``[N, C, H, W]``.
        Wa: The convolution's weights.
        Wb: The weights of the 1 x 1 convolution that follows, if it is factorized already.
        rank: How many channels pass between the two; below 1, as a part of those that pass now, or
            of the elements of a patch.
        biasA: The convolution's bias.
        biasB: The bias of the one that follows.
        n_iters: How often each factor is fitted.
        conv2d_kwargs: Padding, stride and dilation of the convolution.

    Raises:
        NotImplementedError: If the convolution is in groups.
        RuntimeError: If there is a second bias, but no second convolution.
    """
    if conv2d_kwargs.pop("groups", 1) != 1:
        raise NotImplementedError("A convolution in groups cannot be factorized; leave it as it is")
    if biasB is not None and Wb is None:
        raise RuntimeError("biasB is the bias of the second convolution: pass its weights as Wb")
    patches = F.unfold(X.detach(), Wa.shape[-2:], **conv2d_kwargs)
    inputs = patches.transpose(1, 2).flatten(0, 1)
    first = Wa.detach().flatten(1).T
    second = None if Wb is None else Wb.detach().flatten(1).T
    bias = biasA
    if second is not None:
        bias = biasB if biasA is None else biasA @ second + (0 if biasB is None else biasB)
    outputs = inputs @ (first if second is None else first @ second)
    found = factorize_matrix(inputs, outputs, first, second, bias, rank, n_iters)
    assert found.Wa is not None and found.Wb is not None
    found.Wa = found.Wa.T.reshape(found.rank, *Wa.shape[1:])
    found.Wb = found.Wb.T[:, :, None, None]
    return found
