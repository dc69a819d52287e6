"""Agents' issues, as the wire has them, in words that say what to do next.

Issues are read as plain JSON, so one that a newer agent invents is shown as it came.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Final

OLD_MODEL_SERVES: Final = "old model serves"
"""While the agent gets, or could not load, the one that it was sent."""
WORDS: Final[Mapping[str, str]] = {
    "CacheCannotAcquireLock": "another process holds the model cache's lock for {model_path}",
    "CacheDirectoryIsNotWritable": "the model cache cannot be written to (for {model_path})",
    "CacheStorageIsFull": "the disk of the model cache is full (for {model_path})",
    "ChatTemplateDoesNotCompile": "the chat template does not compile: {error}",
    "DownloadInterrupted": "the download of {model_path} broke off",
    "DownloadServerDeniedAccess": "the server denies access to {model_path}",
    "DownloadServerErrored": "the server failed when asked for {model_path}",
    "DownloadServerIsUnreachable": "cannot reach the server of {model_path}",
    "DownloadServerRejectedRequest": "the server rejected the request for {model_path}",
    "DownloadUrlIsMalformed": "{model_path} is not a URL",
    "HuggingFaceCannotAcquireLock": "another process is downloading it (lock {lock_path})",
    "HuggingFaceModelDoesNotExist": "Hugging Face has no {model_path}",
    "HuggingFacePermissions": "Hugging Face does not give access to {model_path}",
    "ModelCacheIsCorrupted": "the cached copy of {model_path} is damaged",
    "ModelCannotBeLoaded": "llama.cpp cannot load {model_path}",
    "ModelDoesNotExistAtUrl": "there is nothing at {model_path}",
    "ModelFileDoesNotExist": "the agent has no file {model_path}",
    "MultimodalProjectionCannotBeLoaded": "the projection {model_path} cannot be loaded",
    "SlotCannotStart": "slot {slot_index} cannot start: {error}",
    "UnableToFindChatTemplate": "{model_path} has no chat template: give one (--chat-template)",
}


def issue_words(issue: object) -> str:
    """One issue, ``{"Variant": {...}}``, as a sentence without its full stop."""
    if isinstance(issue, dict) and len(issue) == 1:
        ((variant, fields),) = issue.items()
        words = WORDS.get(variant)
        if words is not None and isinstance(fields, dict):
            try:
                return words.format_map(fields)
            except KeyError:  # a variant we know, with other fields: shown as it came
                return json.dumps(issue)
    return json.dumps(issue)


def issues_words(issues: list[object]) -> str:
    """All of them on one line; slots that fail alike are one issue, not one each."""
    slots = [issue for issue in issues if isinstance(issue, dict) and "SlotCannotStart" in issue]
    others = [issue for issue in issues if issue not in slots]
    words = [issue_words(issue) for issue in others]
    reasons = dict.fromkeys(str(issue["SlotCannotStart"].get("error")) for issue in slots)
    words += [f"no slot can start: {reason}" for reason in reasons]
    return "; ".join(words)
