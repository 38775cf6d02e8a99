"""What a call can cost and whether it may go: caps and prices of a chat, held against its run's ledger."""

import asyncio
import json
import math
from collections import Counter
from functools import lru_cache

from pydantic import BaseModel

from memecmd_utils.ledger import Ledger, Most, Reservation
from memecmd_utils.llm_types import BudgetReached, Reply, Request

BATCH_DISCOUNT = 0.5
"""Share of the price that OpenAI's Batch API takes."""
TOKENS_OUT = 4000
"""Longest reply that is reckoned with where a request sets no limit, or the endpoint drops it."""
TOKENS_PER_MESSAGE = 8
"""What a chat template puts around a message."""
TILE, LONGEST_SIDE, SHORTER_SIDE = 512, 2048, 768
"""Pixels: a picture is made to fit the two sides, then cut into tiles."""
UNPROVEN = 50.0
"""How many times what is reckoned the calls of a task may cost until its first answer is back: a model that
thinks bills thousands of tokens for an utterance of 60."""


class Budget:
    """Caps and prices of one chat, held against the ledger of its run."""

    def __init__(
        self,
        ledger: Ledger | None = None,
        stage: str = "",
        max_calls: int | None = None,
        max_usd: float | None = None,
        usd_in: float = 0.0,
        usd_out: float = 0.0,
        tokens_per_image: int | None = None,
        unbounded: bool = False,
    ) -> None:
        """Prices are US dollars per million tokens; `unbounded` where the endpoint drops `max_tokens`.

        `tokens_per_image` None: not known, so a picture is reckoned at `PICTURE_AT_MOST` until one was
        counted.
        """
        self.ledger = ledger or Ledger()
        self.stage, self.max_calls, self.max_usd = stage, max_calls, max_usd
        self._usd_in, self._usd_out = usd_in / 1e6, usd_out / 1e6
        self._tokens_per_image, self._unbounded = tokens_per_image, unbounded
        self._mine: Counter[str] = Counter()
        """Our calls under way by task."""
        self._waiting: list[asyncio.Future[None]] = []

    def price(self, tokens_in: int, tokens_out: int) -> float:
        """US dollars for so many tokens."""
        return tokens_in * self._usd_in + tokens_out * self._usd_out

    async def reserve(self, request: Request, in_bulk: bool = False) -> Reservation:
        """Set aside the most that a call can cost; wait for our own calls in flight where that is too much.

        Before the first answer to a task only so many calls of it go out as fit in the cap if they cost
        `UNPROVEN` times as much; at least one, and `in_bulk` all, because their answers come back together.
        Raises `BudgetReached` when nothing of ours is in flight and the cap would still be passed.
        """
        out = None if self._unbounded else request.sampling.max_tokens
        most = Most(
            tokens_at_most(request),
            self._usd_in,
            TOKENS_OUT if out is None else out,
            self._usd_out,
            pictures_of(request),
            self._tokens_per_image,
        )
        while True:
            beside = UNPROVEN if self._mine[request.task] and not in_bulk else 0.0
            caps = self.max_calls, self.max_usd
            made = self.ledger.reserve(self.stage, request.task, most, *caps, beside)
            if made is not None:
                self._mine[request.task] += 1
                return made
            if not self._mine.total():
                raise BudgetReached(self._why())
            one_settled = asyncio.get_running_loop().create_future()
            self._waiting.append(one_settled)
            await one_settled

    def settle(self, reservation: Reservation, reply: Reply) -> None:
        """Enter what a reply cost by the endpoint's own count of tokens."""
        usd: float | None = self.price(reply.tokens_in, reply.tokens_out)
        if not reply.tokens_in and not reply.tokens_out and reply.finish_reason != "content_filter":
            usd = None  # the endpoint does not count: nobody knows what it cost
        self.ledger.settle(reservation, usd, reply.tokens_in, reply.tokens_out)
        self._one_less(reservation)

    def settle_unsure(self, reservation: Reservation) -> None:
        """Enter a call whose answer did not arrive whole, at the most that it can have cost."""
        self.ledger.settle(reservation, None, 0, 0, sure=False)
        self._one_less(reservation)

    def release(self, reservation: Reservation) -> None:
        """Take back a call that was certainly not paid for."""
        self.ledger.release(reservation)
        self._one_less(reservation)

    def abandon(self, reservation: Reservation) -> None:
        """Leave a cancelled call unsettled: it may have been paid for."""
        self._one_less(reservation)

    def _one_less(self, reservation: Reservation) -> None:
        self._mine[reservation.task] -= 1
        waiting, self._waiting = self._waiting, []
        for one_settled in waiting:
            if not one_settled.done():
                one_settled.set_result(None)

    def _why(self) -> str:
        if self.max_calls is not None and self.ledger.calls >= self.max_calls:
            cap = f"max_calls={self.max_calls}"
            return f"{cap} reached; all answers are recorded: raise it and run again to go on"
        unsure = self.ledger.unsure_usd
        extra = f", of it {unsure:.4f} for calls that were cut off and may have been paid" if unsure else ""
        return (
            f"max_usd={self.max_usd} would be passed by the next call (spent {self.ledger.usd:.4f}{extra}); "
            "all answers are recorded: raise it and run again to go on"
        )


def tiles(width: int, height: int) -> int:
    """Tiles into which vision models of OpenAI cut a picture of so many pixels."""
    fit = min(1.0, LONGEST_SIDE / max(width, height))
    fit *= min(1.0, SHORTER_SIDE / (fit * min(width, height)))
    return math.ceil(fit * width / TILE) * math.ceil(fit * height / TILE)


def picture_size(tiles: int) -> float:
    """What a picture of so many tiles counts, in pictures of one: a tile takes twice what a picture does."""
    return round((1 + 2 * tiles) / 3, 3)


def pictures_of(request: Request) -> float:
    """Sizes of all pictures of a request together."""
    return sum(picture_size(image.tiles) for message in request.messages for image in message.images)


def tokens_at_most(request: Request) -> int:
    """Upper bound of the tokens of a request's texts: byte-level vocabularies have no token below a byte."""
    total = sum(_bytes(m.text) + TOKENS_PER_MESSAGE for m in request.messages)
    if request.reply_schema is not None:
        total += _schema_bytes(request.reply_schema)
    return total


@lru_cache(maxsize=256)
def _bytes(text: str) -> int:
    # Most messages of a request, the worked examples, are those of the request before.
    return len(text.encode())


@lru_cache(maxsize=64)
def _schema_bytes(schema: type[BaseModel]) -> int:
    return len(json.dumps(schema.model_json_schema()))
