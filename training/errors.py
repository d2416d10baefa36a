"""The errors of training. Each message is one line that says what to do."""


class TrainingError(Exception):
    """A recipe, a corpus or a data set that cannot be used."""


class NothingToLearn(TrainingError):
    """A corpus without text, or a corpus that a version was already trained on."""


class Interrupted(TrainingError):
    """Ctrl-C. The same job continues from there if its work folder still exists."""


class Busy(TrainingError):
    """Another retraining uses the same models folder."""
