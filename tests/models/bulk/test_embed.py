"""`embed` computes what the service computes, and loses, doubles or tears no row."""

import contextlib
import gzip
import json
import os
import pickle
import shutil
import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from models.__main__ import main
from models.bulk import command, vector_files
from models.bulk.embedder import BulkEmbedder
from models.bulk.inputs import InputError
from models.bulk.job import JobError
from models.bulk.vector_files import DONE, JOB, VectorFile, VectorFileError, open_folder
from models.files.folders import lock
from models.search.content import Content, derived_id
from models.store import ModelStore
from service.store.sqlite.schema import DATABASE
from tests.models.bulk import jobs
from tests.service.conftest import new_settings, serving
from tests.tiny import ROUNDING


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return jobs.write_parquet(tmp_path_factory.mktemp("in") / "in.parquet", jobs.documents(300), group=130)


@pytest.fixture(scope="module")
def out(tmp_path_factory: pytest.TempPathFactory, tiny_models_dir: Path, source: Path) -> Path:
    """The results of `source` in parts of at most 70 rows. Read only."""
    folder = tmp_path_factory.mktemp("out") / "out"
    jobs.embed(tiny_models_dir, source, folder, part_rows=70, others=None)
    return folder


@pytest.mark.sqlite("reads its table of vectors")
@pytest.mark.parametrize("passages", [True, False])
def test_vectors_are_those_that_the_service_stores(
    tmp_path: Path, tiny_models_dir: Path, source: Path, passages: bool
) -> None:
    collection = "default" if passages else None
    jobs.embed(tiny_models_dir, source, tmp_path / "out", collection=collection)
    found = jobs.by_id(tmp_path / "out")
    settings = new_settings(tmp_path / "data", tiny_models_dir, passages=passages)
    with serving(settings) as client:
        sent = [
            {name: row[name] for name in ("id", "title", "text") if row[name]} for row in jobs.documents(300)
        ]
        assert client.post("/documents", json={"documents": sent}).status_code == 200
    with closing(sqlite3.connect(settings.data_dir / DATABASE)) as connection:
        stored = connection.execute(
            "SELECT id, start_at, end_at, vector, truncated FROM vectors JOIN documents USING (revision) "
            "ORDER BY revision, passage"
        ).fetchall()
    expected: dict[str, list[tuple[int, int | None, bytes, int]]] = {}
    for id, *passage in stored:
        expected.setdefault(id, []).append(tuple(passage))
    assert found.keys() == expected.keys()
    assert any(len(each) > 2 for each in expected.values()) == passages
    for id, (_, _, mine) in found.items():
        assert len(mine) == len(expected[id])
        for one, other in zip(mine, expected[id], strict=True):
            assert (one[0], one[1], one[3]) == (other[0], other[1], bool(other[3]))
            assert np.abs(one[2] - np.frombuffer(other[2], "<f4")).max() < ROUNDING


def test_parts_follow_the_row_groups_and_name_the_vectors(
    out: Path, source: Path, tiny_models_dir: Path
) -> None:
    parts = open_folder(str(out))
    assert [part.rows for part in parts] == [70, 60, 70, 60, 40], "row groups of 130, 130 and 40"
    manifest = ModelStore(tiny_models_dir).versions()[0]
    for part in parts:
        assert part.description.fingerprint == manifest.fingerprint
        assert part.description.version == manifest.version
        assert part.description.precision == "fp32/onnxruntime"
        assert part.description.passages == "default"
        part.check()
    ids = [id for rows in jobs.read_all(out) for id in rows.ids]
    assert ids == [row["id"] for row in jobs.documents(300)], "the order of the input"
    years = [year for rows in jobs.read_all(out) for year in rows.others["year"].to_pylist()]
    assert years == [row["year"] for row in jobs.documents(300)]


@pytest.mark.parametrize("ending", ["jsonl", "csv", "jsonl.gz"])
def test_text_files_give_the_documents_of_parquet(
    tmp_path: Path, tiny_models_dir: Path, out: Path, ending: str
) -> None:
    rows, file = jobs.documents(300), tmp_path / f"in.{ending}"
    if ending == "csv":
        jobs.write_csv(file, rows)
    else:
        jobs.write_jsonl(file, rows)
        if ending.endswith("gz"):
            file.write_bytes(gzip.compress(file.read_bytes()))
    counts = jobs.embed(tiny_models_dir, file, tmp_path / "out", part_rows=150, others=None)
    assert counts == {"format": 1, "parts": 2, "documents": 300, "rejected": 0}
    mine, other = jobs.by_id(tmp_path / "out"), jobs.by_id(out)
    assert [*mine] == [*other]
    for id, (title, text, passages) in mine.items():
        assert (title, text) == other[id][:2]
        for one, two in zip(passages, other[id][2], strict=True):
            assert one[:2] == two[:2]
            assert np.abs(one[2] - two[2]).max() < ROUNDING
    others = jobs.read_all(tmp_path / "out")[0].others
    if ending == "csv":
        assert others["year"].to_pylist()[:2] == ["1900", "1901"], "a CSV file has only text"
    else:
        assert json.loads(others["metadata"][1].as_py()) == {"year": 1901}


def test_every_row_is_a_document_or_a_reject_with_a_reason(tmp_path: Path, tiny_models_dir: Path) -> None:
    lines = [
        '{"id": "good", "text": "red river"}',
        "{half",
        '{"id": "empty", "text": " "}',
        '{"id": "none"}',
        '{"id": "number", "text": 7}',
        '{"id": "list", "text": ["red"]}',
        '{"text": "no id"}',
        '{"id": "nul", "text": "a\\u0000b"}',
        f'{{"id": "{"x" * 513}", "text": "long id"}}',
        '{"id": "only title", "title": "garden", "text": ""}',
        '{"id": "inexact", "text": "red", "size": 123456789012345678901234567890}',
        "[1]",
    ]
    (tmp_path / "in.jsonl").write_text("\n".join(lines), encoding="utf-8")
    counts = jobs.embed(tiny_models_dir, tmp_path / "in.jsonl", tmp_path / "out", part_rows=5)
    found, refused = jobs.by_id(tmp_path / "out"), jobs.rejects(tmp_path / "out")
    assert [*found] == ["good", "number", derived_id("", "no id"), "only title"]
    assert found["number"][1] == "7"
    assert found["only title"][:2] == ("", "garden"), "as import does"
    assert {each["row"]: each["reason"].split(" (")[0] for each in refused} == {
        2: "it is not valid JSON",
        3: "the text is empty",
        4: "the field 'text' is missing or null",
        6: "the field 'text' is not a text",
        8: "it holds a NUL character",
        9: "the id has 513 characters, and at most 512 are allowed",
        11: refused[6]["reason"].split(" (")[0],
        12: "it is not a JSON object",
    }
    assert "123456789012345678901234567890" in refused[6]["reason"]
    assert counts["documents"] + counts["rejected"] == len(lines)


def test_a_csv_row_with_a_wrong_number_of_cells_is_a_reject(tmp_path: Path, tiny_models_dir: Path) -> None:
    (tmp_path / "in.csv").write_text('id,text\na,"red, river"\nb,one,two\nc,"x""y"\n', encoding="utf-8")
    jobs.embed(tiny_models_dir, tmp_path / "in.csv", tmp_path / "out")
    assert [(id, each[1]) for id, each in jobs.by_id(tmp_path / "out").items()] == [
        ("a", "red, river"),
        ("c", 'x"y'),
    ]
    [refused] = jobs.rejects(tmp_path / "out")
    assert refused == {
        "row": 3,
        "reason": "it has 3 cells, and the first line names 2 columns",
        "start": "b",
    }


def test_a_text_that_the_model_cannot_read_is_a_reject(tmp_path: Path, tiny_models_dir: Path) -> None:
    column = pa.array([b"red river", b"\xff\xfe", b"garden"], pa.binary()).cast(pa.string(), safe=False)
    pq.write_table(pa.table({"id": pa.array([1, 2, 3]), "text": column}), tmp_path / "in.parquet")
    jobs.embed(tiny_models_dir, tmp_path / "in.parquet", tmp_path / "out")
    assert [*jobs.by_id(tmp_path / "out")] == ["1", "3"]
    [refused] = jobs.rejects(tmp_path / "out")
    assert (refused["row"], refused["id"]) == (2, "2")
    assert "not text" in refused["reason"]


def test_a_restart_computes_only_the_missing_parts(
    tmp_path: Path, tiny_models_dir: Path, source: Path, out: Path
) -> None:
    shutil.copytree(out, tmp_path / "out")
    gone = tmp_path / "out" / "part-00000-00001-00000.parquet"
    before = {file.name: file.stat().st_mtime_ns for file in (tmp_path / "out").glob("part-*")}
    gone.unlink()
    (tmp_path / "out" / DONE).unlink()
    (tmp_path / "out" / ".part-00000-00001-00000.parquet-0a").write_bytes(b"PAR1 half")
    with pytest.raises(VectorFileError, match=r"not complete: it has no done\.json"):
        open_folder(str(tmp_path / "out"))
    jobs.embed(tiny_models_dir, source, tmp_path / "out", part_rows=70, others=None)
    after = {file.name: file.stat().st_mtime_ns for file in (tmp_path / "out").glob("part-*")}
    assert {name for name in before if before[name] != after[name]} == {gone.name}
    assert not [*(tmp_path / "out").glob(".part-*")]
    assert np.abs(jobs.vectors(tmp_path / "out") - jobs.vectors(out)).max() < ROUNDING


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"half": True}, "half was False, and is True now"),
        ({"part_rows": 60}, "part_rows was 70, and is 60 now"),
        ({"others": ()}, "others was None, and is 0 items now"),
        ({"precision": "int8"}, "precision was 'fp32/onnxruntime', and is 'int8/onnxruntime' now"),
        ({"collection": None}, "passages was 'default', and is 'none' now"),
    ],
)
def test_a_folder_continues_only_the_same_job(
    tiny_models_dir: Path, source: Path, out: Path, change: dict[str, object], said: str
) -> None:
    options: dict[str, object] = {"part_rows": 70, "others": None} | change
    with pytest.raises(JobError, match="has the results of another job") as refused:
        jobs.embed(tiny_models_dir, source, out, **options)
    assert said in str(refused.value)


def test_a_changed_input_and_a_folder_of_other_files_are_refused(
    tmp_path: Path, tiny_models_dir: Path
) -> None:
    file = jobs.write_jsonl(tmp_path / "in.jsonl", jobs.documents(10))
    jobs.embed(tiny_models_dir, file, tmp_path / "out")
    jobs.write_jsonl(file, jobs.documents(11))
    with pytest.raises(JobError, match="size was"):
        jobs.embed(tiny_models_dir, file, tmp_path / "out")
    with pytest.raises(JobError, match="has files that are not of this job"):
        jobs.embed(tiny_models_dir, file, tmp_path)


def test_a_missing_column_is_named_with_the_columns_that_exist(tmp_path: Path, tiny_models_dir: Path) -> None:
    pq.write_table(pa.table({"body": ["red"]}), tmp_path / "in.parquet")
    with pytest.raises(InputError, match="has no column 'text'; it has body"):
        jobs.embed(tiny_models_dir, tmp_path / "in.parquet", tmp_path / "out")
    pq.write_table(pa.table({"text": ["red"], "vector": [1]}), tmp_path / "in.parquet")
    with pytest.raises(InputError, match="'vector' would collide"):
        jobs.embed(tiny_models_dir, tmp_path / "in.parquet", tmp_path / "out", others=None)
    pq.write_table(pa.table({"text": [1.5]}), tmp_path / "in.parquet")
    with pytest.raises(InputError, match="has the type double, and must be text"):
        jobs.embed(tiny_models_dir, tmp_path / "in.parquet", tmp_path / "out")


def test_half_stores_fp16(tmp_path: Path, tiny_models_dir: Path, source: Path, out: Path) -> None:
    jobs.embed(tiny_models_dir, source, tmp_path / "out", half=True)
    [first, *_] = open_folder(str(tmp_path / "out"))
    assert first.half
    assert first.schema.field("vector").type.value_type == pa.float16()
    difference = np.abs(jobs.vectors(tmp_path / "out") - jobs.vectors(out))
    assert 0 < difference.max() < 2**-11


def test_a_damaged_or_foreign_file_is_refused_with_a_sentence(tmp_path: Path, out: Path) -> None:
    [part, *_] = sorted(out.glob("part-*.parquet"))
    content = part.read_bytes()
    file = tmp_path / "part.parquet"
    file.write_bytes(content[:-9])
    with pytest.raises(VectorFileError, match="is not a whole Parquet file"):
        VectorFile(str(file))
    group = pq.ParquetFile(part).metadata.row_group(0)
    column = next(
        group.column(at) for at in range(group.num_columns) if "vector" in group.column(at).path_in_schema
    )
    at = column.data_page_offset + column.total_compressed_size // 2
    file.write_bytes(content[:at] + bytes([content[at] ^ 1]) + content[at + 1 :])
    with pytest.raises(VectorFileError, match="is damaged"):
        VectorFile(str(file)).check()
    table = pq.read_table(part)
    pq.write_table(table.replace_schema_metadata({"simile.format": "2"}), file)
    with pytest.raises(VectorFileError, match="has format 2, and this release reads format 1"):
        VectorFile(str(file))
    pq.write_table(table.replace_schema_metadata({}), file)
    with pytest.raises(VectorFileError, match="was not written by `simile embed`"):
        VectorFile(str(file))
    for value, said in ((np.nan, "is not finite"), (3.0, "has length")):
        vectors = np.array(table["vector"].to_pylist(), np.float32)
        vectors[4, 0] = value
        kind = table.schema.field("vector").type
        column = pa.FixedSizeListArray.from_arrays(pa.array(vectors.ravel()), type=kind)
        place = table.schema.get_field_index("vector")
        pq.write_table(table.set_column(place, table.schema.field("vector"), column), file)
        with pytest.raises(VectorFileError, match=f"the vector of the document 'd4' {said}"):
            VectorFile(str(file)).check()


def test_the_embedder_takes_columns_and_survives_pickling(tiny_models_dir: Path, out: Path) -> None:
    rows = jobs.documents(40)
    batch = {"text": np.array([row["text"] for row in rows], object), "title": [row["title"] for row in rows]}
    with BulkEmbedder(jobs.version(tiny_models_dir), tiny_models_dir) as embedder:
        copy = pickle.loads(pickle.dumps(embedder))
        table = embedder(batch)
        again = copy({name: pa.array(column) for name, column in batch.items()})
    assert table.column_names == ["text", "title", "vector", "vector_end", "truncated", "passages", "error"]
    assert table["error"].null_count == 40
    vectors = np.array(table["vector"].to_pylist(), np.float32)
    assert np.abs(vectors - jobs.vectors(out)[:40]).max() < ROUNDING
    assert np.abs(vectors - np.array(again["vector"].to_pylist(), np.float32)).max() < ROUNDING
    empty = copy({"text": pa.array([None, "red"], pa.string())})
    assert empty["error"].to_pylist() == ["the text is empty", None]
    assert empty["vector"].null_count == 1


def test_a_failing_text_fails_alone(tiny_models_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with BulkEmbedder(jobs.version(tiny_models_dir), tiny_models_dir) as embedder:
        right = embedder.embed([Content("red river")]).vectors
        forward = embedder._encoder.forward
        [bad] = embedder._encoder.tokenize(["garden"])

        def failing(ids: list[list[int]]) -> object:
            if any([*row] == [*bad.ids] for row in ids):
                raise RuntimeError("no")
            return forward(ids)

        monkeypatch.setattr(embedder._encoder, "forward", failing)
        found = embedder.embed([Content("garden"), Content("red river")])
        assert found.errors == {0: "the model failed on the text: RuntimeError: no"}
        assert np.abs(found.vectors[1] - right[0]).max() < ROUNDING
        with pytest.raises(RuntimeError):
            embedder.embed([Content("garden")])


def test_the_embedder_needs_no_fastapi_and_no_service() -> None:
    code = (
        "import sys, models.bulk.job, models.bulk.command\n"
        "print([name for name in ('fastapi', 'service', 'torch', 'faiss') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


def test_other_commands_need_no_pyarrow_and_embed_names_it() -> None:
    code = (
        "import sys\nsys.modules['pyarrow'] = None\nfrom models.__main__ import main\n"
        "assert main(['--models-dir', '/nowhere', 'list']) == 0\n"
        "main(['--models-dir', '/nowhere', 'embed', 'in', 'out'])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "embed needs pyarrow. Install it: " in done.stderr
    assert "[bulk]" in done.stderr


def test_the_command_embeds_a_folder_with_the_requested_version(
    tmp_path: Path,
    tiny_models_dir: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    kept: list[bool] = []
    monkeypatch.setattr(command, "keep_buffers", lambda: kept.append(True))  # It would change this process.
    (tmp_path / "in" / "b").mkdir(parents=True)
    rows = jobs.documents(20)
    jobs.write_jsonl(tmp_path / "in" / "b" / "1.jsonl", rows[10:])
    jobs.write_csv(tmp_path / "in" / "a.csv", rows[:10])
    (tmp_path / "in" / "README.txt").write_text("not an input", encoding="utf-8")
    arguments = ["embed", str(tmp_path / "in"), str(tmp_path / "out"), "--columns", "year", "--half"]
    assert main([*arguments, "--models-dir", str(tiny_models_dir)]) == 0
    assert capsys.readouterr().out == f"20 documents in 2 parts: {tmp_path / 'out'}\n"
    assert [*jobs.by_id(tmp_path / "out")] == [row["id"] for row in rows]
    assert kept == [True]
    assert main([*arguments, "--models-dir", str(tiny_models_dir), "--no-text"]) == 1
    assert "with_text was True, and is False now" in capsys.readouterr().err


KILLS = int(os.environ.get("KILLS", "100"))


@pytest.mark.long
def test_kills_lose_double_and_tear_no_part(tmp_path: Path, tiny_models_dir: Path) -> None:
    jobs.write_jsonl(
        tmp_path / "in.jsonl", [*jobs.documents(5000, long_every=100), {"id": "empty", "text": ""}]
    )
    command = [sys.executable, "-m", "tests.models.bulk.killed", str(tiny_models_dir), str(tmp_path)]
    done = subprocess.run([*command, str(KILLS)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["kills"] == KILLS
    assert found["kept"] > KILLS, "too few parts were complete when the process was killed"
    assert found["torn"] > 0, "no part was being written when the process was killed"


def test_the_format_lists_its_columns() -> None:
    documented = vector_files.__doc__ or ""
    assert all(f"\n    {name} " in documented for name in vector_files.OWN)


def test_json_lines_keep_the_metadata_that_import_would_keep(tmp_path: Path, tiny_models_dir: Path) -> None:
    rows: list[dict[str, Any]] = [
        {"id": "a", "text": "red", "metadata": {"n": 2**53 + 1, "deep": {"é": [None, ""]}}, "year": 3},
        {"id": "b", "text": "red"},
        {"id": "text", "text": "red", "metadata": "x"},
        {"id": "other", "text": "red", "metadata": {}, "collection": "other"},
        {"id": "twice", "text": "red", "metadata": {"year": 1}, "year": 2},
    ]
    jobs.write_jsonl(tmp_path / "in.jsonl", rows)

    def kept(name: str, others: tuple[str, ...] | None) -> dict[str, Any]:
        jobs.embed(tiny_models_dir, tmp_path / "in.jsonl", tmp_path / name, others=others)
        [part] = (tmp_path / name).glob("part-*.parquet")
        table = pq.read_table(part)
        return {row["id"]: json.loads(row["metadata"]) for row in table.to_pylist()}

    metadata = rows[0]["metadata"]
    assert kept("object", ()) == {"a": metadata, "b": {}, "twice": {"year": 1}}
    assert {each["row"]: each["reason"] for each in jobs.rejects(tmp_path / "object")} == {
        3: "the field 'metadata' is not an object",
        4: "it belongs to the collection 'other'. Export one collection to embed it",
    }
    assert kept("all", None) == {"a": {"year": 3} | metadata, "b": {}, "text": {"metadata": "x"}}
    assert [each["row"] for each in jobs.rejects(tmp_path / "all")] == [4, 5]


def test_inputs_that_cannot_be_read_as_asked_are_named(tmp_path: Path, tiny_models_dir: Path) -> None:
    column = pa.array(["red"])
    pq.write_table(pa.table([column] * 3, ["text", "x", "x"]), tmp_path / "in.parquet")
    jobs.embed(tiny_models_dir, tmp_path / "in.parquet", tmp_path / "one")
    with pytest.raises(InputError, match="two columns have the name 'x'"):
        jobs.embed(tiny_models_dir, tmp_path / "in.parquet", tmp_path / "out", others=None)
    pq.write_table(pa.table([column] * 2, ["text", "text"]), tmp_path / "in.parquet")
    with pytest.raises(InputError, match="two columns have the name 'text'"):
        jobs.embed(tiny_models_dir, tmp_path / "in.parquet", tmp_path / "out")
    (tmp_path / "in.csv").write_text("id,text\na,red\n", encoding="utf-16")
    with pytest.raises(InputError, match=r"is UTF-16, not UTF-8. Choose it with --encoding utf-16"):
        jobs.embed(tiny_models_dir, tmp_path / "in.csv", tmp_path / "out")


def test_a_folder_inside_of_the_inputs_is_refused(
    tmp_path: Path, tiny_models_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "in").mkdir()
    jobs.write_jsonl(tmp_path / "in" / "a.jsonl", jobs.documents(3))
    for out in ("in", "in/out"):
        with pytest.raises(JobError, match="would be inputs of a restart"):
            jobs.embed(tiny_models_dir, tmp_path / "in", tmp_path / out)
    monkeypatch.chdir(tmp_path / "in")
    assert jobs.embed(tiny_models_dir, ".", "../out")["documents"] == 3


def test_a_second_process_of_a_folder_is_refused(tmp_path: Path, tiny_models_dir: Path) -> None:
    source = jobs.write_jsonl(tmp_path / "in.jsonl", jobs.documents(3))
    (tmp_path / "out").mkdir()
    descriptor = lock(tmp_path / "out")
    assert descriptor is not None
    with pytest.raises(JobError, match="Another process embeds into"):
        jobs.embed(tiny_models_dir, source, tmp_path / "out")
    os.close(descriptor)
    assert jobs.embed(tiny_models_dir, source, tmp_path / "out")["documents"] == 3


def test_a_torn_or_mixed_folder_says_what_to_do(tmp_path: Path, tiny_models_dir: Path) -> None:
    source = jobs.write_jsonl(tmp_path / "in.jsonl", jobs.documents(6))
    out, other = tmp_path / "out", tmp_path / "other"
    out.mkdir()
    (out / ".job.json-0123abcd").write_text("{")  # A kill before the first file was renamed.
    jobs.embed(tiny_models_dir, source, out, part_rows=3)
    assert [*out.glob(".*")] == []
    jobs.embed(tiny_models_dir, source, other, part_rows=3, others=None)
    first, second = sorted(out.glob("part-*.parquet"))
    shutil.copy(other / first.name, first)
    with pytest.raises(VectorFileError, match="is of another job than"):
        open_folder(str(out))
    second.write_bytes(second.read_bytes()[:-9])
    shutil.copy(second, first)
    with pytest.raises(JobError, match="Delete the file, then run the same command again"):
        jobs.embed(tiny_models_dir, source, out, part_rows=3)
    first.unlink()
    second.unlink()
    assert jobs.embed(tiny_models_dir, source, out, part_rows=3)["documents"] == 6
    assert [*jobs.by_id(out)] == [f"d{at}" for at in range(6)]
    for name, read in ((DONE, open_folder), (JOB, lambda place: jobs.embed(tiny_models_dir, source, place))):
        (out / name).write_text("{")
        with pytest.raises(VectorFileError, match=r"is damaged. Embed again into an empty folder"):
            read(str(out))


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--delimiter", "xx"), "'xx' cannot separate columns"),
        (("--device", "tpu"), "name cpu, cuda or cuda:N"),
        (("s3://KEY:SECRET@bucket/x?y=1",), "s3://bucket/x?y=1: "),
        (("ftp://KEY:SECRET@bucket/x",), "ftp://bucket/x: "),
        (("s3:/KEY:SECRET@bucket/x",), "one slash after its scheme. Write s3://bucket/x"),
        (("file/out",), "file/out"),
    ],
)
def test_wrong_arguments_are_named_without_credentials(
    tmp_path: Path,
    tiny_models_dir: Path,
    capsys: pytest.CaptureFixture[str],
    arguments: Any,
    said: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "file").write_text("x")
    jobs.write_csv(tmp_path / "in.csv", jobs.documents(3))
    out = () if arguments[0][0] != "-" else ("out",)
    with contextlib.suppress(SystemExit):
        assert main(["--models-dir", str(tiny_models_dir), "embed", "in.csv", *arguments, *out]) == 1
    told = capsys.readouterr().err
    assert said in told
    assert "SECRET" not in told
    assert "Traceback" not in told
    assert str(tiny_models_dir) not in told
