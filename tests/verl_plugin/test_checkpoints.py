"""Only checkpoints that were written to the end count, and they carry the KL coefficient."""

from pathlib import Path

from boostapr.verl_plugin.checkpoints import (
    complete_checkpoints,
    latest_checkpoint,
    mark_complete,
    prune,
    remove_incomplete,
)


def _save(folder: Path, step: int, complete: bool = True) -> Path:
    path = folder / f"global_step_{step}"
    (path / "actor").mkdir(parents=True)
    if complete:
        mark_complete(path, 0.001 * step)
    return path


def test_the_newest_complete_one_is_taken(tmp_path: Path) -> None:
    """A folder that a kill left half-written is newer, and must not be loaded; 10 comes after 9."""
    for step in (9, 10):
        _save(tmp_path, step)
    _save(tmp_path, 11, complete=False)
    (tmp_path / "latest_checkpointed_iteration.txt").write_text("")  # verl's tracker, cut by the kill
    last = latest_checkpoint(tmp_path)
    assert last is not None
    assert (last.step, last.path.name, last.kl_coef) == (10, "global_step_10", 0.01)


def test_half_written_ones_are_removed(tmp_path: Path) -> None:
    _save(tmp_path, 1)
    half = _save(tmp_path, 2, complete=False)
    remove_incomplete(tmp_path)
    assert not half.exists()
    assert [checkpoint.step for checkpoint in complete_checkpoints(tmp_path)] == [1]


def test_old_ones_are_pruned(tmp_path: Path) -> None:
    """Also those that an earlier process saved, which verl forgets."""
    for step in (2, 4, 6):
        _save(tmp_path, step)
    prune(tmp_path, keep=1)
    assert [path.name for path in tmp_path.iterdir()] == ["global_step_6"]


def test_no_checkpoint(tmp_path: Path) -> None:
    assert latest_checkpoint(tmp_path / "nowhere") is None
