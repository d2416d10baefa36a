"""A pair: its published files, its document vectors (the teacher's), and refusals."""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from models.__main__ import main
from models.engines.form import FP32
from models.engines.opening import INT8
from models.errors import Damaged, InUse, ProofFailed, UnknownVersion, Unsupported
from models.manifest import TEACHER, Manifest
from models.publishing.pair import pair
from models.publishing.proof import check_golden
from models.publishing.publish import publish
from models.store import ModelStore
from models.tokens.texts import PROOF_TEXTS, example_texts
from tests.models.forms import needs_int8
from tests.models.test_seal import flip
from tests.models.test_seal import set_manifest as changed
from tests.tiny import tiny_source, tiny_student


class Place:
    """A store with a teacher, its student, and a pair of both."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.store = ModelStore(folder / "models")
        self.source = tiny_source(folder / "teacher", prompts={"query": "query: "})
        self.teacher = publish(self.store, self.source, origin="teacher", int8=True)
        self.student = self.build_student(self.source, self.teacher.fingerprint, "student")
        self.pair = pair(self.store, self.teacher.version, self.student.version)
        self.at = self.store.folder(self.pair.version)

    def build_student(self, source: Path, teacher: str, origin: str) -> Manifest:
        small = tiny_student(source, self.folder / origin)
        return publish(self.store, small, origin=origin, lineage={TEACHER: teacher}, int8=True)


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Place:
    return Place(tmp_path_factory.mktemp("pair"))


@pytest.fixture
def place(made: Place, tmp_path: Path) -> Place:
    """A copy of `made` that a test may change."""
    copy = object.__new__(Place)
    vars(copy).update(vars(made) | {"folder": tmp_path})
    copy.store = ModelStore(shutil.copytree(made.store.root, tmp_path / "models"))
    copy.at = copy.store.folder(made.pair.version)
    return copy


def test_a_pair_is_the_teacher_with_the_student_beside_it(made: Place) -> None:
    student, teacher = made.student.fingerprint[:8], made.teacher.fingerprint[:8]
    assert made.pair.version.endswith(f"-teacher-pair-{student}-{teacher}")
    assert (made.pair.fingerprint, made.pair.parent) == (made.teacher.fingerprint, made.teacher.version)
    assert made.pair.query_encoder is not None
    assert made.pair.query_encoder.fingerprint == made.student.fingerprint != made.teacher.fingerprint
    own = {file: checksum for file, checksum in made.teacher.files.items() if file != "MODEL_CARD.md"}
    assert own.items() <= made.pair.files.items()
    beside = {f"queries/{file}": checksum for file, checksum in made.student.files.items()}
    assert beside.items() <= made.pair.files.items()
    assert made.pair.files.keys() - own.keys() - beside.keys() == {"MODEL_CARD.md", "queries/manifest.json"}
    assert made.student.version in (made.at / "MODEL_CARD.md").read_text()


def test_documents_are_the_teachers_and_queries_the_students_to_the_bit(made: Place) -> None:
    of = (made.teacher, made.student, made.pair)
    teacher, student, both = (made.store.open(manifest.version) for manifest in of)
    assert both.for_queries is both.queries
    assert (teacher.for_queries, teacher.queries) == (teacher, None)
    expected, found = teacher.encode(PROOF_TEXTS).vectors, both.encode(PROOF_TEXTS).vectors
    np.testing.assert_array_equal(found, expected)
    by_student = both.for_queries.encode(PROOF_TEXTS).vectors
    np.testing.assert_array_equal(by_student, student.encode(PROOF_TEXTS).vectors)
    assert np.abs(by_student - expected).max() > 1e-2


def test_the_distance_in_the_manifest_is_that_of_the_example_texts(made: Place) -> None:
    teacher, student = (made.store.open(manifest.version) for manifest in (made.teacher, made.student))
    texts = example_texts()
    queries = [f"query: {text}" for text in texts]
    documents = teacher.encode(texts).vectors
    one, other = teacher.encode(queries).vectors, student.encode(queries).vectors
    cosines = (one * other).sum(axis=1)
    same = []
    for at, rows in enumerate(zip(one @ documents.T, other @ documents.T, strict=True)):
        tops = [{*[text for text in np.argsort(-scores) if text != at][:10]} for scores in rows]
        same.append(len(tops[0] & tops[1]) / 10)
    said = made.pair.query_encoder
    assert said is not None
    assert said.measured_on == len(texts) == 320
    assert said.cosine_mean == pytest.approx(cosines.mean(), abs=2e-5)
    assert said.cosine_least == pytest.approx(cosines.min(), abs=2e-5)
    assert said.same_neighbours == pytest.approx(np.mean(same), abs=2e-3)


def test_a_version_alone_is_written_as_before_there_were_pairs(made: Place) -> None:
    assert "query_encoder" not in made.teacher.text()
    assert Manifest.model_validate_json(made.pair.text()) == made.pair


def test_the_same_pair_is_published_once_and_another_student_takes_its_place(place: Place) -> None:
    assert pair(place.store, place.teacher.version, place.student.version).version == place.pair.version
    other_source = tiny_source(place.folder / "other", seed=3, prompts={"query": "query: "})
    other = place.build_student(other_source, place.teacher.fingerprint, "stranger")
    again = pair(place.store, place.pair.version, other.version)
    assert again.query_encoder is not None
    assert again.query_encoder.version == other.version
    beside = {file.removeprefix("queries/") for file in again.files if file.startswith("queries/")}
    assert beside == {*other.files, "manifest.json"}
    assert place.store.find(place.teacher) == place.teacher, "a pair is another version than its teacher"


def test_a_student_of_another_teacher_is_refused(place: Place) -> None:
    other_source = tiny_source(place.folder / "other", seed=3, prompts={"query": "query: "})
    other = publish(place.store, other_source, origin="other")
    said = f"its teacher is {place.teacher.version}. Train one: simile train distil"
    with pytest.raises(Unsupported, match=said):
        pair(place.store, other.version, place.student.version)
    with pytest.raises(Unsupported, match="its teacher is not a version here"):
        pair(place.store, place.teacher.version, other.version)


@pytest.mark.parametrize(
    ("prompts", "pooling", "reason"),
    [
        ({"query": "find: "}, "mean", "has search_prompt='find: ', but .* 'query: '"),
        ({}, "mean", "has search_prompt='', but .* 'query: '"),
        ({"query": "query: "}, ["cls", "mean"], "has dimension=64, but .* 32"),
    ],
)
def test_a_student_of_another_shape_is_refused(
    place: Place, prompts: dict[str, str], pooling: str | list[str], reason: str
) -> None:
    source = tiny_source(place.folder / "shape", prompts=prompts)
    (source / "1_Pooling" / "config.json").write_text(json.dumps({"pooling_mode": pooling}))
    shaped = place.build_student(source, place.teacher.fingerprint, "shaped")
    with pytest.raises(Unsupported, match=reason):
        pair(place.store, place.teacher.version, shaped.version)


def test_the_teacher_of_a_student_in_use_is_kept(place: Place) -> None:
    """The next training starts from the newest version that has the teacher's vectors."""
    place.store.request(place.student.version)
    with pytest.raises(InUse, match="the anchor of retrainings"):
        place.store.prune(place.pair.version)
    place.store.prune(place.teacher.version)  # The pair has the teacher's vectors.
    place.store.request(place.pair.version)
    place.store.prune(place.student.version)  # The pair has a copy of the student.
    assert place.store.verify(place.pair.version) == place.pair


def test_a_pair_is_no_student(place: Place) -> None:
    with pytest.raises(Unsupported, match=f"Name its student instead: {place.student.version}"):
        pair(place.store, place.teacher.version, place.pair.version)
    with pytest.raises(UnknownVersion):
        pair(place.store, place.teacher.version, "20260101T000000-nobody-00000000")


QUERIES = "queries/manifest.json"


def _put(at: Path, path: str, content: bytes) -> None:
    (at / path).write_bytes(content)
    files = Manifest.read(at).files | {path: hashlib.sha256(content).hexdigest()}
    changed(at, files=files)


def _inner(at: Path, **fields: object) -> None:
    _put(at, QUERIES, json.dumps(json.loads((at / QUERIES).read_bytes()) | fields).encode())


TAMPERED: dict[str, tuple[Callable[[Path], object], str]] = {
    "one byte of the student's weights": (
        lambda at: flip(at / "queries/onnx/model.onnx", 5000),
        r"queries/onnx/model\.onnx was changed after it was published",
    ),
    "one byte of the student's manifest": (lambda at: flip(at / QUERIES, 40), rf"{QUERIES} was changed"),
    "no student": (lambda at: shutil.rmtree(at / "queries"), r"queries/.* is missing"),
    "another graph, with its checksum": (
        lambda at: _put(at, "queries/onnx/model.onnx", (at / "onnx/model.onnx").read_bytes()),
        r"its manifest claims another fingerprint than queries/onnx/model\.onnx",
    ),
    "no graph at all": (
        lambda at: _put(at, "queries/onnx/model.onnx", b"\x08"),
        r"queries/onnx/model\.onnx is not an ONNX file",
    ),
    "another student": (
        lambda at: _inner(at, fingerprint="0" * 64),
        "queries/ holds another query encoder than its manifest names",
    ),
    "another dimension": (lambda at: _inner(at, dimension=9), "dimension=32 and its query encoder 9"),
    "another prompt": (lambda at: _inner(at, search_prompt=""), "='query: ' and its query encoder ''"),
    "half a manifest": (lambda at: _put(at, QUERIES, b"{"), rf"{QUERIES} is malformed"),
}


@pytest.mark.parametrize("what", TAMPERED)
def test_a_tampered_pair_is_refused_by_name(place: Place, what: str) -> None:
    tamper, reason = TAMPERED[what]
    assert place.store.verify(place.pair.version) == place.pair
    tamper(place.at)
    with pytest.raises(Damaged, match=reason) as caught:
        place.store.open(place.pair.version)
    assert caught.value.version == place.pair.version


def test_the_students_vectors_are_proved_again_too(place: Place) -> None:
    encoder = place.store.open(place.pair.version)
    assert check_golden(encoder, place.at) < 1e-5
    golden = json.loads((place.at / "queries/golden.json").read_bytes())
    golden["vectors"][3][0] += 1e-3
    (place.at / "queries/golden.json").write_text(json.dumps(golden))
    with pytest.raises(ProofFailed, match="differs from the published vector"):
        check_golden(encoder, place.at)


@needs_int8
def test_a_student_without_int8_stays_in_fp32_beside_a_teacher_in_int8(place: Place) -> None:
    both = place.store.open(place.pair.version, form=INT8)
    assert (both.form, both.for_queries.form) == (INT8, INT8)
    (place.at / "queries/onnx/int8.graph").unlink()
    files = {file: sha for file, sha in place.pair.files.items() if file != "queries/onnx/int8.graph"}
    changed(place.at, files=files)
    both = place.store.open(place.pair.version, form=INT8)
    assert (both.form, both.for_queries.form) == (INT8, FP32)
    assert check_golden(both, place.at) < 0.06


def test_the_command_says_what_the_student_costs(place: Place, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["--models-dir", str(place.store.root), "pair", place.teacher.version, place.student.version]
    assert main(arguments) == 0
    said = capsys.readouterr().out
    assert said.startswith(
        f"{place.pair.version} was published before: the student's queries have a mean cos"
    )
    place.store.prune(place.pair.version)
    assert main(arguments) == 0
    [version] = {known.version for known in place.store.versions()} - {*arguments[-2:]}
    assert capsys.readouterr().out.startswith(f"{version} published: ")
    assert main([*arguments[:3], place.student.version, place.teacher.version]) == 1
    assert "did not learn the vectors of" in capsys.readouterr().err
    assert main(["--models-dir", str(place.store.root), "verify", version]) == 0
