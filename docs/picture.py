"""The picture of the README, from a run on the digits: `python docs/picture.py runs/digits docs/digits.png`."""

import sys

from matplotlib import pyplot

import doubly
from doubly.posterior.plots import lower_half_missing
from doubly.posterior.plots import samples as grid

ROWS = 64


def main(folder: str, out: str) -> None:
    run = doubly.Run(folder)
    post, test = run.posterior(), run.data().test
    figure, (data, samples, completions) = pyplot.subplots(
        1, 3, figsize=(9, 3.1), layout="constrained", width_ratios=[1, 1, 1.55]
    )
    grid(test[:ROWS], run.facts.shape, data).set_title("digits that it has not seen", fontsize=10)
    post.plot_samples(ROWS, ax=samples).set_title("samples of the model", fontsize=10)
    title = "upper halves, and completions of the lower ones"
    post.plot_completions(lower_half_missing(test[:10]), draws=5, ax=completions).set_title(title, fontsize=10)
    figure.savefig(out, dpi=100, metadata={"Software": None})


main(*sys.argv[1:])
