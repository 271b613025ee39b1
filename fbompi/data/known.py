"""The sets whose original files this project knows: sizes and SHA-256 of their uncompressed content, and sources.

Checksums are of the content, not of the containers: the same data come in other packings, and are as good.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Original:
    """One of the authors' files, without its compression."""

    name: str
    size: int
    sha256: str


@dataclass(frozen=True)
class Known:
    """A set as its authors distribute it.

    Parameters
    ----------
    files
        What is checked; for Omniglot the names and bytes of all images of an archive together.
    downloads
        Names of the files that are downloaded.
    places
        Where they are: prefixes of addresses, tried in turn.
    """

    title: str
    description: str
    files: tuple[Original, ...]
    downloads: tuple[str, ...]
    places: tuple[str, ...]

    def file(self, name: str) -> Original:
        """The original of this name."""
        return next(original for original in self.files if original.name == name)


KNOWN = {
    "mnist": Known(
        "MNIST handwritten digits",
        "LeCun, Cortes and Burges (1998): 28×28 pixels, 0 paper and 255 ink, rows from above; ten digits.",
        (
            Original("train-images-idx3-ubyte", 47_040_016,
                     "ba891046e6505d7aadcbbe25680a0738ad16aec93bde7f9b65e87a2fc25776db"),
            Original("train-labels-idx1-ubyte", 60_008,
                     "65a50cbbf4e906d70832878ad85ccda5333a97f0f4c3dd2ef09a8a9eef7101c5"),
            Original("t10k-images-idx3-ubyte", 7_840_016,
                     "0fa7898d509279e482958e8ce81c8e77db3f2f8254e26661ceb7762c4d494ce7"),
            Original("t10k-labels-idx1-ubyte", 10_008,
                     "ff7bcfd416de33731a308c3f266cc351222c34898ecbeaf847f06e48f7ec33f2"),
        ),
        ("train-images-idx3-ubyte.gz", "train-labels-idx1-ubyte.gz",
         "t10k-images-idx3-ubyte.gz", "t10k-labels-idx1-ubyte.gz"),
        ("https://ossci-datasets.s3.amazonaws.com/mnist/", "https://storage.googleapis.com/cvdf-datasets/mnist/",
         "http://yann.lecun.com/exdb/mnist/"),
    ),
    "covtype": Known(
        "Covertype",
        "Blackard and Dean (1998), UCI Machine Learning Repository: forest cover of 30 m cells from 10 measurements, "
        "4 wilderness areas and 40 soil types (one-hot); seven kinds of forest, label 0 for the authors' class 1.",
        (
            Original("covtype.data", 75_169_317,
                     "0a9371cef7c964b5475d6053cc3e0894a5aa6f65ad1ed3ecb01c45aa96217945"),
        ),
        ("covtype.data.gz",),
        ("https://archive.ics.uci.edu/ml/machine-learning-databases/covtype/",
         "http://kdd.ics.uci.edu/databases/covertype/"),
    ),
    "cifar10": Known(
        "CIFAR-10",
        "Krizhevsky (2009): 32×32 pixels in colour, planes of red, green and blue; ten kinds of animals and vehicles.",
        (
            Original("data_batch_1.bin", 30_730_000,
                     "cee916563c9f80d84e3cc88e17fdc0941787f1244f00a67874d45b261883ada5"),
            Original("data_batch_2.bin", 30_730_000,
                     "a591ca11fa1708a91ee40f54b3da4784ccd871ecf2137de63f51ada8b3fa57ed"),
            Original("data_batch_3.bin", 30_730_000,
                     "bbe8596564c0f86427f876058170b84dac6670ddf06d79402899d93ceea26f67"),
            Original("data_batch_4.bin", 30_730_000,
                     "014e562d6e23c72197cc727519169a60359f5eccd8945ad5a09d710285ff4e48"),
            Original("data_batch_5.bin", 30_730_000,
                     "755304fc0b379caeae8c14f0dac912fbc7d6cd469eb67a1029a08a39453a9add"),
            Original("test_batch.bin", 30_730_000,
                     "8e2eb146ae340b09e24670f29cabc6326dba54da8789dab6768acf480273f65b"),
        ),
        ("cifar-10-binary.tar.gz",),
        ("https://www.cs.toronto.edu/~kriz/", "https://storage.googleapis.com/s4tf-hosted-binaries/datasets/CIFAR10/"),
    ),
    "omniglot": Known(
        "Omniglot",
        "Lake, Salakhutdinov and Tenenbaum (2015): characters of 50 alphabets, 20 drawings of each, reduced from "
        "105×105 pixels of one bit to 28×28 by averaging areas, 0 paper and 255 ink; train is the authors' background "
        "set, test their evaluation set, with characters that train does not have.",
        (
            Original("images_background.zip", 4_810_560,
                     "71a1ca99688b462d3818e7fd1d96e592b0bc508754ea500c444035296bf74117"),
            Original("images_evaluation.zip", 3_371_735,
                     "748bfbe557520aab543e31b7cb103f75cc655361f4e6b7fe1ccede747c9710f7"),
        ),
        ("images_background.zip", "images_evaluation.zip"),
        ("https://raw.githubusercontent.com/brendenlake/omniglot/master/python/",
         "https://github.com/brendenlake/omniglot/raw/master/python/"),
    ),
}  # fmt: skip
