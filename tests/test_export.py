"""One file of a run: it answers as the run does, holds neither rows nor code, and damage is one line."""

import hashlib
import io
import json
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.torch
import torch
from matplotlib.figure import Figure

import doubly
from doubly import UserError, cli
from doubly.core.errors import RunWarning
from doubly.core.sealed import dump_json
from doubly.runs.export import FORMAT
from doubly.runs.folder import Run
from test_tables import table, written


@pytest.fixture(scope="module")
def exported(tmp_path_factory):
    folder = tmp_path_factory.mktemp("export")
    path = written(folder, table())
    cli.main(["fit", "--data", str(path), "--out", str(folder / "run"), "--epochs", "4", "--threads", "1"])
    cli.main(["export", str(folder / "run"), str(folder / "m.doubly"), "--refit", "2"])
    return folder


def test_the_file_answers_as_the_run_does(exported):
    run: Any = doubly.load(exported / "run", refit_passes=2)
    file: Any = doubly.load(exported / "m.doubly")
    columns = Run(exported / "run").columns
    assert columns is not None
    rows = columns.decode(Run(exported / "run").data().test)
    scores = [each.log_likelihood(rows, draws=20, by="draws") for each in (file, run)]
    np.testing.assert_array_equal(*scores)
    assert file.sample(5) == run.sample(5)
    for one, other in zip(file.samples(), run.samples(), strict=True):
        assert (one == other).all()
    found: Any = file.impute({**rows, "size": [None] * len(rows["size"])}, draws=2)
    assert all(15 < size < 60 for size in found.mean["size"]), "in the units of the table"
    assert set(found.completions[0]["kind"]) <= {"red", "blue", "dark red"}


def test_a_table_is_asked_in_its_own_units_and_words(exported):
    """log p in the table's units is that of the scaled rows less log scale of the sizes that are there."""
    file: Any = doubly.load(exported / "m.doubly")
    size = file.units.columns[3]
    rows = {"kind": ["red", "blue"], "grade": [1, None], "yes": [0, 1], "size": [25.5, None]}
    inside = file.scaled.log_likelihood(file.units.encode(rows), draws=20, by="draws")
    np.testing.assert_allclose(
        inside - file.log_likelihood(rows, draws=20, by="draws"), [np.log(size.scale), 0], atol=1e-4
    )
    with pytest.raises(UserError, match="a DataFrame, names with lists"):
        file.log_likelihood([[1, 2, 3, 4]])
    with pytest.raises(UserError, match="ask `scaled`"):
        file.log_conditional(rows, rows, rows)


def test_a_table_is_shown_in_short_and_drawn_as_the_model_sees_it(exported):
    file: Any = doubly.load(exported / "m.doubly")
    assert repr(file).startswith("PosteriorInUnits(model=")
    assert len(repr(file)) < 200
    assert "PosteriorInUnits" in file._repr_html_()
    width, axes = file.model.layers[0].n_out, Figure().subplots()
    drawn = file.plot_samples(4, axes, of="last").images[0].get_array()
    assert drawn.shape == (4, width)
    np.testing.assert_array_equal(drawn, file.scaled.sample(4, of="last"))
    rows = {"kind": ["red", "blue"], "grade": [1, None], "yes": [0, 1], "size": [25.5, None]}
    drawn = file.plot_completions(rows, draws=3, ax=Figure().subplots(), of="last").images[0].get_array()
    assert drawn.shape == (2 + 3 * 2, width)
    there = ~np.isnan(file.units.encode(rows))
    np.testing.assert_allclose(drawn[2:4][there], file.units.encode(rows)[there], atol=1e-6)
    with pytest.raises(UserError, match="rows with missing cells"):
        file.plot_completions()
    with pytest.raises(UserError, match="no picture"):
        file.plot_weights()


def test_neither_rows_nor_the_path_are_in_it(exported):
    content = (exported / "m.doubly").read_bytes()
    assert b"t.csv" not in content
    size = Run(exported / "run").data().train[:, -1]
    assert not any(value.tobytes() in content for value in size[np.isfinite(size)][:10])


def remade(exported, tmp_path, change=None, extra=None, compress=zipfile.ZIP_STORED, weights=None, tensors=None):
    """The file with something else in it, and good checksums, as a stranger can write them."""
    with zipfile.ZipFile(exported / "m.doubly") as archive:
        parts = {name: archive.read(name) for name in archive.namelist()}
    told = json.loads(parts["model.json"])
    del told["seal"]
    if tensors:
        tensors(found := safetensors.torch.load(parts["weights.safetensors"]))
        weights = safetensors.torch.save(found)
    if weights:
        parts["weights.safetensors"] = weights
        told["sha256"]["weights.safetensors"] = hashlib.sha256(weights).hexdigest()
    if change:
        change(told)
    parts["model.json"] = dump_json(told)
    return zipped(tmp_path / "bad.doubly", parts | (extra or {}), compress)


def zipped(file: Path, parts: dict[str, bytes], compress: int = zipfile.ZIP_STORED) -> Path:
    """An archive of these parts, with the CRC-32 of each."""
    content = io.BytesIO()
    with zipfile.ZipFile(content, "w", compress) as archive:
        for name, part in parts.items():
            archive.writestr(name, part)
    file.write_bytes(content.getvalue())
    return file


@pytest.mark.parametrize(
    ("how", "said"),
    [
        ({"change": lambda told: told.update(format=9)}, "newer than doubly"),
        ({"change": lambda told: told["config"].update(hidden=[7])}, "weights of its model"),
        ({"change": lambda told: told["config"].update(model="evil.py:Layer")}, "names code"),
        ({"change": lambda told: told["config"].update(nonsense=1)}, "nonsense"),
        ({"change": lambda told: told.pop("facts")}, "facts"),
        ({"change": lambda told: told["facts"].update(shape=[2])}, "have not the . cells"),
        ({"change": lambda told: told["facts"].update(width=1.5)}, "width is no whole number"),
        ({"change": lambda told: told["columns"].pop()}, "its columns have . cells"),
        ({"change": lambda told: told.update(epoch=float("inf"))}, "epoch is no whole number"),
        ({"tensors": lambda weights: weights["sample-0"].fill_(float("nan"))}, "sample-0 has not the"),
        (
            {"tensors": lambda weights: weights.update(column_mean=weights["mean"].clone())},
            "column_mean has not the . finite",
        ),
        ({"tensors": lambda weights: weights["column_spread"].fill_(float("inf"))}, "column_spread has not"),
        ({"tensors": lambda weights: weights.update(mean=weights["mean"].double())}, "mean has not the"),
        ({"tensors": lambda weights: weights.update(last=weights["last"][:-1].clone())}, "last has not the"),
        ({"extra": {"model.json": b'{"format": ' + b"9" * 5000 + b"}"}}, "damaged"),
        ({"extra": {"model.json": b'{"format": ' + b"[" * 10**5 + b"]" * 10**5 + b"}"}}, "nested too deeply"),
        ({"extra": {"model.json": b"\xff"}}, "damaged"),
        ({"extra": {"../evil": b"x"}}, "expected model.json"),
        ({"compress": zipfile.ZIP_DEFLATED}, "compressed"),
        ({"weights": b"nothing"}, "damaged"),
        ({"change": lambda told: told.pop("sha256")}, "weights.safetensors is damaged: its SHA-256"),
        ({"change": lambda told: told.update(sha256=[])}, "weights.safetensors is damaged: its SHA-256"),
    ],
)
def test_damaged_files_are_one_line(how, said, exported, tmp_path):
    with pytest.raises(UserError, match=said):
        doubly.load(remade(exported, tmp_path, **how))


def test_what_is_no_export_is_one_line(tmp_path):
    (tmp_path / "a.doubly").write_bytes(b"not a zip")
    with pytest.raises(UserError, match="no file of doubly export"):
        doubly.load(tmp_path / "a.doubly")


def test_the_name_says_what_it_is(exported, capsys):
    with pytest.raises(SystemExit):
        cli.main(["export", str(exported / "run"), str(exported / "m.zip")])
    assert "ending in .doubly" in capsys.readouterr().err


def test_a_flipped_bit_is_one_line_or_without_effect(exported, tmp_path):
    """Every bit of the names and sizes in the archive, and one of each eighth byte between."""
    file, content = tmp_path / "flipped.doubly", (exported / "m.doubly").read_bytes()
    whole = doubly.load(exported / "m.doubly")
    head, tail = 60, content.rindex(b"PK\x01\x02") - 80
    places = [8 * at + bit for at in (*range(head), *range(tail, len(content))) for bit in range(8)]
    places += list(range(8 * head, 8 * tail, 8 * 999 + 1))
    refused = 0
    for place in places:
        flipped = bytearray(content)
        flipped[place // 8] ^= 1 << place % 8
        file.write_bytes(flipped)
        try:
            found = doubly.load(file)
        except UserError as error:
            assert "\n" not in str(error)  # noqa: PT017
            refused += 1
        else:
            assert torch.equal(found.last(), whole.last())
            assert repr(found.method) == repr(whole.method)
    assert refused > len(places) / 2


@pytest.mark.parametrize("part", ["model.json", "weights.safetensors"])
def test_a_damaged_part_is_named_by_its_sha256(part, exported, tmp_path):
    """In an archive written anew, so that the CRC-32 is of the damaged part. In files of before nothing told of it."""
    with zipfile.ZipFile(exported / "m.doubly") as archive:
        parts = {name: archive.read(name) for name in archive.namelist()}
    content = bytearray(parts[part])
    at = content.index(b'"collected": ') + 13 if part == "model.json" else len(content) - 4
    content[at] ^= 1  # another digit of a number; a last bit of a weight
    file = zipped(tmp_path / "bad.doubly", parts | {part: bytes(content)})
    with pytest.raises(UserError, match=f"{part} is damaged: its SHA-256 is not the one it was written with"):
        doubly.load(file)


def test_weights_of_another_file_are_not_taken_for_its_own(exported, tmp_path):
    """Whole, with a good CRC-32, and of the right shapes."""
    with zipfile.ZipFile(exported / "m.doubly") as archive:
        parts = {name: archive.read(name) for name in archive.namelist()}
    other = safetensors.torch.load(parts["weights.safetensors"])
    other["mean"].add_(1)
    with pytest.raises(UserError, match=r"weights\.safetensors is damaged"):
        doubly.load(zipped(tmp_path / "a.doubly", parts | {"weights.safetensors": safetensors.torch.save(other)}))


FIXTURES = Path(__file__).with_name("fixtures")
ENSEMBLE = {2: (-9.663208, -9.592108, -9.777390), 3: (-9.553764, -9.669580, -9.733731)}


@pytest.mark.parametrize("number", range(1, FORMAT))
def test_a_file_of_each_older_format_opens_without_a_word(number, recwarn):
    """Each written by the version before the next format: doubly fit --data bars --hidden 2, then export.

    Format 3 is of two chains. What the version that wrote them answered is answered still.
    """
    posterior = doubly.load(FIXTURES / f"export-format-{number}.doubly")
    assert posterior.sample(4).shape == (4, 16)
    scores = posterior.log_likelihood(np.eye(16)[:3], draws=20, by="draws", of="ensemble" if number > 1 else "mean")
    np.testing.assert_allclose(scores, ENSEMBLE.get(number, scores), rtol=1e-4)
    assert np.isfinite(scores).all()
    assert len(posterior.others) == (number == 3)
    assert not [each for each in recwarn if issubclass(each.category, RunWarning)]


def test_formats_and_absent_settings_are_told(exported, tmp_path):
    with zipfile.ZipFile(exported / "m.doubly") as archive:
        told = json.loads(archive.read("model.json"))
    assert told["format"] == FORMAT
    assert {"doubly", "torch", "numba", "kernels", "threads"} <= told["made"].keys()
    newer = remade(exported, tmp_path, lambda told: told.update(format=FORMAT + 1))
    with pytest.raises(UserError, match=rf"has format {FORMAT + 1}, which is newer .* update doubly"):
        doubly.load(newer)
    with pytest.raises(UserError, match="no format number"):
        doubly.load(remade(exported, tmp_path, lambda told: told.update(format=None)))
    lacking = remade(exported, tmp_path, lambda told: told["config"].pop("friction"))
    with pytest.warns(RunWarning, match="does not say friction"):
        doubly.load(lacking)
