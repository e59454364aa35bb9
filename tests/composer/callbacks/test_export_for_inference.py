"""ExportForInferenceCallback writes the trained model when training ends."""

import pytest
import torch

from composer.callbacks.export_for_inference import ExportForInferenceCallback
from tests.composer.callbacks.guarded import batches, make_trainer


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.parametrize("given", [None, batches(1)[0]])
def test_the_trained_model_is_exported(tmp_path, given):
    path = str(tmp_path / "model.pt2")
    data = batches(3)
    trainer = make_trainer(
        ExportForInferenceCallback("torch_export", path, sample_input=given), data=data
    )
    trainer.fit()
    model = trainer.state.model.eval()
    exported = torch.export.load(path).module()
    assert torch.equal(exported(data[1]), model(data[1]))
    trainer.close()


def test_the_sample_is_the_first_batch_and_only_if_needed(tmp_path):
    callback = ExportForInferenceCallback("onnx", str(tmp_path / "m.onnx"))
    trainer = make_trainer(callback, data=batches(2))
    callback.export_model = lambda *_: None
    trainer.fit()
    assert torch.equal(callback.sample_input, batches(1)[0])
    trainer.close()
    with pytest.raises(ValueError, match="tflite"):
        ExportForInferenceCallback("tflite", "m")
