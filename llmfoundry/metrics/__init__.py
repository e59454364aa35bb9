"""Face of the metrics, and which ones language models are measured by."""

from composer.utils.lazy import handed_on

__all__ = [
    "DEFAULT_CAUSAL_LM_EVAL_METRICS",
    "DEFAULT_CAUSAL_LM_TRAIN_METRICS",
    "DEFAULT_ENC_DEC_METRICS",
    "TokenAccuracy",
]

DEFAULT_CAUSAL_LM_TRAIN_METRICS: list[str] = [
    "language_cross_entropy",
    "language_perplexity",
    "token_accuracy",
]
DEFAULT_CAUSAL_LM_EVAL_METRICS: list[str] = list(DEFAULT_CAUSAL_LM_TRAIN_METRICS)
DEFAULT_ENC_DEC_METRICS: list[str] = ["language_cross_entropy", "masked_accuracy"]

__getattr__ = handed_on({"TokenAccuracy": "llmfoundry.metrics.token_acc"})
