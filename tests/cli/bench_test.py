"""`kvcache bench attend`, `kvcache bench pool` and `kvcache bench prefix`.

    bench_test.py PROGRAM
"""

import unittest

from program import ProgramTest

TINY = ["--rotate", "1", "--heads", "4/2", "--dim", "16", "--contexts", "64,100"]
ONE = [*TINY[:-1], "64"]
KEYS = {"dtype", "q_heads", "kv_heads", "head_dim", "context", "q_len", "batch", "shortest",
        "window", "threads", "p50_us", "gbps", "floor_gbps", "gflops", "ceiling_gflops", "of",
        "binds", "path"}


class Attend(ProgramTest):
    def test_json_has_a_row_for_each_context(self):
        result = self.parsed("bench", "attend", *TINY)
        self.assertEqual(result["bench"], "attend")
        self.assertIn("cpu", result["machine"])
        self.assertEqual([r["context"] for r in result["rows"]], [64, 100])
        for row in result["rows"]:
            self.assertLessEqual(KEYS, row.keys())
            self.assertEqual((row["dtype"], row["q_heads"], row["kv_heads"], row["head_dim"],
                              row["threads"]), ("bf16", 4, 2, 16, 1))
            self.assertEqual(row["bytes"], 2 * 2 * 16 * 2 * row["context"])
            self.assertGreaterEqual(row["bytes"] * row["layers"], 1 << 20)
            self.assertAlmostEqual(row["gbps"], row["bytes"] / row["p50_us"] / 1e3,
                                   delta=row["gbps"] / 100)
            self.assertAlmostEqual(row["gflops"], 4 * 4 * 16 * row["context"] / row["p50_us"] / 1e3,
                                   delta=row["gflops"] / 100)
            self.assert_of_the_limit_that_binds(row)
            self.assertLessEqual(row["best_us"], row["p50_us"])
            self.assertIn(row["path"], ["reference", "fused"])

    def assert_of_the_limit_that_binds(self, row):
        """The share is that of the limit which takes longer: the smaller share would flatter."""
        shares = {"read": row["gbps"] / row["floor_gbps"],
                  "fma": row["gflops"] / row["ceiling_gflops"]}
        self.assertEqual(row["binds"], max(shares, key=shares.get))
        self.assertAlmostEqual(row["of"], shares[row["binds"]], delta=row["of"] / 100)

    def test_queries_and_sequences_count_what_they_see(self):
        for row in self.parsed("bench", "attend", *ONE, "--q-len", "3", "--batch", "2")["rows"]:
            pairs = sum(row["context"] - 2 + i for i in range(3))  # causal
            self.assertEqual((row["q_len"], row["batch"]), (3, 2))
            self.assertEqual(row["bytes"], 2 * 2 * 2 * 16 * 2 * row["context"])
            self.assertAlmostEqual(row["gflops"] * row["p50_us"] * 1e3, 2 * 4 * 4 * 16 * pairs,
                                   delta=pairs)

    def test_a_window_hides_what_lies_before_it(self):
        for row in self.parsed("bench", "attend", *ONE, "--q-len", "3", "--window", "5")["rows"]:
            self.assertEqual((row["window"], row["bytes"]), (5, 2 * 2 * 16 * 2 * (5 + 3 - 1)))
            self.assertAlmostEqual(row["gflops"] * row["p50_us"] * 1e3, 4 * 4 * 16 * 3 * 5, delta=9)
        # Some queries see all keys, some are too far from the first.
        [row] = self.parsed("bench", "attend", "--rotate", "1", "--heads", "1/1", "--dim", "16",
                            "--contexts", "10", "--q-len", "8", "--window", "6")["rows"]
        self.assertEqual(row["bytes"], 2 * 16 * 2 * 10)
        pairs = 3 + 4 + 5 + 6 * 5
        self.assertAlmostEqual(row["gflops"] * row["p50_us"] * 1e3, 4 * 16 * pairs, delta=9)

    def test_lengths_are_spread_and_count_what_is_in_use(self):
        for row in self.parsed("bench", "attend", *ONE, "--batch", "4", "--shortest",
                               "10")["rows"]:
            lengths = [10 + (row["context"] - 10) * i // 3 for i in range(4)]
            self.assertEqual((row["shortest"], row["window"]), (10, None))
            self.assertEqual(row["bytes"], 2 * 2 * 16 * 2 * sum(lengths))
            self.assertAlmostEqual(row["gflops"] * row["p50_us"] * 1e3, 4 * 4 * 16 * sum(lengths),
                                   delta=99)
        text = self.printed("bench", "attend", *ONE, "--batch", "4", "--shortest", "10",
                            "--window", "7", "--threads", "2")
        self.assertIn(": 4 sequences, window 7, 4 query heads,", text)
        self.assertRegex(text, r"(?m)^ +10-64 +3.5 KiB ")

    def test_many_queries_are_bound_by_arithmetic(self):
        [row] = self.parsed("bench", "attend", "--rotate", "1", "--heads", "8/1", "--dim", "64",
                            "--contexts", "256", "--q-len", "256")["rows"]
        self.assertEqual(row["binds"], "fma")
        self.assert_of_the_limit_that_binds(row)
        self.assertLess(row["of"], 1.05)

    def test_the_table_tells_path_and_floor(self):
        text = self.printed("bench", "attend", *TINY, "--dtype", "f32")
        self.assertTrue(text.startswith("Attention of one query position: 4 query heads, 2 kv "
                                        "heads, dimension 16, f32, 1 thread\n"))
        self.assertRegex(text, r"(?m)^ +64 +16 KiB( +[\d.]+){8} +(read|fma)  \w+$")
        self.assertIn("over 1 MiB at least", text)
        self.assertLessEqual(max(map(len, text.splitlines()[1:])), 100)

    def test_the_table_tells_queries_and_sequences(self):
        text = self.printed("bench", "attend", *ONE, "--q-len", "64", "--batch", "3")
        self.assertTrue(text.startswith("Causal attention of 64 query positions: 3 sequences, 4 "
                                        "query heads, "))

    def test_too_many_layers_are_told(self):
        text = self.printed("bench", "attend", *TINY[2:-2], "--contexts", "1", "--rotate", "16")
        self.assertIn("context 1: 4096 layers are the most, and hold", text)

    def test_the_trace_has_kernels(self):
        path = self.folder / "trace.json"
        text = self.printed("bench", "attend", *TINY, "--trace", path)
        spans, tracks = self.read_trace(path)
        self.assertEqual(set(tracks.values()), {"between steps", "attend 64", "attend 100"})
        self.assertTrue(any(s["cat"] == "kernel" for s in spans))
        self.assertRegex(text, r"(?m)^attend 64: \d+ % of the step")

    def test_growth_by_chunk_may_get_huge_pages(self):
        for growth in ["reserve", "chunk"]:
            row, = self.parsed("bench", "attend", *ONE, "--growth", growth)["rows"]
            self.assertTrue(0 <= row["huge_share"] <= (growth == "chunk") * 1.1, row)

    def test_bad_values_are_refused(self):
        for given in ["32", "32/", "/8", "32/5", "0/0", "8/-1", "a/b", "32/8/2", "65537/1", ""]:
            self.assert_refused(2, "bench attend", [f"--heads={given}"], "--heads",
                                f"'{given}' given", "32/8")
        for option, given in [("--dim", "0"), ("--dim", "8193"), ("--contexts", "0"),
                              ("--contexts", "16777217"), ("--rotate", "0"), ("--dtype", "u8"),
                              ("--q-len", "0"), ("--q-len", "65537"), ("--batch", "0"),
                              ("--batch", "4097"), ("--shortest", "0"), ("--window", "0"),
                              ("--window", "-1"), ("--threads", "0"), ("--growth", "exact")]:
            self.assert_refused(2, "bench attend", [option, given], f"{option}: '{given}' given")

    def test_values_that_do_not_go_together_are_refused(self):
        for words, *expected in [
            (["--contexts", "512,64", "--q-len", "65"], "--q-len: 65 given", "sequence, 64,"),
            (["--batch", "2", "--shortest", "9", "--q-len", "10"], "--q-len: 10", "sequence, 9,"),
            (["--batch", "2", "--shortest", "65", "--contexts", "64"], "--shortest: 65 given"),
            (["--shortest", "9"], "--shortest:", "--batch of 2 or more"),
        ]:
            self.assert_refused(2, "bench attend", words, *expected)

    def test_more_than_the_memory_is_refused(self):
        most = ["--heads", "65536/65536", "--dim", "8192", "--contexts", "16777216"]
        for more in [], ["--batch", "4096", "--q-len", "65536", "--dtype", "f32"]:
            self.assert_refused(1, "bench attend", most + more, "context 16777216 needs",
                                "reduce --contexts, --batch, --q-len, --heads or --dim")

    def test_a_file_that_cannot_be_written_is_refused(self):
        self.assert_refused(1, "bench attend", ["--trace", self.folder / "none" / "file"],
                            "--trace", "No such file or directory")


class Pool(ProgramTest):
    def test_json_has_a_row_for_each_size(self):
        result = self.parsed("bench", "pool", "--sizes", "4096,100000", "--buffers", "5")
        self.assertEqual((result["bench"], result["buffers"]), ("pool", 5))
        self.assertEqual([r["size_bytes"] for r in result["rows"]], [4096, 100000])
        for row in result["rows"]:
            for key in ("hit_ns", "hit_p99_ns", "hit_max_ns", "miss_ns", "miss_p99_ns",
                        "miss_max_ns", "driver_ns", "mmap_ns", "malloc_free_ns"):
                self.assertGreater(row[key], 0, key)
            self.assertAlmostEqual(row["hit_to_malloc"], row["hit_ns"] / row["malloc_free_ns"],
                                   delta=row["hit_to_malloc"] / 100)

    def test_the_table_has_a_row_for_each_size(self):
        text = self.printed("bench", "pool", "--sizes", "4096,65536", "--buffers", "0")
        self.assertRegex(text, r"(?m)^ +4 KiB .* [\d.]+$")
        self.assertRegex(text, r"(?m)^ +64 KiB .* [\d.]+$")

    def test_the_trace_tells_hits_from_misses(self):
        path = self.folder / "trace.json"
        self.printed("bench", "pool", "--sizes", "200000", "--trace", path)
        spans, tracks = self.read_trace(path)
        number = {name: tid for tid, name in tracks.items()}
        kinds = {(s["tid"], s["cat"]) for s in spans}
        self.assertIn((number["miss 195 KiB"], "allocate"), kinds)
        self.assertNotIn((number["hit 195 KiB"], "allocate"), kinds)

    def test_bad_values_are_refused(self):
        for option, given in [("--sizes", "0"), ("--sizes", "4096,4096"), ("--sizes", "1e6"),
                              ("--sizes", "99999999999999"), ("--buffers", "-1"),
                              ("--buffers", "1025")]:
            self.assert_refused(2, "bench pool", [option, given], f"{option}: '{given}' given")
        self.assert_refused(1, "bench pool", ["--sizes", 1 << 40], "needs", "reduce --sizes")


class Prefix(ProgramTest):
    def test_json_has_a_row_for_each_size_and_a_slope(self):
        result = self.parsed("bench", "prefix", "--blocks", "2000,100", "--depth", "4",
                             "--positions", "17")
        self.assertEqual((result["bench"], result["positions"], result["depth"]),
                         ("prefix", 17, 4))
        self.assertEqual([r["blocks"] for r in result["rows"]], [2000, 100])
        many, few = result["rows"]
        for row in result["rows"]:
            for key in ("match_ns", "match_best_ns", "match_p99_ns", "match_max_ns", "compare_ns",
                        "release_ns", "insert_ns", "insert_max_ns", "evict_ns", "evict_max_ns"):
                self.assertGreater(row[key], 0, key)
            self.assertLessEqual(row["match_best_ns"], row["match_ns"])
            self.assertGreaterEqual(row["index_bytes"], 4 * 17)
            self.assertAlmostEqual(row["match_to_compare"], row["match_ns"] / row["compare_ns"],
                                   delta=row["match_to_compare"] / 100)
        for slope, key in [("match", "match_ns"), ("match_best", "match_best_ns"),
                           ("compare", "compare_ns"), ("release", "release_ns"),
                           ("insert", "insert_ns"), ("evict", "evict_ns")]:
            self.assertAlmostEqual(result["slope"][slope], many[key] / few[key],
                                   delta=result["slope"][slope] / 100)

    def test_the_table_has_a_row_for_each_size_and_the_slope(self):
        text = self.printed("bench", "prefix", "--blocks", "100,1000")
        self.assertTrue(text.startswith("Prefix trees of blocks of 16 positions, prompts of 1 "))
        self.assertRegex(text, r"(?m)^ +100( +[\d.]+){11} +[\d.]+ \w+$")
        self.assertRegex(text, r"(?m)^ +1000( +[\d.]+){11} +[\d.]+ \w+$")
        self.assertRegex(text, r"(?m)^ +slope( +[\d.]+){6}$")
        self.assertLessEqual(max(map(len, text.splitlines()[2:])), 110)

    def test_bad_values_are_refused(self):
        for option, given in [("--blocks", "63"), ("--blocks", "1000,1000"),
                              ("--blocks", "268435457"), ("--positions", "15"),
                              ("--positions", "257"), ("--depth", "0"), ("--depth", "65")]:
            self.assert_refused(2, "bench prefix", [option, given], f"{option}: '{given}' given")
        self.assert_refused(1, "bench prefix", ["--blocks", 1 << 28, "--positions", "256"],
                            "needs", "reduce --blocks or --positions")


if __name__ == "__main__":
    unittest.main()
