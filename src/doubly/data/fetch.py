"""Fetching public files from their homes into the user's cache, checked against what is known of them.

Where a checksum is known, another file is refused. Where none is (the twenty tabular sets), the first file that comes
is trusted: its SHA-256 is said and written into checksums.json beside it, and `doubly data check` compares with that.
"""

import hashlib
import json
import os
import sys
import tempfile
from pathlib import Path
from typing import NamedTuple

from doubly.core.errors import UserError
from doubly.core.extras import extra


class Remote(NamedTuple):
    """A public file: its name, its home, and its checksum as `sha256:…` or `md5:…`, None where it is not known."""

    name: str
    url: str
    checksum: str | None


# SHA-256 of the .amat files: computed from their content, whose MD5 is the published one. Of the idx files: as public
# code states them beside these mirrors. Of the silhouettes: of a copy whose MD5 is the published one. Of chardata.mat
# only the MD5 is published. No SHA-256 is known of the twenty tabular sets.
_LAROCHELLE = "http://www.cs.toronto.edu/~larocheh/public/datasets/binarized_mnist/"
_MNIST = "https://ossci-datasets.s3.amazonaws.com/mnist/"
_STARAI = "https://raw.githubusercontent.com/UCLA-StarAI/Density-Estimation-Datasets/master/datasets/"

HOMES: dict[str, tuple[Remote, ...]] = {
    "binarized-mnist": tuple(
        Remote(f"binarized_mnist_{split}.amat", f"{_LAROCHELLE}binarized_mnist_{split}.amat", f"sha256:{checksum}")
        for split, checksum in (
            ("train", "ad693b29f94c14277b095f5238ddefbbdaaae0939789dd2f4f0205278cee3e4d"),
            ("valid", "1de3d397c40fe8eeb33dafd4099a1f665ec01e96d9be234aaeeac8a34930e2e2"),
            ("test", "e6687bfea3f820c174f33b7865140b2a2dd2930ef786f35d45795fc193b5ab2c"),
        )
    ),
    "mnist": tuple(
        Remote(f"{part}-images-idx3-ubyte.gz", f"{_MNIST}{part}-images-idx3-ubyte.gz", f"sha256:{checksum}")
        for part, checksum in (
            ("train", "440fcabf73cc546fa21475e81ea370265605f56be210a4024d2ca8f203523609"),
            ("t10k", "8d422c7b0a1c1c79245a5bcf07fe86e33eeafee792b84584aec276f5a2dbc4e6"),
        )
    ),
    "caltech-silhouettes": (
        Remote(
            "caltech101_silhouettes_28_split1.mat",
            "https://people.cs.umass.edu/~marlin/data/caltech101_silhouettes_28_split1.mat",
            "sha256:eb6735e8d84b1850fabc5590124aab1755e90c9fd28123585324398405e1e42a",
        ),
    ),
    "omniglot": (
        Remote(
            "chardata.mat",
            "https://raw.githubusercontent.com/yburda/iwae/master/datasets/OMNIGLOT/chardata.mat",
            "md5:21ecaf34373511aa7691cf2e0802aa3d",
        ),
    ),
}


def tabular_home(stem: str) -> tuple[Remote, ...]:
    """The three files of one of the twenty tabular sets."""
    names = [f"{stem}.{split}.data" for split in ("train", "valid", "test")]
    return tuple(Remote(name, f"{_STARAI}{stem}/{name}", None) for name in names)


def fetch(remote: Remote, folder: Path) -> Path:
    """The file, from its home into the folder; nothing is left there of one that did not come whole or is another."""
    with extra("data", f"fetching {remote.name}"):
        import pooch
        import requests

    pooch.get_logger().setLevel("ERROR")  # it would warn of a checksum that is not known: said below, in our words
    print(f"fetching {remote.url} into {folder}", file=sys.stderr)
    by_hand = f"or put {remote.name} into a folder and set DOUBLY_DATA to it"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=folder, prefix=".fetching-") as nearby:
            got = Path(
                pooch.retrieve(
                    remote.url,
                    remote.checksum,
                    fname=remote.name,
                    path=nearby,
                    downloader=pooch.HTTPDownloader(chunk_size=1 << 16, timeout=30),
                )
            )
            seen = sha256(got)
            if remote.checksum is None:
                print(f"no checksum is known of {remote.name}; trusting what came, SHA-256 {seen}", file=sys.stderr)
            _remember(folder, remote.name, seen)
            return got.replace(folder / remote.name)
    except requests.RequestException as error:
        reason = _reason(error)
        raise UserError(f"cannot fetch {remote.url} ({reason}): try again with a network, {by_hand}") from None
    except ValueError as error:
        if "hash" not in str(error):
            raise
        raise UserError(
            f"{remote.url} is not the file expected: its checksum must be {remote.checksum}; it was thrown away, "
            f"try again later, {by_hand}"
        ) from None
    except OSError as error:
        raise UserError(f"cannot write into {folder} ({error.strerror or error}): make room there, {by_hand}") from None


def sha256(path: Path) -> str:
    """The SHA-256 of a file."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def remembered(folder: Path) -> dict[str, str]:
    """The SHA-256 of each file fetched into the folder, as it came."""
    try:
        found = json.loads((folder / "checksums.json").read_text())
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


def _remember(folder: Path, name: str, checksum: str) -> None:
    text = json.dumps(remembered(folder) | {name: checksum}, indent=2) + "\n"
    temporary = folder / f".checksums.{os.getpid()}.tmp"
    temporary.write_text(text)
    temporary.replace(folder / "checksums.json")


def _reason(error: BaseException) -> str:
    """What went wrong, without the chain of wrappers that requests and urllib3 put around it."""
    while error.args and isinstance(error.args[0], BaseException):
        error = error.args[0]
    reason = getattr(error, "reason", None)
    text = str(reason if isinstance(reason, BaseException) else error)
    return " ".join(text.split())[:150] or type(error).__name__
