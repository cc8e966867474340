"""Figures and comparison table of the run files that `scape train` writes. Schema: results/README.md."""
