"""Fields from files and tables, each read by the library that writes them."""

from __future__ import annotations

import decimal
import io
import re
import tarfile

import numpy as np
import pyfab
import pytest
from pyfab.data import (
    FieldInfo,
    Ragged,
    ShardedStore,
    from_arrow,
    from_folder,
    from_parquet,
    from_raw,
    from_samples,
    from_tar,
)
from pyfab.data._readers import part


def listed(field):
    return [sample.tolist() for sample in field] if isinstance(field, Ragged) else field.tolist()


def test_each_rank_gets_its_part():
    assert [list(part(range(7), rank, 3)) for rank in range(3)] == [[0, 1], [2, 3], [4, 5, 6]]
    with pytest.raises(pyfab.InvalidArgumentError):
        part([], 3, 3)


def test_samples_become_fields():
    fields = from_samples({"x": np.full(3, i), "n": i, "t": np.arange(i), "s": "ab" * i} for i in range(3))
    assert fields["x"].shape == (3, 3)
    assert fields["n"].tolist() == [0, 1, 2]
    assert listed(fields["t"]) == [[], [0], [0, 1]]
    assert bytes(fields["s"][2]) == b"abab"
    with pytest.raises(pyfab.InvalidArgumentError, match="no samples"):
        dict(from_samples([]))
    with pytest.raises(pyfab.InvalidArgumentError, match="sample 1"):
        dict(from_samples([{"a": 1}, {"b": 1}]))
    with pytest.raises(pyfab.InvalidArgumentError, match="first dimension"):
        dict(from_samples([{"a": np.zeros((1, 2))}, {"a": np.zeros((1, 3))}]))


SCHEMA = (
    FieldInfo("x", "<f4", (3,), False),
    FieldInfo("n", "<i8", (), False),
    FieldInfo("t", "<i4", (), True),
    FieldInfo("s", "|u1", (), True),
)


def with_schema(group: pyfab.Group) -> None:
    """Ranks with no samples, with ragged ones of one length, and with all kinds give fields of one kind."""
    samples = [
        {"x": np.full(3, i), "n": np.int32(i), "t": np.arange(2 if group.rank == 1 else i), "s": "ab" * i}
        for i in range(3 * group.rank)
    ]
    with ShardedStore(group, from_samples(samples, SCHEMA)) as store:
        assert store.fields == SCHEMA and store.counts == (0, 3, 6)
        batch = store.gather([2, 8])
        assert batch["x"].tolist() == [[2] * 3, [5] * 3] and batch["n"].tolist() == [2, 5]
        assert listed(batch["t"]) == [[0, 1], [0, 1, 2, 3, 4]]
        assert store.fields == tuple(from_samples_fields(from_samples([], store.fields)))


def from_samples_fields(fields):
    for name, values in fields.items():
        array = values.values if isinstance(values, Ragged) else values
        yield FieldInfo(name, array.dtype.str, array.shape[1:], isinstance(values, Ragged))


@pytest.mark.slow
def test_a_schema_makes_the_fields_of_all_ranks_alike(tmp_path):
    pyfab.spawn(with_schema, 3, links="shm", timeout=60)
    good = {"x": np.zeros(3), "n": 1, "t": [1], "s": b"1"}
    for change, words in (
        ({"x": np.zeros(4)}, "'x' has samples of float64[4]; the schema says 'x': float32[3]"),
        ({"n": 1.5}, "'n' has samples of float64[]; the schema says 'n': int64[]"),
        (
            {"t": [2**31]},
            "'t' has numbers from 2147483648 to 2147483648; the schema says 't': ragged int32[]",
        ),
        ({"x": b"abc"}, "'x' has samples of ragged uint8[]"),
        ({"t": [[1, 2]]}, "'t' has samples of ragged int64[2]; the schema says 't': ragged int32[]"),
        ({"z": 1}, "sample 0 has the fields x, n, t, s, z, the schema x, n, t, s"),
    ):
        with pytest.raises(pyfab.InvalidArgumentError, match=re.escape(words)):
            dict(from_samples([good | change], SCHEMA))
    for empty in (from_tar([], dict, schema=SCHEMA), from_folder(tmp_path, dict, schema=SCHEMA)):
        assert [len(values) for values in empty.values()] == [0] * 4
    for without in (
        lambda: from_samples([]),
        lambda: from_tar([], dict),
        lambda: from_folder(tmp_path, dict),
    ):
        with pytest.raises(pyfab.InvalidArgumentError, match="schema="):
            dict(without())


def test_raw_files_are_mapped(tmp_path):
    path = tmp_path / "x.raw"
    path.write_bytes(b"head" + np.arange(12, dtype="<f4").tobytes())
    mapped = from_raw(path, "<f4", (3,), offset=4)
    assert isinstance(mapped, np.memmap)
    np.testing.assert_array_equal(mapped, np.arange(12).reshape(4, 3))
    with pytest.raises(pyfab.InvalidArgumentError, match="whole number"):
        from_raw(path, "<f4", (3,))


def test_columns_of_arrow():
    pa = pytest.importorskip("pyarrow")
    columns = {
        "i": pa.array([1, 2, 3], pa.int16()),
        "f": pa.array([0.5, 1.5, 2.5]),
        "b": pa.array([True, False, True]),
        "l": pa.array([[1], [], [2, 3]], pa.list_(pa.int32())),
        "w": pa.array([[1, 2], [3, 4], [5, 6]], pa.list_(pa.int64(), 2)),
        "s": pa.array(["a", "", "bcd"]),
        "y": pa.array([b"12", b"3", b""], pa.large_binary()),
    }
    table = pa.table(columns)
    for given in (
        table,
        pa.concat_tables([table.slice(0, 1), table.slice(1, 2)]),
        pa.concat_tables([table, table, table]).slice(3, 3),
        table.to_batches()[0],
    ):
        fields = from_arrow(given)
        assert fields["i"].tolist() == [1, 2, 3] and fields["i"].dtype == np.int16
        assert fields["f"].tolist() == [0.5, 1.5, 2.5]
        assert fields["b"].tolist() == [True, False, True]
        assert listed(fields["l"]) == [[1], [], [2, 3]]
        assert fields["w"].tolist() == [[1, 2], [3, 4], [5, 6]]
        assert [bytes(sample) for sample in fields["s"]] == [b"a", b"", b"bcd"]
        assert [bytes(sample) for sample in fields["y"]] == [b"12", b"3", b""]
    assert list(from_arrow(table, ["f"])) == ["f"]
    with pytest.raises(pyfab.InvalidArgumentError, match="'n' holds 1 nulls"):
        from_arrow(pa.table({"n": pa.array([1, None])}))
    with pytest.raises(pyfab.InvalidArgumentError, match="'d' has type"):
        from_arrow(pa.table({"d": pa.array([decimal.Decimal("1.5")])}))
    with pytest.raises(pyfab.InvalidArgumentError, match="no column z"):
        from_arrow(table, ["z"])


def test_nested_columns_and_nulls_of_arrow():
    pa = pytest.importorskip("pyarrow")
    days = ["2024-02-29", "1969-12-31", "2000-01-01", "2001-01-01"]
    image = [
        {"bytes": b"12", "path": "a", "size": {"w": 1}},
        None,
        {"bytes": b"", "path": None, "size": None},
    ]
    image.append({"bytes": b"345", "path": "", "size": {"w": None}})
    words = [["a", "bcd"], [], None, ["", None]]
    columns = {
        "image": pa.array(image),
        "words": pa.array(words, pa.list_(pa.string())),
        "kind": pa.array(["x", "y", None, "x"]).dictionary_encode(),
        "day": pa.array(np.array(days, "M8[D]"), pa.date32()),
        "at": pa.array(np.array(days, "M8[ms]"), pa.timestamp("ms")),
        "took": pa.array([1, 2, 3, 4], pa.duration("us")),
        "n": pa.array([1, None, 3, 4], pa.int8()),
        "l": pa.array([[1, None], None, [], [4]], pa.list_(pa.float32())),
    }
    table = pa.table(columns)
    fill = {"n": -1, "l": 9, "kind": b"", "image": -5, "image.size.w": 7, "words": None}
    for given in (table, pa.concat_tables([table.slice(0, 1), table.slice(1)]), table.to_batches()[0]):
        fields = from_arrow(given, fill=fill)
        texts = {
            name: [bytes(sample) for sample in fields[name]]
            for name in ("image.bytes", "image.path", "kind", "words")
        }
        assert texts["image.bytes"] == [b"12", b"", b"", b"345"] and texts["image.path"] == [
            b"a",
            b"",
            b"",
            b"",
        ]
        assert texts["kind"] == [b"x", b"y", b"", b"x"] and texts["words"] == [b"abcd", b"", b"", b""]
        assert listed(fields["words.lengths"]) == [[1, 3], [], [], [0, 0]]
        assert fields["image.size.w"].tolist() == [1, 7, 7, 7]
        assert fields["day"].astype("M8[D]").astype(str).tolist() == days
        assert fields["at"].dtype == "M8[ms]" and fields["took"].dtype == "m8[us]"
        assert fields["n"].tolist() == [1, -1, 3, 4] and fields["n"].dtype == np.int8
        assert listed(fields["l"]) == [[1, 9], [], [], [4]]
    for name in ("image", "words", "kind", "n", "l"):
        with pytest.raises(pyfab.InvalidArgumentError, match=rf"column '{name}.*nulls; fill them"):
            from_arrow(table, [name])
    with pytest.raises(pyfab.InvalidArgumentError, match="column 'n': fill=1000 is no int8"):
        from_arrow(table, ["n"], fill=1000)
    with pytest.raises(pyfab.InvalidArgumentError, match=r"'words\.lengths' already"):
        from_arrow(pa.table({"words.lengths": [1, 2, 3, 4], "words": columns["words"]}), fill=0)


def write_tar(path, samples):
    with tarfile.open(path, "w") as tar:
        for name, content in samples:
            member = tarfile.TarInfo(name)
            member.size = len(content)
            tar.addfile(member, io.BytesIO(content))


def test_names_of_many_tars(tmp_path):
    (tmp_path / "more").mkdir()
    for number in (8, 9, 10):
        write_tar(tmp_path / f"t-{number:03}.tar", [("a.n", str(number).encode())])
    write_tar(tmp_path / "more" / "{1..2}.tar", [("a.n", b"77")])

    def numbers(paths):
        return from_tar(paths, lambda sample: {"n": int(sample["n"])})["n"].tolist()

    assert numbers(f"{tmp_path}/t-{{008..010}}.tar") == [8, 9, 10]
    assert numbers(f"{tmp_path}/t-{{010,009}}.tar") == [10, 9]
    with pytest.raises(pyfab.InvalidArgumentError, match="names a file twice"):
        numbers(f"{tmp_path}/t-0{{10,0{{9..8}}}}.tar")
    assert numbers(tmp_path) == [77, 8, 9, 10]
    assert numbers([tmp_path / "more" / "{1..2}.tar", f"{tmp_path}/t-008.tar"]) == [77, 8]
    (tmp_path / "empty").mkdir()
    with pytest.raises(pyfab.InvalidArgumentError, match=r"empty has no files \*\.tar"):
        numbers(tmp_path / "empty")


def test_bad_samples_are_left_out_and_counted(tmp_path):
    write_tar(tmp_path / "0.tar", [(f"{i}.n", b"x" if i == 1 else str(i).encode()) for i in range(4)])
    write_tar(tmp_path / "1.tar", [(f"{i}.n", str(i).encode() + b" " * 20_000) for i in range(4, 8)])
    cut = (tmp_path / "1.tar").read_bytes()
    (tmp_path / "1.tar").write_bytes(cut[: len(cut) // 2])  # in the middle of the third sample
    told = []

    def reader(sample):
        return {"n": int(sample["n"])}

    fields = from_tar(tmp_path, reader, on_error=lambda error, name: told.append((type(error), name)))
    for _ in range(2):
        with pyfab.Group(0, 1, domain="shm") as group, ShardedStore(group, fields) as store:
            assert store[:]["n"].tolist() == [0, 2, 3, 4, 5] and fields.skipped == 2
    assert told[:2] == [(ValueError, f"1 of {tmp_path}/0.tar"), (tarfile.ReadError, f"{tmp_path}/1.tar")]
    with pytest.raises(ValueError, match="invalid literal") as raised:
        dict(from_tar(tmp_path, reader))
    notes = getattr(raised.value, "__notes__", None)  # since Python 3.11
    assert notes in (None, [f"while reading 1 of {tmp_path}/0.tar"])

    (tmp_path / "x.bin").write_bytes(b"")
    (tmp_path / "y.bin").write_bytes(b"y")

    def strict(path):
        return {"n": path.read_bytes()[0]}

    fields = from_folder(tmp_path, strict, "*.bin", on_error=lambda *_: None)
    assert fields["n"].tolist() == [ord("y")] and fields.skipped == 1


def test_row_groups_of_parquet_are_shared_out(tmp_path):
    pa = pytest.importorskip("pyarrow")
    import pyarrow.parquet as pq

    paths = []
    for number in range(2):
        paths.append(tmp_path / f"{number}.parquet")
        numbers = np.arange(number * 10, number * 10 + 10)
        pq.write_table(
            pa.table({"x": numbers, "t": [[n] * (n % 3) for n in numbers]}), paths[-1], row_group_size=4
        )
    parts = [from_parquet(paths, rank=rank, size=8) for rank in range(8)]
    assert np.concatenate([part["x"] for part in parts]).tolist() == list(range(20))
    assert [sample for part in parts for sample in listed(part["t"])] == [[n] * (n % 3) for n in range(20)]
    assert parts[0]["x"].dtype == np.int64 and len(parts[0]["x"]) == 0  # 6 row groups for 8 ranks


def test_tars_and_folders_go_through_a_reader(tmp_path):
    for number in range(2):
        with tarfile.open(tmp_path / f"{number}.tar", "w") as tar:
            for i in range(3):
                for extension, content in ((".img", bytes([number, i])), (".cls", str(i).encode())):
                    member = tarfile.TarInfo(f"dir.x/{number}-{i}{extension}")
                    member.size = len(content)
                    tar.addfile(member, io.BytesIO(content))

    def reader(sample):
        return {
            "image": np.frombuffer(sample["img"], np.uint8),
            "label": int(sample["cls"]),
            "key": sample["__key__"],
        }

    tars = sorted(tmp_path.glob("*.tar"))
    fields = from_tar(tars, reader)
    assert fields["image"].tolist() == [[n, i] for n in range(2) for i in range(3)]
    assert fields["label"].tolist() == [0, 1, 2] * 2
    assert bytes(fields["key"][4]) == b"dir.x/1-1"
    assert from_tar(tars, reader, rank=1, size=2)["image"].tolist() == [[1, i] for i in range(3)]
    with pytest.raises(pyfab.InvalidArgumentError, match="leave rank 0 without"):
        dict(from_tar(tars, reader, rank=0, size=3))

    folder = tmp_path / "images"
    for name in ("a/1.bin", "b/2.bin", "b/3.txt"):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(name.encode())
    fields = from_folder(folder, lambda path: {"content": path.read_bytes()}, "**/*.bin")
    assert [bytes(sample) for sample in fields["content"]] == [b"a/1.bin", b"b/2.bin"]
    with pytest.raises(pyfab.InvalidArgumentError, match="match"):
        dict(from_folder(folder, lambda _: {}, "*.png"))


@pytest.mark.parametrize("rows", [[{"x": []}] * 16384 + [{"x": [2**53 + 1]}, {"x": [2**53 + 1, 2]}]])
def test_empty_lists_do_not_say_what_dtype_there_is(rows):
    """So many that one piece of the stream has no others."""
    fields = from_samples(rows)
    assert fields["x"].values.dtype == np.int64
    assert fields["x"].values.tolist() == [2**53 + 1, 2**53 + 1, 2]
    with pyfab.Group(0, 1, domain="shm") as group, ShardedStore(group, from_samples(rows)) as store:
        assert store.fields[0].dtype == "<i8"


@pytest.mark.parametrize("ids", [[5, 2**63 + 1], [[1, 2], [2**63 + 1]]])
def test_integers_are_not_rounded(ids):
    with pytest.raises(pyfab.InvalidArgumentError, match=r"int64 and uint64 .* would round them"):
        from_samples([{"id": each} for each in ids])["id"]


@pytest.mark.parametrize(
    "value, dtype",
    [("abcdef", "<U3"), (b"abcdef", "S3"), (np.datetime64("2026-01-01T00:00:00.5", "ms"), "M8[s]")],
)
def test_a_schema_cuts_nothing_off(value, dtype):
    with pytest.raises(pyfab.InvalidArgumentError, match="sample 0"):
        from_samples([{"s": np.array(value)}], schema=[FieldInfo("s", dtype, (), False)])["s"]


def tar_of(path, *members):
    """Members are names, or pairs of a name and that of the file which it is a link to."""
    with tarfile.open(path, "w") as tar:
        for member in members:
            name, linked = member if isinstance(member, tuple) else (member, "")
            info = tarfile.TarInfo(name)
            if linked:
                info.type, info.linkname = tarfile.LNKTYPE, linked
            else:
                info.size = 4
            tar.addfile(info, io.BytesIO(f"{len(tar.getnames()):4}".encode()))


def number_of(sample):
    return {"x": int(next(value for name, value in sample.items() if name == "bin"))}


def test_a_damaged_or_shortened_tar_is_an_error(tmp_path):
    tar_of(tmp_path / "whole.tar", *(f"{number}.bin" for number in range(10)))
    whole = (tmp_path / "whole.tar").read_bytes()
    assert len(from_tar(tmp_path / "whole.tar", number_of)["x"]) == 10
    damaged = bytearray(whole)
    damaged[5 * 1024 + 10] ^= 255  # in the sixth header
    for name, content in (("damaged.tar", bytes(damaged)), ("cut.tar", whole[:4096])):
        (tmp_path / name).write_bytes(content)
        with pytest.raises(tarfile.ReadError, match="the file is damaged, or cut off"):
            from_tar(tmp_path / name, number_of)["x"]


def test_linked_files_and_repeated_names_of_a_tar_are_samples(tmp_path):
    tar_of(tmp_path / "linked.tar", "a.bin", ("b.bin", "a.bin"), "c.bin")
    assert from_tar(tmp_path / "linked.tar", number_of)["x"].tolist() == [0, 0, 2]
    tar_of(tmp_path / "repeated.tar", "a.bin", "a.cls", "a.bin", "a.cls")
    assert from_tar(tmp_path / "repeated.tar", number_of)["x"].tolist() == [0, 2]
