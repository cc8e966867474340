"""Loss against steps: what a method loses, if every byte were free."""

from ..panels import loss_panels

NAME = "loss_vs_steps"
NEEDS = "two finite losses of a method"


def draw(methods: list):
    return loss_panels(methods, lambda curve: curve.steps, "step", lambda axes: axes.set_xlim(left=0))
