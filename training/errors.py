"""The errors of training: one line each, which says what to do."""


class TrainingError(Exception):
    """A recipe, a corpus or a data set that cannot be used."""


class NothingToLearn(TrainingError):
    """A corpus without text, or one that was learned from before."""


class Interrupted(TrainingError):
    """Ctrl-C. The same job goes on from there when its work folder was kept."""


class Busy(TrainingError):
    """Another retraining is at work on the same models folder."""
