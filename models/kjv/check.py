#!/usr/bin/env python3
"""Check model.bin and tokenizer.bin by reading them without torch's help.

    venv/bin/python check.py [FOLDER]

A numpy forward pass reads model.bin as llama2.c would and samples text from it;
a byte-pair encoder in plain Python reads tokenizer.bin.  The encoder must give
sentencepiece's ids for each ninth chapter and some odd strings, and the forward
pass must give the logits of train.py's model within 1e-4.
"""
import struct
import sys

import numpy as np
import torch

import train


class Tokenizer:
    def __init__(self, path):
        self.pieces, self.scores = [], []
        with open(path, "rb") as f:
            self.longest = struct.unpack("<i", f.read(4))[0]
            while head := f.read(8):
                score, size = struct.unpack("<fi", head)
                self.scores.append(score)
                self.pieces.append(f.read(size))
        assert len(self.pieces) == train.VOCAB
        assert max(map(len, self.pieces)) == self.longest
        self.ids = {piece: i for i, piece in enumerate(self.pieces)}

    def encode(self, text):
        """A space in front, a piece or bytes a letter, then the best merges first."""
        ids = []
        for letter in (" " + text if text else ""):
            raw = letter.encode()
            ids += [self.ids[raw]] if raw in self.ids else [b + 3 for b in raw]
        while True:
            best = None
            for i in range(len(ids) - 1):
                both = self.ids.get(self.pieces[ids[i]] + self.pieces[ids[i + 1]])
                if both is not None and (best is None or self.scores[both] > best[0]):
                    best = self.scores[both], i, both
            if best is None:
                return ids
            ids[best[1]:best[1] + 2] = [best[2]]

    def decode(self, ids):
        out = b""
        for last, i in zip([train.BOS] + ids, ids):
            piece = self.pieces[i]
            if 3 <= i < 259:
                piece = bytes([i - 3])
            out += piece[1:] if last == train.BOS and piece[:1] == b" " else piece
        return out.decode(errors="replace")


class Forward:
    """One token at a time, with a cache of keys and values."""
    def __init__(self, path):
        with open(path, "rb") as f:
            header = struct.unpack("<7i", f.read(28))
            flat = np.frombuffer(f.read(), "<f4")
        self.dim, hidden, self.layers, self.heads, self.kv_heads, vocab, seq = header
        dim, n, size = self.dim, self.layers, self.dim // self.heads
        kv = self.kv_heads * size
        names = dict(embed=(vocab, dim), rms_att=(n, dim), wq=(n, dim, dim), wk=(n, kv, dim),
                     wv=(n, kv, dim), wo=(n, dim, dim), rms_ffn=(n, dim), w1=(n, hidden, dim),
                     w2=(n, dim, hidden), w3=(n, hidden, dim), rms_final=(dim,),
                     cos=(seq, size // 2), sin=(seq, size // 2))
        at = 0
        for name, shape in names.items():
            count = int(np.prod(shape))
            setattr(self, name, flat[at:at + count].reshape(shape))
            at += count
        assert at == len(flat), "model.bin has another size than its header tells"
        self.header, self.k, self.v = header, [[] for _ in range(n)], [[] for _ in range(n)]

    def norm(self, x, weight):
        return x / np.sqrt(np.mean(x * x) + np.float32(1e-5)) * weight

    def rotate(self, x, pos):
        pairs = x.reshape(-1, self.cos.shape[1], 2)
        a, b, c, s = pairs[..., 0], pairs[..., 1], self.cos[pos], self.sin[pos]
        return np.stack((a * c - b * s, a * s + b * c), -1).reshape(len(pairs), -1)

    def __call__(self, token):
        x, pos = self.embed[token], len(self.k[0])
        for n in range(self.layers):
            h = self.norm(x, self.rms_att[n])
            q = self.rotate(self.wq[n] @ h, pos)
            self.k[n].append(self.rotate(self.wk[n] @ h, pos))
            self.v[n].append((self.wv[n] @ h).reshape(self.kv_heads, -1))
            keys, values, out = np.stack(self.k[n], 1), np.stack(self.v[n], 1), []
            for head in range(self.heads):
                group = head * self.kv_heads // self.heads
                score = keys[group] @ q[head] / np.sqrt(np.float32(len(q[head])))
                score = np.exp(score - score.max())
                out.append(score / score.sum() @ values[group])
            x = x + self.wo[n] @ np.concatenate(out)
            h = self.norm(x, self.rms_ffn[n])
            gate = self.w1[n] @ h
            x = x + self.w2[n] @ (gate / (1 + np.exp(-gate)) * (self.w3[n] @ h))
        return self.embed @ self.norm(x, self.rms_final)


def load_into_torch(f):
    """train.py's model with the weights that `f` read."""
    model, tensor = train.Model(), lambda a: torch.from_numpy(np.array(a))
    with torch.no_grad():
        model.embed.copy_(tensor(f.embed))
        model.rms_final.copy_(tensor(f.rms_final))
        for n, b in enumerate(model.blocks):
            b.rms_att.copy_(tensor(f.rms_att[n]))
            b.rms_ffn.copy_(tensor(f.rms_ffn[n]))
            b.wqkv.copy_(tensor(np.concatenate([f.wq[n], f.wk[n], f.wv[n]])))
            b.wo.copy_(tensor(f.wo[n]))
            b.w13.copy_(tensor(np.concatenate([f.w1[n], f.w3[n]])))
            b.w2.copy_(tensor(f.w2[n]))
    return model


def sample(path, tok, prompt, count, temperature, seed=1):
    f, rng = Forward(path), np.random.default_rng(seed)
    given, ids = tok.encode(prompt), []
    logits = f(train.BOS)
    for step in range(count):
        if step < len(given):
            token = given[step]
        elif temperature == 0:
            token = int(logits.argmax())
        else:
            p = np.exp((logits - logits.max()).astype(np.float64) / temperature)
            token = int(rng.choice(len(p), p=p / p.sum()))
        ids.append(token)
        logits = f(token)
    return tok.decode(ids)


def main():
    folder = sys.argv[1] if len(sys.argv) > 1 else "."
    path = folder + "/model.bin"
    torch.set_num_threads(1)
    tok = Tokenizer(folder + "/tokenizer.bin")
    training, held = train.split_chapters(train.read_chapters())
    sp = train.train_tokenizer(training)
    odd = ["", " ", "  two  spaces ", "\n", "\n\nAnd", "caf\u00e9 \u65e5\u672c \U0001f600", "a\tb",
           "don't <s> </s> 12345 [x] {y}", "AAAAaaaa", "\u2047 & @ #"]
    texts = odd + [verse for c in (training + held)[::9] for verse in c]
    texts += ["".join(held[i][:8]) for i in range(len(held))]
    wrong = [t for t in texts if tok.encode(t) != sp.encode(t)]
    print(f"encoder: {len(texts) - len(wrong)} of {len(texts)} texts agree", wrong[:3])
    assert all(sp.decode(tok.encode(t)) == t for t in texts[len(odd):])

    f = Forward(path)
    text = "".join("".join(c) for c in held)
    ids = [train.BOS] + sp.encode(text)[:train.SEQ_LEN - 1]
    with torch.no_grad():
        want = load_into_torch(f)(torch.tensor([ids]))[0].numpy()
    got = np.stack([f(i) for i in ids])
    gap = float(np.abs(want - got).max())
    print(f"header {f.header}; logits of {len(ids)} tokens differ by at most {gap:.2e}")
    for prompt, temperature in (("In the beginning", 0), ("In the beginning", 0.8), ("", 0.8)):
        print(f"--- {prompt!r} at temperature {temperature}")
        print(sample(path, tok, prompt, 200, temperature))
    sys.exit(bool(wrong) or gap > 1e-4)


if __name__ == "__main__":
    main()
