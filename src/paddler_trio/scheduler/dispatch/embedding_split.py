"""Split one embedding request into sub-batches, each a request of its own."""

from __future__ import annotations


def split_sizes(documents: int, *, agents: int, batch_size: int) -> list[int]:
    """Return contiguous chunk sizes, as even as possible.

    At least one chunk per agent while there are documents, and no chunk over ``batch_size``.

    Args:
      documents: how many to embed, >= 0.
      agents: how many are connected, >= 1.
      batch_size: the most documents of one chunk, >= 1.

    Returns:
      Sizes that sum to ``documents``, larger ones first, none of them 0.
    """
    chunks = min(documents, max(agents, -(-documents // batch_size)))
    if chunks == 0:
        return []
    size, larger = divmod(documents, chunks)
    return [size + 1] * larger + [size] * (chunks - larger)
