"""The weights of a checkpoint: named as the plain model names them (B55), and fitting (B54)."""

import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.composer.trainer.models import Classifier, rows_loader
from tests.composer.trainer.test_trainer import make


def test_b55_compiled_model_has_no_prefix_in_its_checkpoint(tmp_path: Path) -> None:
    model = Classifier()
    trainer = make(model, compile_config={"backend": "eager"}, max_duration="2ba")
    trainer.fit()
    saved = trainer.save_checkpoint(str(tmp_path / "compiled.pt"))
    names = torch.load(saved, weights_only=False)["state"]["model"].keys()
    assert names == Classifier().state_dict().keys()
    trainer.close()
    plain = make(Classifier(seed=9), load_path=str(tmp_path / "compiled.pt"))
    for name, value in plain.state.model.state_dict().items():
        assert torch.equal(value, model.state_dict()[name])
    plain.close()


def test_b55_a_compiled_part_has_no_prefix_and_a_compiled_model_loads_a_plain_one(
    tmp_path: Path,
) -> None:
    model = Classifier()
    model.net = torch.compile(model.net, backend="eager")
    trainer = make(model, max_duration="2ba")
    trainer.fit()
    saved = torch.load(trainer.save_checkpoint(str(tmp_path / "part.pt")), weights_only=False)
    exported = str(tmp_path / "exported.pt2")
    trainer.export_for_inference("torch_export", exported, sample_input=rows_batch())
    trainer.close()
    assert torch.export.load(exported).state_dict.keys() == Classifier().state_dict().keys()

    def texts(value: Any) -> Iterator[str]:
        for key, child in value.items() if isinstance(value, dict) else ():
            yield str(key)
            yield from texts(child)

    assert not [text for text in texts(saved) if "_orig_mod" in text]
    whole = Classifier(seed=9)
    make(whole, load_path=str(tmp_path / "part.pt"), compile_config={"backend": "eager"}).close()
    for name, value in whole.state_dict().items():
        assert torch.equal(value, saved["state"]["model"][name])


def rows_batch() -> Any:
    return next(iter(rows_loader(2)))


def test_b54_weights_that_do_not_fit_are_listed(tmp_path: Path) -> None:
    trainer = make()
    path = trainer.save_checkpoint(str(tmp_path / "weights.pt"), weights_only=True)
    trainer.close()

    class Other(Classifier):
        def __init__(self) -> None:
            super().__init__()
            self.extra = torch.nn.Linear(2, 2)
            del self.net[3]

    other = Other()
    with pytest.raises(RuntimeError, match="(?s)Missing.*extra.weight.*Unexpected.*net.3.weight"):
        make(other, load_path=path, load_weights_only=True)
    other = Other()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        trainer = make(
            other, load_path=path, load_weights_only=True, load_strict_model_weights=False
        )
    assert torch.equal(other.net[0].weight, Classifier().net[0].weight)
    trainer.close()
