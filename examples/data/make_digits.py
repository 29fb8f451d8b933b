"""Makes digits.npz, the data set of the digits example, from the copy that scikit-learn ships.

Run once; the result is checked in, so that only this script needs scikit-learn::

    pip install -e '.[data]'
    python examples/data/make_digits.py
"""

from pathlib import Path

import numpy as np
from sklearn.datasets import load_digits

if __name__ == "__main__":
    digits = load_digits()
    np.savez_compressed(
        Path(__file__).with_name("digits.npz"),
        images=digits.images.astype(np.uint8),  # [1797, 8, 8], ink from 0 to 16
        labels=digits.target.astype(np.uint8),  # [1797], from 0 to 9
    )
