"""Image completion: the lower half of handwritten digits is hidden and filled in several times.

Run `python examples/completion.py`, or `python examples/completion.py OUT.png EPOCHS`; it takes half a minute with the
100 epochs that are the default. The picture, completion.png, shows the originals, what was left of them, four
completions of each, and what is expected of each pixel (the mean over twenty).

Completions differ where the upper half leaves a choice, as between a 3 and a 9; many are digits, some are ragged.
Printed is how often a hidden pixel is wrong when what is expected is rounded. By that measure the mean of ten nearest
neighbours is somewhat better on these 8×8 images; but it is one blur of digits, where these are draws.
"""

import sys
from pathlib import Path

import numpy as np
from sklearn.impute import KNNImputer, SimpleImputer

from doubly import DeepGenerativeModel
from doubly.analysis.accuracy import errors, mask
from doubly.analysis.report.figures import image_rows, png
from doubly.analysis.report.files import save
from doubly.data import load
from doubly.runs.fit import use_threads

ROWS, SHOWN, DRAWS = 100, 12, 20


def main(out: Path, epochs: int) -> None:
    digits = load("digits")  # 0 and 1
    x = digits.test[:ROWS]
    holes = mask("lower-half", len(x), digits.shape, share=0.5)
    hollow = np.where(holes, np.nan, x)

    model = DeepGenerativeModel(hidden=(100, 50), epochs=epochs, random_state=0).fit(digits.train)
    with use_threads(1):  # for so small a model more are no faster, and much slower where others compute as well
        filled = model.posterior_.impute(hollow, DRAWS, of="mean")

    means = {"doubly": filled.mean}
    for way, imputer in {"mean": SimpleImputer(), "10 nearest neighbours": KNNImputer(n_neighbors=10)}.items():
        means[way] = imputer.fit(digits.train.astype(float)).transform(hollow)
    for way, mean in means.items():
        print(f"{way:24}{errors(mean, x, holes, binary=True).error_rate:6.1%} of {holes.sum()} hidden pixels wrong")

    lines = {"original": x, "left": np.where(holes, 0.4, x)}
    lines |= {f"completion {i + 1}": rows for i, rows in enumerate(filled.completions[:4])} | {"expected": filled.mean}
    save(out, png(image_rows([rows[:SHOWN] for rows in lines.values()], list(lines), digits.shape)))
    print(f"picture: {out}")


if __name__ == "__main__":
    out, epochs = [*sys.argv[1:], *["completion.png", "100"][len(sys.argv) - 1 :]]
    main(Path(out), int(epochs))
