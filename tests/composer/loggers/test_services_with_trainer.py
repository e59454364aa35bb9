"""Services in real runs: killed and resumed by the Trainer, and on two ranks."""

import pytest

from composer.callbacks import CheckpointSaver
from composer.loggers import FileLogger, RemoteUploaderDownloader
from tests.composer.loggers.test_with_trainer import Dies, Killed, trainer
from tests.composer.plugins import HandRun
from tests.launch import run_ranks


def test_a_killed_run_goes_on_in_every_service(tmp_path, monkeypatch):
    pytest.importorskip("tensorboard")
    from composer.loggers import TensorboardLogger
    from tests.composer.loggers.test_tensorboard_logger import read
    from tests.composer.loggers.test_tensorboard_logger import steps as steps_of

    store_folder = tmp_path / "store"
    for dies_at in (5, None):
        made = trainer(
            loggers=[
                TensorboardLogger(str(tmp_path / "events")),
                FileLogger(
                    str(tmp_path / "log.txt"),
                    "log.txt",
                    capture_stdout=False,
                    capture_stderr=False,
                ),
                RemoteUploaderDownloader(f"file://{store_folder}"),
            ],
            callbacks=[
                CheckpointSaver(
                    tmp_path / "{run_name}",
                    remote_file_name="{run_name}/ba{batch}.pt",
                    save_interval="3ba",
                ),
                Dies(dies_at),
            ],
            max_duration="7ba",
            autoresume=True,
        )
        if dies_at is None:
            made.fit()
        else:
            with pytest.raises(Killed):
                made.fit()
        made.close()
    assert steps_of(read(tmp_path / "events/run"), "loss/train/total") == list(range(7))
    names = {path.name for path in (store_folder / "run").iterdir()}
    assert {"ba3.pt", "ba6.pt", "ba7.pt"} <= names
    assert "[batch=6]: loss/train/total" in (store_folder / "log.txt").read_text()


def uploads_that_fail_on_rank_one(folder):
    from composer.utils import dist

    store = RemoteUploaderDownloader(f"file://{folder}/store")
    run = HandRun(store, max_duration="1ba").loaded()
    name = f"{folder}/of-rank-{dist.get_global_rank()}"
    with open(name, "w") as file:
        file.write("text")
    run.logger.upload_file("mine-{rank}", name)
    store.wait_for_workers()
    if dist.get_global_rank() == 1:
        run.logger.upload_file("mine-{rank}", name)  # it is there, and may not be replaced
    message = ""
    try:
        store.fit_end(run.state, run.logger)
    except (FileExistsError, RuntimeError) as error:
        message = f"{type(error).__name__}: {error}"
    run.close()
    return message


@pytest.mark.slow
def test_an_upload_that_fails_on_one_rank_ends_the_run_on_all(tmp_path):
    of_zero, of_one = run_ranks(uploads_that_fail_on_rank_one, 2, str(tmp_path))
    assert "FileExistsError" in of_one and "mine-1 already exists" in of_one
    assert of_zero.startswith("RuntimeError: An upload of rank 1 failed:")
    assert {path.name for path in (tmp_path / "store").glob("mine-*")} == {"mine-0", "mine-1"}


def ids_of_the_run(folder):
    import os

    from composer.loggers import MLFlowLogger

    os.chdir(folder)
    logger = MLFlowLogger(tracking_uri=f"sqlite:///{folder}/m.db", log_system_metrics=False)
    HandRun(logger, max_duration="1ba").loaded().fit().close()
    return logger.path_placeholders()


@pytest.mark.slow
def test_all_ranks_know_the_ids_of_the_mlflow_run(tmp_path):
    pytest.importorskip("sqlalchemy")
    of_zero, of_one = run_ranks(ids_of_the_run, 2, str(tmp_path))
    assert of_zero == of_one and "None" not in of_zero.values()
