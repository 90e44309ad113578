"""`birl card`, `birl push` and `birl pull`: sharing runs."""

from pathlib import Path
from typing import Annotated, Literal

import tyro

from birl.cli.parsing import parse
from birl.run.signals import starting


def card(words: list[str]) -> int:
    def arguments(
        run_dir: Annotated[Path, tyro.conf.Positional],
        /,
        out: Path | None = None,
        license: str | None = None,
    ) -> tuple[Path, Path | None, str | None]:
        """Write a model card about a run or a group of seeds: README.md, and the policy beside it.

        Args:
            run_dir: the run's directory, or that of a group of seeds
            out: the page to write; None: README.md in that directory
            license: an id of the Hugging Face Hub, such as mit; None: none is named
        """
        return run_dir, out, license

    run_dir, out, license = parse(arguments, words, "birl card")
    with starting():
        from birl.sharing.card import card as write_card

    print(write_card(run_dir, out, license))
    return 0


def push(words: list[str]) -> int:
    def arguments(
        run_dir: Annotated[Path, tyro.conf.Positional],
        repository: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="OWNER/NAME")],
        /,
        private: tyro.conf.FlagCreatePairsOff[bool] = False,
        checkpoint: Literal["best", "last"] | None = None,
        video: Path | None = None,
        license: str | None = None,
        dry_run: tyro.conf.FlagCreatePairsOff[bool] = False,
        token_file: Path | None = None,
        endpoint: str | None = None,
    ) -> tuple[Path, str, bool, Literal["best", "last"] | None, Path | None, str | None, bool, Path | None, str | None]:
        """Upload a run to a repository of the Hugging Face Hub: card, policy, settings and metrics.

        Args:
            run_dir: the run's directory, or that of a group of seeds
            repository: the repository, which is made if it does not exist
            private: make a repository that only its owner sees
            checkpoint: upload this checkpoint too, so that others can resume and fork the run
            video: upload this video too, an .mp4 file
            license: an id of the Hugging Face Hub, such as mit; None: that of the card
            dry_run: only list what would be uploaded
            token_file: a file with an access token; None: the variable HF_TOKEN
            endpoint: the address of the Hub; None: HF_ENDPOINT, or https://huggingface.co
        """
        return run_dir, repository, private, checkpoint, video, license, dry_run, token_file, endpoint

    given = parse(arguments, words, "birl push")
    run_dir, repository, private, checkpoint, video, license, dry_run, token_file, endpoint = given
    with starting():
        from birl.sharing.push import push as upload

    url = upload(
        run_dir,
        repository,
        private=private,
        checkpoint=checkpoint,
        video=video,
        license=license,
        dry_run=dry_run,
        token_file=token_file,
        endpoint=endpoint,
        report=print,
    )
    print("nothing was uploaded (--dry-run)" if dry_run else url)
    return 0


def pull(words: list[str]) -> int:
    def arguments(
        repository: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="OWNER/NAME")],
        /,
        out: Path | None = None,
        revision: str | None = None,
        token_file: Path | None = None,
        endpoint: str | None = None,
    ) -> tuple[str, Path | None, str | None, Path | None, str | None]:
        """Download a run from a repository of the Hugging Face Hub. It is a stranger's run.

        Args:
            repository: the repository
            out: a new directory for the run; None: runs/OWNER--NAME
            revision: a branch, tag or commit; None: main
            token_file: a file with an access token; None: the variable HF_TOKEN
            endpoint: the address of the Hub; None: HF_ENDPOINT, or https://huggingface.co
        """
        return repository, out, revision, token_file, endpoint

    repository, out, revision, token_file, endpoint = parse(arguments, words, "birl pull")
    with starting():
        from birl.sharing.pull import pull as download

    print(download(repository, out, revision=revision, token_file=token_file, endpoint=endpoint, report=print))
    return 0
