"""Helpers that know nothing of a run, and public names that have always been found here.

Names whose home is heavy or on a higher floor are imported at first use.
"""

from composer.utils.auto_log_hparams import (
    convert_flat_dict_to_nested_dict,
    convert_nested_dict_to_flat_dict,
    extract_hparams,
)
from composer.utils.batch_helpers import batch_get, batch_set
from composer.utils.import_helpers import MissingConditionalImportError, import_object
from composer.utils.iter_helpers import IteratorFileStream, ensure_tuple, map_collection
from composer.utils.lazy import handed_on
from composer.utils.retrying import retry
from composer.utils.string_enum import StringEnum
from composer.utils.warnings import VersionedDeprecationWarning

__all__ = [
    "FORMAT_NAME_WITH_DIST_AND_TIME_TABLE",
    "FORMAT_NAME_WITH_DIST_TABLE",
    "KNOWN_COMPRESSORS",
    "MLFLOW_EXPERIMENT_ID_FORMAT_KEY",
    "MLFLOW_RUN_ID_FORMAT_KEY",
    "STR_TO_DTYPE",
    "CliCompressor",
    "ExportFormat",
    "FSDP2Config",
    "FSDPConfig",
    "GCSObjectStore",
    "IteratorFileStream",
    "LibcloudObjectStore",
    "MLFlowObjectStore",
    "MissingConditionalImportError",
    "OCIObjectStore",
    "ObjectStore",
    "ObjectStoreTransientError",
    "ParallelismConfig",
    "ParallelismType",
    "PartialFilePath",
    "RemoteFilesExistingCheckStatus",
    "RemoteUploader",
    "S3ObjectStore",
    "SFTPObjectStore",
    "StringEnum",
    "TPConfig",
    "Transform",
    "UCObjectStore",
    "VersionedDeprecationWarning",
    "add_vision_dataset_transform",
    "batch_get",
    "batch_set",
    "build_remote_backend",
    "configure_excepthook",
    "convert_flat_dict_to_nested_dict",
    "convert_nested_dict_to_flat_dict",
    "create_interval_scheduler",
    "create_symlink_file",
    "disable_env_report",
    "enable_env_report",
    "ensure_folder_has_no_conflicting_files",
    "ensure_folder_is_empty",
    "ensure_tuple",
    "export_for_inference",
    "export_with_logger",
    "extract_hparams",
    "extract_path_from_symlink",
    "format_name_with_dist",
    "format_name_with_dist_and_time",
    "get_composer_env_dict",
    "get_compressor",
    "get_device",
    "get_file",
    "get_free_tcp_port",
    "get_save_filename",
    "import_object",
    "is_compressed_pt",
    "is_hpu_installed",
    "is_model_fsdp",
    "is_model_fsdp2",
    "is_notebook",
    "is_tar",
    "is_xla_installed",
    "load_checkpoint",
    "map_collection",
    "maybe_create_object_store_from_uri",
    "maybe_create_remote_uploader_downloader_from_uri",
    "model_eval_mode",
    "parse_uri",
    "partial_format",
    "print_env",
    "quantize_dynamic",
    "retry",
    "safe_torch_load",
    "save_checkpoint",
    "validate_credentials",
]

# Not at the top: it needs torch, and the command lines answer --help without.
_MISC = "composer.utils.misc"
_PARALLELISM = "composer.utils.parallelism"
_FILE_NAMES = "composer.utils.file_names"
_FILE_HELPERS = "composer.utils.file_helpers"
_COMPRESSION = "composer.utils.compression"
_COLLECT_ENV = "composer.utils.collect_env"
_STORES = "composer.utils.object_store"
_OBJECT_STORE = f"{_STORES}.object_store"
_NAMING = "composer.checkpoint.naming"
_DEVICES = "composer.devices.factory"
_INFERENCE = "composer.utils.inference"
_MLFLOW = "composer.loggers.mlflow_logger"
_UPLOADER = "composer.utils.remote_uploader"

__getattr__ = handed_on(
    {
        "FSDP2Config": _PARALLELISM,
        "FSDPConfig": _PARALLELISM,
        "ParallelismConfig": _PARALLELISM,
        "TPConfig": _PARALLELISM,
        "STR_TO_DTYPE": _MISC,
        "ParallelismType": _MISC,
        "add_vision_dataset_transform": _MISC,
        "get_free_tcp_port": _MISC,
        "is_model_fsdp": _MISC,
        "is_model_fsdp2": _MISC,
        "is_notebook": _MISC,
        "model_eval_mode": _MISC,
        "partial_format": _MISC,
        "CliCompressor": _COMPRESSION,
        "ExportFormat": _INFERENCE,
        "FORMAT_NAME_WITH_DIST_AND_TIME_TABLE": _FILE_NAMES,
        "FORMAT_NAME_WITH_DIST_TABLE": _FILE_NAMES,
        "KNOWN_COMPRESSORS": _COMPRESSION,
        "MLFLOW_EXPERIMENT_ID_FORMAT_KEY": _MLFLOW,
        "MLFLOW_RUN_ID_FORMAT_KEY": _MLFLOW,
        "GCSObjectStore": f"{_STORES}.gcs_object_store",
        "LibcloudObjectStore": f"{_STORES}.libcloud_object_store",
        "MLFlowObjectStore": f"{_STORES}.mlflow_object_store",
        "OCIObjectStore": f"{_STORES}.oci_object_store",
        "S3ObjectStore": f"{_STORES}.s3_object_store",
        "SFTPObjectStore": f"{_STORES}.sftp_object_store",
        "UCObjectStore": f"{_STORES}.uc_object_store",
        "ObjectStore": _OBJECT_STORE,
        "ObjectStoreTransientError": _OBJECT_STORE,
        "PartialFilePath": _NAMING,
        "RemoteFilesExistingCheckStatus": _UPLOADER,
        "RemoteUploader": _UPLOADER,
        "Transform": _INFERENCE,
        "build_remote_backend": f"{_STORES}.utils",
        "configure_excepthook": _COLLECT_ENV,
        "create_interval_scheduler": "composer.core.intervals",
        "create_symlink_file": _FILE_HELPERS,
        "disable_env_report": _COLLECT_ENV,
        "enable_env_report": _COLLECT_ENV,
        "ensure_folder_has_no_conflicting_files": _FILE_NAMES,
        "ensure_folder_is_empty": _FILE_NAMES,
        "export_for_inference": _INFERENCE,
        "export_with_logger": _INFERENCE,
        "extract_path_from_symlink": _FILE_HELPERS,
        "format_name_with_dist": _FILE_NAMES,
        "format_name_with_dist_and_time": _FILE_NAMES,
        "get_composer_env_dict": _COLLECT_ENV,
        "get_compressor": _COMPRESSION,
        "get_device": _DEVICES,
        "get_file": _FILE_HELPERS,
        "get_save_filename": _NAMING,
        "is_compressed_pt": _COMPRESSION,
        "is_hpu_installed": _DEVICES,
        "is_tar": _FILE_NAMES,
        "is_xla_installed": _DEVICES,
        "load_checkpoint": "composer.checkpoint.whole_run",
        "maybe_create_object_store_from_uri": _FILE_HELPERS,
        "maybe_create_remote_uploader_downloader_from_uri": (
            "composer.loggers.remote_uploader_downloader"
        ),
        "parse_uri": _FILE_HELPERS,
        "print_env": _COLLECT_ENV,
        "quantize_dynamic": _INFERENCE,
        "safe_torch_load": "composer.checkpoint.monolithic",
        "save_checkpoint": "composer.checkpoint.whole_run",
        "validate_credentials": _FILE_HELPERS,
    },
)
