"""`kvcache convert`: what becomes of files, and what is refused.

    convert_test.py PROGRAM

Layer 0 does not depend on how attention reads the cache: of a file that was converted and of one
that `generate` saved in that kind at once it must be the same to the bit."""

import json
import os
import struct
import sys
import tempfile
import unittest
from pathlib import Path

from program import ProgramTest, prompt_cache

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "support"))
import tiny_model  # noqa: E402

SHAPE = (64, 24, 2, 2, 1, 288, 96)  # heads of 32, which groups divide
PROMPT = "the hat and the ant on an oat"
POSITIONS = 20  # fewer than the prompt has tokens: the same tokens under any kind
GOLDEN = Path(os.environ.get("KVC_SHARED_DIR", "")) / "golden" / "mlx-lm"


def read(path):
    """(metadata, {name: (dtype, shape, bytes)})"""
    data = path.read_bytes()
    start = 8 + struct.unpack_from("<Q", data)[0]
    header = json.loads(data[8:start])
    metadata = header.pop("__metadata__", {})
    return metadata, {name: (t["dtype"], t["shape"],
                             data[start + t["data_offsets"][0]:start + t["data_offsets"][1]])
                      for name, t in header.items()}


def rows_of(tensor):
    """The rows of a tensor, sorted: a ring may begin anywhere."""
    _, shape, data = tensor
    size = len(data) // (shape[0] * shape[1] * shape[2])
    return sorted(data[i:i + size] for i in range(0, len(data), size))


class Convert(ProgramTest):
    @classmethod
    def setUpClass(cls):
        folder = tempfile.TemporaryDirectory()
        cls.addClassCleanup(folder.cleanup)
        cls.model = Path(folder.name) / "model.bin"
        cls.tokenizer = Path(folder.name) / "tokenizer.bin"
        cls.model.write_bytes(tiny_model.checkpoint(SHAPE))
        cls.tokenizer.write_bytes(tiny_model.tokenizer())

    def setUp(self):
        super().setUp()
        self.a, self.b, self.c = (self.folder / name for name in "abc")

    def generate(self, *options):
        return self.printed("generate", self.model, "--tokenizer", self.tokenizer, "--prompt",
                            PROMPT, "--temperature", "0", "--quiet", *options)

    def save(self, path, *options, steps=POSITIONS):
        self.generate("--steps", steps, "--save-cache", path, *options)

    def convert(self, source, target, *options):
        return self.parsed("convert", source, target, *options)

    def refused(self, status, words, *expected):
        """Refused, and nothing in the folder has changed."""
        before = {path: path.read_bytes() for path in self.folder.iterdir()}
        done = self.run_program("convert", *words)
        self.assertEqual((done.returncode, done.stdout), (status, ""), done.stderr)
        self.assertEqual(done.stderr.count("\n"), 1, done.stderr)
        self.assertTrue(done.stderr.startswith("kvcache convert: "), done.stderr)
        for text in expected:
            self.assertIn(str(text), done.stderr)
        self.assertEqual({path: path.read_bytes() for path in self.folder.iterdir()}, before)

    # What becomes of files.

    def test_without_options_a_file_of_ours_stays_to_the_byte(self):
        for cache in [], ["--cache", "q4:32"], ["--cache", "window:8:2"], ["--cache", "q8r:32"]:
            self.save(self.a, *cache)
            self.convert(self.a, self.b, "--force")
            self.assertEqual(self.b.read_bytes(), self.a.read_bytes(), cache)

    def test_layer_0_is_as_if_generated_in_that_kind(self):
        self.save(self.a)
        for kind, dtype in (("q8:32+paged", "bf16"), ("q3r:32", "f32"), ("reserve", "f16"),
                            ("window:9:3", "bf16"), ("q5:32+window:8:2", "f32")):
            self.convert(self.a, self.b, "--force", "--cache", kind, "--dtype", dtype)
            self.save(self.c, "--cache", kind, "--kv-dtype", dtype)
            (_, found), (_, wanted) = read(self.b), read(self.c)
            self.assertEqual(found.keys(), wanted.keys(), kind)
            for name in wanted:
                if not name.startswith("0."):
                    continue
                self.assertEqual(found[name][0], wanted[name][0])
                ours, theirs = rows_of(found[name]), rows_of(wanted[name])
                if "window" in kind:  # after a prompt, theirs holds more than the window
                    self.assertEqual(len(ours), int(kind.partition("window:")[2][0]))
                    self.assertLess(set(ours), set(theirs))
                else:
                    self.assertEqual(ours, theirs, (kind, name))
            one, other = (self.parsed("inspect", path)["layers"] for path in (self.b, self.c))
            for layer in one + other:
                del layer["rows"]
            self.assertEqual(one, other)

    def test_what_loses_nothing_comes_back_to_the_byte(self):
        self.save(self.a, "--kv-dtype", "bf16")
        wanted = self.a.read_bytes()
        for there, back in ((["--dtype", "f32"], ["--dtype", "bf16"]),
                            (["--cache", "window:20"], ["--cache", "reserve"]),
                            (["--cache", "window:96:7"], ["--cache", "reserve"]),
                            (["--form", "0.32"], ["--form", "0.31"])):
            self.convert(self.a, self.b, "--force", *there)
            self.assertNotEqual(self.b.read_bytes(), wanted)
            self.convert(self.b, self.c, "--force", *back)
            self.assertEqual(self.c.read_bytes(), wanted, there)

    def test_packed_rows_are_unpacked(self):
        self.save(self.a, "--cache", "q8:32")
        self.convert(self.a, self.b, "--cache", "reserve")
        (_, packed), (_, plain) = read(self.a), read(self.b)
        for side in "01":
            words = packed[f"0.{side}.0"][2]
            scales, biases = (struct.unpack(f"<{len(words) // 32}f", packed[f"0.{side}.{part}"][2])
                              for part in (1, 2))
            found = struct.unpack(f"<{len(words)}f", plain[f"0.{side}"][2])
            for i, number in enumerate(found):
                wanted = words[i] * scales[i // 32] + biases[i // 32]
                self.assertAlmostEqual(number, wanted, delta=1e-6 * (1 + abs(biases[i // 32])))

    def test_the_text_goes_on_from_what_was_converted(self):
        self.save(self.a, steps=40)
        wanted = self.generate("--steps", 80)
        for kind in "window:96:5", "paged":
            self.convert(self.a, self.b, "--force", "--cache", kind)
            self.assertEqual(self.generate("--steps", 80, "--cache", kind, "--load-cache", self.b),
                             wanted)
        for kind in "q8r:32", "q4:32+window:16:4":
            self.convert(self.a, self.b, "--force", "--cache", kind, "--dtype", "bf16")
            text = self.generate("--steps", 80, "--cache", kind, "--kv-dtype", "bf16",
                                 "--load-cache", self.b)
            self.assertTrue(text.startswith(PROMPT))

    def test_a_file_may_become_itself(self):
        self.save(self.a)
        self.save(self.b)
        self.convert(self.a, self.c, "--cache", "q8:32")
        self.convert(self.a, self.a, "--cache", "q8:32", "--force")
        self.assertEqual(self.a.read_bytes(), self.c.read_bytes())
        self.convert(self.b, self.folder / "." / "b", "--cache", "q8:32", "--force")
        self.assertEqual(self.b.read_bytes(), self.c.read_bytes())

    def batch(self, texts=()):
        """Two sequences, a plain layer and a window that has turned, with checksums by way of
        convert: numbers that tell rows apart."""
        rows, window = ["F32", 4, [2, 1, 9, 32]], ["F32", 4, [2, 1, 6, 32]]
        tensors = {"0.0": rows, "0.1": rows, "1.0": window, "1.1": window}
        numbers = {"0.0": "", "0.1.0": "2", "0.1.1": "6", "0.1.2": "9", "0.1.3": "5"}
        prompt_cache(self.a, ["KVCache", "RotatingKVCache"], numbers, tensors, texts)
        data = bytearray(self.a.read_bytes())
        for i in range(len(data) - 4 * 32 * 60, len(data), 4):
            data[i:i + 4] = struct.pack("<f", i % 4093)
        self.a.write_bytes(data)

    def test_one_sequence_of_a_batch(self):
        self.batch()
        _, whole = read(self.a)
        for sequence in 0, 1:
            found = self.convert(self.a, self.b, "--force", "--sequence", sequence)
            self.assertEqual((found["in"]["batch"], found["out"]["batch"]), (2, 1))
            for name, (dtype, shape, data) in read(self.b)[1].items():
                half = len(data)
                self.assertEqual((dtype, [2] + shape[1:]), whole[name][:2])
                self.assertEqual(data, whole[name][2][sequence * half:][:half])

    def test_layers_that_were_not_chosen_stay(self):
        self.batch()
        _, before = read(self.a)
        found = self.convert(self.a, self.b, "--cache", "q8:32", "--layers", "full")
        self.assertEqual([layer["kind"] for layer in found["out"]["layers"]],
                         ["QuantizedKVCache", "RotatingKVCache"])
        found = self.convert(self.a, self.c, "--dtype", "f16", "--layers", "windows")
        self.assertEqual([layer["dtype"] for layer in found["out"]["layers"]], ["f32", "f16"])
        for name, path in ("1", self.b), ("0", self.c):
            for side in "01":
                found, wanted = read(path)[1][f"{name}.{side}"], before[f"{name}.{side}"]
                self.assertEqual(found[:2], wanted[:2])
                self.assertEqual(rows_of(found), rows_of(wanted))

    def test_what_a_file_tells_beside_its_rows_stays(self):
        self.save(self.a)
        before = self.parsed("inspect", self.a)
        self.convert(self.a, self.b, "--cache", "q8:32+window:8", "--dtype", "bf16")
        after = self.parsed("inspect", self.b)
        for what in "fingerprint", "tokens", "metadata", "form", "checksums":
            self.assertEqual(after[what], before[what])
        self.assertEqual(len(after["tokens"]), POSITIONS)
        self.batch([("model", "toy"), ("kvc.format", "1"), ("kvc.rope", "r"), ("kvc.layout", "l"),
                    ("kvc.dtype", "float32"), ("kvc.quantization", "none at all")])
        for words, dtype, quantization in (
                ([], "float32", "none at all"), (["--dtype", "f16"], "f16", "none at all"),
                (["--cache", "q8:32+paged", "--layers", "full"], "float32", "q8:32")):
            self.convert(self.a, self.b, "--force", "--sequence", "1", *words)
            after = self.parsed("inspect", self.b)
            self.assertEqual(after["fingerprint"], {"model": None, "rope": "r", "layout": "l",
                                                    "dtype": dtype, "quantization": quantization})
            self.assertEqual(after["metadata"], {"model": "toy"})
        self.convert(self.b, self.b, "--force", "--cache", "reserve", "--layers", "full")
        self.assertEqual(self.parsed("inspect", self.b)["fingerprint"]["quantization"], "none")

    def test_both_files_are_told(self):
        self.save(self.a)
        lines = self.printed("convert", self.a, self.b, "--cache", "q8:32", "--form", "0.32")
        self.assertRegex(lines, r"""\Ain    .*: [0-9.]+ KiB, mlx-lm 0\.31, 2 layers, 1 sequence
layers 0 to 1: KVCache, 1 heads, keys of 32, values of 32, f32; 20 positions
out   .*: [0-9.]+ KiB, mlx-lm 0\.32, 2 layers, 1 sequence
layers 0 to 1: QuantizedKVCache, .*, 8 bits in groups of 32, scales f32; 20 positions
\Z""")
        found = self.convert(self.a, self.b, "--force")
        self.assertEqual(found.keys(), {"in", "out"})
        for one in found.values():
            self.assertEqual(one.keys(), {"path", "bytes", "form", "batch", "layers"})
            self.assertEqual(one["bytes"], Path(one["path"]).stat().st_size)

    def test_files_of_mlx_lm(self):
        if not GOLDEN.is_dir():
            self.skipTest("KVC_SHARED_DIR has no golden/mlx-lm")
        for source in sorted(GOLDEN.glob("*.safetensors")):
            if source.name.startswith("quantize_"):
                continue
            _, wanted = read(source)
            self.convert(source, self.a, "--force", "--form", "0.32")
            self.convert(self.a, self.b, "--force", "--form", "0.31")
            self.assertEqual(read(self.b)[1], wanted, source.name)
        source = GOLDEN / "quant_b3_g32.safetensors"
        found = self.convert(source, self.c, "--cache", "reserve", "--dtype", "f32")
        self.assertEqual({layer["kind"] for layer in found["out"]["layers"]}, {"KVCache"})

    # What does not work.

    def test_what_was_dropped_does_not_come_back(self):
        self.save(self.a, "--cache", "window:8:2", steps=60)
        for kind in "reserve", "window:9:2", "window:8:3", "q8:32":
            self.refused(1, [self.a, self.b, "--cache", kind], "dropped positions 2 to ", kind,
                         "wider than 8", "at most 2", "--layers full")
        self.convert(self.a, self.b, "--cache", "window:7:1")
        self.assertEqual(self.parsed("inspect", self.b)["layers"][0]["window"], 7)

    def test_files_that_are_none(self):
        self.refused(1, [self.a, self.b], "No such file", "/a")
        self.a.write_bytes(b"x" * 100)
        self.refused(1, [self.a, self.b], "header")
        self.save(self.a)
        data = self.a.read_bytes()
        self.a.write_bytes(data[:-1] + bytes([data[-1] ^ 1]))
        self.refused(1, [self.a, self.b, "--cache", "q8:32"], "checksum")
        self.a.write_bytes(data[:-1])
        self.refused(1, [self.a, self.b], self.a)

    def test_out_that_cannot_be(self):
        self.save(self.a)
        self.b.write_bytes(b"mine")
        self.refused(1, [self.a, self.b], "/b: exists", "--force")
        self.refused(1, [self.a, self.a, "--cache", "q8:32"], "/a: exists", "--force")
        self.refused(1, [self.a, self.folder.parent, "--force"], "no regular file")
        self.refused(1, [self.a, self.folder / "no" / "file"], "No such file")
        self.c.symlink_to("nowhere")
        done = self.run_program("convert", self.a, self.c)
        self.assertEqual((done.returncode, done.stderr.count("exists")), (1, 1))

    def test_kinds_that_cannot_be(self):
        self.save(self.a)
        self.refused(2, [self.a, self.b, "--cache", "q8"], "groups of 32, 64 or 128", "32 elements")
        self.refused(2, [self.a, self.b, "--cache", "q7:32"], "'q7:32'", "2, 3, 4, 5, 6 or 8")
        self.refused(2, [self.a, self.b, "--dtype", "i8"], "--dtype", "f32, f16 or bf16")
        self.refused(2, [self.a, self.b, "--form", "0.33"], "--form", "0.31 or 0.32")
        for kind in "q8r:32", "q8:32+window:30":
            self.refused(1, [self.a, self.b, "--cache", kind, "--form", "0.32"], "layer 0",
                         "--form 0.31")
        self.refused(1, [self.a, self.b, "--cache", "q8:32", "--layers", "windows"], "--layers",
                     "has none")

    def test_words_that_are_wrong(self):
        self.save(self.a)
        self.refused(2, [], "IN is missing")
        self.refused(2, [self.a], "OUT is missing")
        self.refused(2, [self.a, self.b, self.c], "unexpected argument", "/c")
        self.refused(2, [self.a, self.b, "--sequence", "1"], "--sequence: 1", "0 to 0", "1 sequence")
        self.refused(2, [self.a, self.b, "--sequence", "-1"], "--sequence: '-1'")
        self.refused(2, [self.a, self.b, "--layers", "full"], "--layers", "--cache or --dtype")
        self.refused(2, [self.a, self.b, "--layers", "some"], "all, full or windows")
        self.refused(2, [self.a, self.b, "--what"], "--what")


unittest.main()
