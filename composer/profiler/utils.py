"""The memory timeline of torch's profiler as a picture in an HTML file."""

from __future__ import annotations

import base64
import html
import io
import json
import tempfile
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import torch

_BYTES_PER_GIB = 2**30
# The columns of torch's timeline, in its order, behind one that is always zero.
_CATEGORIES = {
    "Parameter": "darkgreen",
    "Optimizer state": "goldenrod",
    "Input": "black",
    "Temporary": "mediumpurple",
    "Activation": "red",
    "Gradient": "mediumblue",
    "Autograd detail": "royalblue",
    "Unknown": "grey",
}


def export_memory_timeline_html(
    prof: Any,
    path: str,
    device: str | None = None,
    figsize: tuple[float, float] = (20, 12),
    title: str | None = None,
    yxis_step_size: float = 1.0,
    return_fig: bool = False,
) -> Any:
    """Draws what memory held over time (weights, gradients, activations...) into an HTML file.

    Args:
        prof: A ``torch.profiler.profile`` that recorded shapes, memory and stacks.
        path: The HTML file.
        device: Whose memory; the current CUDA device by default, the CPU if there is none.
        figsize: Width and height of the picture in inches.
        title: Its title; by default the greatest use of memory.
        yxis_step_size: How many GiB are between two marks of the vertical axis.
        return_fig: Whether to return the matplotlib figure.

    Returns:
        The figure, if asked for.
    """
    from matplotlib.figure import Figure

    if device is None:
        on_cuda = torch.cuda.is_available()
        device = f"cuda:{torch.cuda.current_device()}" if on_cuda else "cpu"
    times, sizes = _memory_timeline(prof, device)
    gib = sizes[:, 1:] / _BYTES_PER_GIB
    peak = gib.sum(axis=1).max(initial=0.0)
    figure = Figure(figsize=figsize, dpi=80)
    axes = figure.add_subplot()
    axes.stackplot(
        (times - times.min(initial=np.inf)) / 1e3,
        gib.T,
        colors=list(_CATEGORIES.values()),
        labels=list(_CATEGORIES),
    )
    axes.legend(loc="upper left")
    axes.set_xlabel("milliseconds")
    axes.set_ylabel("GiB")
    if peak > yxis_step_size:
        axes.set_yticks(np.arange(0, peak + yxis_step_size, yxis_step_size))
    title = title or f"Memory of {device}: at most {peak:.3f} GiB"
    axes.set_title(title)
    picture = io.BytesIO()
    figure.savefig(picture, format="png")
    encoded = base64.b64encode(picture.getvalue()).decode()
    Path(path).write_text(
        f"<!DOCTYPE html>\n<html><head><title>{html.escape(title)}</title></head>\n"
        f'<body><img src="data:image/png;base64,{encoded}"></body></html>\n'
    )
    return figure if return_fig else None


def _memory_timeline(prof: Any, device: str) -> tuple[np.ndarray, np.ndarray]:
    """Returns times (microseconds) and, for each, the bytes of each category."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "timeline.json")
        with warnings.catch_warnings():
            # Deprecated, but there is no other road from a profile to its memory timeline.
            warnings.simplefilter("ignore", category=FutureWarning)
            warnings.simplefilter("ignore", category=DeprecationWarning)
            prof.export_memory_timeline(str(path), device)
        times, sizes = json.loads(path.read_text())
    return np.asarray(times, dtype=float), np.asarray(sizes, dtype=float).reshape(len(times), -1)
