"""`kvcache bench attend`: its JSON, table and trace, and what it refuses.

    bench_attend_test.py PROGRAM
"""

import os
import unittest

from program import ProgramTest

long_run = unittest.skipIf(os.environ.get("KVC_TEST_QUICK"), "KVC_TEST_QUICK: some runs only")
TINY = ["--rotate", "1", "--heads", "4/2", "--dim", "16", "--contexts", "64,100"]
ONE = [*TINY[:-1], "64"]
WIDE = ["--rotate", "1", "--heads", "4/2", "--dim", "64"]
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

    @long_run
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
        self.assertRegex(text, r"(?m)^ +10-64  reserve +3.5 KiB ")

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
        self.assertRegex(text, r"(?m)^ +64  reserve +16 KiB( +[\d.]+){8} +(read|fma)  \w+$")
        self.assertIn("over 1 MiB at least", text)
        self.assertLessEqual(max(map(len, text.splitlines()[1:])), 110)

    def test_the_table_tells_queries_and_sequences(self):
        text = self.printed("bench", "attend", *ONE, "--q-len", "64", "--batch", "3")
        self.assertTrue(text.startswith("Causal attention of 64 query positions: 3 sequences, 4 "
                                        "query heads, "))

    def test_too_many_layers_are_told(self):
        text = self.printed("bench", "attend", *TINY[2:-2], "--contexts", "1", "--rotate", "16")
        self.assertIn("context 1, reserve: 4096 layers are the most, and hold", text)

    def test_the_trace_has_kernels(self):
        path = self.folder / "trace.json"
        text = self.printed("bench", "attend", *TINY, "--trace", path)
        spans, tracks = self.read_trace(path)
        self.assertEqual(set(tracks.values()), {"between steps", "attend 64", "attend 100"})
        self.assertTrue(any(s["cat"] == "kernel" for s in spans))
        self.assertRegex(text, r"(?m)^attend 64: \d+ % of the step")

    @long_run
    def test_growth_by_chunk_may_get_huge_pages(self):
        reserve, chunk = self.parsed("bench", "attend", *ONE, "--cache", "reserve,chunk")["rows"]
        self.assertTrue(-0.1 <= reserve["huge_share"] <= 0.1, reserve)
        self.assertTrue(0 <= chunk["huge_share"] <= 1.1, chunk)

    @long_run
    def test_caches_take_turns_and_are_compared_with_the_first(self):
        caches = ["q8:32", "reserve", "q4+chunk"]
        rows = self.parsed("bench", "attend", *WIDE, "--contexts", "64,100", "--cache",
                           ",".join(caches))["rows"]
        self.assertEqual([(r["context"], r["cache"]) for r in rows],
                         [(n, c) for n in (64, 100) for c in caches])
        for i, row in enumerate(rows):
            first = rows[i - i % 3]
            self.assertAlmostEqual(row["time_to_first"], row["p50_us"] / first["p50_us"],
                                   delta=row["time_to_first"] / 100)
            self.assertAlmostEqual(row["floor_us"], row["bytes"] / row["floor_gbps"] / 1e3,
                                   delta=row["floor_us"] / 100)
            self.assert_of_the_limit_that_binds(row)
            self.assertGreaterEqual(row["bytes"] * row["layers"], 1 << 20)
        text = self.printed("bench", "attend", *WIDE, "--contexts", "64,100", "--cache",
                            ",".join(caches), "--batch", "2", "--shortest", "9")
        self.assertRegex(text, r"(?m)^ +9-64  q4\+chunk +[\d.]+ KiB .* [\d.]+  \w+$")
        self.assertRegex(text, r"(?m)^ +9-100  q8:32 +[\d.]+ KiB .* 1.00  \w+$")
        self.assertIn("keys and values at most, q8:32 ", text)

    def bytes_read(self, cache, context, *more):
        [row] = self.parsed("bench", "attend", *WIDE, "--contexts", context, "--cache", cache,
                            *more)["rows"]
        self.assertEqual(row["cache"], cache)
        return row["bytes"]

    @long_run
    def test_the_floor_reads_what_packed_runs_read(self):
        for cache, row, *more in [("q8:32", 64 + 2 * 2 * 2, "--threads", "3"), ("q3", 24 + 4)]:
            self.assertEqual(self.bytes_read(cache, 100, *more), 2 * 2 * row * 100)

    @long_run
    def test_the_floor_reads_what_blocks_hold(self):
        position = 2 * 2 * 64 * 2
        for cache, context, seen, *more in [
            ("paged:16", 100, 100, "--threads", "2"), ("paged", 100, 70, "--window", "70"),
            ("paged:16", 100, 5 + 52 + 100, "--batch", "3", "--shortest", "5"),
        ]:
            self.assertEqual(self.bytes_read(cache, context, *more), seen * position)
        self.assertEqual(self.bytes_read("q8+paged:48", 96), 96 * 2 * 2 * (64 + 4))
        self.assertEqual(self.bytes_read("q8c:32", 96), 96 * 2 * 2 * (64 + 8))
        self.assertEqual(self.bytes_read("q8r", 96), 96 * 2 * 2 * (64 + 4))

    @long_run
    def test_the_floor_reads_what_windows_show(self):
        position = 2 * 2 * 64 * 2
        for cache, context, seen, *more in [
            ("window:30", 10, 10), ("window:30:4", 1000, 34, "--q-len", "5"),
            ("window:30+chunk", 600, 329, "--q-len", "300"),
            ("window:30", 100, 40, "--batch", "2", "--shortest", "10"),
        ]:
            self.assertEqual(self.bytes_read(cache, context, *more), seen * position)
        self.assertEqual(self.bytes_read("q8+window:30", 100), 30 * 2 * 2 * (64 + 4))

    def test_bad_values_are_refused(self):
        for given in ["32", "32/", "/8", "32/5", "0/0", "8/-1", "a/b", "32/8/2", "65537/1", ""]:
            self.assert_refused(2, "bench attend", [f"--heads={given}"], "--heads",
                                f"'{given}' given", "32/8")
        for option, given in [("--dim", "0"), ("--dim", "8193"), ("--contexts", "0"),
                              ("--contexts", "16777217"), ("--rotate", "0"), ("--dtype", "u8"),
                              ("--q-len", "0"), ("--q-len", "65537"), ("--batch", "0"),
                              ("--batch", "4097"), ("--shortest", "0"), ("--window", "0"),
                              ("--window", "-1"), ("--threads", "0")]:
            self.assert_refused(2, "bench attend", [option, given], f"{option}: '{given}' given")

    def test_kinds_that_no_cache_has_are_refused(self):
        for given, wanted in [
            ("", "reserve, chunk, concat, paged[:BLOCK], window:W[:KEEP] or qBITS"),
            ("exact", "one of each sort, with + between"), ("reserve:1", "reserve, chunk"),
            ("reserve+paged", "one of each sort"), ("q8+", "reserve, chunk"), ("a" * 99, "reserve"),
            ("paged:", "reserve"), ("paged:15", "blocks of 16 to 256"), ("paged:257", "16 to 256"),
            ("paged:64:1", "one of each sort"), ("paged:-1", "reserve"), ("paged:9999999999", "res"),
            ("window", "window:W[:KEEP] with W from 1 to 16777216"), ("window:0", "W from 1"),
            ("window:16777217", "W from 1"), ("window:8:8", "KEEP below W"), ("window:+8", "reser"),
            ("window:8+window:9", "one window"), ("window:8:1:1", "reserve"),
            ("window:8+paged", "blocks keep every position"),
            ("q7", "2, 3, 4, 5, 6 or 8 bits"), ("q", "bits"), ("q16", "bits"),
            ("q8:48", "groups of 32, 64 or 128"), ("q8:64:64", "groups"), ("q8+q4", "one qBITS"),
            ("q4rc", "one qBITS[c][r]"), ("q4cc", "one qBITS"), ("qc", "one qBITS"),
            ("q4c+paged", "neither windows nor blocks"), ("window:9+q4c", "neither windows"),
        ]:
            part = given[:63]
            self.assert_refused(2, "bench attend", ["--cache", f"chunk,{given}"],
                                f"--cache: '{part}' given", wanted)
        self.assert_refused(2, "bench attend", ["--cache", "q8,q8:64"], "'q8:64' given twice")
        many = ",".join(f"window:{i}" for i in range(1, 10))
        self.assert_refused(2, "bench attend", ["--cache", many], "up to 8 kinds wanted")
        self.assert_refused(2, "bench attend", ["--cache", "q4:128", "--dim", "64"],
                            "--cache: 'q4:128' given, with heads of 64 elements")
        self.assert_refused(2, "bench attend", ["--cache", "window:9", "--window", "5"],
                            "--window: 5 given, beside --cache window:9")

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
                                "reduce --contexts, --batch, --q-len, --heads, --dim or --cache")

    def test_a_file_that_cannot_be_written_is_refused(self):
        self.assert_refused(1, "bench attend", ["--trace", self.folder / "none" / "file"],
                            "--trace", "No such file or directory")


if __name__ == "__main__":
    unittest.main()
