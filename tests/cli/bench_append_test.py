"""`kvcache bench append`: its JSON, table, trace and picture, and what it refuses.

    bench_append_test.py PROGRAM
"""

import os
import shutil
import time
import unittest
import xml.etree.ElementTree

from program import ProgramTest

TINY = ["--contexts", "64,96", "--caches", "2", "--heads", "2", "--dim", "8", "--chunk", "16",
        "--steps", "32"]
WARM = ["concat", "chunk", "assign", "reserve", "memcpy"]
COLD = ["concat", "chunk", "assign", "reserve", "memcpy-fresh"]
KEYS = {"strategy", "context", "state", "p50_us", "mean_us", "p99_us", "max_us", "growth_p50_us",
        "copied_per_appended", "pool_hits", "pool_misses", "driver_us", "ratio_to_memcpy"}
MACHINE = {"cpu", "cores", "llc_bytes", "memory_bytes", "page_bytes", "transparent_hugepage"}


class Append(ProgramTest):
    def test_json_has_a_row_for_each_strategy_and_context(self):
        result = self.parsed("bench", "append", *TINY)
        self.assertEqual(result["bench"], "append")
        self.assertLessEqual(MACHINE, result["machine"].keys())
        self.assertEqual(result["bytes_per_step"], 2 * 2 * 8 * 2)
        self.assertEqual([(r["context"], r["strategy"], r["state"]) for r in result["rows"]],
                         [(n, s, "warm") for n in (64, 96) for s in WARM])
        for row in result["rows"]:
            self.assertLessEqual(KEYS, row.keys())
            self.assertGreater(row["steps"], 0)
            self.assertGreater(row["p50_us"], 0)
            self.assertLessEqual(row["p50_us"], row["p99_us"])
            self.assertLessEqual(row["p99_us"], row["max_us"])
            self.assertLessEqual(row["mean_us"], row["max_us"])

    def test_bytes_copied_are_those_of_the_strategy(self):
        rows = self.parsed("bench", "append", *TINY)["rows"]
        copied = {(r["strategy"], r["context"]): r["copied_per_appended"] for r in rows}
        self.assertEqual(copied["reserve", 64], 1)
        self.assertEqual(copied["memcpy", 64], 1)
        # From 32 to 64 by chunks of 16: 32 and 48 positions moved for 32 appended.
        self.assertEqual(copied["chunk", 64], 1 + (32 + 48) / 32)
        # The seed's loop also writes the zeros of the new chunk.
        self.assertEqual(copied["assign", 64], 1 + (48 + 64) / 32)
        # The last four steps to 64 move 60, 61, 62 and 63 positions, and append one.
        self.assertEqual(copied["concat", 64], 1 + (60 + 61 + 62 + 63) / 4)

    def test_the_pool_serves_what_keeps_its_size(self):
        rows = {r["strategy"]: r for r in self.parsed("bench", "append", *TINY)["rows"]}
        self.assertEqual(rows["chunk"]["pool_misses"], 0)
        self.assertGreater(rows["chunk"]["pool_hits"], 0)
        self.assertEqual(rows["concat"]["pool_hits"], 0)
        self.assertEqual(rows["concat"]["pool_misses"], 2 * rows["concat"]["steps"])
        self.assertEqual(rows["reserve"]["driver_calls"], 0)
        self.assertIsNone(rows["reserve"]["grown_p50_us"])
        self.assertEqual(rows["memcpy"]["ratio_to_memcpy"], 1)

    def test_cold_adds_rows_of_fresh_processes(self):
        result = self.parsed("bench", "append", *TINY, "--cold")
        self.assertEqual([(r["context"], r["strategy"], r["state"]) for r in result["rows"]],
                         [row for n in (64, 96) for row in
                          [(n, s, "warm") for s in WARM] + [(n, s, "cold") for s in COLD]])
        cold = {r["strategy"]: r for r in result["rows"] if r["state"] == "cold"}
        self.assertEqual(cold["chunk"]["pool_hits"], 0)
        self.assertGreater(cold["chunk"]["pool_misses"], 0)
        self.assertEqual(cold["reserve"]["copied_per_appended"], 1)
        self.assertEqual(cold["memcpy-fresh"]["ratio_to_memcpy"], 1)

    def test_strategies_are_those_chosen(self):
        rows = self.parsed("bench", "append", *TINY, "--strategies", "reserve,concat")["rows"]
        self.assertEqual([r["strategy"] for r in rows], ["reserve", "concat"] * 2)
        self.assertTrue(all(r["ratio_to_memcpy"] is None for r in rows))

    def test_every_kind_of_cache_is_a_strategy(self):
        kinds = ["reserve", "q8", "q4cr:32", "q4:32+window:20:3+chunk", "paged:16", "q6+paged", "window:20",
                 "memcpy"]
        for more in [], ["--from", "f32"], ["--cold"]:
            rows = self.parsed("bench", "append", *TINY, "--dim", "64", "--strategies",
                               ",".join(kinds), *more)["rows"]
            self.assertEqual([r["strategy"] for r in rows if r["state"] == "warm"], kinds * 2)
            for row in rows:
                self.assertEqual(row["ratio_to_memcpy"] is None, False)
                if row["state"] == "warm":
                    [reserve] = [r for r in rows if r["strategy"] == "reserve" and
                                 (r["context"], r["state"]) == (row["context"], "warm")]
                    self.assertAlmostEqual(row["ratio_to_reserve"],
                                           row["p50_us"] / reserve["p50_us"],
                                           delta=row["ratio_to_reserve"] / 100)

    def test_a_window_stays_as_it_is(self):
        result = self.parsed("bench", "append", *TINY[2:], "--contexts", "100,1000,100000",
                             "--strategies", "window:64,window:64:4+chunk")
        for kind in "window:64", "window:64:4+chunk":
            rows = [r for r in result["rows"] if r["strategy"] == kind]
            held = {r["resident_bytes"] for r in rows}
            if "chunk" in kind:
                self.assertEqual(held, {64 * 2 * 2 * 8 * 2})
            else:  # whole pages of each of four ranges
                self.assertLessEqual(max(held), 100000 * 2 * 2 * 8 * 2 / 10)
            self.assertEqual({r["copied_per_appended"] for r in rows}, {1})
            self.assertTrue(all(r["pool_misses"] == 0 for r in rows))

    def test_what_caches_hold_is_told(self):
        rows = {r["strategy"]: r for r in self.parsed(
            "bench", "append", *TINY[2:], "--contexts", "100", "--dim", "64", "--strategies",
            "reserve,q8,q4,paged:16,chunk,assign,memcpy")["rows"]}
        position = 2 * 2 * 64 * 2
        self.assertEqual(rows["memcpy"]["resident_bytes"], 100 * position)
        for strategy in "paged:16", "chunk", "assign":
            self.assertEqual(rows[strategy]["resident_bytes"], 112 * position)
        self.assertGreaterEqual(rows["reserve"]["resident_bytes"], 100 * position)
        self.assertGreater(rows["reserve"]["resident_bytes"], rows["q8"]["resident_bytes"])

    def test_short_contexts_and_long_chunks_do(self):
        rows = self.parsed("bench", "append", *TINY[2:], "--contexts", "1,5", "--chunk", "256")["rows"]
        self.assertEqual({r["context"] for r in rows}, {1, 5})

    def test_the_table_explains_itself(self):
        text = self.printed("bench", "append", *TINY, "--cold")
        self.assertTrue(text.startswith(
            "2 bf16 caches [1,2,N,8], one position appended to each a step: 64 B; chunk 16\n"))
        for strategy in WARM:
            self.assertRegex(text, rf"(?m)^ +64  {strategy} +warm( +[\d.-]+){{12}}$")
        for strategy in COLD:
            self.assertRegex(text, rf"(?m)^ +96  {strategy} +cold( +[\d.-]+){{12}}$")
        self.assertRegex(text, r"(?m)^concat takes the time of chunk [\d.]+ x at 64, [\d.]+ x at 96")
        for word in "growth:", "grew:", "copied:", "driver:", "held:", "warm:", "cold:":
            self.assertIn(word, text)

    def test_dtype_and_shape_reach_the_figures(self):
        result = self.parsed("bench", "append", *TINY, "--dtype", "f32", "--heads", "3")
        self.assertEqual((result["dtype"], result["heads"]), ("f32", 3))
        self.assertEqual(result["bytes_per_step"], 2 * 3 * 8 * 4)

    # The trace.

    def test_the_trace_has_a_track_for_each_strategy(self):
        path = self.folder / "trace.json"
        text = self.printed("bench", "append", *TINY, "--trace", path)
        spans, tracks = self.read_trace(path)
        self.assertEqual(tracks, {0: "between steps", 1: "concat 96", 2: "chunk 96",
                                  3: "assign 96", 4: "reserve 96", 5: "memcpy 96"})
        steps = [s for s in spans if s["cat"] == "step"]
        self.assertEqual(sum(s["tid"] == 4 for s in steps), 32)
        self.assertTrue(any(s["cat"] == "allocate" and s["tid"] == 1 for s in spans))
        self.assertFalse(any(s["cat"] == "allocate" and s["tid"] == 4 for s in spans))
        self.assertIn("Share of the step, in %:", text)
        self.assertRegex(text, r"(?m)^concat 96: \d+ % of the step (no|a) copy or kernel was running")
        self.assertEqual([p.name for p in self.folder.iterdir()], ["trace.json"])

    def test_shares_add_up(self):
        text = self.printed("bench", "append", *TINY, "--trace", "/dev/null", "--cold")
        rows = [line.rsplit(maxsplit=9)[1:] for line in text.splitlines()
                if line.startswith(("concat 96", "assign 96", "reserve 96", "memcpy-fresh 96"))
                and "%" not in line]
        self.assertEqual(len(rows), 7)
        for row in rows:
            self.assertAlmostEqual(sum(map(float, row[:7])), 100, delta=0.5)

    def test_with_json_the_shares_go_to_stderr(self):
        done = self.run_program("bench", "append", *TINY, "--json", "--trace", "/dev/null")
        self.assertEqual(done.returncode, 0)
        self.assertTrue(done.stdout.startswith("{") and done.stdout.endswith("}\n"))
        self.assertIn("Share of the step", done.stderr)

    # The picture.

    @unittest.skipUnless(shutil.which("gnuplot"), "no gnuplot here")
    def test_the_picture_is_svg_and_names_the_curves(self):
        path = self.folder / "append.svg"
        self.printed("bench", "append", *TINY, "--plot", path)
        root = xml.etree.ElementTree.parse(path).getroot()
        self.assertEqual(root.tag, "{http://www.w3.org/2000/svg}svg")
        words = " ".join(" ".join(root.itertext()).split())
        for word in [*WARM[:-1], "memcpy (floor)", "chunk: the one step in 16 that grows",
                     "time per step", "context N", "64", "96"]:
            self.assertIn(word, words)
        self.assertEqual([p.name for p in self.folder.iterdir()], ["append.svg"])

    @unittest.skipUnless(shutil.which("gnuplot"), "no gnuplot here")
    def test_every_kind_can_be_drawn(self):
        path = self.folder / "append.svg"
        kinds = [f"q{bits}" for bits in (2, 3, 4, 5, 6, 8)] + ["paged", "window:9", "chunk"]
        self.printed("bench", "append", *TINY, "--dim", "64", "--strategies", ",".join(kinds),
                     "--plot", path)
        words = " ".join(xml.etree.ElementTree.parse(path).getroot().itertext())
        for kind in kinds:
            self.assertIn(kind, words)

    @unittest.skipUnless(shutil.which("gnuplot"), "no gnuplot here")
    def test_one_point_can_be_drawn(self):
        path = self.folder / "append.svg"
        self.printed("bench", "append", *TINY[2:], "--contexts", "64", "--strategies", "reserve",
                     "--plot", path)
        xml.etree.ElementTree.parse(path)

    def test_without_gnuplot_nothing_is_measured(self):
        self.assert_refused(1, "bench append", ["--plot", self.folder / "append.svg"],
                            "gnuplot is not installed", "apt-get install gnuplot-nox",
                            env={**os.environ, "PATH": str(self.folder)})

    # What is refused.

    def test_values_outside_their_range_are_refused(self):
        for option, least, most in [("--caches", 2, 1024), ("--heads", 1, 1024), ("--dim", 1, 8192),
                                    ("--chunk", 1, 1 << 20), ("--steps", 1, 65536)]:
            for given in ["0", "-1", str(most + 2), "x", "", "3x", "1.5", "9" * 30]:
                self.assert_refused(2, "bench append", [f"{option}={given}"],
                                    f"{option}: '{given}' given",
                                    f"a whole number from {least} to {most} wanted")

    def test_lists_are_refused_whole(self):
        for given in ["", ",", "1,", ",1", "1,,2", "0", "-5", "1,1", "1 2", "16777217",
                      ",".join(map(str, range(1, 18)))]:
            self.assert_refused(2, "bench append", [f"--contexts={given}"], "--contexts",
                                f"'{given}' given", "different whole numbers from 1 to 16777216")
        for given, part in [("", ""), ("fast", "fast"), ("concat,", ""), (",memcpy", ""),
                            ("memcpy-fresh", "memcpy-fresh"), ("reserve,q8+q4", "q8+q4")]:
            self.assert_refused(2, "bench append", [f"--strategies={given}"],
                                f"--strategies: '{part}' given, assign, memcpy, or ")
        for given in "concat,concat", "memcpy,memcpy", "q8,q8:64", "reserve+q4,q4":
            self.assert_refused(2, "bench append", [f"--strategies={given}"],
                                f"--strategies: '{given.split(',')[1]}' given twice")
        many = ",".join(f"window:{i}" for i in range(1, 18))
        self.assert_refused(2, "bench append", [f"--strategies={many}"], "up to 16 strategies")

    def test_rows_that_cannot_be_packed_are_refused(self):
        self.assert_refused(2, "bench append", ["--dim", "96", "--strategies", "q8:64"],
                            "--strategies: 'q8' given, with heads of 96 elements", "divide these")

    def test_an_odd_number_of_caches_is_refused(self):
        self.assert_refused(2, "bench append", ["--caches", "7"], "7 given", "even",
                            "6 or 8 caches")

    def test_a_dtype_that_no_cache_has_is_refused(self):
        for given in ["f64", "i8", "BF16", ""]:
            self.assert_refused(2, "bench append", [f"--dtype={given}"],
                                f"--dtype: '{given}' given, f32, f16 or bf16 wanted")

    def test_more_than_the_memory_is_refused_before_any_is_taken(self):
        self.assert_refused(1, "bench append",
                            ["--contexts", "16777216", "--caches", "1024", "--heads", "1024",
                             "--dim", "8192", "--dtype", "f32"],
                            "context 16777216 needs", "are available",
                            "reduce --contexts, --caches or --strategies")

    def test_files_are_tried_before_measuring(self):
        long = ["--contexts", "4096", "--steps", "4096", "--caches", "40"]
        for option in "--trace", "--plot":
            if option == "--plot" and not shutil.which("gnuplot"):
                continue
            begin = time.monotonic()
            self.assert_refused(1, "bench append", [*long, option, self.folder / "none" / "file"],
                                option, "No such file or directory")
            self.assert_refused(1, "bench append", [*long, option, self.folder], option,
                                "Is a directory")
            self.assertLess(time.monotonic() - begin, 3)


if __name__ == "__main__":
    unittest.main()
