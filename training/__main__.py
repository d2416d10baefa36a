"""`python -m training`: nothing to run yet, and it says so."""

import sys

if __name__ == "__main__":
    sys.exit(
        "Training is not built yet: this version serves. `python -m models import FOLDER` publishes an "
        "encoder that was trained elsewhere."
    )
