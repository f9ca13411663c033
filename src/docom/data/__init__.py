"""Data sets and their partition among agents.

`leaf_synthetic` generates the paper's synthetic data; the readers take files from outside (IDX, LEAF json,
FEMNIST npz, LIBSVM), check every size and index before use and never unpickle; `partitions` distributes sample
indices; `store` manages the data folder. Nothing here knows problems, algorithms or networks.
"""

from docom.data import leaf_synthetic, partitions
from docom.data.femnist import Femnist, read_femnist, read_femnist_npz
from docom.data.files import DataError
from docom.data.idx import read_idx, read_mnist
from docom.data.leaf_json import LeafJson, read_leaf_json
from docom.data.libsvm import read_libsvm, read_libsvm_set
from docom.data.reading import read_samples, samples_of
from docom.data.samples import Samples

__all__ = [
    "DataError",
    "Femnist",
    "LeafJson",
    "Samples",
    "leaf_synthetic",
    "partitions",
    "read_femnist",
    "read_femnist_npz",
    "read_idx",
    "read_leaf_json",
    "read_libsvm",
    "read_libsvm_set",
    "read_mnist",
    "read_samples",
    "samples_of",
]
