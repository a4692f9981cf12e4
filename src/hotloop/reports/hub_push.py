"""Publishing of runs on the Hugging Face Hub: files, model card and upload."""

from __future__ import annotations

import json
import re
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from hotloop.base.redaction import redacted_options
from hotloop.errors import ConfigError, HubError
from hotloop.reports.model_card import model_card
from hotloop.runs import RunDirectory
from hotloop.runs.hub import HubAddress, hub_requests, huggingface_hub
from hotloop.runs.learning_curve import CURVE_FILE, learning_curve
from hotloop.runs.policies import check_one_policy
from hotloop.training.trained_policy import EvaluationResult, evaluate

_LICENSE = re.compile(r"[a-z0-9][a-z0-9.+-]{0,63}")
# Fields of `config.json` that loading and the card need. Others name files of this machine.
_FIELDS = ("algorithm", "env_id", "network", "versions", "started_at")
# The files of the checkpoint that an earlier push may have left.
_CHECKPOINT_FILE = re.compile(r"checkpoints/step-\d{12,}/(state\.json|policy\.safetensors)")


def push(
    run: str | Path,
    repo: str,
    *,
    checkpoint: str = "last",
    episodes: int = 100,
    license_id: str | None = None,
    is_private: bool = False,
    is_trusted: bool = False,
    on_note: Callable[[str], None] = lambda _: None,
) -> dict[str, Any]:
    """Publish the policy of a run, in one commit.

    Args:
        run: the run directory.
        repo: the repository, `user/name`. It is created if it does not exist.
        checkpoint: `last`, `best` or another checkpoint.
        episodes: episodes to play for the mean return in the card. 0: none.
        license_id: an identifier of a licence on the hub, or None.
        is_private: whether a new repository is private.
        is_trusted: whether to import code that the run names, even if another user trained it.
        on_note: called with the state of a lengthy evaluation.

    Returns:
        `url` and `commit` of the repository, `files` with their sizes in bytes, and `mean_return`,
        `std_return` and `episodes` of the evaluation if there is one.

    Raises:
        ConfigError: `repo` or `license_id` is invalid.
        HubError: the hub can't be reached, or the repository belongs to another project.
        HotloopError: the run can't be read or evaluated.
    """
    # Check the arguments.
    if HubAddress.parse(f"hf://{repo}").repo != repo:
        raise ConfigError(f"the repository must be named user/name, got '{repo}'")
    if license_id is not None and not _LICENSE.fullmatch(license_id):
        raise ConfigError(
            f"`license` must be an identifier of the hub such as mit or apache-2.0, got "
            f"'{license_id}': https://huggingface.co/docs/hub/repositories-licenses lists them"
        )
    huggingface_hub()
    directory = RunDirectory.open(run)
    check_one_policy(directory.path)
    # `last` and `best` may move while a training runs: use the same checkpoint everywhere.
    files = directory.checkpoints.policy_files(checkpoint)
    checkpoint = Path(next(iter(files))).parent.name
    _, _, state = directory.load_policy(checkpoint, is_trusted=is_trusted)
    # Make the files, and the model card from an evaluation.
    played: EvaluationResult | None = None
    if episodes:
        options = {"checkpoint": checkpoint, "trust": is_trusted, "on_note": on_note}
        played = evaluate(run, episodes=episodes, **options)
    content = published_config(directory.config)
    files["config.json"] = (json.dumps(content, indent=2) + "\n").encode()
    timesteps = state["timesteps"]
    card = model_card(content, repo, timesteps=timesteps, played=played, license_id=license_id)
    files["README.md"] = card.encode()
    with tempfile.TemporaryDirectory(prefix="hotloop-") as folder:
        picture = learning_curve(directory, path=Path(folder) / CURVE_FILE)
        files[CURVE_FILE] = picture.read_bytes()
    # Upload them.
    url, commit = _upload(repo, files, is_private=is_private)
    result: dict[str, Any] = {"url": url, "commit": commit}
    result["files"] = {name: len(files[name]) for name in sorted(files)}
    if played is not None:
        result |= {"mean_return": played.mean_return, "std_return": played.std_return}
        result["episodes"] = len(played.episodes)
    return result


def published_config(content: Mapping[str, Any]) -> dict[str, Any]:
    """Return the part of `config.json` that is published: options that influence the policy.

    Paths, trackers, addresses of clusters, the command line and the signature stay here. Values
    that look like secrets are masked.
    """
    private = set(content["may_change"]) - {"total_timesteps"} | {"init_from"}
    published = {name: content[name] for name in _FIELDS}
    for part in ("config", "defaults"):
        if part in content:
            options = content[part]
            published[part] = {k: v for k, v in options.items() if k not in private}
    return redacted_options(published)


def _upload(repo: str, files: Mapping[str, bytes], *, is_private: bool) -> tuple[str, str]:
    """Commit the files in place of an earlier checkpoint, and return the URL and the commit."""
    hub = huggingface_hub()
    with hub_requests(repo):
        api = hub.HfApi()
        url = api.create_repo(repo, private=is_private or None, exist_ok=True)
        info = api.model_info(repo)
        if is_private and not info.private:
            raise HubError(
                f"{repo} exists and is public, so nothing was published: make it private in its "
                "settings on the hub, or push to a new name"
            )
        present = [file.rfilename for file in info.siblings or ()]
        published = {name for name in present if _CHECKPOINT_FILE.fullmatch(name)}
        others = set(present) - {".gitattributes", "README.md"}
        if others and not ("config.json" in present and published):
            raise HubError(
                f"{repo} holds files of another model, such as '{min(others)}': push to a new name"
            )
        operations = [
            hub.CommitOperationDelete(path_in_repo=name)
            for name in sorted(published - files.keys())
        ]
        operations += [
            hub.CommitOperationAdd(path_in_repo=name, path_or_fileobj=content)
            for name, content in files.items()
        ]
        message = "Publish a policy trained with hotloop"
        commit = api.create_commit(repo, operations, commit_message=message)
    return str(url), commit.oid
