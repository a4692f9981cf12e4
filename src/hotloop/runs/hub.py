"""Runs on the Hugging Face Hub, `hf://user/name`: addresses, downloads and errors.

A repository of a run holds `config.json`, and one checkpoint without the state of the learner. It
is untrusted input. hotloop lists the repository first, and downloads only files that it reads: JSON
and safetensors with known names and sizes. `hotloop.runs.trust` then treats the run like any other
that this user has not signed.
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

from hotloop.base.redaction import redacted
from hotloop.base.streams import printable
from hotloop.errors import ConfigError, HubError, requires_extra, shortened

# `Path` joins the two slashes.
_ADDRESS = re.compile(r"hf:/{1,2}([\w.-]+/[\w.-]+)(?:@([\w.][\w./-]*))?", re.ASCII)
_SCHEME = re.compile(r"hf:/")
# The files of a run that `load_policy` reads, with their maximum sizes.
_MEBIBYTE = 2**20
_LOADED = {
    r"config\.json": 16 * _MEBIBYTE,
    r"checkpoints/step-\d{12,}/state\.json": 16 * _MEBIBYTE,
    r"checkpoints/step-\d{12,}/policy\.safetensors": 1024 * _MEBIBYTE,
}
# Suffixes of files that can't run code when they are opened. Other files are refused.
_SAFE_SUFFIXES = (
    *(".json", ".jsonl", ".safetensors", ".md", ".txt", ".yaml", ".yml"),
    *(".png", ".jpg", ".gif", ".svg", ".mp4"),
)
_SAFE_NAMES = ("LICENSE", ".gitattributes", ".gitignore")
_TIMEOUT_S = 20.0


@dataclass(frozen=True)
class HubAddress:
    """The address of a model on the hub.

    Attributes:
        repo: the repository, `user/name`.
        revision: a branch, a tag or a commit. None: the main branch.
    """

    repo: str
    revision: str | None = None

    def __str__(self) -> str:
        return f"hf://{self.repo}" + (f"@{self.revision}" if self.revision else "")

    @classmethod
    def parse(cls, text: str) -> HubAddress:
        """Return the address `hf://user/name` or `hf://user/name@REVISION`.

        Raises:
            ConfigError: the text is no such address.
        """
        match = _ADDRESS.fullmatch(text)
        if match is None or ".." in text:
            raise ConfigError(
                "a model on the hub must be named hf://user/name, or hf://user/name@REVISION, got "
                f"'{shortened(printable(text))}'"
            )
        return cls(match[1], match[2])


def is_hub_address(path: str | Path) -> bool:
    """Return whether a path names a model on the hub."""
    return _SCHEME.match(str(path)) is not None


def local_run(path: str | Path) -> Path:
    """Return a run's directory on this machine. A run on the hub is downloaded.

    Raises:
        ConfigError: the address of a model on the hub is invalid.
        HubError: see `download`.
        MissingExtraError: huggingface_hub is not installed.
    """
    return download(HubAddress.parse(str(path))) if is_hub_address(path) else Path(path)


def download(address: HubAddress) -> Path:
    """Return the directory of a downloaded run, in the cache of huggingface_hub.

    Raises:
        HubError: the hub can't be reached, or the repository is missing or holds other files.
        MissingExtraError: huggingface_hub is not installed.
    """
    hub = huggingface_hub()
    with hub_requests(str(address)):
        api = hub.HfApi()
        info = api.model_info(
            address.repo, revision=address.revision, files_metadata=True, timeout=_TIMEOUT_S
        )
        sizes = {file.rfilename: file.size for file in info.siblings or ()}
        names = files_to_load(address, sizes)
        # The commit of the list, so that all files belong together.
        options = {"revision": info.sha, "etag_timeout": _TIMEOUT_S}
        paths = {name: Path(api.hf_hub_download(address.repo, name, **options)) for name in names}
    for name, path in paths.items():
        if path.stat().st_size != sizes[name]:
            raise HubError(
                f"'{name}' of {address} must have {sizes[name]:,} bytes as the repository lists, "
                f"got {path.stat().st_size:,}: remove {path}, and try it again"
            )
    return paths["config.json"].parent


def files_to_load(address: HubAddress, sizes: Mapping[str, int | None]) -> list[str]:
    """Return the names of the files to download.

    Args:
        address: the repository.
        sizes: size in bytes of each file of the repository by name. None: unknown.

    Raises:
        HubError: a file is missing, too large, outside the repository, or may run code.
    """
    names: list[str] = []
    for name, size in sizes.items():
        finding = f"{address} holds '{shortened(printable(name))}'"
        path = PurePosixPath(name)
        if path.is_absolute() or ".." in path.parts or "\\" in name:
            raise HubError(f"{finding}, a path outside of the repository: do not use this model")
        if path.suffix not in _SAFE_SUFFIXES and path.name not in _SAFE_NAMES:
            raise HubError(
                f"{finding}, and opening such a file may run code: hotloop loads repositories with "
                "JSON, safetensors, text and pictures only, as `hotloop push` writes them"
            )
        limits = [limit for pattern, limit in _LOADED.items() if re.fullmatch(pattern, name)]
        if not limits:
            continue
        if not isinstance(size, int) or size > limits[0]:
            size_text = f"{size:,} bytes" if isinstance(size, int) else "unknown size"
            raise HubError(
                f"{finding} with {size_text}, and hotloop downloads at most {limits[0]:,}: if you "
                f"expect that size, run `hf download {address.repo} --local-dir DIR` and load DIR"
            )
        names.append(name)
    # Three files with different names, in the root and in one folder of a checkpoint.
    paths = [PurePosixPath(name) for name in names]
    numbers = len(names), len({path.name for path in paths}), len({path.parent for path in paths})
    if numbers != (len(_LOADED), len(_LOADED), 2):
        raise HubError(
            f"{address} must hold config.json, and one checkpoint with state.json and "
            f"policy.safetensors, got {', '.join(names) or 'none of them'}: it is no model of "
            "`hotloop push`"
        )
    return sorted(names)


def huggingface_hub() -> Any:
    """Return the library.

    Raises:
        MissingExtraError: it is not installed.
    """
    with requires_extra("models on the Hugging Face Hub need huggingface_hub", "hub"):
        import huggingface_hub
        import huggingface_hub.constants  # loaded on use only
        import huggingface_hub.errors
        import huggingface_hub.utils
    return huggingface_hub


@contextmanager
def hub_requests(address: str) -> Iterator[None]:
    """Run requests of huggingface_hub without its progress bars, and turn its errors into ours.

    Raises:
        HubError: the hub can't be reached, or refuses a request.
    """
    hub = huggingface_hub()
    errors: Any = hub.errors
    endpoint = redacted([hub.constants.ENDPOINT])[0]
    log_in = "log in with `hf auth login`, or set HF_TOKEN"
    has_bars = hub.constants.HF_HUB_DISABLE_PROGRESS_BARS is None
    has_bars &= not hub.utils.are_progress_bars_disabled()
    if has_bars:
        hub.utils.disable_progress_bars()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # of the library's own calls
            yield
    except errors.OfflineModeIsEnabled as error:
        raise HubError(
            f"{address} can't be reached while HF_HUB_OFFLINE is set: unset it, or load a "
            "directory that `hf download` wrote"
        ) from error
    except errors.LocalTokenNotFoundError as error:
        raise HubError(f"{endpoint} requires a token for {address}: {log_in}") from error
    except errors.RevisionNotFoundError as error:
        raise HubError(
            f"{address} has no such revision: name a branch, a tag or a commit of the repository"
        ) from error
    except (errors.GatedRepoError, errors.RepositoryNotFoundError) as error:
        raise HubError(
            f"{endpoint} has no model {address}, or you may not read it: check the name; for a "
            f"private model, {log_in}"
        ) from error
    except errors.HfHubHTTPError as error:
        status = error.response.status_code
        advice = log_in + " with the right to write" if status in (401, 403) else "try it later"
        raise HubError(f"{endpoint} refused {address} with status {status}: {advice}") from error
    except errors.HFValidationError as error:
        raise HubError(
            f"{address} is no valid name on the hub: use letters, digits, '-', '_' and '.', 96 "
            "characters at most"
        ) from error
    except (errors.HTTPError, errors.LocalEntryNotFoundError) as error:
        raise HubError(
            f"{endpoint} can't be reached ({_reason(error)}): check the network and HF_ENDPOINT, "
            "or load a directory that `hf download` wrote"
        ) from error
    except OSError as error:
        if isinstance(error, HubError):
            raise
        raise HubError(
            f"{address} can't be transferred ({_reason(error)}): try it again"
        ) from error
    finally:
        if has_bars:
            hub.utils.enable_progress_bars()


def _reason(error: BaseException) -> str:
    lines = str(error).strip().splitlines()
    return redacted([shortened(printable(lines[0] if lines else type(error).__name__))])[0]
