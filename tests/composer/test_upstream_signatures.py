"""Every public name of Composer 0.32 is where it was, with its parameters and defaults.

Private names are in the table too where upstream's own tests reach for them.
"""

import pytest

from tests.signatures import unlike

_LEFT_BEHIND = "the service is left behind; the name says so when it is used"
_OWN_DISPLAY = "drawn by rich, not by tqdm"
_ALWAYS_THERE = "a flag that was always true here"
_FIRST_FSDP = "served torch's first FSDP; models are sharded by fully_shard"
_UPLOADS = "uploads are threads' affair, without files and processes of the saver's own"
DIFFERENCES = {
    "composer.callbacks.checkpoint_saver.CheckpointSaver.pid": _UPLOADS,
    "composer.callbacks.checkpoint_saver.CheckpointSaver.rank_saves_symlinks": _UPLOADS,
    "composer.callbacks.checkpoint_saver.CheckpointSaver.symlink_count": _UPLOADS,
    "composer.callbacks.checkpoint_saver.CheckpointSaver.tmp_dir_for_symlink": _UPLOADS,
    "composer.callbacks.mlperf.MLPerfCallback.mllogger": "the log is written without the package",
    "composer.core.state.State.load_model_state": (
        "algorithms of a checkpoint are applied by load_checkpoint, before its state is loaded"
    ),
    "composer.core.state.State.load_state_dict": "as load_model_state",
    "composer.distributed.meta_safe_apply": _FIRST_FSDP,
    "composer.distributed.shared_utils.add_fsdp_oom_hooks": _FIRST_FSDP,
    "composer.distributed.shared_utils.generate_oom_hook": _FIRST_FSDP,
    "composer.loggers.mlflow_logger.MlflowMonitorProcess": "no multiprocessing.Process",
    "composer.loggers.progress_bar_logger.ProgressBarLogger.dummy_pbar": _OWN_DISPLAY,
    "composer.loggers.progress_bar_logger.ProgressBarLogger.eval_pbar": _OWN_DISPLAY,
    "composer.loggers.progress_bar_logger.ProgressBarLogger.log_to_pbar": _OWN_DISPLAY,
    "composer.loggers.progress_bar_logger.ProgressBarLogger.train_pbar": _OWN_DISPLAY,
    "composer.loggers.wandb_logger.WandBLogger.table_dict": "rows are W&B's own affair",
    "composer.models.huggingface.HuggingFaceModel.state_dict": "torch's arguments, by name",
    "composer.optim.decoupled_weight_decay.DecoupledSGDW": "lr is required, and Python says so",
    "composer.trainer.trainer._fsdp_reshard_and_cleanup": _FIRST_FSDP,
    "composer.trainer.trainer._readd_fsdp_sync_hooks": _FIRST_FSDP,
    "composer.trainer.trainer.Trainer": "accumulate_train_batch_on_tokens=None lets the model say",
    "composer.utils.collect_env.COMPOSER_AVAILABLE": _ALWAYS_THERE,
    "composer.utils.collect_env.COMPOSER_OPEN_ISSUE_URL": "faults are not reported to upstream",
    "composer.utils.collect_env.TORCH_AVAILABLE": _ALWAYS_THERE,
    "composer.utils.dist.all_gather_object_list_hpu": "all_gather_object serves every device",
    "composer.utils.parallelism.FSDP2Config._sync_module_states": "a plain field",
    "composer.utils.parallelism.FSDPConfig._device_mesh": "a plain attribute",
    "composer.utils.remote_uploader.RemoteUploader.pid": "uploads run in threads",
}
DIFFERENCES |= {
    f"composer.algorithms.{name}": reason
    for reason, names in {
        _FIRST_FSDP: ("ema.ema.get_model_context_manager",),
        "match says at which events it acts": (
            "ema.ema.EMA.checkpoint_events",
            "ema.ema.EMA.move_device_events",
            "ema.ema.EMA.move_param_events",
        ),
        "state_dict says what is saved": ("ema.ema.EMA.serialized_attributes",),
        "load_state_dict reads both layouts, and all that they hold": (
            "ema.ema.EMA.ensure_compatible_state_dict",
            "ema.ema.EMA.load_state_dict",
        ),
        "the layers module0 and module1 have it": (
            "factorize.factorize_modules.FactorizedConv2d.convolution_kwargs",
            "factorize.factorize_modules.FactorizedConv2d.kwargs",
            "factorize.factorize_modules.FactorizedLinear.bias",
        ),
        _ALWAYS_THERE: ("gated_linear_units.gated_linear_units.IS_TRANSFORMERS_INSTALLED",),
        "masks follow from a seed and the count of steps, so that they resume": tuple(
            f"gyro_dropout.gyro_dropout.GyroDropoutLayer.{attribute}"
            for attribute in (
                "dropout_mask",
                "iters_per_epoch",
                "max_epoch",
                "preselect_masks",
                "selected_masks",
                "training_step",
            )
        ),
        "named as in torch's layer, which it is": (
            "low_precision_groupnorm.low_precision_groupnorm.LPGroupNorm.forward",
            "low_precision_layernorm.low_precision_layernorm.LPLayerNorm.forward",
        ),
        "its targets are numbers, not classes": (
            "no_op_model.no_op_model.NoOpModelClass.num_classes",
        ),
        "SWA sets the rates itself": ("swa.swa.SWA.swa_scheduler",),
    }.items()
    for name in names
}
DIFFERENCES["composer.utils.object_store.gcs_object_store.GCSObjectStore.s3_object_store"] = (
    "one driver reaches a bucket in either way"
)
DIFFERENCES |= {
    f"composer.utils.object_store.{module}.{name}": _LEFT_BEHIND
    for module, names in {
        "libcloud_object_store": ("LibcloudObjectStore", "LibcloudObjectStore.chunk_size"),
        "mlflow_object_store": (
            "DEFAULT_MLFLOW_EXPERIMENT_NAME",
            "MLFLOW_DATABRICKS_TRACKING_URI",
            "MLFLOW_DBFS_PATH_PREFIX",
            "MLFLOW_EXPERIMENT_ID_FORMAT_KEY",
            "MLFLOW_RUN_ID_FORMAT_KEY",
            "MLFlowObjectStore",
            "MLFlowObjectStore.experiment_id",
            "MLFlowObjectStore.get_artifact_path",
            "MLFlowObjectStore.get_dbfs_path",
            "MLFlowObjectStore.parse_dbfs_path",
            "MLFlowObjectStore.run_id",
        ),
        "oci_object_store": (
            "OCIObjectStore",
            "OCIObjectStore.bucket",
            "OCIObjectStore.client",
            "OCIObjectStore.download_object",
            "OCIObjectStore.namespace",
            "OCIObjectStore.prefix",
            "OCIObjectStore.upload_manager",
        ),
        "uc_object_store": (
            "UCObjectStore",
            "UCObjectStore._UC_VOLUME_FILES_API_ENDPOINT",
            "UCObjectStore._UC_VOLUME_LIST_API_ENDPOINT",
            "UCObjectStore.client",
            "UCObjectStore.prefix",
            "UCObjectStore.validate_path",
        ),
    }.items()
    for name in names
}
DIFFERENCES |= {
    f"composer.loggers.mosaicml_logger.{name}": _LEFT_BEHIND
    for name in (
        "MosaicMLLogger",
        *(
            f"MosaicMLLogger.{attribute}"
            for attribute in (
                "buffered_metadata",
                "ignore_exceptions",
                "ignore_keys",
                "log_interval",
                "log_metadata",
                "run_name",
                "time_last_logged",
                "train_dataloader_len",
            )
        ),
        "dict_to_str",
        "exception_to_json_serializable_dict",
        "format_data_to_json_serializable",
    )
}
DIFFERENCES |= {
    f"composer.loggers.neptune_logger.NeptuneLogger{name}": _LEFT_BEHIND
    for name in (
        "",
        ".base_handler",
        ".hyperparam_namespace",
        ".integration_version_key",
        ".metric_namespace",
        ".neptune_run",
        ".trace_namespace",
        ".upload_file",
    )
}


@pytest.mark.filterwarnings("ignore")
def test_composer_keeps_upstream_signatures() -> None:
    problems = unlike("composer.txt", (), DIFFERENCES)
    assert not problems, "\n".join(problems)
