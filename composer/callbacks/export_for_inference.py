"""Exports the trained model when training ends."""

import copy
from collections.abc import Sequence
from typing import Any

from composer.core.callback import Callback
from composer.core.logger import Logger
from composer.core.state import State
from composer.utils.inference import ExportFormat, Transform, export_with_logger
from composer.utils.misc import unwrap_model
from composer.utils.object_store.object_store import ObjectStore


class ExportForInferenceCallback(Callback):
    """Exports the model at the end of training; see `composer.utils.export_for_inference`.

    Args:
        save_format: ``"torch_export"``, ``"onnx"`` or ``"torchscript"``.
        save_path: Where to; a name for the loggers if they keep files.
        save_object_store: The store to save to.
        sample_input: A batch to call the model with; by default the first one of training.
        transforms: Functions that change the copy that is exported.
        input_names: Names for the inputs.
        output_names: Names for the outputs.
    """

    def __init__(
        self,
        save_format: str | ExportFormat,
        save_path: str,
        save_object_store: ObjectStore | None = None,
        sample_input: Any = None,
        transforms: Transform | Sequence[Transform] | None = None,
        input_names: Sequence[str] | None = None,
        output_names: Sequence[str] | None = None,
    ) -> None:
        self.save_format = ExportFormat(save_format)
        self.save_path = save_path
        self.save_object_store = save_object_store
        self.sample_input = sample_input
        self.transforms = transforms
        self.input_names = input_names
        self.output_names = output_names

    def after_dataloader(self, state: State, logger: Logger) -> None:
        """Keeps the first batch, if no sample was given."""
        if self.sample_input is None:
            self.sample_input = copy.deepcopy(state.batch)

    def fit_end(self, state: State, logger: Logger) -> None:
        """Exports."""
        self.export_model(state, logger)

    def export_model(self, state: State, logger: Logger) -> None:
        """Exports the model as it is now.

        Raises:
            ValueError: If the model is sharded.
        """
        export_with_logger(
            model=unwrap_model(state.model),
            save_format=self.save_format,
            save_path=self.save_path,
            logger=logger,
            save_object_store=self.save_object_store,
            sample_input=None if self.sample_input is None else (self.sample_input, {}),
            transforms=self.transforms,
            input_names=self.input_names,
            output_names=self.output_names,
        )
