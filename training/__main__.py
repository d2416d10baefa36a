"""`simile training COMMAND`: train, evaluate, export, retrain and other commands.

`COMMANDS` lists the modules that define the commands.

The exit status is 0 for success, 1 for an error with a message, and 2 for wrong usage. `retrain` and `rank`
also return 3 if the candidate was rejected, 4 if there is nothing to learn, 5 if another retraining is
running. A stopped command returns 130.
"""

import argparse
import sys
from collections.abc import Sequence

from models.errors import ModelError, denied, not_installed
from models.messages import Parser, add_version, discard_output

PROG = "python -m training"
ABOUT = "Train, evaluate and publish sentence encoders."
NAMES = (  # of the commands, for --help while packages are missing
    "train",
    "blank",
    "extend-vocabulary",
    "word-vectors",
    "evaluate",
    "compare",
    "significance",
    "export",
    "retrain",
    "rank",
    "schedule",
    "advise",
    "mine",
    "report",
)

try:
    from safetensors import SafetensorError

    from training import errors
    from training.evaluation import command as evaluate
    from training.evaluation import significance
    from training.evaluation.report import comparison
    from training.mining import command as mine
    from training.mining import corpus_report
    from training.model import new_bases
    from training.papers import word_vectors
    from training.retraining import advise, rank, schedule
    from training.retraining import command as retrain
    from training.runs import command as train
    from training.runs import export
except ModuleNotFoundError as missing:
    if {"-h", "--help"} & {*sys.argv}:
        print(f"usage: simile training COMMAND …\n\n{ABOUT}\nCommands: {', '.join(NAMES)}\n")
    sys.exit(not_installed(missing, "train"))
except KeyboardInterrupt:  # importing takes seconds
    sys.exit(130)

COMMANDS = (
    train,
    new_bases,
    word_vectors,
    evaluate,
    comparison,
    significance,
    export,
    retrain,
    rank,
    schedule,
    advise,
    mine,
    corpus_report,
)


def main(arguments: Sequence[str] | None = None, prog: str = PROG) -> int:
    """Runs a command. `prog` is the program as the user typed it. Returns the exit status."""
    options = parser(prog).parse_args(arguments)
    try:
        status = int(options.run(options))
        print(end="", flush=True)  # Otherwise a closed pipe is an error when Python ends, with status 120.
    except ModuleNotFoundError as error:
        sys.exit(not_installed(error, "train"))
    except (errors.TrainingError, ModelError, SafetensorError) as error:
        print(f"{prog}: {error}", file=sys.stderr)
        return 1
    except OSError as error:
        print(f"{prog}: {denied(error, 'the output')}", file=sys.stderr)
        if isinstance(error, BrokenPipeError):
            discard_output()
        return 1
    except KeyboardInterrupt:
        print("Stopped.", file=sys.stderr)
        return 130
    return status


def parser(prog: str = PROG) -> argparse.ArgumentParser:
    described = Parser(prog=prog, description=ABOUT)
    add_version(described)
    commands = described.add_subparsers(required=True, metavar="COMMAND")
    for command in COMMANDS:
        command.add(commands)
    return described


if __name__ == "__main__":
    sys.exit(main())
