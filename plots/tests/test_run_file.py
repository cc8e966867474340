"""A run file written by the C++ recorder, read with h5py: the schema of results/README.md from a user's side."""

import os
import re
import shutil
import subprocess
import tempfile
import unittest
from datetime import datetime
from pathlib import Path

import h5py
import numpy as np

from scape_plots.load import load_run

README = Path(__file__).resolve().parents[2] / "results" / "README.md"
OPTIONS = {"optimizer", "density", "seed", "overlap"}  # of the sample run


class RunFileTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.folder = Path(tempfile.mkdtemp())
        cls.path = cls.folder / "sample.h5"
        subprocess.run([os.environ["SCAPE_RECORD_SAMPLE"], cls.path], check=True)

    @classmethod
    def tearDownClass(cls):
        shutil.rmtree(cls.folder)

    def test_columns(self):
        t = np.arange(1, 101)
        with h5py.File(self.path) as file:
            steps = file["steps"]
            for name, expected in {
                "step": t,
                "tokens": 1024 * t,
                "loss": 5 / t,
                "skipped": t % 10 == 0,
                "communication_seconds": np.full(100, 0.125),
                "all_reduce_payload_bytes": 1000 * t,
                "all_gather_calls": np.ones(100),
                "wire_bytes": 1508.0 * t,
                "expected_wire_bytes": 1508.0 * t,
                "backlog": 2 * t,
                "mask_overlap": np.full(100, np.nan),
                "attempt": np.ones(100),
            }.items():
                np.testing.assert_array_equal(steps[name][:], expected, err_msg=name)
            self.assertEqual((steps["step"].dtype, steps["loss"].dtype), (np.int64, np.float64))
            self.assertEqual(dict(steps["wire_bytes"].attrs)["unit"], "B")
            self.assertEqual(steps["wire_bytes"].attrs["origin"], "modelled")
            self.assertEqual(steps["payload_bytes"].attrs["origin"], "measured")
            np.testing.assert_array_equal(file["validation/step"][:], [0, 100])
            np.testing.assert_array_equal(file["validation/loss"][:], [5.5, 0.5])

    def test_diagnostics(self):
        with h5py.File(self.path) as file:
            group = file["diagnostics"]
            self.assertEqual((list(group.attrs["tensors"]), list(group.attrs["sizes"])), (["embedding", "norm"], [6, 4]))
            np.testing.assert_array_equal(group["step"][:], np.arange(10, 101, 10))
            np.testing.assert_array_equal(group["share_previous"][:], [[0.5, 0.75]] * 10)
            np.testing.assert_array_equal(group["residual_norm"][:], np.outer(np.arange(10, 101, 10), [1, 1]))
            self.assertTrue(np.isnan(group["energy_overlap"][:]).all())
            gradients, ages = group["gradient_histogram"], group["age_histogram"]
            self.assertEqual((gradients.shape, gradients.dtype, ages.shape), ((10, 2, 65), np.int64, (10, 2, 32)))
            self.assertEqual([tuple(place) for place in np.argwhere(gradients[9])], [(0, 40), (1, 41)])
            self.assertEqual((gradients[9, 1, 41], ages[3, 0, 0], ages[3, 1, 1]), (100, 6, 4))
            np.testing.assert_allclose(gradients.attrs["lower_edges"][[0, 1, 49, 64]], [0, 1e-12, 1, 10**3.75])
            np.testing.assert_array_equal(ages.attrs["lower_edges"][:5], [0, 1, 2, 4, 8])
            self.assertEqual(group["energy_overlap"].attrs["origin"], "measured")

    def test_attributes(self):
        with h5py.File(self.path) as file:
            attributes = dict(file.attrs)
        self.assertEqual(attributes["optimizer"], "scape")
        self.assertEqual((attributes["density"], attributes["seed"], attributes["ranks"]), (0.01, 7, 4))
        self.assertIs(bool(attributes["overlap"]), False)
        self.assertEqual(attributes["overlap"].dtype, bool)
        self.assertTrue(attributes["complete"])
        self.assertEqual(attributes["status"], "complete")
        self.assertEqual(attributes["command_line"], "scape train --set optimizer=scape")
        times = [datetime.strptime(attributes[name], "%Y-%m-%dT%H:%M:%SZ") for name in ("started", "attempt_started", "ended")]
        self.assertEqual(times, sorted(times))
        self.assertRegex(attributes["mpi_version"], r"\d+\.\d+")

    def test_readme_lists_the_attributes_that_are_written(self):
        table = dict(re.findall(r"^\| (\w+) \| (int|text|bool) \|", README.read_text(encoding="utf-8"), re.MULTILINE))
        kinds = {str: "text", np.int64: "int", np.bool_: "bool"}
        with h5py.File(self.path) as file:
            written = {name: kinds[type(value)] for name, value in file.attrs.items() if name not in OPTIONS}
        self.assertEqual(table, written)

    def test_the_figures_take_it(self):
        run = load_run(self.path)
        self.assertEqual((run.status, len(run.steps["loss"]), len(run.validation["loss"])), ("complete", 100, 2))
        self.assertEqual(run.diagnostics["gradient_histogram"].shape, (10, 2, 65))

    def test_an_existing_run_file_is_refused(self):
        before = self.path.read_bytes()
        done = subprocess.run([os.environ["SCAPE_RECORD_SAMPLE"], self.path], capture_output=True, text=True)
        self.assertEqual(done.returncode, 2)
        self.assertIn(f"{self.path}: this run file already exists", done.stderr)
        self.assertEqual(self.path.read_bytes(), before)


if __name__ == "__main__":
    unittest.main()
