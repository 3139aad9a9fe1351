"""Data: named sets and the user's files, as splits of rows with a kind and a shape.

columns      the columns of a table, and how they become a matrix
kinds        what the columns of a table are, guessed and told
dataset      what every data set is
binarise     greys become bits
matlab       .mat files
text         .csv and .tsv files
formats      .npz, .npy, .mat, idx, .pkl.gz, .parquet
workbooks    .xlsx files
pictures     folders of .png files
stored       rows that stay in their files, or in memory as bits
files        the user's files, and the splits in them
fetch        public files into the user's cache
bars         a synthetic set whose density is known
named        the named sets
load         a set by name, path or function
describe     list, info and check
"""

from doubly.data.bars import bars_entropy, bars_log_density, sample_bars
from doubly.data.columns import Column, Columns
from doubly.data.dataset import SPLITS, Data, Kind, Origin, check_binary, missing_mask, sample_bits, unscaled
from doubly.data.files import read_rows, read_table
from doubly.data.formats import SUFFIXES
from doubly.data.kinds import Kinds, guess
from doubly.data.load import DATASETS, absolute, file_options, load
from doubly.data.named import data_folder

__all__ = [
    "DATASETS",
    "SPLITS",
    "SUFFIXES",
    "Column",
    "Columns",
    "Data",
    "Kind",
    "Kinds",
    "Origin",
    "absolute",
    "bars_entropy",
    "bars_log_density",
    "check_binary",
    "data_folder",
    "file_options",
    "guess",
    "load",
    "missing_mask",
    "read_rows",
    "read_table",
    "sample_bars",
    "sample_bits",
    "unscaled",
]
