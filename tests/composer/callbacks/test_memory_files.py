"""Memory records on a made-up snapshot: what asks the GPU itself is replaced here.

Recording and the observer need CUDA; when they record, what they write and where is tested.
"""

import pickle
import xml.etree.ElementTree as ET
from pathlib import Path

import pytest
import torch

from composer.callbacks import _memory_files
from composer.callbacks.memory_snapshot import MemorySnapshot
from composer.callbacks.oom_observer import OOMObserver, SnapshotFileNameConfig
from composer.core.logger_destination import LoggerDestination
from tests.composer.plugins import HandRun

FRAMES = [
    {"filename": "net.py", "line": 7, "name": "forward <&>"},
    {"filename": "run.py", "line": 1, "name": "main"},
]
SNAPSHOT = {
    "segments": [
        {
            "device": 0,
            "address": 4096,
            "total_size": 2048,
            "allocated_size": 1536,
            "active_size": 1536,
            "stream": 0,
            "segment_type": "small",
            "blocks": [
                {
                    "address": 4096,
                    "size": 1536,
                    "requested_size": 1500,
                    "state": "active_allocated",
                    "frames": FRAMES,
                },
                {"address": 5632, "size": 512, "requested_size": 0, "state": "inactive"},
            ],
        }
    ],
    "device_traces": [
        [{"action": "alloc", "addr": 4096, "size": 1536, "stream": 0, "frames": FRAMES}]
    ],
}


class Store(LoggerDestination):
    def __init__(self):
        self.files = {}

    def can_upload_files(self):
        return True

    def upload_file(self, state, remote_file_name, file_path, *, overwrite):
        self.files[remote_file_name] = (Path(file_path).read_bytes(), overwrite)


@pytest.fixture
def on_cuda(monkeypatch, tmp_path):
    """Lets the callbacks believe that there is a GPU, and notes what they ask of it."""
    asked = []
    monkeypatch.chdir(tmp_path)
    for name in ("memory_snapshot", "oom_observer"):
        monkeypatch.setattr(f"composer.callbacks.{name}.can_record", lambda *_: True)
    monkeypatch.setattr(
        torch.cuda.memory, "_record_memory_history", lambda **kwargs: asked.append(kwargs)
    )
    monkeypatch.setattr(torch.cuda.memory, "_snapshot", lambda: SNAPSHOT)
    monkeypatch.setattr(
        torch._C, "_cuda_attach_out_of_memory_observer", asked.append, raising=False
    )
    return asked


def test_a_flame_graph_is_as_wide_as_the_bytes():
    folded = "a;b 300\na;<c> 100\nd 400\n"
    svg = ET.fromstring(_memory_files.draw_flame_graph(folded))
    space = "{http://www.w3.org/2000/svg}"
    widths = {
        group.find(f"{space}title").text: float(group.find(f"{space}rect").get("width"))
        for group in svg
    }
    assert widths == {
        "all (800 bytes)": 1200,
        "a (400 bytes)": 600,
        "b (300 bytes)": 450,
        "<c> (100 bytes)": 150,
        "d (400 bytes)": 600,
    }
    ET.fromstring(_memory_files.draw_flame_graph(""))  # nothing allocated


def test_snapshot_files_and_their_time(on_cuda, tmp_path):
    store = Store()
    callback = MemorySnapshot(skip_batches=2, interval="2ba")
    HandRun(callback, store, max_duration="9ba").loaded().fit().close()
    assert on_cuda == [{"max_entries": 100000}, {"enabled": None}]
    path = tmp_path / "run" / "torch_traces" / "rank0.4.memory_snapshot"
    assert pickle.loads(Path(f"{path}.pickle").read_bytes()) == SNAPSHOT
    assert "Active Memory Timeline" in Path(f"{path}.html").read_text()
    assert set(store.files) == {
        f"run/torch_memory_traces/rank0.4.memory_snapshot.{end}" for end in ("pickle", "html")
    }


def test_a_run_that_ends_first_is_recorded_too(on_cuda, tmp_path):
    callback = MemorySnapshot(skip_batches=1, interval="50ba", remote_file_name=None)
    HandRun(callback, max_duration="3ba").loaded().fit().close()
    assert (tmp_path / "run/torch_traces/rank0.3.memory_snapshot.html").exists()
    assert on_cuda[-1] == {"enabled": None}


def test_the_observer_writes_all_files_each_time(on_cuda, tmp_path):
    store = Store()
    callback = OOMObserver()
    run = HandRun(callback, store, max_duration="1ba").loaded()
    recording, observe = on_cuda
    assert recording == {"max_entries": 100000}
    for _ in range(2):
        observe(0, 1, 2, 3)
    names = SnapshotFileNameConfig.from_file_name(
        str(Path("run/torch_traces/rank0_oom"))
    ).list_filenames()
    assert callback.filename_config.list_filenames() == names
    for name in names:
        assert Path(name).stat().st_size > 100
        there = name.replace("torch_traces", "oom_traces")
        assert store.files[there] == (Path(name).read_bytes(), True)
    assert (
        "forward &lt;&amp;&gt;"
        in Path("run/torch_traces/rank0_oom_memory_flamegraph.svg").read_text()
    )
    run.close()
    before = dict(store.files)
    store.files.clear()
    observe(0, 1, 2, 3)  # torch keeps observers for ever; a closed one does nothing
    assert store.files == {} != before


def test_what_fails_in_the_observer_does_not_hide_the_error(on_cuda, monkeypatch, caplog):
    def fail():
        raise RuntimeError("no snapshot")

    monkeypatch.setattr(torch.cuda.memory, "_snapshot", fail)
    run = HandRun(OOMObserver()).loaded()
    on_cuda[1](0, 1, 2, 3)
    assert "could not be written" in caplog.text
    run.close()


@pytest.mark.parametrize("make", [MemorySnapshot, OOMObserver])
def test_a_folder_with_files_is_refused_unless_the_run_is_resumed(on_cuda, tmp_path, make):
    (tmp_path / "run/torch_traces").mkdir(parents=True)
    (tmp_path / "run/torch_traces/old.html").touch()
    run = HandRun(make())
    with pytest.raises(FileExistsError, match="is not empty"):
        run.loaded()
    run.close()
    HandRun(make(overwrite=True)).loaded().close()
    run = HandRun(make())
    run.state.advance_batch(1, 0)
    run.loaded().close()


@pytest.mark.parametrize("make", [MemorySnapshot, OOMObserver])
def test_without_cuda_it_says_that_it_does_nothing(tmp_path, monkeypatch, make):
    monkeypatch.chdir(tmp_path)
    callback = make()
    with pytest.warns(UserWarning, match="only works on CUDA devices, but the model is on cpu"):
        run = HandRun(callback, max_duration="4ba")
    run.loaded().fit().close()
    assert callback._enabled is False
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("interval", ["1ep", 0])
def test_wrong_settings(interval):
    with pytest.raises(ValueError, match="interval="):
        MemorySnapshot(interval=interval)
