"""The version of the streaming package: the upstream release line whose interface it keeps."""

__version__ = "0.14.0"
