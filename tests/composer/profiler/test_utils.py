import torch

from composer.profiler.utils import export_memory_timeline_html


def test_the_memory_timeline_is_drawn(tmp_path):
    layer = torch.nn.Linear(64, 64)
    with torch.profiler.profile(record_shapes=True, profile_memory=True, with_stack=True) as prof:
        layer(torch.rand(8, 64)).sum().backward()
    path = tmp_path / "memory.html"
    figure = export_memory_timeline_html(
        prof, str(path), device="cpu", figsize=(4, 3), title="a < b", return_fig=True
    )
    (axes,) = figure.axes
    assert axes.get_ylim()[1] > 0 and axes.get_title() == "a < b"
    assert "<title>a &lt; b</title>" in path.read_text()
    assert export_memory_timeline_html(prof, str(path), "cpu") is None
