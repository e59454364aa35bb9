"""Files that show what CUDA's allocator held: pages for a browser, and flame graphs.

They are made of a snapshot (``torch.cuda.memory._snapshot()``), a plain dict, so that nothing here
needs a GPU.
"""

import html
import os
import pickle
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from composer.callbacks._model_device import get_model_device
from composer.core.logger import Logger
from composer.core.state import State
from composer.utils.file_helpers import parse_uri
from composer.utils.file_names import ensure_folder_is_empty, format_name_with_dist

_WIDTH, _ROW = 1200, 16
_LEAST_WIDTH = 0.1
_COLOURS = ("#e4572e", "#f3a712", "#f6bd60", "#f28482", "#f7ede2")

Snapshot = dict[str, Any]


def write_pickle(snapshot: Snapshot) -> bytes:
    """Returns the snapshot as pytorch.org/memory_viz takes it."""
    return pickle.dumps(snapshot)


def draw_timeline(snapshot: Snapshot) -> bytes:
    """Returns an HTML page of the memory in use over time."""
    from torch.cuda._memory_viz import trace_plot

    return trace_plot(snapshot).encode()


def draw_segments(snapshot: Snapshot) -> bytes:
    """Returns an HTML page of the allocator's segments over time."""
    from torch.cuda._memory_viz import segment_plot

    return segment_plot(snapshot).encode()


def draw_flames_of_segments(snapshot: Snapshot) -> bytes:
    """Returns a flame graph (SVG) of who holds memory, by segment."""
    from torch.cuda._memory_viz import segments

    return draw_flame_graph(segments(snapshot, format_flamegraph=str)).encode()


def draw_flames_of_memory(snapshot: Snapshot) -> bytes:
    """Returns a flame graph (SVG) of who holds memory."""
    from torch.cuda._memory_viz import memory

    return draw_flame_graph(memory(snapshot, format_flamegraph=str)).encode()


def draw_flame_graph(folded: str) -> str:
    """Returns an SVG of stacks in folded form, one ``frame;frame;frame bytes`` a line.

    Torch's own function downloads and runs a Perl script for it.
    """
    root: dict[str, Any] = {"size": 0, "children": {}}
    for line in folded.splitlines():
        stack, _, size = line.rpartition(" ")
        node = root
        node["size"] += int(size)
        for frame in stack.split(";"):
            node = node["children"].setdefault(frame, {"size": 0, "children": {}})
            node["size"] += int(size)
    boxes: list[str] = []
    depth = 0
    waiting = [("all", root, 0.0, 0)]
    while waiting:
        name, node, left, row = waiting.pop()
        width = _WIDTH * node["size"] / max(1, root["size"])
        if width < _LEAST_WIDTH:
            continue
        depth = max(depth, row + 1)
        boxes.append(_box(name, node["size"], left, width, row))
        for child_name, child in sorted(node["children"].items()):
            waiting.append((child_name, child, left, row + 1))
            left += _WIDTH * child["size"] / max(1, root["size"])
    head = f'<svg xmlns="http://www.w3.org/2000/svg" width="{_WIDTH}" height="{depth * _ROW}">'
    return "\n".join([head, *boxes, "</svg>\n"])


def _box(name: str, size: int, left: float, width: float, row: int) -> str:
    label = html.escape(name[: int(width / 7)]) if width > 20 else ""
    colour = _COLOURS[sum(name.encode()) % len(_COLOURS)]
    place = f'x="{left:.1f}" y="{row * _ROW}"'
    return (
        f"<g><title>{html.escape(name)} ({size} bytes)</title>"
        f'<rect {place} width="{width:.1f}" height="{_ROW - 1}" fill="{colour}"/>'
        f'<text x="{left + 2:.1f}" y="{row * _ROW + 12}" font-size="11" '
        f'font-family="monospace">{label}</text></g>'
    )


def can_record(state: State, name: str) -> bool:
    """Tells whether CUDA's allocator can be watched; warns if it cannot."""
    device_type = get_model_device(state).type
    if torch.cuda.is_available() and device_type in ("cuda", "meta"):
        return True
    warnings.warn(
        f"The {name} only works on CUDA devices, but the model is on {device_type}: it does "
        "nothing.",
        stacklevel=3,
    )
    return False


def make_folder(state: State, folder: str) -> str:
    """Makes the folder of the files."""
    name = format_name_with_dist(folder, state.run_name)
    os.makedirs(name, exist_ok=True)
    return name


def refuse_other_runs_files(state: State, folder: str | None, overwrite: bool) -> None:
    """Raises FileExistsError if a new run would write into a folder with files; at AFTER_LOAD."""
    if folder is not None and not overwrite and state.timestamp.batch.value == 0:
        ensure_folder_is_empty(folder)


def write_files(
    snapshot: Snapshot,
    makers: dict[str, Callable[[Snapshot], bytes]],
    remote_names: dict[str, str],
    logger: Logger,
    overwrite: bool,
) -> None:
    """Writes each file, and uploads it if it has a name there and a destination keeps files."""
    for path, make in makers.items():
        Path(path).parent.mkdir(parents=True, exist_ok=True)
        Path(path).write_bytes(make(snapshot))
        if path in remote_names and logger.has_file_upload_destination():
            name = parse_uri(remote_names[path])[2].lstrip("/")
            logger.upload_file(name, path, overwrite=overwrite)
