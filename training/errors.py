"""Exceptions of the training package. Each message is one line that tells the user what to do."""


class TrainingError(Exception):
    """A recipe, a corpus, an option or a data set cannot be used."""


class NothingToLearn(TrainingError):
    """The data are too few to learn from, or a version has already learned from them."""


class Interrupted(TrainingError):
    """The user stopped a retraining. Starting it again continues it if the work folder still exists."""


class Busy(TrainingError):
    """Another retraining uses the same models folder."""
