"""The version of llmfoundry, which is the distribution's."""

from composer._version import __version__

__all__ = ["__version__"]
