"""`kvcache bench fork`, `pool`, `prefix`, `snapshot` and `tier`.

    bench_test.py PROGRAM
"""

import re
import sys
import unittest
from pathlib import Path

from program import ProgramTest

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "support"))
import tiny_model  # noqa: E402


class Fork(ProgramTest):
    TINY = ["--heads", "2", "--dim", "64", "--layers", "3"]

    def test_json_has_a_row_for_each_context_and_cache(self):
        caches = ["paged:16", "q8+paged"]
        result = self.parsed("bench", "fork", *self.TINY, "--contexts", "100,256", "--cache",
                             ",".join(caches), "--beams", "4")
        self.assertEqual((result["bench"], result["layers"], result["beams"]), ("fork", 3, 4))
        self.assertEqual([(r["context"], r["cache"]) for r in result["rows"]],
                         [(n, c) for n in (100, 256) for c in caches])
        # A last block that is full would not be copied.
        self.assertEqual([r["length"] for r in result["rows"]], [100, 100, 264, 288])
        positions = {"paged:16": 3 * 2 * 2 * 128, "q8+paged": 3 * 2 * 2 * (64 + 4)}
        for row in result["rows"]:
            position = positions[row["cache"]]
            block = 16 if row["cache"] == "paged:16" else 64
            self.assertEqual((row["bytes"], row["block_bytes"]),
                             (row["length"] * position, block * position))
            for key in ("fork", "copy", "memcpy", "release", "first_append", "append",
                        "block_memcpy", "reorder", "reorder_copy"):
                self.assertGreater(row[f"{key}_us"], 0, key)
                self.assertLessEqual(row[f"{key}_us"], row[f"{key}_p99_us"], key)
                self.assertLessEqual(row[f"{key}_p99_us"], row[f"{key}_max_us"], key)
            self.assertAlmostEqual(row["fork_to_copy"], row["fork_us"] / row["copy_us"],
                                   delta=row["fork_to_copy"] / 100)

    def test_mixed_lengths_waste_less_than_a_block_each(self):
        result = self.parsed("bench", "fork", *self.TINY, "--contexts", "100", "--cache",
                             "paged:16,paged")
        lengths = [100 + 7900 * i // 15 for i in range(16)]
        used = sum(lengths) * 2 * 2 * 128
        self.assertEqual([w["cache"] for w in result["waste"]], ["paged:16", "paged", "reserve"])
        for waste, block in zip(result["waste"], (16, 64)):
            self.assertEqual(waste["used_bytes"], used)
            in_blocks = sum(-(-n // block) for n in lengths) * block * 2 * 2 * 128
            self.assertTrue(in_blocks <= waste["resident_bytes"] <= in_blocks + (2 << 20), waste)
            self.assertAlmostEqual(waste["wasted"], 1 - used / waste["resident_bytes"], 5)
        self.assertGreater(result["waste"][2]["resident_bytes"], 16 * 8000 * 2 * 2 * 128)

    def test_the_table_has_a_row_for_each_context_and_the_waste(self):
        text = self.printed("bench", "fork", *self.TINY, "--contexts", "100,128")
        self.assertRegex(text, r"(?m)^ +100  paged +[\d.]+ KiB( +[\d.]+){10}$")
        self.assertRegex(text, r"(?m)^ +160  paged +[\d.]+ KiB( +[\d.]+){10}$")
        self.assertRegex(text, r"(?m)^  reserve +[\d.]+ MiB held, +[\d.]+ MiB used: [\d.]+ % wasted$")
        self.assertLessEqual(max(map(len, text.splitlines())), 125)

    def test_bad_values_are_refused(self):
        for option, given in [("--contexts", "0"), ("--layers", "0"), ("--heads", "1025"),
                              ("--dim", "8193"), ("--dtype", "i8"), ("--beams", "1"),
                              ("--cache", "q9"), ("--cache", "reserve"), ("--cache", "q8")]:
            self.assert_refused(2, "bench fork", [option, given], f"{option}: '{given}' given")
        self.assert_refused(2, "bench fork", ["--cache", "paged,q8:128+paged", "--dim", "64"],
                            "'q8:128+paged' given, with heads of 64 elements")
        self.assert_refused(1, "bench fork", ["--contexts", 1 << 24, "--layers", 1024, "--heads",
                                              1024, "--dim", 8192, "--beams", 64],
                            "context 16777216 needs", "reduce --contexts, --layers,")


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


class Snapshot(ProgramTest):
    TINY = ["--layers", "2", "--heads", "4/2", "--dim", "64"]
    FIGURES = ["plain_write", "save", "plain_read", "buffer_read", "load", "map", "first_step",
               "second_step"]

    def test_json_has_a_row_for_each_kind_of_cache(self):
        caches = ["reserve", "concat", "paged:16", "q8", "q4+paged", "window:50:4"]
        result = self.parsed("bench", "snapshot", *self.TINY, "--positions", "300", "--cache",
                             ",".join(caches), "--passes", "2", "--threads", "2", "--dir",
                             self.folder / "a")
        self.assertEqual((result["bench"], result["passes"], result["threads"]),
                         ("snapshot", 2, 2))
        self.assertEqual([r["cache"] for r in result["rows"]], caches)
        self.assertEqual(list((self.folder / "a").iterdir()), [])  # nothing is left
        for row in result["rows"]:
            bits = {"q8": 8 + 32 / 64, "q4+paged": 4 + 32 / 64}.get(row["cache"], 16)
            if row["cache"] != "window:50:4":  # which has more rows as long as a piece is appended
                self.assertTrue(0 < row["bytes"] - 2 * 2 * 2 * 300 * 64 * bits / 8 < 8192, row)
            self.assertEqual(row["mapped_layers"], 2)
            for key in self.FIGURES:
                self.assertGreater(row[f"{key}_ms"], 0, key)
                self.assertLessEqual(row[f"{key}_best_ms"], row[f"{key}_ms"], key)
            floor = min(row["plain_read_ms"], row["buffer_read_ms"])
            for key, value in [("save_to_plain", row["plain_write_ms"] / row["save_ms"]),
                               ("load_to_plain", row["plain_read_ms"] / row["load_ms"]),
                               ("load_to_buffer", row["buffer_read_ms"] / row["load_ms"]),
                               ("map_sooner", floor / row["map_ms"]),
                               ("first_step_to_read", row["first_step_ms"] / floor)]:
                self.assertAlmostEqual(row[key], value, delta=value / 100)

    def test_the_table_has_two_lines_for_each_kind(self):
        text = self.printed("bench", "snapshot", *self.TINY, "--positions", "100", "--passes", "1",
                            "--fresh", "--verify", "--dir", self.folder, "--cache", "reserve,q4")
        for name in "reserve", "q4":
            self.assertRegex(text, rf"(?m)^{name} +[\d.]+ KiB( +[\d.]+){{12}}$")
        self.assertEqual(len(re.findall(r"(?m)^  best( +[\d.]+){12}$", text)), 2)
        self.assertLessEqual(max(map(len, text.splitlines()[3:])), 145)

    def test_bad_values_are_refused(self):
        for option, given in [("--layers", "0"), ("--heads", "4/3"), ("--dim", "0"),
                              ("--positions", "0"), ("--dtype", "i8"), ("--cache", "q9"),
                              ("--passes", "0"), ("--threads", "0")]:
            self.assert_refused(2, "bench snapshot", [option, given], f"{option}: '{given}' given")
        self.assert_refused(1, "bench snapshot", [*self.TINY, "--positions", "10", "--dir",
                                                  "/proc/none"], "--dir: /proc/none: ")
        self.assert_refused(1, "bench snapshot", ["--positions", 1 << 24], "needs", "--positions")


class Tier(ProgramTest):
    def test_json_has_a_row_for_each_tier_and_size(self):
        tiers = [self.folder / "a", self.folder / "b"]
        result = self.parsed("bench", "tier", "--tier", f"disk:{tiers[0]}", "--tier",
                             f"disk:{tiers[1]}", "--sizes", "5000,65536", "--bytes", "150000",
                             "--passes", "3", "--position-bytes", "1000", "--gflops", "50")
        self.assertEqual((result["bench"], result["passes"], result["gflops"]), ("tier", 3, 50))
        self.assertEqual([(r["tier"], r["size_bytes"], r["values"]) for r in result["rows"]],
                         2 * [("disk", 5000, 30), ("disk", 65536, 2)])
        for row in result["rows"]:
            for key in ("plain_put", "put", "plain_get", "get"):
                self.assertGreater(row[f"{key}_bytes_s"], 0, key)
                self.assertGreaterEqual(row[f"{key}_best_bytes_s"], row[f"{key}_bytes_s"], key)
            for key in "put", "get":
                self.assertAlmostEqual(row[f"{key}_to_plain"],
                                       row[f"{key}_bytes_s"] / row[f"plain_{key}_bytes_s"],
                                       delta=row[f"{key}_to_plain"] / 100)
            seconds = 1000 / row["get_bytes_s"]
            self.assertAlmostEqual(row["pays_from_parameters"], seconds * 50e9 / 2,
                                   delta=row["pays_from_parameters"] / 100)
        for tier in tiers:
            self.assertEqual(list(tier.iterdir()), [])  # nothing is left

    def test_the_table_has_a_row_for_each_size(self):
        text = self.printed("bench", "tier", "--tier", f"disk:{self.folder / 'a'}", "--sizes",
                            "4096,8192", "--bytes", "8192", "--passes", "1")
        self.assertRegex(text, r"(?m)^disk +4 KiB( +[\d.]+){6} +[\d.]+ ?[kMG]?$")
        self.assertRegex(text, r"(?m)^disk +8 KiB( +[\d.]+){6} +[\d.]+ ?[kMG]?$")
        self.assertLessEqual(max(map(len, text.splitlines()[3:])), 90)

    def test_a_prompt_is_restored_from_each_tier(self):
        model = self.folder / "model.bin"
        model.write_bytes(tiny_model.checkpoint())
        words = ["bench", "tier", "--tier", f"disk:{self.folder / 'a'}", "--sizes", "4096",
                 "--bytes", "4096", "--passes", "2", "--gflops", "50", "--model", str(model)]
        [prompt] = self.parsed(*words)["prompts"]
        _, _, layers, heads, kv_heads, _, context = tiny_model.SHAPE
        dim = tiny_model.SHAPE[0] // heads
        self.assertEqual((prompt["tier"], prompt["positions"], prompt["found"], prompt["bytes"]),
                         ("disk", context - 1, 64, 64 * layers * kv_heads * dim * 2 * 4))
        for key in "computed", "restored":
            self.assertGreater(prompt[f"{key}_best_ms"], 0)
            self.assertGreaterEqual(prompt[f"{key}_ms"], prompt[f"{key}_best_ms"])
        self.assertAlmostEqual(prompt["sooner"], prompt["computed_ms"] / prompt["restored_ms"],
                               delta=prompt["sooner"] / 100)
        self.assertRegex(self.printed(*words), r"(?m)^disk +95 +64 +[\d.]+ KiB( +[\d.]+){3}$")
        self.assertEqual(list((self.folder / "a").iterdir()), [])
        self.assertEqual(self.parsed(*words[:-2])["prompts"], [])

    def test_bad_values_are_refused(self):
        for option, given in [("--sizes", "4095"), ("--bytes", "1"), ("--passes", "0"),
                              ("--position-bytes", "0"), ("--gflops", "0"), ("--tier", "tape")]:
            self.assert_refused(2, "bench tier", [option, given], f"{option}: '{given}' given")
        self.assert_refused(2, "bench tier", [], "--tier is missing")
        self.assert_refused(1, "bench tier", ["--tier", "disk:/proc/none"], "/proc/none")
        self.assert_refused(1, "bench tier", ["--tier", "disk:/tmp", "--model", "/proc/none"],
                            "--model: ", "/proc/none")
        self.assert_refused(1, "bench tier", ["--tier", "disk:/tmp", "--bytes", 1 << 34],
                            "needs", "--bytes")


if __name__ == "__main__":
    unittest.main()
