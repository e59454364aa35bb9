"""Face of the models that answer behind an API, for evaluation."""

from composer.utils.lazy import handed_on

__all__ = [
    "FMAPICasualLMEvalWrapper",
    "FMAPIChatAPIEvalWrapper",
    "FMAPIEvalInterface",
    "InferenceAPIEvalWrapper",
    "OpenAICausalLMEvalWrapper",
    "OpenAIChatAPIEvalWrapper",
    "OpenAIEvalInterface",
]

__getattr__ = handed_on(
    {
        "FMAPICasualLMEvalWrapper": "llmfoundry.models.inference_api_wrapper.fmapi",
        "FMAPIChatAPIEvalWrapper": "llmfoundry.models.inference_api_wrapper.fmapi",
        "FMAPIEvalInterface": "llmfoundry.models.inference_api_wrapper.fmapi",
        "InferenceAPIEvalWrapper": "llmfoundry.models.inference_api_wrapper.interface",
        "OpenAICausalLMEvalWrapper": "llmfoundry.models.inference_api_wrapper.openai_causal_lm",
        "OpenAIChatAPIEvalWrapper": "llmfoundry.models.inference_api_wrapper.openai_causal_lm",
        "OpenAIEvalInterface": "llmfoundry.models.inference_api_wrapper.openai_causal_lm",
    }
)
