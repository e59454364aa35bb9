"""Face of the commands: each is a function that a program can call too."""

from composer.utils.lazy import handed_on

__all__ = [
    "TRAIN_CONFIG_KEYS",
    "TrainConfig",
    "convert_composer_to_hf_from_args",
    "convert_dataset_hf",
    "convert_dataset_hf_from_args",
    "convert_dataset_json",
    "convert_dataset_json_from_args",
    "convert_delta_to_contrastive_mds",
    "convert_delta_to_json_from_args",
    "convert_finetuning_dataset",
    "convert_finetuning_dataset_from_args",
    "convert_text_to_mds",
    "convert_text_to_mds_from_args",
    "export_to_gguf",
    "export_to_onnx",
    "export_to_torch_program",
    "fetch_DT",
    "fetch_smollm2",
    "fetch_text",
    "split_text",
    "train",
    "train_from_yaml",
    "train_tokenizer",
    "validate_config",
    "validate_from_yaml",
    "write_composer_checkpoint_from_huggingface",
]

__getattr__ = handed_on(
    {
        "TRAIN_CONFIG_KEYS": "llmfoundry.config.schema",
        "TrainConfig": "llmfoundry.config.schema",
        "convert_composer_to_hf_from_args": (
            "llmfoundry.command_utils.convert_composer_to_hf:convert_composer_to_hf"
        ),
        "convert_dataset_hf": "llmfoundry.command_utils.data_prep.convert_dataset_hf",
        "convert_dataset_hf_from_args": "llmfoundry.command_utils.data_prep.convert_dataset_hf",
        "convert_dataset_json": "llmfoundry.command_utils.data_prep.convert_dataset_json",
        "convert_dataset_json_from_args": "llmfoundry.command_utils.data_prep.convert_dataset_json",
        "convert_delta_to_contrastive_mds": "llmfoundry.command_utils.data_prep.delta",
        "convert_delta_to_json_from_args": "llmfoundry.command_utils.data_prep.delta",
        "convert_finetuning_dataset": (
            "llmfoundry.command_utils.data_prep.convert_finetuning_dataset"
        ),
        "convert_finetuning_dataset_from_args": (
            "llmfoundry.command_utils.data_prep.convert_finetuning_dataset"
        ),
        "convert_text_to_mds": "llmfoundry.command_utils.data_prep.convert_text_to_mds",
        "convert_text_to_mds_from_args": "llmfoundry.command_utils.data_prep.convert_text_to_mds",
        "export_to_gguf": "llmfoundry.command_utils.export_gguf",
        "export_to_onnx": "llmfoundry.command_utils.convert_hf_to_onnx",
        "export_to_torch_program": "llmfoundry.command_utils.export_model",
        "fetch_DT": "llmfoundry.command_utils.data_prep.delta",
        "fetch_smollm2": "llmfoundry.command_utils.data_prep.fetch_smollm2",
        "fetch_text": "llmfoundry.command_utils.data_prep.fetch_text",
        "split_text": "llmfoundry.command_utils.data_prep.split_text",
        "train": "llmfoundry.command_utils.train",
        "train_from_yaml": "llmfoundry.command_utils.train",
        "train_tokenizer": "llmfoundry.command_utils.data_prep.train_tokenizer",
        "validate_config": "llmfoundry.config.validate",
        "validate_from_yaml": "llmfoundry.command_utils.validate",
        "write_composer_checkpoint_from_huggingface": (
            "llmfoundry.command_utils.convert_hf_to_composer"
        ),
    }
)
