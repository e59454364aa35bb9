"""A public path; the home is ``composer.core.logger_destination``."""

from composer.core.logger_destination import LoggerDestination

__all__ = ["LoggerDestination"]
