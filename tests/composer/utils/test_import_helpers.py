"""Importing by name, and messages about missing packages and versions."""

import pytest

from composer.utils.import_helpers import MissingConditionalImportError, import_object
from composer.utils.warnings import VersionedDeprecationWarning


def test_import_object():
    assert import_object("os.path:join")("a", "b")
    assert import_object("collections:OrderedDict.fromkeys")
    for wrong in ("math", "math:", ":pi"):
        with pytest.raises(ValueError, match="package.module:attribute"):
            import_object(wrong)


def test_missing_package():
    error = MissingConditionalImportError("wandb", "wandb")
    assert isinstance(error, ImportError)
    assert 'pip install "llmfoundry[wandb]"' in str(error)
    assert "conda install -c conda-forge wandb" in str(error)
    assert "conda" not in str(MissingConditionalImportError("wandb", ""))


def test_versioned_deprecation():
    warning = VersionedDeprecationWarning("x is deprecated.", "2.0")
    assert str(warning) == "x is deprecated. It will be removed in version 2.0."
