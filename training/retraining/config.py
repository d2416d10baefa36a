"""Read retrain.toml, the configuration of retrainings: data, recipe, gate and schedule, with all defaults.

Only `corpus.service` or `corpus.file` is required. Unknown keys are errors. docs/RETRAINING.md explains each
key.
"""

from __future__ import annotations

import argparse
import os
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import (
    AfterValidator,
    AliasChoices,
    BaseModel,
    ConfigDict,
    Field,
    ValidationError,
    ValidationInfo,
    ValidatorFunctionWrapHandler,
    field_validator,
    model_validator,
)

from models import cpus
from models.files.bounded import parse_toml
from models.messages import positive
from models.store import models_dir
from training.errors import NothingToLearn, TrainingError
from training.evaluation.data import optional_data_folder
from training.methods.recipe_files import AUTO, declared
from training.model.base import check_base
from training.retraining.gate import rules as gate
from training.retraining.workplace import require_same_folder
from training.runs.export import add_models_dir
from training.text.service import ALL, ONLY_DEFAULT, add_options, chosen, fetch_count, is_name
from training.validation import refusal

MIN_ROWS = 100  # minimum number of documents, or of other rows
_PAIR = 'pair needs a recipe that makes a student: recipe = "distil"'
_OF_THE_LINE = ("anchor", "active")  # bases that are the active version or come before it
_BASES = (*_OF_THE_LINE, "default")  # These names take precedence over folders of the same name.


def _rooted(path: Path, info: ValidationInfo) -> Path:
    """Expands `~` and resolves a path against the folder of retrain.toml.

    Without a file, returns the path unchanged.
    """
    return info.context / path.expanduser() if info.context else path


Rooted = Annotated[Path, AfterValidator(_rooted)]


class Table(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False, loc_by_alias=False)


class CorpusTable(Table):
    service: str | None = None  # URL of a running service
    file: Rooted | None = None  # .jsonl, .tsv or lines of text
    collections: tuple[str, ...] = Field(ONLY_DEFAULT, min_length=1)  # names in the service; ["*"]: all
    held_out: float = Field(0.1, gt=0, lt=1)  # share of the documents that are held out
    least: int = Field(MIN_ROWS, ge=2)
    candidates: int = Field(5000, ge=100)  # texts that a held-out query searches for its answer

    @model_validator(mode="after")
    def _one(self) -> Self:
        if (self.service is None) == (self.file is None):
            raise ValueError("give `service` or `file`, and not both")
        if self.file is not None and "collections" in self.model_fields_set:
            raise ValueError("`collections` goes with `service`")
        wrong = [name for name in self.collections if not is_name(name)]
        if wrong and self.collections != ALL:
            raise ValueError(f'name collections, or ["*"] for all of them; {wrong[0]!r} is no name of one')
        return self


class JudgmentsTable(Table):
    file: Rooted | None = None  # .tsv or .jsonl with query and id
    feedback: bool = True  # also read POST /feedback
    held_out: float = Field(0.5, gt=0, lt=1)  # share of the queries that are held out
    trusted: tuple[str, ...] = ()  # If set, judgments of other keys serve only for training.


class EventsTable(Table):
    use: bool = True  # also read POST /events
    position_bias: Literal["estimate"] | Annotated[float, Field(ge=0, le=3)] = "estimate"
    least: int = Field(3, ge=1)  # searches that must agree on a document
    # Visitors that these searches must come from (trust.py). `keys` is the earlier name.
    visitors: int = Field(2, ge=1, validation_alias=AliasChoices("visitors", "keys"))
    queries: bool = False  # also train on unjudged queries of events, if a recipe can

    @field_validator("position_bias", mode="wrap")
    @classmethod
    def _word_or_number(cls, value: object, handler: ValidatorFunctionWrapHandler) -> object:
        try:
            return handler(value)
        except ValidationError:
            raise ValueError(f"write `estimate` or a number from 0 to 3, not {value!r}") from None


class TrainTable(Table):
    recipe: str = AUTO
    base: str = "anchor"  # The anchor is the first version, so that small losses do not add up.
    steps: int | None = Field(None, ge=1)
    minutes: float | None = Field(None, gt=0)  # maximum training time
    seed: int | None = Field(None, ge=0, lt=1 << 63)
    precision: Literal["auto", "bf16", "fp32"] = "auto"
    negatives: int = Field(3, ge=1, le=10)  # negatives of each pair, for a recipe that reads triples
    pair: bool = False  # with `distil`: the student encodes queries, and the teacher documents
    set: dict[str, Any] = Field(default_factory=dict)  # changes to the recipe, as with `train --set`

    @field_validator("base", "recipe")
    @classmethod
    def _placed(cls, name: str, info: ValidationInfo) -> str:
        whole, is_recipe = _rooted(Path(name), info), info.field_name == "recipe"
        is_path = name.endswith(".toml") if is_recipe else name not in _BASES and whole.is_dir()
        return str(whole) if is_path else name

    @model_validator(mode="after")
    def _set_of_a_recipe(self) -> Self:
        if self.recipe == AUTO and self.set:
            raise ValueError('set changes a recipe: name one (recipe = "triples"), auto chooses itself')
        if self.recipe == AUTO and self.pair:
            raise ValueError(_PAIR)
        return self


_TRADED = {"mean_fall": 0.01, "own_fall": 0.015}  # default limits if speed is required; chosen by us


class GateTable(Table, gate.Thresholds):
    mode: Literal["on", "off"] = "on"
    require: gate.Require = "better"
    data: Rooted | None = None  # folder of evaluation sets; SIMILE_EVAL_DATA by default

    @model_validator(mode="before")
    @classmethod
    def _limits(cls, given: Any) -> Any:
        """Sets the default limits `_TRADED` if `require` is `faster`."""
        faster = isinstance(given, dict) and given.get("require") == "faster"
        return _TRADED | given if faster else given


class ScheduleTable(Table):
    cron: str = "30 3 * * *"  # minute hour day month weekday
    timezone: str = "UTC"
    jitter_seconds: int = Field(300, ge=0)  # maximum random delay, so that machines begin at different times
    new_documents: int | None = Field(None, ge=1)  # A run begins early after this many new documents.
    poll_seconds: float = Field(300.0, gt=0)  # time between counts of documents
    threads: int | None = Field(None, ge=1)  # threads of a run; its default if not given
    memory_mb: int | None = Field(None, ge=256)  # maximum memory; a run that needs more ends

    @property
    def encoding_threads(self) -> int:
        """The number of threads that encode texts: `threads`, or all processors."""
        return self.threads or cpus.available()


class FoldersTable(Table):
    models: Rooted = Field(default_factory=lambda: models_dir(os.environ))
    work: Rooted | None = None  # MODELS/../retrain by default

    @property
    def kept(self) -> Path:
        """The work folder, which keeps the current run even after a kill."""
        return self.work or self.models.parent / "retrain"


class Config(Table):
    """The content of `retrain.toml`."""

    corpus: CorpusTable
    judgements: JudgmentsTable = Field(default_factory=JudgmentsTable)
    events: EventsTable = Field(default_factory=EventsTable)
    train: TrainTable = Field(default_factory=TrainTable)
    gate: GateTable = Field(default_factory=GateTable)
    schedule: ScheduleTable = Field(default_factory=ScheduleTable)
    folders: FoldersTable = Field(default_factory=FoldersTable)


def require_enough(count: int, least: int, what: str = "documents") -> None:
    """Raises NothingToLearn if `count` is below `least`. `what` names the counted things in the message."""
    if count < least:
        raise NothingToLearn(
            f"Too few {what}: {count:,}; at least {least:,} are asked for (corpus.least, --least)."
        )


def check(config: Config) -> None:
    """Checks that all names in the configuration exist, and that its service uses the same models folder.

    Does not import torch.

    Raises:
        TrainingError: A recipe, a key, a file or a folder does not exist, or the service does not answer, or
            uses another models folder. Or `pair` is set for a recipe without a student.
        ModelError: The base does not exist.

    """
    check_names(config)
    if config.train.pair and "student" not in declared(config.train.recipe, config.train.set):
        raise TrainingError(f"train.{_PAIR}.")
    for file in (config.corpus.file, config.judgements.file):
        if file and not file.is_file():
            raise TrainingError(f"There is no file {file}.")
    optional_data_folder(config.gate.data)
    if config.corpus.service is not None:
        require_same_folder(config.corpus.service, config.folders.models)
        fetch_count(config.corpus.service, config.corpus.collections)


def check_names(config: Config) -> None:
    """Checks the names of the recipe and the base model.

    Raises:
        TrainingError: The recipe does not exist, or a change is invalid.
        ModelError: The base does not exist.

    """
    train = config.train
    if train.recipe != AUTO:
        declared(train.recipe, train.set)
    if train.base not in _OF_THE_LINE:
        check_base(train.base, config.folders.models)


def add_source(command: argparse.ArgumentParser) -> None:
    """Adds `--models-dir`, `--least` and the options that choose collections of a service."""
    add_options(command)
    command.add_argument(
        "--least",
        type=positive,
        default=MIN_ROWS,
        metavar="N",
        help="texts; with fewer there is nothing to learn (%(default)s)",
    )
    add_models_dir(command)


def build_config(options: argparse.Namespace, **tables: Table) -> Config:
    """Returns the configuration for `--corpus` or `--from-service`, with further tables.

    Raises:
        TrainingError: The name of a collection is invalid, or a collection is named without a service.

    """
    collections, file = chosen(options), options.corpus
    place = {"file": file} if file else {"service": options.from_service, "collections": collections}
    corpus = CorpusTable(**place, least=max(2, options.least))
    return Config(corpus=corpus, folders=FoldersTable(models=options.models_dir), **tables)


def read_config(file: Path) -> Config:
    """Reads a configuration file. Paths in the file are relative to its folder.

    Raises:
        TrainingError: The file is missing or invalid. The message names the key.

    """
    try:
        found = parse_toml(file.read_text(encoding="utf-8"))
    except (FileNotFoundError, IsADirectoryError):
        raise TrainingError(f"There is no file {file}.") from None
    except ValueError as error:
        raise TrainingError(f"{file} is not TOML: {error}.") from None
    try:
        return Config.model_validate(found, context=file.resolve().parent)
    except ValidationError as error:
        raise refusal(error, Config.model_json_schema(), str(file), "the file") from None
