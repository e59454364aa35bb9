import pytest
import torch

from composer.callbacks import load_checkpoint as module
from composer.callbacks.checkpoint_saver import CheckpointSaver
from composer.callbacks.load_checkpoint import LoadCheckpoint
from composer.core.event import Event
from tests.composer.plugins import HandRun, Regression


@pytest.mark.parametrize("event", ["before_load", Event.AFTER_LOAD])
@pytest.mark.parametrize("prefix", ["", "file://"])
def test_weights_come_from_the_checkpoint(tmp_path, event, prefix):
    trained = HandRun(CheckpointSaver(tmp_path, "{run_name}.pt"), max_duration="1ep").loaded().fit()
    trained.close()
    loads = LoadCheckpoint(
        f"{prefix}{tmp_path}/{{run_name}}.pt", load_weights_only=True, event=event
    )
    run = HandRun(loads).loaded()
    for name, value in run.state.model.state_dict().items():
        assert torch.equal(value, trained.state.model.state_dict()[name])
    assert run.state.timestamp.batch == 0
    run.close()


class KeepsOnlyItsAdapter(Regression):
    should_save_peft_only = True


def test_the_base_model_is_loaded_whole(monkeypatch):
    seen = []
    monkeypatch.setattr(
        module,
        "load_checkpoint",
        lambda state, **kw: seen.append(state.model.should_save_peft_only),
    )
    run = HandRun(LoadCheckpoint("base.pt"), model=KeepsOnlyItsAdapter()).loaded()
    assert seen == [False]
    assert run.state.model.should_save_peft_only is True
    run.close()


def test_an_unknown_event():
    with pytest.raises(ValueError, match="lunch"):
        LoadCheckpoint("base.pt", event="lunch")
