"""Settings taken out of a mapping, or forbidden in it."""

import pytest
from omegaconf import OmegaConf

from llmfoundry.utils import pop_config
from llmfoundry.utils.config_utils import forbid_config_key


def test_settings_are_taken_out() -> None:
    cfg = OmegaConf.create({"a": {"b": "${c}"}, "c": 1, "empty": None})
    assert pop_config(cfg, "a", convert=True) == {"b": 1}
    assert type(pop_config(OmegaConf.create({"a": [1]}), "a", convert=True)) is list
    assert pop_config(cfg, "a", must_exist=False, default_value=3) == 3
    for key in ("a", "empty"):
        with pytest.raises(NameError, match=f"{key} is missing"):
            pop_config(cfg, key)
    with pytest.raises(ValueError, match="c is 1, no OmegaConf node"):
        pop_config(cfg, "c", convert=True)
    assert not cfg.keys() - {"empty"}


def test_settings_that_are_set_for_you() -> None:
    forbid_config_key({"a": 1}, "b")
    with pytest.raises(ValueError, match="Config key `a`"):
        forbid_config_key({"a": None}, "a")
