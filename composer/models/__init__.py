"""Models for the trainer; the classes that need torchmetrics or transformers come at first use."""

from composer.models.base import ComposerModel
from composer.models.initializers import Initializer
from composer.utils.lazy import handed_on

__all__ = [
    "ComposerClassifier",
    "ComposerModel",
    "HuggingFaceModel",
    "Initializer",
    "write_huggingface_pretrained_from_composer_checkpoint",
]

__getattr__ = handed_on(
    {
        "ComposerClassifier": "composer.models.tasks.classification",
        "HuggingFaceModel": "composer.models.huggingface",
        "write_huggingface_pretrained_from_composer_checkpoint": "composer.checkpoint.huggingface",
    }
)
