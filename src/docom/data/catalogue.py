"""The data sets that have a name here: their formats, how to get them, where they can be downloaded."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from docom.data.download import RemoteFile
from docom.data.femnist import femnist_files, read_femnist
from docom.data.idx import mnist_files, read_mnist
from docom.data.libsvm import libsvm_files, read_libsvm_set
from docom.data.samples import STORED, load_samples, samples_files


@dataclass(frozen=True)
class Format:
    """How the files of a data set are found (by name, quickly) and read (with every check)."""

    files: Callable[[Path, str], dict[str, Path]]
    read: Callable[[Path, str], Any]


@dataclass(frozen=True)
class Known:
    """A data set that has a name here; `form` is empty where nothing is stored."""

    form: str
    about: str
    how: str


@dataclass(frozen=True)
class Download:
    """Where the files of a data set can be downloaded."""

    mirrors: tuple[str, ...]
    files: tuple[RemoteFile, ...]


FORMATS: dict[str, Format] = {
    "idx": Format(lambda source, _: mnist_files(source), lambda source, _: read_mnist(source)),
    "femnist": Format(lambda source, _: femnist_files(source), lambda source, _: read_femnist(source)),
    "libsvm": Format(libsvm_files, read_libsvm_set),
    "samples": Format(samples_files, lambda source, name: load_samples(samples_files(source, name)[STORED])),
}

_LIBSVM_PAGE = "https://www.csie.ntu.edu.tw/~cjlin/libsvmtools/datasets/binary.html"

KNOWN: dict[str, Known] = {
    "synthetic": Known("", "LEAF's synthetic data, the paper's first experiment", "built in: no download needed"),
    "mnist": Known("idx", "handwritten digits, 10 classes", "docom data get mnist"),
    "fashion-mnist": Known(
        "idx",
        "clothes, in MNIST's shape",
        "fetch the four IDX files named at https://github.com/zalandoresearch/fashion-mnist, then "
        "docom data add fashion-mnist --from DIR",
    ),
    "femnist": Known(
        "femnist",
        "handwritten characters by writer, 62 classes",
        "in data/femnist of https://github.com/TalwalkarLab/leaf run "
        "preprocess.sh -s niid --sf 1.0 -k 0 -t sample, then docom data add femnist --from leaf/data/femnist",
    ),
    "a9a": Known("libsvm", "income, 123 features", f"fetch a9a and a9a.t from {_LIBSVM_PAGE}, then "
                 "docom data add a9a --from DIR"),
    "w8a": Known("libsvm", "web pages, 300 features", f"fetch w8a and w8a.t from {_LIBSVM_PAGE}, then "
                 "docom data add w8a --from DIR"),
    "mushrooms": Known("libsvm", "edible or not, 112 features", f"fetch mushrooms from {_LIBSVM_PAGE}, then "
                       "docom data add mushrooms --from DIR"),
}  # fmt: skip

DOWNLOADS: dict[str, Download] = {
    "mnist": Download(
        mirrors=(
            "https://ossci-datasets.s3.amazonaws.com/mnist/",
            "https://storage.googleapis.com/cvdf-datasets/mnist/",
        ),
        files=(
            RemoteFile(
                "train-images-idx3-ubyte.gz",
                9912422,
                "440fcabf73cc546fa21475e81ea370265605f56be210a4024d2ca8f203523609",
            ),
            RemoteFile(
                "train-labels-idx1-ubyte.gz",
                28881,
                "3552534a0a558bbed6aed32b30c495cca23d567ec52cac8be1a0730e8010255c",
            ),
            RemoteFile(
                "t10k-images-idx3-ubyte.gz",
                1648877,
                "8d422c7b0a1c1c79245a5bcf07fe86e33eeafee792b84584aec276f5a2dbc4e6",
            ),
            RemoteFile(
                "t10k-labels-idx1-ubyte.gz",
                4542,
                "f7ae60f92e00ec6debd23a6088c31dbd2371eca3ffa0defaefb259924204aec6",
            ),
        ),
    )
}
