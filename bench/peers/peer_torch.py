"""PyTorch on the CPU."""

import functools

import numpy as np
import torch
from torch.nn.functional import scaled_dot_product_attention

from case import Form

DTYPES = {"f32": torch.float32, "f16": torch.float16, "bf16": torch.bfloat16}


def prepare(case):
    torch.set_num_threads(case.threads)
    torch.set_grad_enabled(False)


def make(case, attend):
    q, k, v = (torch.from_numpy(x[None]).to(DTYPES[case.dtype]) for x in case.inputs())
    layers = [(k.clone(), v.clone()) for _ in range(case.layers)]
    mask = torch.from_numpy(~case.hidden()) if case.q_len > 1 else None
    runs = [functools.partial(attend, q, *kv, mask) for kv in layers]
    return Form(runs, lambda: attend(q, *layers[0], mask).float().numpy()[0].astype(np.float32))


def gqa(q, k, v, mask):
    return scaled_dot_product_attention(q, k, v, attn_mask=mask, enable_gqa=True)


def grouped(q, k, v, mask):
    """Query heads of a kv head as query positions: keys and values are read once."""
    batch, heads, n, dim = q.shape
    group = heads // k.shape[1]
    rows = q.reshape(batch, k.shape[1], group * n, dim)
    mask = None if mask is None else mask.repeat(group, 1)
    return scaled_dot_product_attention(rows, k, v, attn_mask=mask).reshape(q.shape)


def matmul(q, k, v, mask):
    batch, heads, n, dim = q.shape
    group = heads // k.shape[1]
    scores = q.reshape(batch, k.shape[1], group * n, dim) @ k.transpose(-1, -2) * dim**-0.5
    if mask is not None:
        scores = scores.masked_fill(~mask.repeat(group, 1), -float("inf"))
    return (scores.softmax(-1) @ v).reshape(q.shape)


def forms(case):
    ways = {"sdpa, enable_gqa": gqa, "sdpa, grouped": grouped, "grouped matmul": matmul}
    return {name: functools.partial(make, attend=attend) for name, attend in ways.items()}
