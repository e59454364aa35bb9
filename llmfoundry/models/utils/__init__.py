"""Face of what models need beside layers: defaults, initialisation, counting, checkpointing."""

from composer.utils.lazy import handed_on

# Not at first use: the module of that name would stand in the function's place.
from llmfoundry.models.utils.config_moe_args import config_moe_args

__all__ = [
    "attn_config_defaults",
    "build_act_ckpt_mod_to_blocks",
    "check_mapping_blocks_overlap",
    "config_moe_args",
    "fc_type_defaults",
    "ffn_config_defaults",
    "generic_param_init_fn_",
    "init_config_defaults",
    "init_empty_weights",
    "init_on_device",
    "mpt_get_active_params",
    "mpt_get_total_params",
    "pass_on_block_idx",
]

__getattr__ = handed_on(
    {
        "attn_config_defaults": "llmfoundry.models.utils.config_defaults",
        "build_act_ckpt_mod_to_blocks": "llmfoundry.models.utils.act_ckpt",
        "check_mapping_blocks_overlap": "llmfoundry.models.utils.act_ckpt",
        "fc_type_defaults": "llmfoundry.models.utils.config_defaults",
        "ffn_config_defaults": "llmfoundry.models.utils.config_defaults",
        "generic_param_init_fn_": "llmfoundry.models.utils.param_init_fns",
        "init_config_defaults": "llmfoundry.models.utils.config_defaults",
        "init_empty_weights": "llmfoundry.models.utils.meta_init_context",
        "init_on_device": "llmfoundry.models.utils.meta_init_context",
        "mpt_get_active_params": "llmfoundry.models.utils.mpt_param_count",
        "mpt_get_total_params": "llmfoundry.models.utils.mpt_param_count",
        "pass_on_block_idx": "llmfoundry.models.utils.act_ckpt",
    }
)
