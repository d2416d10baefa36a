"""Training outside of the service: recipes, trainer, evaluation and retraining. Does not import `service`."""

import os

# Threads of OpenMP sleep at a barrier. On a busy machine, spinning threads take the processors from the
# threads that they wait for: on four processors with a load of 16, a step took 3.6 s with this setting, and
# more than 20 s without. libgomp reads it once, when torch is imported.
os.environ.setdefault("OMP_WAIT_POLICY", "passive")
