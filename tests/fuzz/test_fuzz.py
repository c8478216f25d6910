"""The short run: the same cases every time, in this process."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.checkpoint.quant.writers import FORMATS
from tests.fuzz.cases import KINDS, STORED, exercise, make_sound, run, sound_gguf
from tests.fuzz.quantised import use

CASES = 25


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("fuzz") / "sound"
    make_sound(folder)
    return folder


@pytest.mark.slow
def test_sound_files_open(sound: Path) -> None:
    """Or the fuzzer would fuzz nothing."""
    for path in (sound / "families" / "llama", sound / "shards", sound / "bin", sound / "adapter"):
        exercise(path)
    for form in FORMATS:
        use(sound / "quantised" / form)
    for name in STORED:
        exercise(sound_gguf(name).save(sound / f"{name}.gguf"))


@pytest.mark.parametrize("kind", KINDS)
def test_spoiled_files_are_opened_or_refused(kind: str, sound: Path, tmp_path: Path) -> None:
    results = set()
    for seed in range(CASES):
        folder = tmp_path / str(seed)
        folder.mkdir()
        results.add(run(kind, seed, sound, folder))
    assert "refused" in results
