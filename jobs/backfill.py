"""The bulk backfill as a job: `ray job submit -- python jobs/backfill.py archive/ --group team`.

The same command, options and exit codes as `kgray backfill`; with a name of your own for the submission, too.
`kgray backfill --submit` does it with an id that makes submitting again harmless.

A path may be a URL: https:// of one file; s3://, gs://, abfs:// or file:// of a file, or of a folder with all
that is below it. It is copied to `fetched` in the data folder, anew each time; rows that were accepted before
are duplicates. Credentials are those of the process's environment. A copy that fails exits 75: try again.
"""

from __future__ import annotations

import os
import shutil
import sys
from contextlib import suppress
from hashlib import sha256
from pathlib import Path, PurePosixPath
from urllib.parse import urlsplit
from urllib.request import urlopen

from kgray.cli import cli
from kgray.settings import data_folder

TRY_AGAIN = 75


def fetched(url: str, into: Path) -> Path:
    """Copy what a URL names, and return where it is: a place that follows from the URL. Raises OSError."""
    from pyarrow.fs import copy_files  # only a job that fetches pays for it

    name = PurePosixPath(urlsplit(url).path).name or "folder"
    place = into / sha256(url.encode()).hexdigest()[:16]
    shutil.rmtree(place, ignore_errors=True)
    place.mkdir(parents=True, mode=0o700)
    if urlsplit(url).scheme in ("http", "https"):
        with urlopen(url, timeout=60) as answer, (place / name).open("wb") as file:  # noqa: S310 - as checked
            shutil.copyfileobj(answer, file, 1 << 20)
    else:
        copy_files(url, str(place / name))
    return place / name


def data_of(arguments: list[str]) -> Path:
    """Return the data folder that the command will use."""
    given = None
    with suppress(ValueError, IndexError):
        given = arguments[arguments.index("--data") + 1]
    return data_folder(given, os.environ)


def main(arguments: list[str]) -> None:
    """Fetch what is elsewhere, and run the command on the copies."""
    folder = data_of(arguments) / "fetched"
    for place, argument in enumerate(arguments):
        if "://" in argument and not argument.startswith("-"):
            try:
                arguments[place] = str(fetched(argument, folder))
            except (OSError, ValueError) as error:
                shown = urlsplit(argument)  # without what may be a secret: user, password, query
                where = f"{shown.scheme}://{shown.hostname or ''}{shown.path}"
                why = (
                    f"{type(error).__name__} {getattr(error, 'code', '')}".strip()
                )  # its text may hold the URL
                sys.stderr.write(f"kgray: {where} cannot be copied ({why}): try again\n")
                raise SystemExit(TRY_AGAIN) from None
    cli(["backfill", *arguments])


if __name__ == "__main__":
    main(sys.argv[1:])
