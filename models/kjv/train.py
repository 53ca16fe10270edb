#!/usr/bin/env python3
"""Train the small King James language model from scratch.

The result is a Llama-architecture model of about one million parameters
(grouped-query attention, RoPE, SwiGLU, tied embeddings) and its byte-pair
tokenizer, both in the file formats of llama2.c: a "version 0" checkpoint
`model.bin` and a `tokenizer.bin`.

The text is Debian's package bible-kjv-text, printed by the program `bible` of
package bible-kjv.  From nothing to a model, on Debian 12:

    apt-get install bible-kjv bible-kjv-text python3-torch python3-numpy python3-venv
    python3 -m venv --system-site-packages venv
    venv/bin/pip install -r requirements.txt
    venv/bin/python train.py --out . --minutes 56

`--minutes` is the whole training loop's time by the clock; the learning rate
follows it, so a run ends well on a machine of any speed.  `--steps N` counts
steps instead and so does the same work everywhere.  A usable model.bin is
written every ten minutes and at the end.  `--heldout FILE` writes (part of) the
text that the model never sees, for measuring perplexity, and does nothing else.

The text is laid out one verse a line, with an empty line between chapters, and
every training sequence is BOS followed by text from some verse's beginning on.
"""
import argparse
import io
import math
import os
import re
import struct
import subprocess
import time

import numpy as np
import sentencepiece as spm
import torch
import torch.nn as nn
import torch.nn.functional as F

DIM, HIDDEN, LAYERS, HEADS, KV_HEADS, VOCAB, SEQ_LEN = 128, 352, 5, 4, 2, 1024, 1024
HEAD_DIM = DIM // HEADS
QKV = (DIM, KV_HEADS * HEAD_DIM, KV_HEADS * HEAD_DIM)
EPS, THETA, BOS = 1e-5, 10000.0, 1
HOLD_FIRST, HOLD_EVERY = 16, 33     # chapters 16, 49, 82, ... are held out: 3 %
QUERY_BLOCK = 128                   # queries that attend at one time in training


def read_chapters():
    """The whole text as a list of chapters, each a list of verses with newlines."""
    printed = subprocess.run(["bible", "-l100000", "gen1:1-rev22:21"], check=True,
                             stdin=subprocess.DEVNULL, capture_output=True).stdout
    chapters = []
    for line in printed.decode("ascii").splitlines():
        verse = re.match(r"  \d+ (.*\S)", line)
        if verse:
            chapters[-1].append(verse.group(1) + "\n")
        elif line.strip():          # a heading such as "1 Samuel 3"
            chapters.append([])
    for chapter in chapters:
        chapter[-1] += "\n"
    return chapters


def split_chapters(chapters):
    """(training chapters, held-out chapters)."""
    held = set(range(HOLD_FIRST, len(chapters), HOLD_EVERY))
    return ([c for i, c in enumerate(chapters) if i not in held],
            [c for i, c in enumerate(chapters) if i in held])


def write_heldout(path, held, kilobytes):
    """Write every n-th held-out chapter, n as small as the size allows."""
    for n in range(1, len(held) + 1):
        text = "".join("".join(chapter) for chapter in held[::n])
        if len(text) <= kilobytes * 1000:
            break
    with open(path, "w") as f:
        f.write(text)


def train_tokenizer(chapters):
    """Train a BPE that leaves text as it is and spells unknown letters in bytes."""
    model = io.BytesIO()
    spm.SentencePieceTrainer.train(
        sentence_iterator=iter("".join(c) for c in chapters), model_writer=model,
        model_type="bpe", vocab_size=VOCAB, byte_fallback=True, character_coverage=1.0,
        split_digits=True, normalization_rule_name="identity", num_threads=1,
        remove_extra_whitespaces=False, max_sentence_length=1 << 20, minloglevel=1)
    return spm.SentencePieceProcessor(model_proto=model.getvalue())


def export_tokenizer(path, sp):
    """Write the longest piece's size, then each piece's score, size and bytes."""
    names = {sp.bos_id(): "\n<s>\n", sp.eos_id(): "\n</s>\n"}
    pieces = [names.get(i, sp.id_to_piece(i)).replace("\u2581", " ").encode()
              for i in range(VOCAB)]
    with open(path, "wb") as f:
        f.write(struct.pack("<i", max(map(len, pieces))))
        for i, piece in enumerate(pieces):
            f.write(struct.pack("<fi", sp.get_score(i), len(piece)) + piece)


class Passages:
    """Token sequences that begin with BOS and, after it, with any one verse.

    A verse that opens a sequence is encoded as a prompt would be, with the
    encoder's space in front; one that follows another comes after its newline.
    """
    def __init__(self, sp, chapters):
        verses = [verse for chapter in chapters for verse in chapter]
        self.heads = [[BOS] + ids for ids in sp.encode(verses)]
        skip = len(sp.encode("\n"))
        follows = [ids[skip:] for ids in sp.encode(["\n" + v for v in verses])]
        self.stream = np.array([t for ids in follows for t in ids])
        self.ends = np.cumsum([len(ids) for ids in follows])

    def batch(self, rng, size, length):
        last = int(np.searchsorted(self.ends, len(self.stream) - length))
        rows = [np.concatenate([self.heads[v], self.stream[self.ends[v]:][:length]])
                for v in rng.integers(0, last, size)]
        both = torch.tensor(np.stack([row[:length + 1] for row in rows]))
        return both[:, :-1], both[:, 1:]


def rope(x, cos, sin):
    """Rotate the pairs (x[2i], x[2i+1]); x is [batch, time, heads, head_dim]."""
    a, b = x.unflatten(-1, (-1, 2)).unbind(-1)
    return torch.stack((a * cos - b * sin, a * sin + b * cos), -1).flatten(-2)


def rmsnorm(x, weight):
    return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + EPS) * weight


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.rms_att = nn.Parameter(torch.ones(DIM))
        self.rms_ffn = nn.Parameter(torch.ones(DIM))
        self.wqkv = nn.Parameter(torch.randn(sum(QKV), DIM) * DIM ** -0.5)
        self.wo = nn.Parameter(torch.randn(DIM, DIM) * (DIM * 2 * LAYERS) ** -0.5)
        self.w13 = nn.Parameter(torch.randn(2 * HIDDEN, DIM) * DIM ** -0.5)
        self.w2 = nn.Parameter(torch.randn(DIM, HIDDEN) * (HIDDEN * 2 * LAYERS) ** -0.5)

    def attend(self, x, cos, sin, mask):
        q, k, v = F.linear(x, self.wqkv).split(QKV, -1)
        q = rope(q.unflatten(-1, (HEADS, HEAD_DIM)), cos, sin) * HEAD_DIM ** -0.5
        k = rope(k.unflatten(-1, (KV_HEADS, HEAD_DIM)), cos, sin).permute(0, 2, 3, 1)
        v = v.unflatten(-1, (KV_HEADS, HEAD_DIM)).transpose(1, 2)
        # [batch, kv head, its query heads, time, head_dim]
        q = q.unflatten(2, (KV_HEADS, -1)).permute(0, 2, 3, 1, 4)
        outs = []
        for block in q.split(QUERY_BLOCK, 3):
            lo = QUERY_BLOCK * len(outs)
            rows = block.shape[3]
            score = block.flatten(2, 3) @ k[..., :lo + rows]
            score = score.unflatten(2, (-1, rows)) + mask[lo:lo + rows, :lo + rows]
            out = score.softmax(-1).flatten(2, 3) @ v[:, :, :lo + rows]
            outs.append(out.unflatten(2, (-1, rows)))
        return F.linear(torch.cat(outs, 3).permute(0, 3, 1, 2, 4).flatten(2), self.wo)

    def forward(self, x, cos, sin, mask):
        x = x + self.attend(rmsnorm(x, self.rms_att), cos, sin, mask)
        gate, up = F.linear(rmsnorm(x, self.rms_ffn), self.w13).split(HIDDEN, -1)
        return x + F.linear(F.silu(gate) * up, self.w2)


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Parameter(torch.randn(VOCAB, DIM) * 0.05)
        self.blocks = nn.ModuleList(Block() for _ in range(LAYERS))
        self.rms_final = nn.Parameter(torch.ones(DIM))
        freqs = THETA ** (-torch.arange(0, HEAD_DIM, 2).double() / HEAD_DIM)
        angles = torch.outer(torch.arange(SEQ_LEN).double(), freqs)
        self.cos, self.sin = angles.cos().float(), angles.sin().float()
        self.mask = torch.full((SEQ_LEN, SEQ_LEN), -math.inf).triu(1)

    def forward(self, ids):
        n = ids.shape[1]
        x = F.embedding(ids, self.embed)
        for block in self.blocks:
            x = block(x, self.cos[:n, None], self.sin[:n, None], self.mask)
        return F.linear(rmsnorm(x, self.rms_final), self.embed)


def export_model(path, model):
    """Write the checkpoint: a header of seven ints, then all tensors as f32."""
    blocks = model.blocks
    wq, wk, wv = zip(*(b.wqkv.split(QKV) for b in blocks))
    w1, w3 = zip(*(b.w13.split(HIDDEN) for b in blocks))
    tensors = [model.embed, *(b.rms_att for b in blocks), *wq, *wk, *wv,
               *(b.wo for b in blocks), *(b.rms_ffn for b in blocks),
               *w1, *(b.w2 for b in blocks), *w3, model.rms_final, model.cos, model.sin]
    with open(path + ".tmp", "wb") as f:
        f.write(struct.pack("<7i", DIM, HIDDEN, LAYERS, HEADS, KV_HEADS, VOCAB, SEQ_LEN))
        for t in tensors:
            f.write(t.detach().numpy().astype("<f4").tobytes())
    os.replace(path + ".tmp", path)


@torch.no_grad()
def heldout_loss(model, sp, held):
    """(mean loss a token, bits a letter, tokens), at the longest context.

    Each chapter starts with BOS; what is left of a long one starts with BOS again.
    """
    total = count = 0
    for chapter in held:
        ids = sp.encode("".join(chapter))
        for lo in range(0, len(ids), SEQ_LEN):
            part = torch.tensor([BOS] + ids[lo:lo + SEQ_LEN])
            total += F.cross_entropy(model(part[None, :-1])[0], part[1:], reduction="sum").item()
            count += len(part) - 1
    letters = sum(len(verse) for chapter in held for verse in chapter)
    return total / count, total / math.log(2) / letters, count


def train(args, sp, training, held):
    torch.manual_seed(args.seed)
    rng = np.random.default_rng(args.seed)
    data, model, path = Passages(sp, training), Model(), os.path.join(args.out, "model.bin")
    size = sum(p.numel() for p in model.parameters())
    print(f"{size} parameters, {len(data.stream)} training tokens", flush=True)
    adam = torch.optim.AdamW([dict(params=[p for p in model.parameters() if p.dim() == dims],
                                   weight_decay=decay) for dims, decay in ((2, 0.1), (1, 0))],
                             betas=(0.9, 0.99))
    start = saved = time.time()
    step, mean = 0, math.log(VOCAB)
    while True:
        now = time.time()
        done = step / args.steps if args.steps else (now - start) / (60 * args.minutes)
        if done >= 1:
            break
        rate = 0.5 * (1 + math.cos(math.pi * done)) * min(1, (step + 1) / 200)
        for group in adam.param_groups:
            group["lr"] = args.lr * max(rate, 0.005)
        length = 128 if done < 0.4 else 256 if done < 0.8 else SEQ_LEN
        x, y = data.batch(rng, args.batch // length, length)
        loss = F.cross_entropy(model(x).flatten(0, 1), y.flatten())
        adam.zero_grad(set_to_none=True)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        adam.step()
        step, mean = step + 1, 0.98 * mean + 0.02 * loss.item()
        if step % 100 == 0:
            print(f"step {step} done {done:.3f} length {length} loss {mean:.4f}", flush=True)
        if now - saved > 600:
            saved = now
            export_model(path, model)
            print(f"held-out loss {heldout_loss(model, sp, held)[0]:.4f}", flush=True)
    export_model(path, model)
    loss, bits, count = heldout_loss(model, sp, held)
    print(f"{step} steps in {time.time() - start:.0f} s, training loss {mean:.4f}; held-out: "
          f"{count} tokens, loss {loss:.4f}, perplexity {math.exp(loss):.3f}, "
          f"{bits:.4f} bits a letter")


def main():
    parser = argparse.ArgumentParser(description="Train the small King James model.")
    parser.add_argument("--out", default=".", help="folder of model.bin and tokenizer.bin")
    parser.add_argument("--minutes", type=float, default=56, help="time of the training loop")
    parser.add_argument("--steps", type=int, help="train so many steps, however long it takes")
    parser.add_argument("--batch", type=int, default=1024, help="tokens a step")
    parser.add_argument("--lr", type=float, default=4e-3)
    parser.add_argument("--seed", type=int, default=1611)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--heldout", metavar="FILE", help="only write held-out text to FILE")
    parser.add_argument("--heldout-kb", type=float, default=60, help="at most so many kB")
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    training, held = split_chapters(read_chapters())
    if args.heldout:
        write_heldout(args.heldout, held, args.heldout_kb)
        return
    os.makedirs(args.out, exist_ok=True)
    sp = train_tokenizer(training)
    export_tokenizer(os.path.join(args.out, "tokenizer.bin"), sp)
    train(args, sp, training, held)


if __name__ == "__main__":
    main()
