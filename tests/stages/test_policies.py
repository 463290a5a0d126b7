"""Policies: responses survive storage byte for byte, and the real vLLM engine gives what the model says, as it says it."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from envs.policies import Response

ROOT = Path(__file__).parents[2]


@given(st.binary(max_size=200))
def test_rows_keep_every_byte(data: bytes) -> None:
    """A response is bytes: also those that are not UTF-8, U+2028, lone surrogates' encodings and CR come back as they were."""
    response = Response(data, num_tokens=3, finish="length")
    row = json.loads(json.dumps(response.to_row(), ensure_ascii=False).encode())
    assert Response.from_row(row) == response


def test_importing_policies_is_light() -> None:
    """The package loads on a laptop: neither torch nor vLLM at import."""
    code = "import sys, envs.policies, envs.policies.fixed; print(sorted({'torch', 'vllm'} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


ENGINE = """
import json, sys
from pathlib import Path
import psutil
from omegaconf import OmegaConf
from envs.benchmarks.microbugs.generate import generate
from envs.policies import Request, Sampling
from envs.policies.vllm_engine import VLLMPolicy, VLLMSettings
from boostapr.tokens import TokenMismatchError

folder, out = Path(sys.argv[1]), Path(sys.argv[2])
values = OmegaConf.to_container(OmegaConf.load("conf/vllm/cpu.yaml"))
settings = VLLMSettings.model_validate(values | {"kv_cache_gb": 0.1, "max_num_seqs": 16, "max_model_len": 600, "num_threads": 1})
bugs = list(generate("train", 11, 6))
greedy, hot = Sampling(temperature=0.0, top_p=1.0, max_tokens=24), Sampling(temperature=1.0, top_p=1.0, max_tokens=24)
requests = [Request("g", bugs[0], greedy), Request("s", bugs[0], hot, 3), Request("g1", bugs[1], greedy)]
found = []
for _ in range(2):  # a second engine in the same process, after the first is gone
    with VLLMPolicy(folder, settings, "patch", "compact", seed=1, progress="test") as policy:
        prompt = policy.prompt(requests[0])
        answers = {r.key: a for r, a in policy.generate(requests)}
    found.append({k: [[a.data.hex(), a.num_tokens, a.finish] for a in v] for k, v in answers.items()})
children = [p.name() for p in psutil.Process().children(recursive=True)]

short = settings.model_copy(update={"max_model_len": len(prompt)})
with VLLMPolicy(folder, short, "patch", "compact", seed=1, progress="test") as policy:
    cut = {r.key: [a.finish for a in v] for r, v in policy.generate(requests[:1])}

record = json.loads((folder / "boostapr_tokens.json").read_text())
record["prompts"][0]["ids"][3] += 1
(folder / "boostapr_tokens.json").write_text(json.dumps(record))
try:
    VLLMPolicy(folder, settings, "patch", "compact", seed=1, progress="test")
    mismatch = ""
except TokenMismatchError as error:
    mismatch = str(error)
out.write_text(json.dumps({"found": found, "children": children, "cut": cut, "mismatch": mismatch, "prompt": prompt}))
"""


@pytest.mark.integration
def test_vllm_engine(model_dir: Path, tmp_path: Path) -> None:
    """Offline vLLM on a random tiny model: greedy equals transformers' greedy byte for byte, samples differ, a second
    engine works after the first was shut down, nothing is left running, a full context is told, other token ids are refused.
    """
    import shutil

    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    from boostapr.credit import token_bytes

    folder, out = tmp_path / "model", tmp_path / "out.json"
    shutil.copytree(model_dir, folder)
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    subprocess.run(
        [sys.executable, "-c", ENGINE, str(folder), str(out)], cwd=ROOT, env=environment, check=True, timeout=600
    )
    result = json.loads(out.read_text())

    tokenizer, model = AutoTokenizer.from_pretrained(model_dir), AutoModelForCausalLM.from_pretrained(model_dir)
    ids = torch.tensor([result["prompt"]])
    with torch.no_grad():
        own = model.generate(input_ids=ids, attention_mask=torch.ones_like(ids), do_sample=False, max_new_tokens=24)
    response = own[0, ids.shape[1] :].tolist()
    first, second = result["found"]
    assert first["g"] == second["g"]
    data, num_tokens, finish = first["g"][0]
    assert bytes.fromhex(data) == b"".join(token_bytes(tokenizer, response))
    assert num_tokens == len(response) and finish == ("stop" if response[-1] == tokenizer.eos_token_id else "length")
    assert len(first["s"]) == 3 and len({answer[0] for answer in first["s"]}) == 3
    assert result["children"] == []
    assert result["cut"] == {"g": ["prompt_too_long"]}
    assert "prompt 0" in result["mismatch"] and "position 3" in result["mismatch"]
