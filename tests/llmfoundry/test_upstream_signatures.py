"""Every public name of LLM Foundry 0.22 is where it was, with its parameters and defaults."""

import pytest

from tests.signatures import unlike

NOT_YET = (
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
)
_MOSAIC = "MosaicML's platform and Databricks are left behind"
_NO_CODE = "code of others runs only where trust_remote_code: true is said"
DIFFERENCES = {
    "llmfoundry.models.hf.BaseHuggingFaceModel": _NO_CODE,
    "llmfoundry.models.hf.ComposerHFCausalLM": _NO_CODE,
    "llmfoundry.models.hf.ComposerHFT5": _NO_CODE,
    "llmfoundry.command_utils.convert_delta_to_contrastive_mds": _MOSAIC,
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
