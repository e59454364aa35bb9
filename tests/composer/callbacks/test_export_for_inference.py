"""ExportForInferenceCallback writes the trained model when training ends."""

import pytest
import torch

from composer.callbacks.export_for_inference import ExportForInferenceCallback
from composer.models import ComposerClassifier
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


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_classifier_is_scripted(tmp_path):
    path = str(tmp_path / "model.pth")
    model = ComposerClassifier(torch.nn.Linear(4, 3), num_classes=3)
    trainer = make_trainer(
        ExportForInferenceCallback("torchscript", path),
        data=[(rows, torch.zeros(4, dtype=torch.long)) for rows in batches(2)],
        model=model,
    )
    trainer.fit()
    trainer.close()
    exported = torch.jit.load(path)
    assert torch.equal(exported((batches(1)[0], None)), model((batches(1)[0], None)))


def test_the_sample_is_the_first_batch(tmp_path):
    callback = ExportForInferenceCallback("onnx", str(tmp_path / "m.onnx"))
    trainer = make_trainer(callback, data=batches(2))
    callback.export_model = lambda *_: None
    trainer.fit()
    assert torch.equal(callback.sample_input, batches(1)[0])
    trainer.close()
    with pytest.raises(ValueError, match="tflite"):
        ExportForInferenceCallback("tflite", "m")
