"""The named errors of llmfoundry: whose fault it is, where it happened, and the values at hand."""

from collections.abc import Mapping
from typing import Any, Literal

__all__ = [
    "ALLOWED_MESSAGES_KEYS",
    "ALLOWED_PROMPT_KEYS",
    "ALLOWED_RESPONSE_KEYS",
    "BaseContextualError",
    "CannotUnicodeDecodeFile",
    "ChatTemplateError",
    "ClusterDoesNotExistError",
    "ClusterInvalidAccessMode",
    "ConsecutiveRepeatedChatRolesError",
    "DatasetTooSmallError",
    "DeltaTableNotFoundError",
    "EvalDataLoaderLocation",
    "FailedToConnectToDatabricksError",
    "FailedToCreateSQLConnectionError",
    "FaultyDataPrepCluster",
    "FinetuningFileNotFoundError",
    "HighLossError",
    "IncorrectMessageKeyQuantityError",
    "InputFolderMissingDataError",
    "InputFolderNotFound",
    "InsufficientPermissionsError",
    "InternalError",
    "InvalidContentTypeError",
    "InvalidConversationError",
    "InvalidDatasetError",
    "InvalidExampleTypeError",
    "InvalidFileExtensionError",
    "InvalidLastChatMessageRoleError",
    "InvalidMessageTypeError",
    "InvalidPromptResponseKeysError",
    "InvalidPromptTypeError",
    "InvalidResponseTypeError",
    "InvalidRoleError",
    "LossSpikeError",
    "MalformedUCTableError",
    "MisconfiguredHfDatasetError",
    "MissingHuggingFaceURLSplitError",
    "NetworkError",
    "NotEnoughChatDataError",
    "NotEnoughDatasetSamplesError",
    "OutputFolderNotEmptyError",
    "RunTimeoutError",
    "StoragePermissionError",
    "TableDownloadError",
    "TrainDataLoaderLocation",
    "UCNotEnabledError",
    "UnableToProcessPromptResponseError",
    "UnknownExampleTypeError",
    "UserError",
]

ALLOWED_RESPONSE_KEYS: set[str] = {"response", "completion"}
ALLOWED_PROMPT_KEYS: set[str] = {"prompt"}
ALLOWED_MESSAGES_KEYS: set[str] = {"messages"}

TrainDataLoaderLocation: Literal["TrainDataloader"] = "TrainDataloader"
EvalDataLoaderLocation: Literal["EvalDataloader"] = "EvalDataloader"

ErrorLocation = Literal["TrainDataloader", "EvalDataloader"]
ErrorAttribution = Literal["UserError", "InternalError", "NetworkError"]


class BaseContextualError(Exception):
    """An error that keeps the values it speaks of, and says whose it is to mend.

    Args:
        message: The text of the error.
        **kwargs: Values to keep as attributes; pickling rebuilds the error from them, so a subclass
            takes them positionally and in this order.
    """

    location: ErrorLocation | None = None
    error_attribution: ErrorAttribution | None = None
    place: str | None = None  # of the row that it is about

    def __init__(self, message: str, /, **kwargs: Any) -> None:
        self.error = message
        self.serializable_attributes = list(kwargs)
        for name, value in kwargs.items():
            setattr(self, name, value)
        super().__init__(message)

    def __str__(self) -> str:
        return f"{self.place}: {self.error}" if self.place else self.error

    def __reduce__(self) -> tuple[Any, ...]:
        """Rebuilds the error from its values, because exceptions pickle by their arguments."""
        if type(self) in (BaseContextualError, UserError, InternalError, NetworkError):
            raise NotImplementedError(
                f"{type(self).__name__} is a base class and does not pickle; raise a subclass."
            )
        values = tuple(getattr(self, name) for name in self.serializable_attributes)
        return type(self), values, {"place": self.place}


class UserError(BaseContextualError):
    """Something that the user can mend: configuration or data."""

    error_attribution = "UserError"


class InternalError(BaseContextualError):
    """Something that the run itself did wrong."""

    error_attribution = "InternalError"


class NetworkError(BaseContextualError):
    """Something outside that could not be reached."""

    error_attribution = "NetworkError"


class MissingHuggingFaceURLSplitError(UserError):
    """A hub data set was named without its split."""

    def __init__(self) -> None:
        super().__init__(
            "When using a HuggingFace dataset from a URL, you must set the `split` key in the "
            "dataset config."
        )


class NotEnoughDatasetSamplesError(UserError):
    """A data set that drops its last batch holds less than one batch."""

    def __init__(
        self,
        dataset_name: str,
        split: str,
        dataloader_batch_size: int,
        world_size: int,
        full_dataset_size: int,
        minimum_dataset_size: int,
    ) -> None:
        super().__init__(
            f"Your dataset (name={dataset_name}, split={split}) has {full_dataset_size} samples, "
            f"but your minimum batch size is {minimum_dataset_size} because you are running on "
            f"{world_size} devices with a per-device batch size of {dataloader_batch_size}. "
            "Increase the number of samples, lower the batch size, or set drop_last: false.",
            dataset_name=dataset_name,
            split=split,
            dataloader_batch_size=dataloader_batch_size,
            world_size=world_size,
            full_dataset_size=full_dataset_size,
            minimum_dataset_size=minimum_dataset_size,
        )


class InvalidExampleTypeError(UserError, ValueError):
    """A row is no mapping."""

    def __init__(self, example_type: str) -> None:
        text = f"Expected example to be a `Mapping`, but found type {example_type}"
        super().__init__(text, example_type=example_type)


class InvalidMessageTypeError(UserError):
    """The messages of a chat are no list."""

    def __init__(self, message_type: str) -> None:
        text = f"Expected message to be an `Iterable`, but found type {message_type}"
        super().__init__(text, message_type=message_type)


class UnknownExampleTypeError(UserError, ValueError):
    """A row is neither prompt/response nor chat."""

    def __init__(self, example_keys: str) -> None:
        super().__init__(
            f"Found keys {example_keys} in dataset. Unknown example type. For prompt and response "
            f"finetuning, the valid prompt keys are {sorted(ALLOWED_PROMPT_KEYS)} and the valid "
            f"response keys are {sorted(ALLOWED_RESPONSE_KEYS)}. For chat finetuning, the allowed "
            f"keys are {sorted(ALLOWED_MESSAGES_KEYS)}",
            example_keys=example_keys,
        )


class NotEnoughChatDataError(UserError):
    """A chat of fewer than two messages."""

    def __init__(self) -> None:
        super().__init__("Chat example must have at least two messages")


class ConsecutiveRepeatedChatRolesError(UserError):
    """Two messages in a row by the same role."""

    def __init__(self, repeated_role: str) -> None:
        text = (
            f"Conversation roles must alternate but found {repeated_role} repeated consecutively."
        )
        super().__init__(text, repeated_role=repeated_role)


class ChatTemplateError(UserError):
    """The chat template refused a conversation."""

    def __init__(self, template: str, sample: list[dict[str, str]], inner_message: str) -> None:
        super().__init__(
            f"Failed to process sample {sample} with template {template}. {inner_message}",
            template=template,
            sample=sample,
            inner_message=inner_message,
        )


class InvalidLastChatMessageRoleError(UserError):
    """A chat ends with a role that has nothing to learn."""

    def __init__(self, last_role: str, expected_roles: set[str]) -> None:
        text = f"Invalid last message role: {last_role}. Expected one of: {sorted(expected_roles)}"
        super().__init__(text, last_role=last_role, expected_roles=expected_roles)


class IncorrectMessageKeyQuantityError(UserError):
    """A chat message without exactly a role and a content."""

    def __init__(self, keys: list[str]) -> None:
        super().__init__(f"Expected 2 keys in message, but found {len(keys)}", keys=keys)


class InvalidRoleError(UserError):
    """A chat message by an unknown role."""

    def __init__(self, role: str, valid_roles: set[str]) -> None:
        text = f"Expected role to be one of {sorted(valid_roles)} but found: {role}"
        super().__init__(text, role=role, valid_roles=valid_roles)


class InvalidContentTypeError(UserError):
    """A chat message whose content is no string."""

    def __init__(self, content_type: type) -> None:
        text = f"Expected content to be a string, but found {content_type}"
        super().__init__(text, content_type=content_type)


class InvalidPromptTypeError(UserError):
    """A prompt that is no string."""

    def __init__(self, prompt_type: type) -> None:
        text = f"Expected prompt to be a string, but found {prompt_type}"
        super().__init__(text, prompt_type=prompt_type)


class InvalidResponseTypeError(UserError):
    """A response that is no string."""

    def __init__(self, response_type: type) -> None:
        text = f"Expected response to be a string, but found {response_type}"
        super().__init__(text, response_type=response_type)


class InvalidPromptResponseKeysError(UserError):
    """A row lacks the prompt or the response, or has too many of them."""

    def __init__(self, mapping: dict[str, str], example: Mapping[str, Any]) -> None:
        super().__init__(
            f"Expected mapping={mapping} to have keys 'prompt' and 'response', and the example to "
            f"have one of each. Found keys {sorted(example)}.",
            mapping=mapping,
            example=example,
        )


class InvalidFileExtensionError(UserError):
    """A data file of an unknown kind."""

    def __init__(self, dataset_name: str, valid_extensions: list[str]) -> None:
        super().__init__(
            f"safe_load is set to True. No data files with safe extensions {valid_extensions} "
            f"found for dataset at local path {dataset_name}.",
            dataset_name=dataset_name,
            valid_extensions=valid_extensions,
        )


class UnableToProcessPromptResponseError(UserError):
    """A prompt/response row that could not be read."""

    def __init__(self, input: dict[str, Any]) -> None:
        super().__init__(f"Unable to extract prompt/response from {input}", input=input)


class _MessageError(UserError):
    """An error that is its message and nothing else."""

    def __init__(self, message: str) -> None:
        super().__init__(message, message=message)


class MalformedUCTableError(_MessageError):
    """A catalogue table without the columns that were asked for."""


class InsufficientPermissionsError(_MessageError):
    """A catalogue table that may not be read."""


class FaultyDataPrepCluster(_MessageError):
    """A cluster that could not do its work."""


class InvalidConversationError(_MessageError):
    """A conversation that cannot be used."""


class StoragePermissionError(_MessageError):
    """A store that may not be read or written."""


class ClusterDoesNotExistError(UserError):
    """A cluster that is not there."""

    def __init__(self, cluster_id: str) -> None:
        super().__init__(f"Cluster with id {cluster_id} does not exist.", cluster_id=cluster_id)


class ClusterInvalidAccessMode(UserError):
    """A cluster whose access mode forbids reading."""

    def __init__(self, cluster_id: str, access_mode: str) -> None:
        super().__init__(
            f"Cluster with id {cluster_id} has access mode {access_mode}. Make sure the cluster "
            "has access mode Shared or Single User.",
            cluster_id=cluster_id,
            access_mode=access_mode,
        )


class FailedToConnectToDatabricksError(NetworkError):
    """The workspace could not be reached."""

    def __init__(self) -> None:
        super().__init__("Failed to connect to the workspace. Check host and credentials.")


class FailedToCreateSQLConnectionError(FailedToConnectToDatabricksError):
    """The workspace was reached, but no SQL connection could be made."""


class InputFolderMissingDataError(UserError):
    """A folder without text files."""

    def __init__(self, input_folder: str) -> None:
        super().__init__(f"No text files were found at {input_folder}.", input_folder=input_folder)


class InputFolderNotFound(UserError):
    """A folder that is not there."""

    def __init__(self, folder_that_was_not_found: str) -> None:
        super().__init__(
            f"{folder_that_was_not_found} not found.",
            folder_that_was_not_found=folder_that_was_not_found,
        )


class CannotUnicodeDecodeFile(UserError):
    """A text file that is not UTF-8."""

    def __init__(self, text_file: str) -> None:
        super().__init__(
            f"Text file {text_file} contains bytes that are not UTF-8. Convert it, or take it out "
            "of the input folder.",
            text_file=text_file,
        )


class OutputFolderNotEmptyError(UserError, ValueError):
    """An output folder that already holds something."""

    def __init__(self, output_folder: str) -> None:
        super().__init__(
            f"{output_folder} is not empty. Please remove or empty it, or name another folder.",
            output_folder=output_folder,
        )


class MisconfiguredHfDatasetError(UserError):
    """A hub data set that could not be read as configured."""

    def __init__(
        self, dataset_name: str, split: str | None = None, reason: str | None = None
    ) -> None:
        of_split = f" and split={split}" if split is not None else ""
        super().__init__(
            f"Your dataset (name={dataset_name}{of_split}) is misconfigured. Please check your "
            "dataset format and make sure you can load it locally."
            + (f" {reason}" if reason else ""),
            dataset_name=dataset_name,
            split=split,
            reason=reason,
        )


class InvalidDatasetError(UserError):
    """A data set that cannot be used."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason, reason=reason)


class DatasetTooSmallError(UserError):
    """A data set too small to make one sample of."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason, reason=reason)


class RunTimeoutError(InternalError):
    """A run that did not end in time."""

    def __init__(self, timeout: int) -> None:
        super().__init__(f"Run timed out after {timeout} seconds.", timeout=timeout)


class LossSpikeError(UserError):
    """The loss jumped and stayed up."""

    def __init__(
        self,
        outlier_multiplier: float,
        running_loss_avg: float,
        outlier_counter: int,
        loss_window: list[float],
    ) -> None:
        super().__init__(
            "Training stopped due to a loss spike. The training loss was more than "
            f"{outlier_multiplier} times greater than the running average loss of approx. "
            f"{running_loss_avg} over {outlier_counter} consecutive training steps. Please try "
            "submitting the run again with a lower learning rate.",
            outlier_multiplier=outlier_multiplier,
            running_loss_avg=running_loss_avg,
            outlier_counter=outlier_counter,
            loss_window=loss_window,
        )


class HighLossError(UserError):
    """The loss never came down."""

    def __init__(self, loss_cap: float, window_size: int, loss_window: list[float]) -> None:
        super().__init__(
            "Training stopped due to consistently high losses. The training loss exceeded the "
            f"threshold of {loss_cap} for more than half of the {window_size} most recent training "
            "steps. Please try submitting the run again with a lower learning rate.",
            loss_cap=loss_cap,
            window_size=window_size,
            loss_window=loss_window,
        )


class FinetuningFileNotFoundError(UserError):
    """No finetuning file under any of the names tried."""

    def __init__(self, files_searched: list[str], supported_extensions: list[str]) -> None:
        super().__init__(
            f"Could not find a file with any of the supported extensions {supported_extensions}. "
            f"Looked for: {files_searched}.",
            files_searched=files_searched,
            supported_extensions=supported_extensions,
        )


class UCNotEnabledError(UserError):
    """A workspace without a catalogue."""

    def __init__(self) -> None:
        super().__init__("Unity Catalog is not enabled on your cluster.")


class DeltaTableNotFoundError(UserError):
    """A catalogue table that is not there."""

    def __init__(self, catalog_name: str, volume_name: str, table_name: str) -> None:
        super().__init__(
            f"Your data path {catalog_name}.{volume_name}.{table_name} does not exist.",
            catalog_name=catalog_name,
            volume_name=volume_name,
            table_name=table_name,
        )


class TableDownloadError(UserError):
    """A catalogue table that could not be downloaded."""

    def __init__(self, table_name: str, parent_error: str) -> None:
        super().__init__(
            f"Failed to download table {table_name}: {parent_error}",
            table_name=table_name,
            parent_error=parent_error,
        )
