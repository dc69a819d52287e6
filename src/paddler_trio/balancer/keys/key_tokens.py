"""The tokens of each request are charged to its API key when it ends: an observer.

Charged are the tokens of the prompt, once, however often a loss made agents compute it, and every
token of the answer, also of one that was cut off. Each choice of an answer has a prompt of its own.
"""

from __future__ import annotations

import attrs

from paddler_trio.balancer.activity.finished_requests import FinishedRequests
from paddler_trio.balancer.keys.key_accounts import KeyAccounts
from paddler_trio.nursery_tree.dispatch_observer import DispatchObserver
from paddler_trio.nursery_tree.request import Ended, Phase, Request


@attrs.define(eq=False)
class KeyTokens(DispatchObserver):
    """See the module docstring.

    Args:
      finished: the records of requests that ended; the newest is there before this is called.
    """

    accounts: KeyAccounts
    finished: FinishedRequests

    def moved(self, request: Request, left: Phase) -> None:
        if request.account and isinstance(request.phase, Ended):
            self.accounts.charge(request.account, self._tokens_of(request))

    def _tokens_of(self, request: Request) -> int:
        record = self.finished.last
        if record is None or record.key != request.key:
            return 0
        prompts = (placement.prompt_tokens for placement in record.placements)
        prompt = next((tokens for tokens in prompts if tokens is not None), 0)
        return prompt + (record.tokens if record.kind == "generation" else 0)
