"""Every public name of LLM Foundry 0.22 is where it was, with its parameters and defaults."""

import pytest

from tests.signatures import unlike

NOT_YET = (
    # Models: any Hugging Face model, mixture of experts, embeddings.
    "llmfoundry.models.FMAPI",
    "llmfoundry.models.OpenAI",
    "llmfoundry.models.consts",
    "llmfoundry.models.inference_api_wrapper",
    "llmfoundry.models.layers.(DroplessMLP|LearnedRouter|dMoE|flash_attn_fn)",
    "llmfoundry.models.layers.attention.(attn_bias_shape|build_alibi_bias|flash_attn_fn|gen_slopes)",
    "llmfoundry.models.mpt.modeling_mpt.compute_loss_from_logits",
    "llmfoundry.models.mpt.modeling_mpt.gen_",
    "llmfoundry.models.utils.config_moe_args",
    "llmfoundry.callbacks.HuggingFaceCheckpointer",
    "llmfoundry.callbacks.hf_checkpointer",
    "llmfoundry.callbacks.MegaBlocksMoE_TokPerExpert",
    "llmfoundry.callbacks.log_mbmoe_tok_per_expert_callback",
    "llmfoundry.utils.get_hf_tokenizer_from_composer_state_dict",
    "llmfoundry.utils.load_tokenizer",
    "llmfoundry.utils.download_from_",
    # Remote stores.
    "llmfoundry.callbacks.MonolithicCheckpointSaver",
    "llmfoundry.callbacks.monolithic_ckpt_callback",
    "llmfoundry.utils.file_utils",
    # Data, packing and fine-tuning.
    "llmfoundry.StreamingFinetuningDataset",
    "llmfoundry.data.(BinPack|Seq2Seq|StreamingFinetuning|auto_packing|profile_packing)",
    "llmfoundry.data.(build_finetuning|build_pairs|get_finetuning_collator|contrastive_pairs)",
    "llmfoundry.data.(finetuning|packing)",
    "llmfoundry.data.text_data.ConcatenatedSequenceCollatorWrapper",
    "llmfoundry.data.utils.get_finetuning_collator",
    "llmfoundry.callbacks.CurriculumLearning",
    "llmfoundry.callbacks.curriculum_learning_callback",
    "llmfoundry.callbacks.DatasetSwap",
    "llmfoundry.callbacks.dataset_swap_callback",
    "llmfoundry.command_utils.convert_finetuning_dataset",
    "llmfoundry.utils.DownloadingIterable",
    "llmfoundry.utils.merge_shard_groups",
    "llmfoundry.utils.config_utils._parse_source_dataset",
    "llmfoundry.utils.config_utils.log_dataset_uri",
    # Evaluation.
    "llmfoundry.InContextLearning",
    "llmfoundry.eval",
    "llmfoundry.callbacks.AsyncEval",
    "llmfoundry.callbacks.async_eval_callback",
    "llmfoundry.callbacks.EvalGauntlet",
    "llmfoundry.callbacks.eval_gauntlet_callback",
    "llmfoundry.callbacks.EvalOutputLogging",
    "llmfoundry.callbacks.eval_output_logging_callback",
    "llmfoundry.command_utils.eval",
    "llmfoundry.utils.build_icl_",
    "llmfoundry.utils.builders.build_icl_",
    "llmfoundry.utils.config_utils.EVAL_CONFIG_KEYS",
    "llmfoundry.utils.config_utils.EvalConfig",
    # The other callbacks and helpers.
    "llmfoundry.callbacks.EnvironmentLoggingCallback",
    "llmfoundry.callbacks.env_logging_callback",
    "llmfoundry.callbacks.KillLossSpike",
    "llmfoundry.callbacks.kill_loss_spike_callback",
    "llmfoundry.callbacks.LossPerpVsContextLengthLogger",
    "llmfoundry.callbacks.loss_perp_v_len_callback",
    "llmfoundry.utils.SpecificWarningFilter",
    "llmfoundry.utils.log_config",
    "llmfoundry.utils.pop_config",
    "llmfoundry.utils.config_utils.forbid_config_key",
)
_MOSAIC = "MosaicML's platform and Databricks are left behind"
_NO_CODE = "code of others runs only where trust_remote_code: true is said"
DIFFERENCES = {
    "llmfoundry.models.hf.BaseHuggingFaceModel": _NO_CODE,
    "llmfoundry.models.hf.ComposerHFCausalLM": _NO_CODE,
    "llmfoundry.models.hf.ComposerHFT5": _NO_CODE,
    "llmfoundry.command_utils.convert_delta_to_contrastive_mds": _MOSAIC,
    "llmfoundry.command_utils.convert_delta_to_json_from_args": _MOSAIC,
    "llmfoundry.command_utils.fetch_DT": _MOSAIC,
    "llmfoundry.utils.convert_and_save_ft_weights": "FasterTransformer is left behind",
    "llmfoundry.utils.find_mosaicml_logger": _MOSAIC,
    "llmfoundry.utils.log_eval_analytics": _MOSAIC,
    "llmfoundry.utils.log_train_analytics": _MOSAIC,
    "llmfoundry.utils.maybe_create_mosaicml_logger": _MOSAIC,
    "llmfoundry.interfaces.CallbackWithConfig": "named train_config, as the builder passes it",
    "llmfoundry.utils.edit_files_for_hf_compatibility": "takes out imports of our own files too",
}


@pytest.mark.filterwarnings("ignore")
def test_llmfoundry_keeps_upstream_signatures() -> None:
    problems = unlike("llmfoundry.txt", NOT_YET, DIFFERENCES)
    assert not problems, "\n".join(problems)
