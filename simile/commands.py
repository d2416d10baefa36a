"""The commands of `simile`, by name, and the program that runs each.

Reading this table imports no program, so that `simile --help` and light commands start fast. The commands of
the service are those of `service.cli.COMMANDS`.
"""

from __future__ import annotations

from typing import NamedTuple

from service import cli


class Command(NamedTuple):
    """A command of `simile`.

    Args:
        program: The package whose `__main__.main` runs the command.
        about: What the command does, for the help.
        is_group: Whether the name stands for the whole program, and its command follows.

    """

    program: str
    about: str
    is_group: bool = False


COMPLETION = "completion"
ABOUT_COMPLETION = "print a script that completes commands and options in a shell"
COMMANDS = {
    "serve": Command("service", cli.SERVE),
    "check": Command("service", cli.CHECK),
    **{name: Command("service", command.about) for name, command in cli.COMMANDS.items()},
    "embed": Command("models", "embed files of texts into files of vectors, without a service"),
    "models": Command(
        "models", "import, list, verify, activate, roll back and delete versions", is_group=True
    ),
    "train": Command("training", "train an encoder or a reranker by a recipe"),
    "evaluate": Command("training", "score models on evaluation sets"),
    "rank": Command("training", "learn a ranking of hybrid search from judged queries"),
    "advise": Command("training", "predict what a retraining could gain"),
    "retrain": Command("training", "train, compare with the active version, and publish what is better"),
    "schedule": Command("training", "run retrainings by the clock"),
    "training": Command("training", "all commands of training, as compare, export and mine", is_group=True),
}
