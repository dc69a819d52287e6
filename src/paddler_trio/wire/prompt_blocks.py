"""The prompt of a request as a chain of hashes: equal beginnings of prompts are equal beginnings of
chains, so whoever placed one request knows which agent has computed the beginning of another.

What is hashed stands for the prompt as it will be rendered, which only agents can do: the tools,
then the messages in their order, the system's first, as JSON. An image is its digest, and as long
as the tokens that it costs at least. Requests that agents keep apart (``cache_salt``), that other
template variables render or other adapters compute have no hash in common; one that uses no cache
has none at all.

Blocks grow with the distance from the beginning, so a prompt of megabytes is some hundred hashes,
and the part that is compared is known within an eighth, or 256 bytes. The hashes are Python's own:
fast, keyed by a secret of this process, and true in it alone.
"""

from __future__ import annotations

import hashlib
import re
from bisect import bisect_right
from itertools import accumulate
from typing import Final

import attrs

from paddler_trio.wire.codec import dumps
from paddler_trio.wire.paddler.request_params import (
    ContinueFromConversationHistoryParams,
    ContinueFromRawPromptParams,
)
from paddler_trio.wire.trio.work import ConversationPrompt, Generate, Work

BLOCK_BYTES: Final = 256
BLOCKS_OF_A_SIZE: Final = 16
MAX_BLOCKS: Final = 512
"""The last of them ends after 25 MiB; what follows is never shared."""
IMAGE_BYTES: Final = 1024
"""What stands for an image, at four bytes a token."""
_SIZES: Final = [min(BLOCK_BYTES << n // BLOCKS_OF_A_SIZE, 65_536) for n in range(MAX_BLOCKS)]
_ENDS: Final = list(accumulate(_SIZES))
_BLOCKS: Final = [slice(end - size, end) for size, end in zip(_SIZES, _ENDS, strict=True)]
_IMAGE: Final = re.compile(rb"data:[\w/+.;=-]{0,80};base64,[A-Za-z0-9+/=]{256,}")
_TOOLS: Final = b'],"tools":['
_NO_TOOLS: Final = b'],"tools":[]'


@attrs.frozen
class PromptBlocks:
    """See the module docstring.

    Args:
      hashes: of the whole blocks, each of all text up to its end.
      size_bytes: of the whole text.
    """

    hashes: tuple[int, ...] = attrs.field(default=(), repr=lambda hashes: f"<{len(hashes)}>")
    size_bytes: int = 0

    def covered_bytes(self, num_blocks: int) -> int:
        """Return how much of the text so many blocks are."""
        return _ENDS[num_blocks - 1] if num_blocks else 0


NO_BLOCKS: Final = PromptBlocks()


def prompt_blocks(work: Work, body: bytes) -> PromptBlocks:
    """Return the blocks of the prompt of ``work``, which was written as ``body``; none of what is
    no generation."""
    match work:
        case Generate(reuse_prefix=False):
            return NO_BLOCKS
        case Generate(context=context) if context:
            return _chain(dumps(context), hash((work.cache_salt, work.lora)))
        case Generate(prompt=ConversationPrompt() as prompt):
            start = body.find(b'"messages":[') + 12
            variables = dumps(prompt.template_kwargs) if prompt.template_kwargs else b""
            if prompt.tools:
                text = body[start : body.find(_TOOLS, start)]
                end = body.rfind(b'],"tool_choice":')
                text = body[start + len(text) + len(_TOOLS) : end] + text
            else:
                text = body[start : body.rfind(_NO_TOOLS, start)]
            return _chain(text, hash((work.cache_salt, variables, work.lora)))
        case Generate():
            start = body.find(b'"prompt":')
            return _chain(
                body[start : body.rfind(b',"max_tokens":')], hash((work.cache_salt, work.lora))
            )
        case ContinueFromConversationHistoryParams():
            start = body.find(b'"conversation_history":[') + 24
            text = body[start : body.rfind(b'],"enable_thinking":')]
            tools = body[body.rfind(b',"tools":[') + 10 :] if work.tools else b""
            return _chain(tools + text, hash(("", b"")))
        case ContinueFromRawPromptParams():
            start = body.find(b'"raw_prompt":"')
            return _chain(body[start : body.rfind(b',"max_tokens":')], hash(""))
        case _:
            return NO_BLOCKS


def _chain(text: bytes, seed: int) -> PromptBlocks:
    if text.rfind(b";base64,") >= 0:  # an eighth of the time that "in" takes
        text = _IMAGE.sub(_digest, text)
    before, hashes = seed, list[int]()
    for block in map(text.__getitem__, _BLOCKS[: bisect_right(_ENDS, len(text))]):
        before = hash((before, block))
        hashes.append(before)
    return PromptBlocks(tuple(hashes), len(text))


def _digest(image: re.Match[bytes]) -> bytes:
    digest = hashlib.blake2b(image[0]).hexdigest().encode()
    return digest * (IMAGE_BYTES // len(digest))
