"""Makes diabetes.npz and sunspots.npz, from the copies that scikit-learn and statsmodels ship.

Run once; the results are checked in, so that only this script needs these packages::

    pip install -e '.[data]'
    python examples/data/make_tables.py
"""

from pathlib import Path

import numpy as np
from sklearn.datasets import load_diabetes
from statsmodels.datasets import sunspots

if __name__ == "__main__":
    folder = Path(__file__).parent
    diabetes = load_diabetes(scaled=False)
    np.savez_compressed(
        folder / "diabetes.npz",
        table=diabetes.data.astype(np.float32),  # [442, 10], columns as `names`
        progress=diabetes.target.astype(np.float32),  # [442], one year later, from 25 to 346
        names=np.array(diabetes.feature_names),
    )
    table = sunspots.load_pandas().data
    np.savez_compressed(
        folder / "sunspots.npz",
        years=table["YEAR"].to_numpy(np.int16),  # [309], 1700 to 2008
        numbers=table["SUNACTIVITY"].to_numpy(np.float32),  # [309], mean number of sunspots of the year
    )
