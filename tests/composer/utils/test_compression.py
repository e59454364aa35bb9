"""Compressors found by name, and their failures."""

import shutil
from pathlib import Path

import pytest

from composer.utils.compression import (
    KNOWN_COMPRESSORS,
    CliCompressor,
    CompressorNotFound,
    get_compressor,
    is_compressed_pt,
)

INSTALLED = [compressor for compressor in KNOWN_COMPRESSORS if shutil.which(compressor.cmd)]


@pytest.mark.parametrize("compressor", INSTALLED, ids=repr)
def test_round_trip(compressor: CliCompressor, tmp_path: Path) -> None:
    path = str(tmp_path / "x")
    content = b"0123456789" * 100_000
    with compressor.compress(path) as stream:
        stream.write(content)
    assert Path(path).stat().st_size < len(content) / 10
    with compressor.decompress(path) as stream:
        assert stream.read() == content


def test_damage_is_an_error(tmp_path: Path) -> None:
    if not shutil.which("gzip"):
        pytest.skip("gzip is not installed")
    (tmp_path / "x.pt.gz").write_bytes(b"no gzip file")
    compressor = get_compressor("x.pt.gz")
    with (
        pytest.raises(OSError, match="gzip failed"),
        compressor.decompress(str(tmp_path / "x.pt.gz")) as stream,
    ):
        stream.read()


def test_names() -> None:
    assert is_compressed_pt("folder.pt/x.pt.gz")
    assert not is_compressed_pt("x.pt") and not is_compressed_pt("latest.pt.symlink")
    assert get_compressor("x.pt.zst").cmd == "zstd"
    with pytest.raises(CompressorNotFound, match='Could not find compressor for "x.pt.abc"'):
        get_compressor("x.pt.abc")
    with pytest.raises(ValueError, match="not the name of a compressed"):
        get_compressor("x.pt")
    missing = CliCompressor("xyz", "no-such-program")
    assert not missing.exists
    with pytest.raises(CompressorNotFound, match='"no-such-program" in the PATH'):
        missing.check_exists()
