"""`birl card`, `birl push` and `birl pull`: sharing runs."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

import tyro

from birl.cli.parsing import parse
from birl.run.signals import starting
from birl.run.streams import say

Repository = Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="OWNER/NAME")]
Flag = tyro.conf.FlagCreatePairsOff[bool]


@dataclass(frozen=True)
class PushOptions:
    """Upload a run to a repository of the Hugging Face Hub: card, policy, settings and metrics."""

    run_dir: Annotated[Path, tyro.conf.Positional]  # the run's directory, or that of a group of seeds
    repository: Repository  # the repository, which is made if it does not exist
    private: Flag = False  # make a repository that only its owner sees
    checkpoint: Literal["best", "last"] | None = None  # upload this checkpoint too, to be resumed and forked by others
    video: Path | None = None  # upload this video too, an .mp4 file
    license: str | None = None  # an id of the Hub, such as mit; None: that of the card
    dry_run: Flag = False  # only list what would be uploaded
    token_file: Path | None = None  # a file with an access token; None: the variable HF_TOKEN
    endpoint: str | None = None  # the address of the Hub; None: HF_ENDPOINT, or https://huggingface.co


@dataclass(frozen=True)
class PullOptions:
    """Download a run from a repository of the Hugging Face Hub. It is a stranger's run."""

    repository: Repository  # the repository
    out: Path | None = None  # a new directory for the run; None: runs/OWNER--NAME
    revision: str | None = None  # a branch, tag or commit; None: main
    token_file: Path | None = None  # a file with an access token; None: the variable HF_TOKEN
    endpoint: str | None = None  # the address of the Hub; None: HF_ENDPOINT, or https://huggingface.co


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
        from birl.lab.sharing.card import card as write_card

    print(write_card(run_dir, out, license))
    return 0


def push(words: list[str]) -> int:
    options = parse(PushOptions, words, "birl push")
    with starting():
        from birl.lab.sharing.push import push as upload

    url = upload(
        options.run_dir,
        options.repository,
        private=options.private,
        checkpoint=options.checkpoint,
        video=options.video,
        license=options.license,
        dry_run=options.dry_run,
        token_file=options.token_file,
        endpoint=options.endpoint,
        report=say,
    )
    print("nothing was uploaded (--dry-run)" if options.dry_run else url)
    return 0


def pull(words: list[str]) -> int:
    options = parse(PullOptions, words, "birl pull")
    with starting():
        from birl.lab.sharing.pull import pull as download

    path = download(
        options.repository,
        options.out,
        revision=options.revision,
        token_file=options.token_file,
        endpoint=options.endpoint,
        report=say,
    )
    print(path)
    return 0
