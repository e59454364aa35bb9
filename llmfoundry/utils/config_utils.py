"""shim: the configuration lives in llmfoundry.config."""

from llmfoundry.config.batch_size import (
    calculate_batch_size_info,
    update_batch_size_info,
    update_config_with_batch_size_info,
)
from llmfoundry.config.dataset_uri import log_dataset_uri
from llmfoundry.config.dataset_uri import sources_of_data as _parse_source_dataset
from llmfoundry.config.init_device import process_init_device
from llmfoundry.config.loading import (
    forbid_config_key,
    pop_config,
    to_container,
    to_dict_container,
    to_list_container,
)
from llmfoundry.config.logged import log_config
from llmfoundry.config.parse import make_dataclass_and_log_config
from llmfoundry.config.schema import TRAIN_CONFIG_KEYS, TrainConfig
from llmfoundry.config.transforms import apply_transforms_to_config
from llmfoundry.models.hf.config_overrides import get_hf_config_value, set_config_overrides

__all__ = [
    "TRAIN_CONFIG_KEYS",
    "TrainConfig",
    "_parse_source_dataset",
    "apply_transforms_to_config",
    "calculate_batch_size_info",
    "forbid_config_key",
    "get_hf_config_value",
    "log_config",
    "log_dataset_uri",
    "make_dataclass_and_log_config",
    "pop_config",
    "process_init_device",
    "set_config_overrides",
    "to_container",
    "to_dict_container",
    "to_list_container",
    "update_batch_size_info",
    "update_config_with_batch_size_info",
]
