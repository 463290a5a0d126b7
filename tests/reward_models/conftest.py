"""Fixtures of the reward models' tests: one tiny backbone for all of them, and settings that train in seconds."""

from pathlib import Path

import pytest
import torch
from tiny_backbone import make_backbone

from reward_models.encoding import PatchEncoder, save_reward_info
from reward_models.r_line import new_r_line, save_r_line
from reward_models.r_seq import new_r_seq
from reward_models.settings import RLineSettings, RSeqSettings

# Tiny models gain nothing from threads, and on a busy machine these wait for each other.
torch.set_num_threads(1)

OPTIMIZATION = {
    "learning_rate": 2e-3,
    "head_learning_rate": 5e-3,
    "batch_size": 16,
    "micro_batch_size": 16,
    "num_epochs": 6,
    "adam_beta1": 0.9,
    "adam_beta2": 0.999,
    "weight_decay": 0.0,
    "warmup_fraction": 0.1,
    "max_grad_norm": 1.0,
    "bf16": False,
    "gradient_checkpointing": False,
    "checkpoint_steps": 10,
    "logging_steps": 5,
    "head_init_std": 0.01,
}


@pytest.fixture(scope="session")
def backbone(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A Qwen2 folder: hidden size 32, two layers, 400 tokens."""
    return make_backbone(tmp_path_factory.mktemp("backbone"), vocab_size=400, seed=0)


@pytest.fixture(scope="session")
def saved_rewards(backbone: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """Untrained R_seq and R_line with heads large enough for scores to differ, saved as the stage saves them."""
    folder = tmp_path_factory.mktemp("saved")
    encoder = PatchEncoder(backbone)
    new_r_seq(backbone, encoder, 1.0, seed=1).save_pretrained(folder / "r_seq")
    save_r_line(new_r_line(backbone, 16, 1.0, seed=2), folder / "r_line")
    for kind in ("r_seq", "r_line"):
        info = {"kind": kind.replace("r_", "R_"), "input_mode": "patch", "max_length": 256}
        save_reward_info(backbone, encoder, folder / kind, info)
    return folder / "r_seq", folder / "r_line"


@pytest.fixture
def r_seq_settings() -> RSeqSettings:
    return RSeqSettings(**OPTIMIZATION, lambda_reg=0.5)


@pytest.fixture
def r_line_settings() -> RLineSettings:
    weights = {"assertion_trace": 1.0, "function_level": 1.0, "uniform": 1.0}
    return RLineSettings(**OPTIMIZATION, hidden_dim=16, label_weights=weights)
