"""The figures: one file each, with NAME, NEEDS (what it cannot do without; None: nobody misses it) and draw(methods), which gives a figure or None."""

from . import ablation, loss_vs_bytes, loss_vs_steps, mask_dynamics

ALL = (loss_vs_steps, loss_vs_bytes, ablation, mask_dynamics)
