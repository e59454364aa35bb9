"""Metrics that need no task library; torchmetrics is imported when the first one is used."""

from composer.utils.lazy import handed_on

__all__ = [
    "MAP",
    "BinaryF1Score",
    "CrossEntropy",
    "Dice",
    "LanguageCrossEntropy",
    "LanguagePerplexity",
    "LossMetric",
    "MIoU",
    "MaskedAccuracy",
]

__getattr__ = handed_on(
    {
        "BinaryF1Score": "composer.metrics.nlp",
        "CrossEntropy": "composer.metrics.metrics",
        "Dice": "composer.metrics.metrics",
        "LanguageCrossEntropy": "composer.metrics.nlp",
        "LanguagePerplexity": "composer.metrics.nlp",
        "LossMetric": "composer.metrics.metrics",
        "MAP": "composer.metrics.map",
        "MIoU": "composer.metrics.metrics",
        "MaskedAccuracy": "composer.metrics.nlp",
    }
)
