import pytest
import torch

from composer.trainer import Trainer
from composer.utils import dist
from tests.composer.trainer.models import Classifier, Rows, rows_loader
from tests.launch import run_ranks


def trained(**settings):
    model = Classifier(dropout=0.5)
    trainer = Trainer(
        model=model,
        optimizers=torch.optim.SGD(model.parameters(), lr=0.1),
        progress_bar=False,
        device="cpu",
        **{"max_duration": "2ba", "train_dataloader": rows_loader(), **settings},
    )
    trainer.fit()
    return trainer


def test_the_trained_model_is_exported_with_the_last_batch_as_its_sample(tmp_path):
    trainer = trained(compile_config={"backend": "eager"})
    trainer.export_for_inference("torch_export", str(tmp_path / "m.pt2"))
    trainer.close()
    model = trainer._original_model
    assert model.training
    program = torch.export.load(tmp_path / "m.pt2")
    assert not [name for name in program.state_dict if "_orig_mod" in name]
    torch.testing.assert_close(
        program.module()(trainer.state.batch), model.eval()(trainer.state.batch)
    )


def test_without_a_batch_a_sample_is_needed(tmp_path):
    model = Classifier()
    trainer = Trainer(
        model=model, optimizers=torch.optim.SGD(model.parameters(), lr=0.1), progress_bar=False
    )
    with pytest.raises(ValueError, match="sample_input is needed"):
        trainer.export_for_inference("torch_export", str(tmp_path / "m.pt2"))
    trainer.close()


def _export_on_ranks(folder):
    loader = rows_loader(12, sampler=dist.get_sampler(Rows(12)))
    trainer = trained(train_dataloader=loader)
    assert isinstance(trainer.state.model, torch.nn.parallel.DistributedDataParallel)
    trainer.export_for_inference("torch_export", f"{folder}/m{dist.get_global_rank()}.pt2")
    trainer.close()


@pytest.mark.slow
def test_ddp_is_taken_off_and_rank_zero_exports(tmp_path):
    run_ranks(_export_on_ranks, 2, str(tmp_path))
    assert [path.name for path in tmp_path.iterdir()] == ["m0.pt2"]
