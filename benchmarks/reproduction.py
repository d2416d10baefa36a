"""Is unsupervised SimCSE here that of the paper? `python -m benchmarks.reproduction PART --data DIR`.

    check      the default model ─▶ mlm until STS-B dev is 45 to 55 ─▶ SimCSE
    ladder     blank (or --base) ─▶ mlm ─▶ stage 1 ─▶ mlm ─▶ stage 2 …; SimCSE from each, with a head or none
    ablations  the last stage (or --stage FOLDER) ─▶ SimCSE with one change each
    climb      the last stage (or --stage FOLDER) ─▶ SimCSE with the changes of --set; the run is kept

Each run is a line of JSON in --out: its STS-B dev scores from step 0, and the loss of the backbone that it
began from. What is there is not made again. The backbones read each sentence once, so a backbone's loss in
its last steps is one on sentences that it has not seen. SimCSE reads other ones, unless --texts is raised.
climb has its runs in --work/climbs, and goes on with one that Ctrl-C stopped. A stage is known by its
folder's name.
"""

import gc
import itertools
import shutil
import statistics
import tempfile
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

from benchmarks.dev import dev_score, needed_dev
from benchmarks.places import BenchError, add_row, arguments, ending, row_of, rows, say
from benchmarks.workloads import WIKIPEDIA, texts_of
from models.errors import ModelError
from training.arguments import changes
from training.errors import Interrupted, NothingToLearn, TrainingError
from training.methods.catalogue import load_recipe
from training.model.base import open_base
from training.model.blank import blank
from training.runfile import FILE_NAME as RUN
from training.runfile import Result
from training.runs.command import train
from training.runs.log import FILE_NAME as RECORD
from training.runs.options import Options
from training.text.corpus import Corpus

SENTENCES = 19_200  # the first ones are SimCSE's, as in benchmarks.methods; backbones read the next ones
BATCH = 64  # of SimCSE, as published
LOSS_STEPS = 50  # the last ones of a backbone's training, whose mean is its loss
MEAN = 'pool="mean"'  # these backbones had no sentence task, so their first token means nothing yet
HEADS = {"mlp in training": (), "none": ('head="none"',)}
FALLEN = (0.45, 0.55)  # STS-B dev of the check's backbone
ABLATIONS: dict[str, tuple[str, ...]] = {
    "as published": (),
    "dropout 0": ("dropout=0.0",),
    "dropout 0.05": ("dropout=0.05",),
    "dropout 0.2": ("dropout=0.2",),
    "one mask for both views": ("fixed_mask=true",),
    "second view cropped by 10 %": ('views=["same", {name="crop", keep=0.9}]',),
    "second view without 10 % of its words": ('views=["same", {name="delete", rate=0.1}]',),
    "second view without one word": ('views=["same", {name="delete", rate=0.0}]',),
    "batch 32": ("optim.batch=32",),
    "batch 128": ("optim.batch=128",),
    "temperature 0.01": ('objectives=[{name="info_nce", tau=0.01}]',),
    "temperature 0.1": ('objectives=[{name="info_nce", tau=0.1}]',),
}


class Bench:
    def __init__(self, options: Any) -> None:
        self._options = options
        self._dev = needed_dev(options.data)
        self._starts: dict[Path, float] = {}
        self._first = list(itertools.islice(texts_of(options.data / WIKIPEDIA), options.texts))
        options.work.mkdir(parents=True, exist_ok=True)

    def check(self) -> None:
        out = self._options.work / "fallen"
        if not out.exists():
            self._fall(out)
        for seed in self._options.seeds:
            self._climb("check", "fallen", seed, (), out)

    def ladder(self) -> None:
        folder, ends = self._options.base or self._options.work / "blank", self._options.stages
        if not folder.exists():
            with open_base("default", self._options.work) as base:
                blank(base.folder, folder, layers=self._options.layers, width=self._options.width)
        for begin, end in itertools.pairwise((0, *ends)):
            out = self._ladder(end)
            if not out.exists():
                self._masked(folder, out, begin, end)
            folder = out
            for seed in self._options.seeds:
                for head, sets in HEADS.items():
                    self._climb("ladder", head, seed, sets, out)

    def ablations(self) -> None:
        for seed in self._options.seeds:
            for name, sets in ABLATIONS.items():
                self._climb("ablations", name, seed, sets, self._stage())

    def climb(self) -> None:
        sets, within = self._options.set, self._options.work / "climbs"
        for seed in self._options.seeds:
            self._climb("climb", ", ".join(sets) or "as published", seed, sets, self._stage(), within)

    def _stage(self) -> Path:
        stage: Path = self._options.stage or self._ladder(self._options.stages[-1])
        return stage

    def _ladder(self, steps: int) -> Path:
        """A stage after so many steps."""
        work: Path = self._options.work
        return work / f"{self._options.base.name if self._options.base else 'mlm'}-{steps}"

    def _slice(self, begin: int, end: int) -> Corpus:
        """Of the sentences that SimCSE does not read."""
        sentences = texts_of(self._options.data / WIKIPEDIA)
        found = itertools.islice(sentences, SENTENCES + begin, SENTENCES + end)
        return Corpus.of(found, f"Wikipedia {begin} to {end}")

    def _fall(self, out: Path) -> None:
        """Masked-language training from the default model, 50 steps at a time, until it is low enough."""
        options, batch = self._options, 64
        with open_base("default", options.work) as base:
            folder, slices = base.folder, itertools.count()
            while (score := self._score(folder)) > FALLEN[1]:
                say(f"the default model, fallen to {score:.4f}")
                at = next(slices)
                made = options.work / f"falling-{at}"
                if not made.exists():
                    corpus = self._slice(at * 50 * batch, (at + 1) * 50 * batch)
                    self._mlm(folder, made, corpus, batch, 50, at)
                folder = made
        if score < FALLEN[0]:
            raise BenchError(f"The default model fell to {score:.3f} within 50 steps: lower the rate.")
        shutil.copytree(folder, out)

    def _masked(self, folder: Path, out: Path, begin: int, end: int) -> None:
        batch = self._options.batch
        self._mlm(folder, out, self._slice(begin * batch, end * batch), batch, end - begin, begin)

    def _mlm(self, base: Path, out: Path, corpus: Corpus, batch: int, steps: int, seed: int) -> None:
        """One stage; the rate is constant, so that the stages together are one training."""
        sets = (f"optim.lr={self._options.lr}", f"optim.batch={batch}", "max_length=64")
        recipe = load_recipe("mlm", changes([*sets, 'optim.decay="constant"']))
        with tempfile.TemporaryDirectory(dir=self._options.work) as scratch:
            run = Path(scratch) / "run"
            _whole(train(recipe, corpus, base, run, self._how(steps, seed)))
            shutil.move(run / "last", out)
            shutil.move(run / RECORD, out / RECORD)
        gc.collect()  # a trainer has cycles, and gigabytes

    def _score(self, folder: Path) -> float:
        """STS-B dev of a folder as it is, with the mean of its last layer."""
        return dev_score(folder, load_recipe("simcse-unsup", changes([MEAN])), self._dev)

    def _climb(
        self, part: str, name: str, seed: int, sets: Iterable[str], stage: Path, within: Path | None = None
    ) -> None:
        """SimCSE from a stage, its dev score from step 0; the run stays where there is a folder for it."""
        asked = {"steps": self._options.steps, "texts": self._options.texts}
        known = {"part": part, "stage": stage.name, "name": name, "seed": seed, **asked}
        if row_of(({"texts": SENTENCES} | line for line in rows(self._options.out)), known):
            return
        say(f"SimCSE from {stage.name}: {name}, seed {seed}")
        recipe = load_recipe("simcse-unsup", changes([MEAN, *sets]))
        how = self._how(self._options.steps * BATCH // recipe.optim.batch, seed, recipe.optim.batch)
        if stage not in self._starts:
            self._starts[stage] = self._score(stage)
        dev: dict[int, float | None] = {0: self._starts[stage]}
        corpus = Corpus.of(self._first, "Wikipedia")
        with tempfile.TemporaryDirectory(dir=self._options.work) as scratch:
            label = f"{stage.name}-{recipe.digest()[:12]}-{how.steps}-{self._options.texts}-{seed}"
            run = within / label if within else Path(scratch) / "run"
            how = replace(how, resume=(run / RUN).exists())
            try:
                dev |= _whole(train(recipe, corpus, stage, run, how)).dev
            except NothingToLearn as error:
                known |= {"ended": str(error)}
        gc.collect()
        add_row(self._options.out, known | {"batch": recipe.optim.batch, "loss": _loss(stage), "dev": dev})

    def _how(self, steps: int, seed: int, batch: int = BATCH) -> Options:
        """A score after equally many sentences, whatever the batch."""
        options = self._options
        return Options(
            steps=max(1, steps), seed=seed, threads=options.threads,
            eval_steps=max(1, options.eval_steps * BATCH // batch),
            record_steps=1, checkpoint_steps=1 << 20, data=options.data, progress=True,
        )  # fmt: skip


def _whole(result: Result) -> Result:
    """A run that was stopped is no line and no stage."""
    if result.interrupted:
        raise Interrupted("Stopped. The same command makes what is missing.")
    return result


def _loss(stage: Path) -> float:
    events = rows(stage / RECORD)
    return statistics.fmean([each["loss"] for each in events if each["event"] == "step"][-LOSS_STEPS:])


def main() -> None:
    parser = arguments("reproduction", __doc__)
    parser.add_argument("part", choices=("check", "ladder", "ablations", "climb"))
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--work", type=Path, default=Path("reproduction"))
    parser.add_argument("--out", type=Path, default=Path("reproduction.jsonl"))
    parser.add_argument("--seeds", nargs="*", type=int, default=[1, 2, 3])
    parser.add_argument("--stages", nargs="*", type=int, default=[225, 450, 900, 1800, 3600], help="steps")
    parser.add_argument("--base", type=Path, help="of the ladder's first stage (default: a blank one)")
    parser.add_argument("--stage", type=Path, help="of ablations and climb (default: the last one)")
    parser.add_argument("--set", nargs="*", default=[], metavar="KEY=VALUE", help="of climb, in the recipe")
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--width", type=int, default=256)
    parser.add_argument("--batch", type=int, default=128, help="of the ladder's backbones")
    parser.add_argument("--lr", type=float, default=5e-4, help="of masked-language training")
    parser.add_argument("--texts", type=int, default=SENTENCES, help="of SimCSE's corpus")
    parser.add_argument("--steps", type=int, default=300, help="of SimCSE, with 64 sentences")
    parser.add_argument("--eval-steps", type=int, default=50)
    parser.add_argument("--threads", type=int, default=2)
    options = parser.parse_args()
    with ending(TrainingError, ModelError):
        getattr(Bench(options), options.part)()


if __name__ == "__main__":
    main()
