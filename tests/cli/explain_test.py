"""`kvcache explain`: the whole of what it prints for the seed's rule, and what it refuses.

    explain_test.py PROGRAM
"""

import unittest

from program import ProgramTest

CHECKS = ["compute_capability", "dtype", "key_dim", "value_dim", "q_len", "mask", "last_stride",
          "alignment", "capacity", "buffer", "value_buffer", "length"]


class Explain(ProgramTest):
    def failed(self, *words):
        """The kernel, and the names of the conditions that do not hold."""
        cuda = self.parsed("explain", *words)["cuda"]
        for check in cuda["checks"]:
            self.assertEqual(check["ok"], check["remedy"] == "")
        return cuda["kernel"], [c["name"] for c in cuda["checks"] if not c["ok"]]

    def test_a_capacity_off_the_chunk_is_explained(self):
        text = self.printed("explain", "--heads", "32/8", "--dim", "128", "--dtype", "bf16",
                            "--capacity", "812", "--length", "600")
        lines = text.splitlines()
        self.assertEqual(lines[0], "32 query heads over 8 kv heads, keys of 128, values of 128, bf16; "
                                   "1 query, 600 of 812 positions in use")
        self.assertIn("On this CPU: fused", text)
        self.assertIn("On CUDA, by MLX's rule: vector\n", text)
        self.assertRegex(text, r"(?m)^  no  capacity +capacity 812 +a multiple of 256$")
        self.assertRegex(text, r"(?m)^ +change: .*1024$")
        self.assertEqual(sum(line.startswith("  ok ") for line in lines), len(CHECKS) - 1)

    def test_json_has_every_check(self):
        result = self.parsed("explain")
        self.assertEqual(result["cpu"].keys(), {"path", "slow", "reason", "remedy"})
        self.assertEqual(result["cuda"].keys(), {"kernel", "reason", "checks"})
        self.assertEqual([c["name"] for c in result["cuda"]["checks"]], CHECKS)
        self.assertEqual(result["cuda"]["kernel"], "cudnn")

    def test_each_option_reaches_its_check(self):
        self.assertEqual(self.failed(), ("cudnn", []))
        self.assertEqual(self.failed("--length", "255"), ("vector", ["length"]))
        self.assertEqual(self.failed("--length", "600"), ("cudnn", []))
        self.assertEqual(self.failed("--length", "600", "--chunk", "100"), ("vector", ["capacity"]))
        self.assertEqual(self.failed("--length", "2000", "--capacity", "3262"),
                         ("vector-two-pass", ["capacity"]))
        self.assertEqual(self.failed("--dtype", "f32"), ("vector", ["dtype"]))
        self.assertEqual(self.failed("--dim", "512"), ("unfused", ["key_dim", "value_dim"]))
        self.assertEqual(self.failed("--value-dim", "192"), ("unfused", ["value_dim"]))
        self.assertEqual(self.failed("--array-mask"), ("unfused", ["mask"]))
        self.assertEqual(self.failed("--compute-capability", "7.5"),
                         ("vector", ["compute_capability"]))
        self.assertEqual(self.failed("--buffer-elements", "1056768"), ("vector", ["buffer"]))
        self.assertEqual(self.failed("--batch", "2", "--buffer-elements", "2097152"), ("cudnn", []))
        self.assertEqual(self.failed("--q-len", "300", "--length", "200", "--capacity", "256"),
                         ("unfused", ["q_len"]))

    def test_an_empty_cache_is_explained(self):
        self.assertEqual(self.failed("--length", "0"), ("vector", ["length"]))

    def test_more_positions_than_room_are_refused(self):
        self.assert_refused(2, "explain", ["--length", "600", "--capacity", "512"],
                            "--length: 600 given, at most the capacity 512 wanted")

    def test_bad_values_are_refused(self):
        for option, given in [("--heads", "8/32"), ("--dim", "0"), ("--value-dim", "-1"),
                              ("--dtype", "int8"), ("--length", "-1"), ("--capacity", "0"),
                              ("--chunk", "0"), ("--q-len", "0"), ("--batch", "0"),
                              ("--buffer-elements", "0"), ("--compute-capability", "80"),
                              ("--compute-capability", "nan"), ("--compute-capability", "8.x")]:
            self.assert_refused(2, "explain", [option, given], f"{option}: '{given}' given")

    def test_sizes_that_overflow_are_refused(self):
        self.assert_refused(1, "explain",
                            ["--heads", "65536/65536", "--dim", "65536", "--batch", "65536",
                             "--length", 1 << 30], "is more")


if __name__ == "__main__":
    unittest.main()
