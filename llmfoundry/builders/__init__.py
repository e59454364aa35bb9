"""Face of the builders: from a name and its settings to an object, through the registries."""

from composer.utils.lazy import handed_on

__all__ = [
    "add_metrics_to_eval_loaders",
    "build_algorithm",
    "build_callback",
    "build_composer_model",
    "build_dataloader",
    "build_eval_loaders",
    "build_evaluators",
    "build_load_planner",
    "build_logger",
    "build_metric",
    "build_optimizer",
    "build_save_planner",
    "build_scheduler",
    "build_tokenizer",
    "build_tp_strategies",
]

__getattr__ = handed_on(
    {
        "add_metrics_to_eval_loaders": "llmfoundry.builders.dataloaders",
        "build_dataloader": "llmfoundry.builders.dataloaders",
        "build_eval_loaders": "llmfoundry.builders.dataloaders",
        "build_evaluators": "llmfoundry.builders.evaluators",
        "build_algorithm": "llmfoundry.builders.components",
        "build_callback": "llmfoundry.builders.components",
        "build_load_planner": "llmfoundry.builders.components",
        "build_logger": "llmfoundry.builders.components",
        "build_metric": "llmfoundry.builders.components",
        "build_save_planner": "llmfoundry.builders.components",
        "build_scheduler": "llmfoundry.builders.components",
        "build_tp_strategies": "llmfoundry.builders.components",
        "build_composer_model": "llmfoundry.builders.models",
        "build_optimizer": "llmfoundry.builders.optimizers",
        "build_tokenizer": "llmfoundry.builders.tokenizers",
    }
)
