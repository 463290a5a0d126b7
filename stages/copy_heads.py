"""An initialisation from which a model of a million parameters learns to copy in minutes instead of hours.

Writing a patch is mostly copying: find the place in the prompt that reads like what was just written, and write what comes
next. Two layers of attention do it, one that tells each position what stood before it and one that looks for the match
("induction heads"); small models find them very late. Here they stand at the start, and training refines them.
"""

from __future__ import annotations

import torch
from transformers import Qwen2ForCausalLM


@torch.no_grad()
def add_copy_heads(model: Qwen2ForCausalLM) -> None:
    """Set the first two layers' heads 0 and 1; zero what all other heads and layers add to the residual stream.

    Layer 0, head h writes a code of the token h + 1 places back into a subspace of its own. Layer 1 compares the codes of the
    current and the previous token with those written at every earlier position, and adds the token found there.
    Raises ValueError for a model with grouped key heads or fewer than two layers or heads.
    """
    config, layers = model.config, model.model.layers
    if config.num_key_value_heads != config.num_attention_heads or min(len(layers), config.num_attention_heads) < 2:
        raise ValueError("copy heads need two layers, two heads, and as many key heads as query heads")
    width, size = config.hidden_size, config.hidden_size // config.num_attention_heads
    half = size // 2
    frequency = config.rope_parameters["rope_theta"] ** (-torch.arange(half) / half)
    fast, slow = (frequency > 0.05).float(), (frequency < 0.02).nonzero().flatten()
    content = torch.cat([slow, slow + half])  # dimensions that rotary embeddings hardly turn over a prompt

    for layer in layers:
        layer.mlp.down_proj.weight.zero_()
        layer.self_attn.o_proj.weight.zero_()

    # Subspaces of the residual stream: codes of one and of two places back, and the rest, in which tokens are copied.
    basis = torch.linalg.qr(torch.randn(width, width))[0].T
    back, rest = (basis[:size], basis[size : 2 * size]), basis[2 * size :]
    code = torch.linalg.qr(torch.randn(width, size))[0].T  # [size, width]: the code of a token
    embedding = model.model.embed_tokens.weight.norm(dim=1).mean()
    written = 2 * embedding / size**0.5  # a code in the residual stream is twice as long as an embedding
    scale = width**0.5 / (embedding * 3)  # what the next layer's norm does to the stream: about three embeddings long

    first = layers[0].self_attn
    for head in range(2):
        rows = slice(head * size, (head + 1) * size)
        turn = frequency * (head + 1)
        first.q_proj.bias[rows] = 8.0 * torch.cat([fast * turn.cos(), -fast * turn.sin()])
        first.k_proj.bias[rows] = 8.0 * torch.cat([fast, torch.zeros(half)])
        first.q_proj.weight[rows] *= 0.1
        first.k_proj.weight[rows] *= 0.1
        first.v_proj.weight[rows] = code
        first.o_proj.weight[:, rows] = written * back[head].T

    second = layers[1].self_attn
    one, two = (torch.linalg.qr(torch.randn(size, len(content)))[0].T for _ in range(2))  # [content, size]
    of_token = 1 / (scale * embedding / width**0.5)  # undoes what the norms did to codes of the token itself,
    of_back = 1 / (scale * written)  # and to those written by the first layer
    query = one @ code * of_token + two @ back[0] * of_back
    key = (one @ back[0] + two @ back[1]) * of_back
    sharpness = (8.0 * size**0.5 / len(content)) ** 0.5  # a match of one token: 8 in the logits of attention
    for head in range(2):
        rows = slice(head * size, (head + 1) * size)
        for projection, values in ((second.q_proj, query), (second.k_proj, key)):
            projection.weight[rows] *= 0.1
            projection.weight[rows][content] = 0.0
            projection.weight[head * size + content] = sharpness * values
        second.v_proj.weight[rows] = rest[head * size : (head + 1) * size]
        second.o_proj.weight[:, rows] = 3.0 / scale * rest[head * size : (head + 1) * size].T
