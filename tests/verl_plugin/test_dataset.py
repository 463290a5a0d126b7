"""Prompts reach verl whole, or not at all."""

import json
from pathlib import Path

import pytest
from tiny_model import make_policy, make_rows
from transformers import AutoTokenizer

from boostapr.errors import UserError
from boostapr.verl_plugin.dataset import PromptDataset


def test_rows_and_the_length_check(tmp_path: Path) -> None:
    """A prompt that is too long stops the run and is named; verl would drop it, or cut its beginning off."""
    make_policy(tmp_path / "policy")
    tokenizer = AutoTokenizer.from_pretrained(tmp_path / "policy")
    make_rows(tmp_path / "rows.jsonl", "train", 3, execute=False)
    rows = PromptDataset(str(tmp_path / "rows.jsonl"), tokenizer, {"max_prompt_length": 200})
    assert len(rows) == 3
    assert (rows[2]["instance_id"], rows[2]["data_source"], rows[2]["execute"]) == ("train-2", "train", False)
    long = {
        "instance_id": "huge-1",
        "messages": [{"role": "user", "content": "x " * 400}],
        "source": "train",
        "execute": False,
    }
    with (tmp_path / "rows.jsonl").open("a") as file:
        file.write(json.dumps(long) + "\n")
    with pytest.raises(UserError, match=r"1 of 4 prompts.*huge-1"):
        PromptDataset(str(tmp_path / "rows.jsonl"), tokenizer, {"max_prompt_length": 200})


def test_no_prompts(tmp_path: Path) -> None:
    (tmp_path / "rows.jsonl").write_text("")
    with pytest.raises(UserError, match="holds no prompt"):
        PromptDataset(str(tmp_path / "rows.jsonl"), None, {"max_prompt_length": 200})
