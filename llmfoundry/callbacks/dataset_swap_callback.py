"""Goes on with another data set where a run is resumed."""

import copy
from typing import Any

from composer.core.logger import Logger
from composer.core.state import State
from llmfoundry.callbacks.curriculum_learning_callback import changed_settings
from llmfoundry.interfaces.callback_with_config import CallbackWithConfig
from llmfoundry.utils.warnings import experimental_class

__all__ = ["DatasetSwap"]


@experimental_class("DatasetSwap")
class DatasetSwap(CallbackWithConfig):
    """Begins the data set of ``train_loader`` anew where a run with a smaller index is resumed.

    It is one of the few callbacks that change the run. To go on with other data, stop the run,
    change ``train_loader.dataset``, raise ``dataset_index`` and resume: an epoch of the new data
    begins. With the same index the run goes on where it was, and the data must be the same. A
    checkpoint of a run without this callback counts as one of index 0.

    Args:
        train_config: The run's configuration.
        dataset_index: Number of the data set, 0 or more.

    Raises:
        ValueError: ``dataset_index`` is negative.
    """

    def __init__(self, train_config: dict[str, Any], dataset_index: int) -> None:
        if dataset_index < 0:
            raise ValueError(f"dataset_index={dataset_index} must be 0 or more.")
        self._index = dataset_index
        self._configs = [copy.deepcopy(train_config["train_loader"]["dataset"])]
        self._is_new = self._was_loaded = False
        self._loader: Any = None

    def before_load(self, state: State, logger: Logger) -> None:
        """Keeps the data set from the position of a checkpoint until it is known whose it is."""
        del logger
        self._loader = state.train_dataloader
        state.train_dataloader = None

    def after_load(self, state: State, logger: Logger) -> None:
        """Gives the data set the position, or begins an epoch if it is new."""
        del logger
        if self._is_new or (self._index and not self._was_loaded and int(state.timestamp.batch)):
            state.start_of_train_dataset()  # Forgets the position in the old data.
            if int(state.timestamp.batch_in_epoch):
                state.timestamp = state.timestamp.to_next_epoch()
        state.train_dataloader = self._loader

    def state_dict(self) -> dict[str, Any]:
        """The number of the data set, and the settings of all that there were."""
        configs = copy.deepcopy(self._configs)
        return {"callback_state": {"dataset_index": self._index, "all_dataset_configs": configs}}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Compares the data set with the one of the checkpoint.

        Raises:
            ValueError: The index has fallen, or it is the same and the data is not.
        """
        self._was_loaded = True
        saved = state["callback_state"]
        before, configs = int(saved["dataset_index"]), list(saved["all_dataset_configs"])
        if self._index < before:
            raise ValueError(
                f"dataset_index={self._index} is less than the checkpoint's, {before}. Give the "
                "same to go on with its data, or a larger one to begin other data."
            )
        self._is_new = self._index > before
        changed = [] if self._is_new else changed_settings(configs[-1], self._configs[-1])
        if changed:
            raise ValueError(
                f"{changed} of train_loader.dataset changed from {configs[-1]} to "
                f"{self._configs[-1]}, and dataset_index={before} has not. Raise it to begin with "
                "other data, or put the settings back."
            )
        self._configs = [*configs, self._configs[-1]] if self._is_new else configs
