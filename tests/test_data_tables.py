"""Tables: what goes in comes out again, cell by cell, and messages name the user's own lines."""

import io
import json
import math

import numpy as np
import pytest

from doubly.data import SPLITS, Column, Columns, check_binary, load, read_table
from test_data import refusal, sorted_rows

COLOURS = ("blue", "red, dark", 'the "green" one', "multi\nline")
TEXT = (
    'colour,"size, cm",count,member,rate,level\n'
    '"red, dark",1,3,True,0.25,7\n'
    "blue,0,4,False,-1.5,7\n"
    '"the ""green"" one",1,12,True,2e3,7\n'
    '"multi\nline",0,4,True,0,7\n'
)


def written(folder, text, name="a.csv", encoding="utf-8"):
    path = folder / name
    path.write_bytes(text.encode(encoding))
    return path


def random_table(n: int, seed: int) -> dict[str, list]:
    """A table with every kind of column, a third of the cells missing."""
    rng = np.random.default_rng(seed)
    table: dict[str, list] = {
        "colour": [COLOURS[i] for i in rng.integers(0, 4, n)],
        "size, cm": rng.integers(0, 2, n).tolist(),
        "count": rng.integers(-5, 1000, n).tolist(),
        "member": (rng.random(n) < 0.5).tolist(),
        "rate": [float(np.float32(value)) for value in rng.normal(size=n)],
        "same": ["only"] * n,
    }
    return {
        name: [None if gone else value for value, gone in zip(values, rng.random(n) < 1 / 3, strict=True)]
        for name, values in table.items()
    }


# Kinds, encoding and decoding


def test_kinds_of_columns(tmp_path):
    data = load(f"{written(tmp_path, TEXT)}:valid=0.25,test=0.25")
    assert data.columns is not None
    assert [(column.name, column.kind) for column in data.columns.columns] == [
        ("colour", "category"),
        ("size, cm", "binary"),
        ("count", "integer"),
        ("member", "binary"),
        ("rate", "real"),
        ("level", "integer"),
    ]
    assert data.columns.columns[0].levels == tuple(sorted(COLOURS))
    assert [column.name for column in data.columns.columns if column.constant] == ["level"]
    assert data.width == 4 + 5 == data.columns.width == len(data.columns.cells)
    assert data.kind == "real"
    table = data.columns.decode(np.concatenate([data.split(split) for split in SPLITS]))
    assert sorted(table["colour"]) == sorted(COLOURS)
    assert sorted(table["count"]) == [3, 4, 4, 12]
    assert table["level"] == [7] * 4


@pytest.mark.parametrize("seed", range(5))
def test_there_and_back(seed, tmp_path):
    """encode then decode is the identity, also after JSON, and csv then read_table gives the same matrix."""
    table = random_table(30, seed)
    columns = Columns.from_json(json.loads(json.dumps(Columns.of(table).as_json())))
    assert columns == Columns.of(table)
    rows = columns.encode(table)
    assert columns.decode(rows) == table
    assert columns.records(rows)[7] == {name: values[7] for name, values in table.items()}
    written(tmp_path, columns.csv(rows), "out.csv")
    assert np.array_equal(read_table(tmp_path / "out.csv", columns), rows.astype(np.float32), equal_nan=True)
    assert np.array_equal(columns.encode(columns.records(rows)), rows, equal_nan=True)


def test_one_hot_cells_sum_to_one_or_are_all_missing():
    table = random_table(50, 3)
    rows = Columns.of(table).encode(table)[:, :4]
    gone = np.array([value is None for value in table["colour"]])
    assert gone.any()
    assert not gone.all()
    assert np.isnan(rows[gone]).all()
    assert (rows[~gone].sum(1) == 1).all()


def test_decoding_takes_the_nearest():
    columns = Columns(
        (
            Column("c", "category", ("x", "y", "z")),
            Column("b", "binary"),
            Column("t", "binary", ("no", "yes")),
            Column("i", "integer"),
        )
    )
    assert columns.decode([[0.2, 0.5, 0.3, 0.49, 0.5, 2.6], [math.nan] * 6]) == {
        "c": ["y", None],
        "b": [0, None],
        "t": [True, None],
        "i": [3, None],
    }
    assert "6 cells" in refusal(columns.decode, np.zeros((2, 5)))


def test_data_frames():
    pandas = pytest.importorskip("pandas")
    table = random_table(30, 1)
    frame = pandas.DataFrame(table).convert_dtypes()
    columns = Columns.of(frame)
    assert [column.kind for column in columns.columns] == [column.kind for column in Columns.of(table).columns]
    assert columns.decode(columns.encode(frame)) == table
    frame["colour"] = frame["colour"].astype("category")
    assert Columns.of(frame) == columns
    vjp = pandas.DataFrame(columns.decode(columns.encode(frame)))
    assert list(vjp.columns) == list(table)


def test_parquet(tmp_path):
    pyarrow = pytest.importorskip("pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")
    table = random_table(30, 2)
    parquet.write_table(pyarrow.table(table), tmp_path / "a.parquet")
    columns = Columns.of(table)
    rows = read_table(tmp_path / "a.parquet")
    assert np.array_equal(rows, columns.encode(table).astype(np.float32), equal_nan=True)
    assert np.array_equal(read_table(tmp_path / "a.parquet", columns), rows, equal_nan=True)
    first = next(row for row, value in enumerate(np.isnan(rows).any(1)) if value)
    assert f"row {first}, column" in refusal(load, tmp_path / "a.parquet", binarise="threshold")
    assert load(tmp_path / "a.parquet").has_missing
    (tmp_path / "b.parquet").write_bytes(b"PAR1 no table")
    assert "damaged" in refusal(load, tmp_path / "b.parquet")


def test_remembered_columns_turn_new_tables_into_the_same_cells(tmp_path):
    data = load(f"{written(tmp_path, TEXT)}:valid=0.25,test=0.25")
    columns = data.columns
    assert columns is not None
    new = "level,rate,member,count,id,size,colour\n7,1,true,4,99,1,blue\n7,,,,98,,\n".replace("size,", '"size, cm",')
    rows = read_table(written(tmp_path, new, "new.csv"), columns)
    assert columns.decode(rows)["colour"] == ["blue", None]
    assert columns.decode(rows)["member"] == [True, None]
    assert columns.decode(rows)["count"] == [4, None]
    pink = written(tmp_path, new.replace("blue", "pink"), "pink.csv")
    message = refusal(read_table, pink, columns)
    assert f"line 2, column 7 of {pink} is 'pink', which is no level of 'colour'" in message
    assert "no column 'size, cm'" in refusal(
        read_table, written(tmp_path, "colour,count\nblue,1\n", "few.csv"), columns
    )


def test_tables_without_names_go_by_order(tmp_path):
    path = written(tmp_path, "x,1\ny,0\nx,0\n")
    columns = load(f"{path}:header=false").columns
    assert columns is not None
    assert columns.cells == ("column 1=x", "column 1=y", "column 2")
    named = written(tmp_path, "letter,bit\ny,1\n", "named.csv")
    assert read_table(named, columns).tolist() == [[0, 1, 1]]
    wide = np.zeros((2, 3), dtype=np.uint8)
    np.save(tmp_path / "cells.npy", wide)
    assert read_table(tmp_path / "cells.npy", columns).tolist() == wide.tolist()
    np.save(tmp_path / "cells.npy", wide[:, :2])
    assert "2 columns" in refusal(read_table, tmp_path / "cells.npy", columns)


@pytest.mark.parametrize("kind", ["binary", "integer"])
def test_numbers_are_checked_against_remembered_kinds(kind, tmp_path):
    columns = Columns((Column("a", kind), Column("b", "real")))
    path = written(tmp_path, "a,b\n1,1\nx,1\n")
    assert f"line 3, column 1 of {path} is 'x'" in refusal(read_table, path, columns)
    if kind == "binary":
        assert "line 3, column 1" in refusal(read_table, written(tmp_path, "a,b\n1,1\n2,1\n"), columns)


@pytest.mark.parametrize("mixed", ["", "columns=mixed"])
@pytest.mark.parametrize("cells", [["1,5", "2"], [f"{i},{i % 9}" for i in range(40)]], ids=["some", "all different"])
def test_decimal_commas_are_no_category_and_no_names(mixed, cells, tmp_path):
    """Cells with a decimal comma, some or all of a column: the message says how to read them."""
    path = written(tmp_path, "n;x\n" + "".join(f"{i % 7};{cell}\n" for i, cell in enumerate(cells * 30)))
    message = refusal(load, f"{path}:{mixed}" if mixed else path)
    assert f"line 2, column 2 of {path} is '{cells[0]}'" in message
    assert "decimal=comma" in message
    assert "categories=x" in message
    data = load(f"{path}:decimal=comma{',' if mixed else ''}{mixed}")
    assert data.columns is None or data.columns.columns[1].kind in ("real", "integer")


def test_categories_that_look_like_numbers(tmp_path):
    path = written(tmp_path, "zip,n\n10,1\n9,2\n10,3\n100a,4\n")
    message = refusal(load, path)
    assert f"line 5, column 1 of {path} is '100a', which is no number" in message
    assert "categories=zip" in message
    columns = load(f"{path}:categories=zip").columns
    assert columns is not None
    assert columns.columns[0].levels == ("9", "10", "100a")
    path = written(tmp_path, "zip,n\n10,1\n9,2\n10,3\n")
    pure = load(f"{path}:categories=zip").columns
    assert pure is not None
    assert pure.columns[0].levels == ("9", "10")
    assert "no column 'zap'" in refusal(load, f"{path}:categories=zap")


def test_too_many_levels_and_dropped_columns(tmp_path):
    rows = "".join(f"name {i},{i % 7},{i % 2}\n" for i in range(1200))
    path = written(tmp_path, "name,n,bit\n" + rows)
    message = refusal(load, path)
    assert "column 1 (name)" in message
    assert "drop=name" in message
    data = load(f"{path}:drop=name+n")
    assert (data.width, data.kind) == (1, "binary")
    assert "no column 'nome'" in refusal(load, f"{path}:drop=nome")
    assert "drop fewer" in refusal(load, f"{path}:drop=name+n+bit")
    # after dropping, messages still count the user's columns
    holed = written(tmp_path, "name,n,bit\nx,1,0\ny,2,\nz,3,1\n")
    assert f"line 3, column 3 of {holed} is missing" in refusal(load, f"{holed}:drop=name,binarise=threshold")


def test_further_texts_for_missing(tmp_path):
    path = written(tmp_path, "job,age\ncook,?\n?,30\nclerk,unknown\n")
    assert "line 2, column 2" in refusal(read_table, path)
    rows = read_table(f"{path}:missing=?+unknown")
    assert np.isnan(rows).tolist() == [[False, False, True], [True, True, False], [False, False, True]]


def test_a_header_with_a_number_in_it(tmp_path):
    path = written(tmp_path, "x1,2,x3\n0.5,0.2,0.1\n0.5,0.3,0.1\n0.5,0.2,0.7\n")
    message = refusal(load, path)
    assert f"line 1, column 1 of {path} is 'x1', which is no number" in message
    assert "header=true" in message
    assert load(f"{path}:header=true").width == 3


def test_names_of_several_lines_make_messages_of_one(tmp_path):
    path = written(tmp_path, '"a\nb",c\n' + "".join(f"text {i},1\n" for i in range(1001)))
    assert "drop=a b" in refusal(load, path)
    assert "there are: a b, c" in refusal(load, f"{path}:split=x")
    assert "there are: a b, c" in refusal(load, f"{path}:categories=x")


def test_duplicate_names(tmp_path):
    assert "2 columns called 'a'" in refusal(load, written(tmp_path, "a,b,a\n1,2,3\n4,5,6\n7,8,9\n"))


def test_written_in_other_letters(tmp_path):
    for encoding in ("utf-8", "utf-8-sig", "latin-1", "utf-16"):
        path = written(tmp_path, "größe\nklein\ngroß\nweiß\n", encoding=encoding)
        columns = load(path).columns
        assert columns is not None
        assert columns.columns[0] == Column("größe", "category", ("groß", "klein", "weiß"))


# The header


@pytest.mark.parametrize(
    "text",
    [
        "2001,2002,2003\n0.5,3.2,1.1\n0.2,2.2,9.5\n0.1,0.7,0.4\n",
        "0,1,2,3\n1,0,1,1\n0,0,1,0\n1,1,1,0\n",
        "1990,2000,2020\n5,3,1\n2,2,9\n3,3,3\n",
        "country,2001,2002\nFrance,5,3\nSpain,4,4\nItaly,1,0\n",
    ],
)
def test_a_header_of_numbers_is_asked_about(text, tmp_path):
    path = written(tmp_path, text)
    for action in (load, read_table):
        message = refusal(action, path)
        assert message.startswith(f"line 1 of {path} (")
        assert f"{path}:header=true" in message
    with_names, without = read_table(f"{path}:header=true"), read_table(f"{path}:header=false")
    assert (len(with_names), len(without)) == (3, 4)
    columns = load(f"{path}:header=true").columns
    assert columns is not None
    assert [column.name for column in columns.columns] == text.split("\n")[0].split(",")


@pytest.mark.parametrize(
    "text",
    [
        "1,2,3\n4,5,6\n7,8,9\n",
        "1,2,3\n4,5,\n,7,8\n9,10,11\n",
        "3,1,2\n1,2,3\n2,3,1\n",
        "0,1,1\n1,0,1\n0,0,0\n",
        "1.0,2.0,3.0\n0.5,0.2,0.1\n0.1,0.1,0.1\n",
        "39,State-gov,77516,13\n50,Private,83311,13\n38,Private,215646,9\n",
    ],
)
def test_numbers_that_are_no_names(text, tmp_path):
    assert len(read_table(written(tmp_path, text))) == len(text.splitlines())


def test_header_option_must_fit(tmp_path):
    path = written(tmp_path, "a,b\n1,2\n3,4\n5,6\n")
    assert "line 1, column 1" in refusal(load, f"{path}:header=false")
    assert "true or false, got 'maybe'" in refusal(load, f"{path}:header=maybe")
    path = written(tmp_path, "1,2\n")
    assert "header but no rows" in refusal(load, f"{path}:header=true")


def test_lines_after_cells_of_several_lines(tmp_path):
    path = written(tmp_path, 'a,b\n"x\n\ny",1\n\nz,2\nw,\nv,4\n')
    assert f"line 7, column 2 of {path} is missing" in refusal(load, path, binarise="threshold")
    path = written(tmp_path, 'a,b\n"x\ny",1\nz\n')
    assert f"line 4 of {path} has 1 cells" in refusal(load, path)


def test_header_and_rows_must_have_as_many_cells(tmp_path):
    assert "line 2 of" in (message := refusal(load, written(tmp_path, "a,b\n1,2,3\n4,5,6\n7,8,9\n")))
    assert "the header has 2" in message


# Row numbers after splitting


@pytest.mark.parametrize("seed", range(4))
def test_messages_name_the_users_line_after_shuffling(seed, tmp_path):
    """One value of 40 rows is no bit; whichever split it falls into, the message says where it stands in the file."""
    rng = np.random.default_rng(seed)
    rows = rng.integers(0, 2, (40, 5))
    row, column = int(rng.integers(40)), int(rng.integers(5))
    buffer = io.StringIO()
    np.savetxt(buffer, rows, "%d", delimiter=",")
    lines = buffer.getvalue().splitlines()
    cells = lines[row].split(",")
    cells[column] = "0.25"
    lines[row] = ",".join(cells)
    path = written(tmp_path, "a,b,c,d,e\n\n" + "\n".join(lines) + "\n")
    message = refusal(check_binary, load(f"{path}:split_seed={seed}"), "layer 'sbn' draws 0 or 1")
    assert f"but line {row + 3}, column {column + 1} of {path} is 0.25: binarise the data" in message

    array = rows.astype(float)
    array[row, column] = 0.25
    np.savez(tmp_path / "a.npz", X=array)
    message = refusal(check_binary, load(tmp_path / "a.npz", seed=seed), "layer 'sbn' draws 0 or 1")
    assert f"but row {row}, column {column} (counting from 0) of X in {tmp_path / 'a.npz'} is 0.25" in message


def test_one_hot_cells_are_named_by_their_column(tmp_path):
    path = written(tmp_path, "c,x\nred,1\nblue,0.5\ngreen,1\n")
    assert f"line 3, column 2 of {path} is 0.5" in refusal(check_binary, load(path), "sbn")
    assert f"line 3, column 2 of {path} is 1e+300" in refusal(load, written(tmp_path, "c,x\nr,1\nb,1e300\ng,1\n"))


# Splits


def test_splits_by_options(tmp_path):
    path = tmp_path / "a.npy"
    np.save(path, np.arange(120.0).reshape(40, 3))
    data = load(f"{path}:valid=0.25,test=0.5,split_seed=3")
    assert [len(data.split(split)) for split in SPLITS] == [10, 10, 20]
    same = load(path, seed=3, fractions=(0.25, 0.5))
    assert all(np.array_equal(data.split(split), same.split(split)) for split in SPLITS)
    assert not np.array_equal(data.train, load(f"{path}:valid=0.25,test=0.5,split_seed=4").train)
    whole = np.arange(120, dtype=np.float32).reshape(40, 3)
    assert sorted_rows(*map(data.split, SPLITS)) == sorted_rows(whole)


def test_splits_given_by_a_column(tmp_path):
    words = ["train", "test", "validation", "Train", "val", "train", "test"]
    path = written(tmp_path, "part,n\n" + "".join(f"{word},{i}\n" for i, word in enumerate(words)))
    data = load(f"{path}:split=part")
    assert [data.split(split)[:, 0].tolist() for split in SPLITS] == [[0, 3, 5], [2, 4], [1, 6]]
    assert data.columns is not None
    assert data.columns.cells == ("n",)
    half = written(tmp_path, "part,n\n" + "".join(f"{'test' if i < 5 else 'train'},{i}\n" for i in range(25)), "b.csv")
    held_out = load(f"{half}:split=part")
    assert [len(held_out.split(split)) for split in SPLITS] == [18, 2, 5]
    assert sorted(held_out.test[:, 0].tolist()) == [0, 1, 2, 3, 4]
    assert "line 2, column 2 of" in refusal(load, f"{path}:split=n")
    assert "no column 'set'" in refusal(load, f"{path}:split=set")
    path = written(tmp_path, "p,n\ntest,1\ntest,2\n")
    assert "never says train" in refusal(load, f"{path}:split=p")
