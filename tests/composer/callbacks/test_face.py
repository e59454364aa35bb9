import pytest

import composer.algorithms
import composer.callbacks
import composer.functional
import composer.loggers


@pytest.mark.parametrize(
    "face", [composer.callbacks, composer.loggers, composer.algorithms, composer.functional]
)
def test_everything_named_is_there_and_the_rest_is_clearly_not(face):
    assert all(hasattr(face, name) for name in face.__all__)
    assert face.__all__ == sorted(face.__all__)
    with pytest.raises(AttributeError, match="NotThere"):
        face.NotThere
