"""Set up, run, monitor, stop, resume and export a training."""
