"""Offline: recipes, trainer, evaluation, retraining. Imports no service."""

import os

# Threads of OpenMP sleep at a barrier. Threads that spin there take the processors from those they wait for,
# where other work wants them too: on four processors with a load of 16, a step took 3.6 s with this and had
# not ended after 20 s without. libgomp reads it once, when torch is imported, so it stands here.
os.environ.setdefault("OMP_WAIT_POLICY", "passive")
