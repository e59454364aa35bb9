from unittest.mock import MagicMock

import pytest

from composer.core.callback import Callback
from composer.profiler import (
    JSONTraceHandler,
    Profiler,
    ProfilerAction,
    SystemProfiler,
    TorchProfiler,
    cyclic_schedule,
)
from tests.composer.plugins import HandRun
from tests.composer.profiler.traces import make_profiler, make_trainer, named, profiled, read_trace


@pytest.fixture
def state():
    return HandRun().state


def test_markers_reach_the_handlers_in_the_batches_asked_for(state):
    handler = MagicMock()
    profiler = Profiler(cyclic_schedule(wait=1, warmup=0), handler, sys_prof_cpu=False)
    state.profiler = profiler
    with pytest.raises(RuntimeError, match="belongs to no run"):
        profiler.marker("x")
    profiler.bind_to_state(state)
    assert profiler.marker("x") is profiler.marker("x")
    profiler.marker("x").instant()  # the first batch is waited through
    handler.process_instant_event.assert_not_called()
    profiler.marker("y", always=True).instant()
    profiler.marker("z", [ProfilerAction.SKIP]).instant()
    assert handler.process_instant_event.call_count == 2
    profiler.record_chrome_json_trace_file("a.json")
    handler.process_chrome_json_trace_file.assert_called_once()
    profiler.trace_handlers = []
    profiler.marker("y").instant()
    assert handler.process_instant_event.call_count == 2


def test_parts_join_the_callbacks_in_the_order_in_which_they_work(state):
    handler = JSONTraceHandler()
    profiler = Profiler(cyclic_schedule(), [handler])
    assert [type(part) for part in profiler._callbacks] == [SystemProfiler, TorchProfiler]
    profiler.bind_to_state(state)
    assert state.callbacks == [profiler, *profiler._callbacks, handler]
    off = {
        "sys_prof_cpu": False,
        "torch_prof_profile_memory": False,
        "torch_prof_with_flops": False,
    }
    assert Profiler(cyclic_schedule(), [handler], **off)._callbacks == []


def test_names_for_uploads():
    handler = JSONTraceHandler(remote_file_name="a", merged_trace_remote_file_name=None)
    profiler = Profiler(cyclic_schedule(), handler, torch_prof_remote_file_name="s3://b/c")
    assert profiler.remote_filenames == ["s3://b/c", "a"]


def test_a_memory_timeline_needs_shapes_memory_and_stacks():
    with pytest.raises(ValueError, match="memory timeline 'm.html' needs"):
        Profiler(cyclic_schedule(), [], torch_prof_memory_filename="m.html")


class Stops(Callback):
    """Fails once, in the middle of a forward pass."""

    def __init__(self):
        self.has_failed = False

    def before_forward(self, state, logger):
        if not self.has_failed and int(state.timestamp.batch) == 1:
            self.has_failed = True
            raise KeyboardInterrupt


def test_training_can_go_on_after_an_interruption(tmp_path):
    trainer = make_trainer(make_profiler(tmp_path), callbacks=Stops())
    with pytest.raises(KeyboardInterrupt):
        trainer.fit()
    trainer.fit()
    trainer.close()
    assert named(read_trace(tmp_path / "traces/merged_trace.json"), "event/forward", "B")


def test_an_epoch_that_is_resumed_midway(tmp_path):
    run = {"save_folder": str(tmp_path / "saved"), "save_interval": "1ba", "seed": 1}
    profiled(make_profiler(tmp_path / "first"), max_duration="3ba", **run)
    profiler = make_profiler(tmp_path)
    trainer = profiled(
        profiler, max_duration="2ep", load_path=str(tmp_path / "saved/ep0-ba3-rank0.pt")
    )
    assert trainer.state.timestamp == "2ep"
    batches = [int(time.batch) for time, _ in profiler.trace_handlers[0].saved_traces]
    assert batches == [5, 8]  # two batches after the resumption, and two of the next epoch
    assert profiler.resumption_batch_idx == 0


def test_a_second_run_gets_markers_of_its_own(tmp_path):
    profiler = make_profiler(tmp_path, None, JSONTraceHandler(f"{tmp_path}/t", overwrite=True))
    first = profiled(profiler)
    second = profiled(profiler)
    assert profiler.marker("event/fit").state is second.state is not first.state
    second_half = read_trace(tmp_path / "t/merged_trace.json")
    assert len(named(second_half, "event/train_batch", "B")) == 2


def test_training_is_the_same_with_and_without(tmp_path):
    plain = profiled(None, seed=3)
    with_profiler = profiled(make_profiler(tmp_path, torch_prof_record_shapes=True), seed=3)
    for a, b in zip(plain.state.model.parameters(), with_profiler.state.model.parameters()):
        assert (a == b).all()
