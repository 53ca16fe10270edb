"""Writes small models and tokenizers in llama2.c's formats, sound ones and all kinds of others."""

import random
import struct

# dim, hidden_dim, n_layers, n_heads, n_kv_heads, vocab_size, seq_len
SHAPE = (16, 24, 2, 4, 2, 288, 96)
BOS = 1


def pieces(vocab_size=SHAPE[5]):
    """Unknown, BOS, EOS, the bytes, then letters and a few merges, with their scores."""
    out = [(b"<unk>", 0.0), (b"\n<s>\n", 0.0), (b"\n</s>\n", 0.0)]
    out += [(b"<0x%02X>" % byte, 0.0) for byte in range(256)]
    words = [b" ", b"e", b"t", b"a", b"o", b"h", b"n", b"th", b"the", b" the", b" a", b"an"]
    out += [(word, -float(i)) for i, word in enumerate(words)]
    out += [(b"w%d" % i, -float(100 + i)) for i in range(vocab_size - len(out))]
    return out[:vocab_size]


def tokenizer(vocab_size=SHAPE[5]):
    all_pieces = pieces(vocab_size)
    out = struct.pack("<i", max(len(piece) for piece, _ in all_pieces))
    for piece, score in all_pieces:
        out += struct.pack("<fi", score, len(piece)) + piece
    return out


def weights(shape=SHAPE):
    """Returns how many floats follow the header."""
    dim, hidden, layers, heads, kv_heads, vocab, seq_len = shape
    kv_dim = dim * kv_heads // heads
    layer = 2 * dim + 2 * dim * dim + 2 * dim * kv_dim + 3 * dim * hidden
    classifier = dim * -vocab if vocab < 0 else 0
    return dim * abs(vocab) + layers * layer + dim + seq_len * (dim // heads) + classifier


def checkpoint(shape=SHAPE, seed=1):
    """A model of random weights: it says nothing, but says it at length (BOS stays unlikely)."""
    draw = random.Random(seed)
    dim, count = shape[0], weights(shape)
    values = [draw.uniform(-0.5, 0.5) for _ in range(count)]
    if abs(shape[5]) > BOS:
        values[BOS * dim:(BOS + 1) * dim] = [0.0] * dim
    return struct.pack("<7i", *shape) + struct.pack(f"<{count}f", *values)
