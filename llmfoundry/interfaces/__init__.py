"""Face of the interfaces: what plug-ins of llmfoundry derive from."""

from llmfoundry.interfaces.callback_with_config import CallbackWithConfig

__all__ = ["CallbackWithConfig"]
