"""`kvcache inspect`: what it tells of files, and what it refuses.

    inspect_test.py PROGRAM RESAVE
"""

import subprocess
import sys
import unittest

RESAVE = sys.argv.pop(2) if len(sys.argv) > 2 else "build/tests/golden/snapshot_resave"

from program import ProgramTest, prompt_cache  # noqa: E402: it takes what is left of sys.argv


class Inspect(ProgramTest):
    def setUp(self):
        super().setUp()
        self.path = self.folder / "a.safetensors"

    def mixture(self):
        rows = ["BF16", 2, [1, 2, 9, 16]]
        window = ["F16", 2, [1, 2, 8, 16]]
        tensors = {"0.0": rows, "0.1": rows, "1.0": rows, "1.1": rows, "2.0": window, "2.1": window}
        numbers = {"0.0": "", "0.1": "", "0.2.0": "2", "0.2.1": "8", "0.2.2": "9", "0.2.3": "3"}
        prompt_cache(self.path, ["KVCache", "KVCache", "RotatingKVCache"], numbers, tensors,
                     [("model", "toy"), ("odd", "a\n\x1b[1mb")])

    def test_layers_that_are_alike_take_a_line(self):
        self.mixture()
        self.assertEqual(self.printed("inspect", self.path), """\
form          mlx-lm 0.31, 3 layers, 1 sequence
layers 0 to 1: KVCache, 2 heads, keys of 16, values of 16, bf16; 9 positions
layer 2: RotatingKVCache, 2 heads, keys of 16, values of 16, f16, window 8, keeps 2; 9 positions
metadata      model: toy
              odd: a??[1mb
checksums     none
""")

    def test_json_has_all_of_it(self):
        self.mixture()
        found = self.parsed("inspect", self.path)
        self.assertEqual(found.keys(), {"form", "batch", "layers", "fingerprint", "tokens",
                                        "metadata", "checksums", "verified"})
        self.assertEqual([layer["kind"] for layer in found["layers"]],
                         ["KVCache", "KVCache", "RotatingKVCache"])
        self.assertEqual(found["layers"][2]["positions"], [9])
        self.assertEqual(found["metadata"], {"model": "toy", "odd": "a\n\x1b[1mb"})
        self.assertFalse(found["checksums"])

    def test_checksums_are_compared_on_request(self):
        self.mixture()
        again = self.folder / "b.safetensors"
        subprocess.run([RESAVE, self.path, again, "0"], check=True)
        self.assertIn("not compared", self.printed("inspect", again))
        self.assertIn("all right", self.printed("inspect", "--verify", again))
        self.assertEqual(self.parsed("inspect", again)["fingerprint"]["model"], "a test")
        whole = bytearray(again.read_bytes())
        whole[-1] ^= 1
        again.write_bytes(whole)
        self.assertIn("not compared", self.printed("inspect", again))
        self.refused(1, ["--verify", again], "checksum")
        self.refused(1, ["--verify", self.path], "no checksums")

    def refused(self, status, words, *expected):
        done = self.run_program("inspect", *words)
        self.assertEqual((done.returncode, done.stdout), (status, ""), done.stderr)
        self.assertEqual(done.stderr.count("\n"), 1, done.stderr)
        self.assertTrue(done.stderr.startswith("kvcache inspect: "), done.stderr)
        for text in expected:
            self.assertIn(text, done.stderr)

    def test_what_is_no_snapshot_is_refused(self):
        self.refused(1, [self.folder / "none"], "No such file")
        self.path.write_bytes(b"x" * 100)
        self.refused(1, [self.path], "header")
        prompt_cache(self.path, ["CacheList"], {"0.0": ""}, {})
        self.refused(1, [self.path], "CacheList")
        self.refused(2, [], "FILE")
        self.refused(2, ["--what", self.path], "--what")


unittest.main()
