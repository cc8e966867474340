"""Figures and table from made-up runs: right numbers, and a clear word about what cannot be used."""

import contextlib
import fcntl
import io
import os
import shutil
import subprocess
import tempfile
import unittest
from pathlib import Path

import h5py
import matplotlib.pyplot as plt
import numpy as np

from scape_plots import curves, style
from scape_plots.__main__ import main
from scape_plots.figures import ablation, loss_vs_bytes, loss_vs_steps, mask_dynamics
from scape_plots.frame import seeds
from scape_plots.load import group_by_method, load_run, load_runs
from scape_plots.table import HEADERS, comparison
from support import add_diagnostics, write_run, write_scape


class FiguresTest(unittest.TestCase):
    def setUp(self):
        self.folder = Path(tempfile.mkdtemp())
        self.addCleanup(shutil.rmtree, self.folder)
        self.runs = self.folder / "runs"
        self.runs.mkdir()
        self.out = self.folder / "out"

    def figures(self, *places):
        """Exit status, standard output, standard error."""
        out, err = io.StringIO(), io.StringIO()
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            status = main([*map(str, places or [self.runs]), "--out", str(self.out)])
        return status, out.getvalue(), err.getvalue()

    def methods(self):
        runs, problems = load_runs([self.runs])
        self.assertEqual(problems, [])
        return group_by_method(runs)

    def row(self, label):
        rows = {row[0]: dict(zip(HEADERS, row)) for row in comparison(self.methods()).rows}
        return rows[label]

    def test_table_has_the_numbers_of_the_runs(self):
        write_run(self.runs / "dense.h5")
        write_scape(self.runs / "scape.h5", seed=7)
        row = self.row("SCAPE, d = 0.1")
        self.assertEqual(row["train loss"], "60.500")  # mean of 61 and 60: 5% of 40 steps are 2
        self.assertEqual(row["val. loss"], "60.500")
        self.assertEqual(row["bytes/step"], "190 B")  # (4 · 1000 + 36 · 100)/40
        self.assertEqual(row["steady bytes"], "100 B")
        self.assertEqual(row["of dense"], "0.19")
        self.assertEqual(row["steady of dense"], "0.1")
        self.assertEqual(row["step [ms]"], "100")
        self.assertEqual(row["exposed [%]"], "25.0")
        self.assertEqual(row["1/(1-f)"], "1.33")
        self.assertEqual((row["steps"], row["seed"], row["status"]), ("40", "7", "complete"))
        self.assertEqual(self.row("AdamW, dense")["of dense"], "1")

    def test_long_warmup_is_not_steady(self):
        wire = np.where(np.arange(1, 41) <= 32, 1000, 100)
        write_run(self.runs / "scape.h5", "scape", wire_bytes=wire, density=0.1, density_warmup="linear", density_warmup_fraction=0.8)
        row = self.row("SCAPE, d = 0.1")
        self.assertEqual(row["steady bytes"], "100 B")
        self.assertEqual(row["of dense"], "n/a")  # no dense AdamW in the folder

    def test_seeds_of_one_configuration_are_one_method(self):
        for seed, loss in ((1, 2.0), (2, 3.0), (3, 2.5)):
            write_run(self.runs / f"{seed}.h5", loss=loss, seed=seed, init_seed=seed)
        row = self.row("AdamW, dense")
        self.assertEqual(row["train loss"], "2.500 (2.000 to 3.000)")
        self.assertEqual((row["seed"], row["status"]), ("1/2/3", "3 complete"))
        curve = curves.training(self.methods()[0], smoothed=False)
        self.assertEqual((curve.mean[7], curve.low[7], curve.high[7]), (2.5, 2.0, 3.0))

    def test_what_differs_is_named_when_labels_would_be_equal(self):
        write_run(self.runs / "a.h5", learning_rate=0.001)
        write_run(self.runs / "b.h5", learning_rate=0.002)
        methods = self.methods()
        self.assertEqual([m.label for m in methods], ["AdamW, dense, learning_rate = 0.001", "AdamW, dense, learning_rate = 0.002"])
        looks = [tuple(look.values()) for look in style.lines(methods).values()]
        self.assertEqual(looks[0][0], looks[1][0])  # one family, one colour
        self.assertNotEqual(looks[0][1], looks[1][1])

    def test_labels_and_colours_of_all_methods(self):
        write_run(self.runs / "1.h5")
        write_run(self.runs / "2.h5", "adams", sync="dense")
        write_scape(self.runs / "3.h5")
        write_run(self.runs / "4.h5", "scape", density=0.01)
        write_run(self.runs / "5.h5", sync="topk", density=0.01)
        write_run(self.runs / "6.h5", sync="quantized", quant_bits="8")
        methods = self.methods()
        self.assertEqual(
            [m.label for m in methods],
            ["AdamW, dense", "AdamS, dense", "SCAPE, d = 0.1", "SCAPE, d = 0.01", "AdamW, top-k, d = 0.01", "AdamW, 8-bit"],
        )
        self.assertEqual(len({style.colour(m) for m in methods}), 6)
        alone = group_by_method([load_run(self.runs / "4.h5")])
        self.assertEqual(style.colour(alone[0]), style.colour(methods[3]))

    def test_bytes_are_summed_up_to_each_evaluation(self):
        write_scape(self.runs / "scape.h5")
        curve = curves.validation(self.methods()[0])
        self.assertEqual(list(curve.steps), [0, 10, 20, 30, 40])
        self.assertEqual(list(curve.bytes), [0, 4600, 5600, 6600, 7600])
        self.assertEqual(list(curve.mean), [99.5, 90.5, 80.5, 70.5, 60.5])

    def test_smoothing(self):
        values = np.array([1.0, 2.0, 6.0, np.nan, 4.0])
        np.testing.assert_allclose(curves.smooth(values, 3), [1.5, 3, 4, 5, 4])
        np.testing.assert_array_equal(curves.smooth(values, 1), values)

    def test_diagnostics_of_masks_are_drawn_by_those_who_have_them(self):
        write_scape(self.runs / "1.h5")
        self.assertIsNone(mask_dynamics.draw(self.methods()))
        add_diagnostics(self.runs / "1.h5")
        write_scape(self.runs / "2.h5", seed=2, diagnostics_every=10)  # the same method, watched for a shorter time
        add_diagnostics(self.runs / "2.h5", recorded=3)
        write_scape(self.runs / "3.h5", seed=3)
        method = self.methods()[0]
        runs = [run for run in method.runs if run.diagnostics is not None]
        self.assertEqual((len(method.runs), len(runs), runs[0].diagnostics["tensors"]), (3, 2, ["a", "b", "norm"]))
        self.assertEqual(list(mask_dynamics.sparse_tensors(runs[0])), [0, 1])
        steps, mean, low, high = mask_dynamics.curve(runs, "share_previous")
        self.assertEqual(list(steps), [10, 20, 30])
        np.testing.assert_allclose([mean, low, high], [[0.5] * 3, [0.4] * 3, [0.8] * 3])  # (30 · 0.4 + 10 · 0.8)/40
        np.testing.assert_allclose(mask_dynamics.curve(runs, "share_first")[1:], [[0.2] * 3] * 3)  # b has none
        np.testing.assert_allclose(mask_dynamics.curve(runs, "residual_norm")[1], np.array([10, 20, 30]) * np.sqrt(25 / 40))
        np.testing.assert_allclose(mask_dynamics.shares(runs, "age_histogram"), [0.1, 0.25, 0.65])
        status, _, err = self.figures()
        self.assertEqual((status, err), (0, ""))
        self.assertGreater((self.out / "mask_dynamics.png").stat().st_size, 10000)

    def test_figures_and_table_are_written(self):
        write_run(self.runs / "dense.h5", unigram_entropy=80.0)
        (self.runs / "more").mkdir()
        write_scape(self.runs / "more" / "scape.h5", unigram_entropy=80.0)
        status, out, err = self.figures()
        self.assertEqual((status, err), (0, ""))
        for name in ("loss_vs_steps", "loss_vs_bytes"):
            self.assertEqual((self.out / f"{name}.png").read_bytes()[:8], b"\x89PNG\r\n\x1a\n")
            self.assertGreater((self.out / f"{name}.png").stat().st_size, 10000)
            self.assertEqual((self.out / f"{name}.pdf").read_bytes()[:5], b"%PDF-")
        markdown = (self.out / "comparison.md").read_text(encoding="utf-8")
        self.assertIn("| SCAPE, d = 0.1 | 60.500 | 60.500 | 190 B | 100 B | 0.19 | 0.1 | 100 | 25.0 | 1.33 | 40 | 1 | complete |\n", markdown)
        self.assertIn("tiny (0.00 M parameters), 4 ranks, 64 tokens per step. More ranks than processor cores", markdown)
        self.assertIn("SCAPE, d = 0.1", out)

    def test_a_killed_run_counts_as_far_as_it_got(self):
        write_run(self.runs / "killed.h5", recorded=20)
        row = self.row("AdamW, dense")
        self.assertEqual((row["train loss"], row["steps"], row["status"]), ("80.000", "20", "running or interrupted"))
        self.assertEqual(row["steady bytes"], "n/a")  # it did not get there
        with open(self.runs / "killed.h5", "rb") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            self.assertEqual(self.row("AdamW, dense")["status"], "running")
        self.assertEqual(self.figures()[0], 0)

    def test_unusable_files_are_named_and_left_out(self):
        write_run(self.runs / "good.h5")
        whole = (self.runs / "good.h5").read_bytes()
        (self.runs / "cut.h5").write_bytes(whole[: len(whole) // 2])
        (self.runs / "text.h5").write_text("not HDF5")
        with h5py.File(self.runs / "foreign.h5", "w") as file:
            file["x"] = [1, 2]
        write_run(self.runs / "empty.h5", recorded=0)
        status, out, err = self.figures(self.runs, self.folder / "missing")
        self.assertEqual(status, 0)
        self.assertIn("AdamW, dense", out)
        for name in ("cut.h5", "text.h5", "foreign.h5: not a run file", "empty.h5: no step recorded", "missing: no such file"):
            self.assertIn(name, err)
        self.assertEqual(len(err.splitlines()), 5)

    def test_no_usable_run_is_exit_status_3(self):
        (self.runs / "text.h5").write_text("not HDF5")
        status, out, err = self.figures()
        self.assertEqual((status, out), (3, ""))
        self.assertIn("no usable run", err)
        self.assertFalse(self.out.exists())

    def test_nowhere_to_write_is_exit_status_3(self):
        write_run(self.runs / "good.h5")
        self.out.write_text("a file")
        status, _, err = self.figures()
        self.assertEqual(status, 3)
        self.assertIn(f"cannot write to {self.out}", err)

    def test_one_rank_sends_nothing(self):
        write_run(self.runs / "one.h5", wire_bytes=0, ranks=1)
        status, _, err = self.figures()
        self.assertEqual(status, 0)
        self.assertIn("loss_vs_bytes is left out, as it needs two finite losses of a method that sends something", err)
        self.assertFalse((self.out / "loss_vs_bytes.png").exists())

    def test_the_script_finds_its_package(self):
        write_run(self.runs / "good.h5")
        script = Path(__file__).resolve().parents[1] / "figures"
        environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
        done = subprocess.run([script, self.runs, "--out", self.out], cwd=self.folder, env=environment, capture_output=True, text=True)
        self.assertEqual((done.returncode, done.stderr), (0, ""))
        self.assertTrue((self.out / "loss_vs_steps.pdf").exists())
        self.assertEqual(subprocess.run([script, self.runs], cwd=self.folder, env=environment, capture_output=True).returncode, 2)

    def test_nothing_is_cut_however_many_runs_and_long_names_there_are(self):
        for count in (1, 6, 15, 30):
            for i in range(count):  # names get what differs: an option more each time
                path = self.runs / f"{count}-{i}.h5"
                write_scape(path, mask_delay=i, backlog_scaling=["none", "linear"][i % 2], mask_owner="x" * 8 * (count % 7))
                add_diagnostics(path)
            methods = self.methods()
            self.assertEqual(len(methods), count)
            looks = style.lines(methods).values()
            self.assertEqual(len({str(look) for look in looks}), count)  # no two lines look the same
            for module in (loss_vs_steps, loss_vs_bytes, mask_dynamics, ablation):
                drawn = module.draw(methods)
                if drawn is None:
                    self.assertTrue(module is ablation and count == 1)
                    continue
                for dpi in (100, 220):
                    drawn.set_dpi(dpi)
                    renderer = drawn.canvas.get_renderer()
                    legend = drawn.legends[0].get_window_extent(renderer)
                    caption = drawn.texts[0].get_window_extent(renderer)
                    panels = [axes.get_tightbbox(renderer) for axes in drawn.axes]
                    what = f"{module.NAME}, {count} runs, {dpi} dpi"
                    for box in [legend, caption, *panels]:
                        self.assertGreaterEqual(min(box.x0, box.y0), 0, what)
                        self.assertLessEqual(box.x1, drawn.bbox.width, what)
                        self.assertLessEqual(box.y1, drawn.bbox.height, what)
                    self.assertGreaterEqual(legend.y0, max(box.y1 for box in panels), what)
                    self.assertLessEqual(caption.y1, min(box.y0 for box in panels), what)
                plt.close(drawn)
            shutil.rmtree(self.runs)
            self.runs.mkdir()

    def test_a_run_without_losses_is_only_in_the_table(self):
        first = np.full(40, np.nan)
        first[0] = 5  # diverges at once
        for loss in (first, np.nan, np.inf):
            write_run(self.runs / "a.h5", loss=loss)
            status, out, err = self.figures()
            self.assertEqual((status, err.count("AdamW, dense is only in the table"), err.count("left out"), len(err.splitlines())), (0, 1, 2, 3))
            self.assertIn("AdamW, dense", out)
            (self.runs / "a.h5").unlink()
        write_run(self.runs / "a.h5", loss=np.nan)
        write_scape(self.runs / "b.h5")
        status, _, err = self.figures()
        self.assertEqual((status, len(err.splitlines())), (0, 1))
        self.assertTrue((self.out / "loss_vs_bytes.png").exists())

    def test_a_run_that_diverges_does_not_flatten_the_others(self):
        write_run(self.runs / "a.h5")
        write_scape(self.runs / "b.h5", loss=np.concatenate([100.0 - np.arange(20), 10.0 ** np.arange(20)]))
        drawn = loss_vs_steps.draw(self.methods())
        self.assertLess(drawn.axes[0].get_ylim()[1], 110)
        plt.close(drawn)

    def test_the_dense_reference_shows_beside_what_lies_on_it(self):
        write_run(self.runs / "a.h5")
        write_run(self.runs / "b.h5", sync="quantized", quant_bits="8")
        dense, quantized = style.lines(self.methods()).values()
        self.assertGreater(dense["linewidth"], 1.5 * quantized["linewidth"])

    def test_the_first_mask_is_that_of_the_last_size(self):
        write_scape(self.runs / "a.h5")
        add_diagnostics(self.runs / "a.h5")
        run = load_run(self.runs / "a.h5")
        ages = run.diagnostics["age_histogram"]
        ages[0, 0] = [9, 21, 0]  # 9 coordinates of tensor a: in a warm-up
        self.assertEqual(list(mask_dynamics.of_last_size(run)), [False, True, True, True])
        ages[2] = [[30, 0, 0], [10, 0, 0], [4, 0, 0]]  # a dense step is no other size
        self.assertEqual(list(mask_dynamics.of_last_size(run)), [False, True, False, True])
        np.testing.assert_allclose(mask_dynamics.curve([run], "share_first")[1], [np.nan, 0.2, np.nan, 0.2])
        ages[1, 0] = [8, 22, 0]  # another size each time
        self.assertEqual(list(mask_dynamics.of_last_size(run)), [False] * 4)

    def test_words_about_one_and_many(self):
        write_scape(self.runs / "a.h5", seed=1)
        self.assertNotIn("moving average", loss_vs_steps.draw(self.methods()).texts[0].get_text())  # over one of 40 steps
        self.assertEqual((seeds([1, 1]), seeds([3]), seeds([3, 1])), ("a single seed", "3 seeds", "1/3 seeds"))

    def test_ablation_has_a_line_per_setting_and_the_range_of_the_seeds(self):
        for density in (0.1, 0.01):
            for delay in (0, 1, 4):
                for seed in (1, 2, 3):
                    loss = np.full(40, delay + seed)
                    write_run(self.runs / f"d{density}-{delay}-{seed}.h5", "scape", density=density, mask_delay=delay, loss=loss, seed=seed)
        write_run(self.runs / "dense.h5")
        methods = self.methods()
        self.assertEqual(ablation.swept_option(methods), "mask_delay")
        lines = dict(ablation.lines_of(methods, "mask_delay"))
        self.assertEqual(sorted(lines), ["SCAPE, d = 0.01", "SCAPE, d = 0.1"])
        self.assertEqual([method.get("mask_delay") for method in lines["SCAPE, d = 0.1"]], [0, 1, 4])
        drawn = ablation.draw(methods).axes[0].containers[0]
        np.testing.assert_allclose(drawn[0].get_ydata(), [2.5, 3.5, 6.5])  # mean of seeds 1, 2, 3, and 0.5 on top
        np.testing.assert_allclose(drawn[2][0].get_segments()[0][:, 1], [1.5, 3.5])
        status, _, _ = self.figures()
        self.assertEqual(status, 0)
        self.assertGreater((self.out / "ablation.png").stat().st_size, 1000)

    def test_lines_of_an_ablation_are_told_apart(self):
        for form in ("replicated", "sharded"):
            for delay in (1, 2, 4):
                write_scape(self.runs / f"{form}-{delay}.h5", form=form, mask_delay=delay)
        lines = ablation.lines_of(self.methods(), "mask_delay")
        self.assertEqual([label for label, _ in lines], ["SCAPE, d = 0.1, form = replicated", "SCAPE, d = 0.1, form = sharded"])

    def test_runs_that_are_no_ablation_draw_none(self):
        write_run(self.runs / "dense.h5")
        write_scape(self.runs / "scape.h5")
        self.assertIsNone(ablation.draw(self.methods()))
        _, _, err = self.figures()
        self.assertNotIn("ablation", err)


if __name__ == "__main__":
    unittest.main()
