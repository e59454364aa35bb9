"""Face of the commands: each is a function that a program can call too."""

from composer.utils.lazy import handed_on

__all__ = [
    "TRAIN_CONFIG_KEYS",
    "TrainConfig",
    "convert_dataset_hf",
    "convert_dataset_hf_from_args",
    "convert_dataset_json",
    "convert_dataset_json_from_args",
    "convert_text_to_mds",
    "convert_text_to_mds_from_args",
    "fetch_text",
    "split_text",
    "train",
    "train_from_yaml",
    "train_tokenizer",
    "validate_config",
    "validate_from_yaml",
]

__getattr__ = handed_on(
    {
        "TRAIN_CONFIG_KEYS": "llmfoundry.config.schema",
        "TrainConfig": "llmfoundry.config.schema",
        "convert_dataset_hf": "llmfoundry.command_utils.data_prep.convert_dataset_hf",
        "convert_dataset_hf_from_args": "llmfoundry.command_utils.data_prep.convert_dataset_hf",
        "convert_dataset_json": "llmfoundry.command_utils.data_prep.convert_dataset_json",
        "convert_dataset_json_from_args": "llmfoundry.command_utils.data_prep.convert_dataset_json",
        "convert_text_to_mds": "llmfoundry.command_utils.data_prep.convert_text_to_mds",
        "convert_text_to_mds_from_args": "llmfoundry.command_utils.data_prep.convert_text_to_mds",
        "fetch_text": "llmfoundry.command_utils.data_prep.fetch_text",
        "split_text": "llmfoundry.command_utils.data_prep.split_text",
        "train": "llmfoundry.command_utils.train",
        "train_from_yaml": "llmfoundry.command_utils.train",
        "train_tokenizer": "llmfoundry.command_utils.data_prep.train_tokenizer",
        "validate_config": "llmfoundry.config.validate",
        "validate_from_yaml": "llmfoundry.command_utils.validate",
    }
)
