"""BestCheckpoints keeps the best evaluations, whatever comes after them."""

import os

import pytest
import torch
from torch.utils.data import DataLoader

from composer import Evaluator
from composer.callbacks.best_checkpoints import BestCheckpoints
from composer.callbacks.checkpoint_saver import CheckpointSaver
from tests.composer.callbacks.guarded import Given, Line, batches, make_trainer

NAN = float("nan")


class Scripted(Line):
    """A model whose metrics take given values, one an evaluation."""

    def __init__(self, values, name="Score", higher_is_better=None):
        super().__init__()
        self.values, self.name, self.higher_is_better = list(values), name, higher_is_better

    def get_metrics(self, is_train=False):
        from torchmetrics import Metric

        model, hint = self, self.higher_is_better

        class Script(Metric):
            full_state_update = False
            higher_is_better = hint

            def update(self, *_):
                pass

            def compute(self):
                return torch.tensor(model.values.pop(0))  # torchmetrics asks once

        return {} if is_train else {self.name: Script()}

    def update_metric(self, batch, outputs, metric):
        metric.update()


def run_with(tmp_path, values, callback=None, name="Score", hint=None, **settings):
    model = Scripted(values, name, hint)
    callback = callback or BestCheckpoints(name, folder=str(tmp_path))
    data = batches(len(values))
    return callback, make_trainer(
        callback,
        data=data,
        model=model,
        eval_dataloader=Evaluator(
            label="eval",
            dataloader=DataLoader(Given(batches(1)), batch_size=None),
            device_eval_microbatch_size=4,
        ),
        eval_interval=settings.pop("eval_interval", "1ba"),
        run_name="run",
        **settings,
    )


def names(tmp_path):
    return sorted(path.name for path in tmp_path.iterdir())


def best(tmp_path):
    return os.readlink(tmp_path / "best-rank0.pt")


def test_the_best_stays_and_the_link_leads_to_it(tmp_path):
    callback, trainer = run_with(tmp_path, [1, 3, 2, 3, 0])
    trainer.fit()
    assert names(tmp_path) == ["best-ep0-ba2-rank0.pt", "best-rank0.pt"]
    assert best(tmp_path) == "best-ep0-ba2-rank0.pt"  # of equals the first
    state = torch.load(tmp_path / "best-rank0.pt", weights_only=False)["state"]
    assert state["timestamp"]["Timestamp"]["batch"] == 2
    assert list(state["callbacks"]["BestCheckpoints"]["best"].values()) == [1, 3]
    trainer.close()


@pytest.mark.parametrize(
    ("name", "hint", "mode", "at"),
    [
        ("Accuracy", None, None, 2),
        ("LanguageCrossEntropy", None, None, 3),
        ("my_loss", None, None, 3),
        ("Quality", False, None, 3),
        ("loss_avoided", True, None, 2),
        ("Accuracy", None, "min", 3),
    ],
)
def test_what_is_better(tmp_path, name, hint, mode, at):
    callback = BestCheckpoints(name, mode=mode, folder=str(tmp_path))
    _, trainer = run_with(tmp_path, [2, 3, 1, 2], callback, name, hint)
    trainer.fit()
    assert best(tmp_path) == f"best-ep0-ba{at}-rank0.pt"
    trainer.close()


@pytest.mark.filterwarnings("ignore:Score of evaluator 'eval' is NaN")
def test_several_are_kept_and_nan_never(tmp_path):
    callback = BestCheckpoints("Score", num_to_keep=2, folder=str(tmp_path))
    _, trainer = run_with(tmp_path, [NAN, 5, 1, 3, NAN, 4, 2], callback)
    trainer.fit()
    assert names(tmp_path) == [
        "best-ep0-ba2-rank0.pt",
        "best-ep0-ba6-rank0.pt",
        "best-rank0.pt",
    ]
    assert best(tmp_path) == "best-ep0-ba2-rank0.pt"
    trainer.close()


def test_it_lives_beside_a_saver_that_deletes(tmp_path):
    callback, trainer = run_with(
        tmp_path,
        [1, 3, 2, 2, 0],
        save_folder=str(tmp_path),
        save_interval="1ba",
        save_num_checkpoints_to_keep=1,
    )
    trainer.fit()
    assert names(tmp_path) == [
        "best-ep0-ba2-rank0.pt",
        "best-rank0.pt",
        "ep0-ba5-rank0.pt",
        "latest-rank0.pt",
    ]
    assert isinstance(trainer._checkpoint_saver, CheckpointSaver)
    assert trainer._checkpoint_saver is not callback.saver
    trainer.close()


def test_a_resumed_run_goes_on_comparing_and_deletes_only_what_was_beaten(tmp_path):
    settings = {"save_folder": str(tmp_path), "save_interval": "2ba", "autoresume": True}
    _, first = run_with(tmp_path, [2, 3, 9], max_duration="2ba", **settings)
    first.fit()
    first.close()
    # Killed after a best that the checkpoint to resume from does not know.
    (tmp_path / "best-ep0-ba3-rank0.pt").write_bytes(b"whole")
    _, second = run_with(tmp_path, [1, 4, 2, 2, 2], max_duration="5ba", **settings)
    assert int(second.state.timestamp.batch) == 2
    second.fit()
    assert best(tmp_path) == "best-ep0-ba4-rank0.pt"
    assert "best-ep0-ba2-rank0.pt" not in names(tmp_path)
    second.close()


def test_a_new_run_refuses_the_folder_of_another(tmp_path):
    (tmp_path / "best-ep0-ba3-rank0.pt").touch()
    _, trainer = run_with(tmp_path, [1])
    with pytest.raises(FileExistsError, match="best-ep0-ba3-rank0.pt is later than this run"):
        trainer.fit()
    trainer.close()
    _, trainer = run_with(
        tmp_path, [1], BestCheckpoints("Score", folder=str(tmp_path), overwrite=True)
    )
    trainer.fit()
    assert "best-ep0-ba1-rank0.pt" in names(tmp_path)
    trainer.close()


def test_a_save_that_fails_is_not_taken_for_the_best(tmp_path, monkeypatch):
    callback, trainer = run_with(tmp_path, [1, 2])
    save = callback.saver._save_checkpoint

    def fail(state, logger, move_links):
        if state.timestamp.batch == 2:
            raise OSError("disk full")
        save(state, logger, move_links)

    monkeypatch.setattr(callback.saver, "_save_checkpoint", fail)
    with pytest.raises(OSError, match="disk full"):
        trainer.fit()
    assert list(callback.best.values()) == [1]
    assert best(tmp_path) == "best-ep0-ba1-rank0.pt"
    trainer.close()


def test_copies_go_to_a_store(tmp_path):
    store = tmp_path / "store"
    callback = BestCheckpoints("Score", folder=f"file://{store}/of/{{run_name}}")
    _, trainer = run_with(tmp_path, [1, 3, 2], callback)
    trainer.fit()
    trainer.close()
    found = sorted(str(p.relative_to(store)) for p in store.rglob("*") if p.is_file())
    assert found == [
        "of/run/best-ep0-ba1-rank0.pt",
        "of/run/best-ep0-ba2-rank0.pt",
        "of/run/best-rank0.pt.symlink",
    ]
    assert (store / "of/run/best-rank0.pt.symlink").read_text().endswith("best-ep0-ba2-rank0.pt")


def test_the_evaluation_at_the_end_counts_and_one_outside_does_not(tmp_path):
    _, trainer = run_with(tmp_path, [1, 9, 0], eval_interval="100ba")
    trainer.eval()
    assert names(tmp_path) == []
    trainer.fit()
    assert best(tmp_path) == "best-ep1-ba3-rank0.pt"
    trainer.close()


def test_wrong_settings(tmp_path):
    for kwargs in ({"mode": "up"}, {"num_to_keep": 0}):
        with pytest.raises(ValueError, match=next(iter(kwargs))):
            BestCheckpoints("m", **kwargs)
    _, trainer = run_with(tmp_path, [1], BestCheckpoints("Score", "evil", folder=str(tmp_path)))
    with pytest.raises(ValueError, match="'evil' is none of the run's"):
        trainer.fit()
    trainer.close()
    two = [BestCheckpoints("Score", folder=str(tmp_path)) for _ in range(2)]
    with pytest.raises(ValueError, match="one BestCheckpoints"):
        make_trainer(*two, data=batches(1))


def train_on_two(folder: str) -> list:
    rank = int(os.environ["RANK"])
    callback = BestCheckpoints("Score", folder=folder)
    model = Scripted([1, 3, 2] if rank == 0 else [9, 9, 9])
    trainer = make_trainer(
        callback,
        data=batches(3, rank=rank),
        model=model,
        eval_dataloader=Evaluator(
            label="eval",
            dataloader=DataLoader(Given(batches(1)), batch_size=None),
            device_eval_microbatch_size=4,
        ),
        eval_interval="1ba",
        run_name="run",
    )
    trainer.fit()
    trainer.close()
    return list(callback.best.values())


def test_without_a_monitor_it_takes_the_first_metric(tmp_path):
    callback, trainer = run_with(tmp_path, [1, 3, 2], BestCheckpoints(folder=str(tmp_path)))
    trainer.fit()
    assert callback.monitor == "Score"
    assert list(callback.best.values()) == [3]
    trainer.close()


def test_without_evaluation_it_says_that_there_is_nothing_to_compare(tmp_path, caplog):
    trainer = make_trainer(BestCheckpoints(folder=str(tmp_path)), data=batches(1))
    trainer.fit()
    trainer.close()
    assert "the run has no evaluation to compare" in caplog.text
