"""`hotloop push RUN user/name`: publish a trained policy on the Hugging Face Hub."""

from __future__ import annotations

from hotloop.base.streams import notify
from hotloop.base.text_tables import print_json
from hotloop.cli.command_parser import CommandParser, natural
from hotloop.cli.stored_run import add_run_arguments, open_run


def run(args: list[str]) -> int:
    """Run the command. See `hotloop push --help`."""
    parser = CommandParser(
        prog="hotloop push",
        description="Publish the policy of a run on the Hugging Face Hub: its weights, its options "
        "that influence learning, and a model card with returns and the learning curve. Log in "
        "with `hf auth login` before.",
    )
    add_run_arguments(parser)
    parser.add_argument("repo", metavar="user/name", help="the repository, created if missing")
    parser.add_argument(
        "--episodes",
        type=natural,
        default=100,
        help="episodes to play for the mean return of the card, 0 for none (default: %(default)s)",
    )
    parser.add_argument(
        "--license",
        metavar="ID",
        help="licence of the weights, an identifier of the hub such as mit or apache-2.0 "
        "(default: the card states none)",
    )
    parser.add_argument(
        "--private", action="store_true", help="create a repository that only you can read"
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object instead")
    options = parser.parse_args(args)
    directory = open_run(options)

    from hotloop.reports.hub_push import push
    from hotloop.reports.model_card import eval_command

    pushed = push(
        options.run,
        options.repo,
        checkpoint=options.checkpoint,
        episodes=options.episodes,
        license_id=options.license,
        is_private=options.private,
        is_trusted=options.trust,
        on_note=notify,
    )
    if options.json:
        return print_json(pushed)
    sizes = pushed["files"].values()
    print(f"{len(sizes)} files, {sum(sizes) / 1000:,.1f} kB, commit {pushed['commit'][:10]}")
    print(pushed["url"])
    print(f"next: {eval_command(directory.config, options.repo)}")
    return 0
