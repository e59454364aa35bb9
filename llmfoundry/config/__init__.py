"""Face of the configuration: the schema of a recipe, and how one is read and checked."""

from composer.utils.lazy import handed_on

__all__ = [
    "TRAIN_CONFIG_KEYS",
    "ConfigError",
    "TrainConfig",
    "apply_transforms_to_config",
    "calculate_batch_size_info",
    "load_recipe",
    "make_dataclass_and_log_config",
    "parse_train_config",
    "to_container",
    "to_dict_container",
    "to_list_container",
    "update_batch_size_info",
    "update_config_with_batch_size_info",
    "validate_config",
]

__getattr__ = handed_on(
    {
        "TRAIN_CONFIG_KEYS": "llmfoundry.config.schema",
        "TrainConfig": "llmfoundry.config.schema",
        "ConfigError": "llmfoundry.config.problems",
        "apply_transforms_to_config": "llmfoundry.config.transforms",
        "calculate_batch_size_info": "llmfoundry.config.batch_size",
        "update_batch_size_info": "llmfoundry.config.batch_size",
        "update_config_with_batch_size_info": "llmfoundry.config.batch_size",
        "load_recipe": "llmfoundry.config.loading",
        "to_container": "llmfoundry.config.loading",
        "to_dict_container": "llmfoundry.config.loading",
        "to_list_container": "llmfoundry.config.loading",
        "make_dataclass_and_log_config": "llmfoundry.config.parse",
        "parse_train_config": "llmfoundry.config.parse",
        "validate_config": "llmfoundry.config.validate",
    }
)
