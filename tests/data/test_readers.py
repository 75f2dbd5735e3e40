"""Fields from files and tables, each read by the library that writes them."""

from __future__ import annotations

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
        from_samples([])
    with pytest.raises(pyfab.InvalidArgumentError, match="sample 1"):
        from_samples([{"a": 1}, {"b": 1}])
    with pytest.raises(pyfab.InvalidArgumentError, match="first dimension"):
        from_samples([{"a": np.zeros((1, 2))}, {"a": np.zeros((1, 3))}])


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


def test_a_schema_makes_the_fields_of_all_ranks_alike(tmp_path):
    pyfab.spawn(with_schema, 3, links="shm", timeout=60)
    good = {"x": np.zeros(3), "n": 1, "t": [1], "s": b"1"}
    for change, words in (
        ({"x": np.zeros(4)}, "'x' has samples of float64[4]; the schema says x: float32[3]"),
        ({"n": 1.5}, "'n' has samples of float64[]; the schema says n: int64[]"),
        ({"t": [2**31]}, "'t' has numbers from 2147483648 to 2147483648; the schema says t: ragged int32[]"),
        ({"x": b"abc"}, "'x' has samples of ragged uint8[]"),
        ({"t": [[1, 2]]}, "'t' has samples of ragged int64[2]; the schema says t: ragged int32[]"),
        ({"z": 1}, "sample 0 has the fields x, n, t, s, z, the schema x, n, t, s"),
    ):
        with pytest.raises(pyfab.InvalidArgumentError, match=re.escape(words)):
            from_samples([good | change], SCHEMA)
    for empty in (from_tar([], dict, schema=SCHEMA), from_folder(tmp_path, dict, schema=SCHEMA)):
        assert [len(values) for values in empty.values()] == [0] * 4
    for without in (
        lambda: from_samples([]),
        lambda: from_tar([], dict),
        lambda: from_folder(tmp_path, dict),
    ):
        with pytest.raises(pyfab.InvalidArgumentError, match="schema="):
            without()


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
        from_arrow(pa.table({"d": pa.array([{"a": 1}])}))
    with pytest.raises(pyfab.InvalidArgumentError, match="no column z"):
        from_arrow(table, ["z"])


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
            "image": np.frombuffer(sample[".img"], np.uint8),
            "label": int(sample[".cls"]),
            "key": sample["__key__"],
        }

    tars = sorted(tmp_path.glob("*.tar"))
    fields = from_tar(tars, reader)
    assert fields["image"].tolist() == [[n, i] for n in range(2) for i in range(3)]
    assert fields["label"].tolist() == [0, 1, 2] * 2
    assert bytes(fields["key"][4]) == b"dir.x/1-1"
    assert from_tar(tars, reader, rank=1, size=2)["image"].tolist() == [[1, i] for i in range(3)]
    with pytest.raises(pyfab.InvalidArgumentError, match="leave rank 0 without"):
        from_tar(tars, reader, rank=0, size=3)

    folder = tmp_path / "images"
    for name in ("a/1.bin", "b/2.bin", "b/3.txt"):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(name.encode())
    fields = from_folder(folder, lambda path: {"content": path.read_bytes()}, "**/*.bin")
    assert [bytes(sample) for sample in fields["content"]] == [b"a/1.bin", b"b/2.bin"]
    with pytest.raises(pyfab.InvalidArgumentError, match="match"):
        from_folder(folder, lambda _: {}, "*.png")
