"""Memes for a chat that goes on: what `memecmd_utils.open` gives, and `memecmd serve` over HTTP."""

import asyncio
import atexit
import json
import threading
from bisect import bisect_right
from collections.abc import Callable, Collection, Coroutine, Sequence
from contextlib import ExitStack
from http import HTTPStatus
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import tornado.httpserver
import tornado.netutil
import tornado.web
from pydantic import BaseModel, Field
from threadpoolctl import ThreadpoolController

from memecmd_utils import files, learned, reranking, retrieval, runs, splits
from memecmd_utils.chats import search
from memecmd_utils.chats.turns import MAX_CHARS, OTHER, ChatError, Conversation, Message, no_model, summary_of
from memecmd_utils.dialogue import Context
from memecmd_utils.files import MemecmdError, paths
from memecmd_utils.llm.types import EndpointError
from memecmd_utils.runs import Run
from memecmd_utils.schemas import Annotation
from memecmd_utils.settings import RESOLVED

TURNS = "turns are texts or [speaker, text] (after it, the id of a meme that was sent), oldest first"


class RankedMeme(NamedTuple):
    """A meme for the next turn. Scores compare the memes of one turn: 0 is the mean of the library."""

    id: str
    score: float
    text: str
    """The words on it, else what is known of the picture."""
    picture: Path
    """One's own file, which may be animated; else the run's copy."""
    reason: str = ""
    """Why a model chose it."""


class LiveLibrary:
    """The memes of a library, ranked for the next turn of any chat by learned placement.

    Where `asking` has a model it sums up each chat first; else the last turns alone are read, which takes
    milliseconds. Many threads may use it. Nothing of a chat is kept. Raises `PlacementError` where no
    learned placement was fitted for the run's embedders.
    """

    def __init__(self, run: Run, asking: Run) -> None:
        self.run, self.asking, self.memes = run, asking, run.memes()
        self.has_model = asking.profile.models.llm != "authored"
        names, encoders = learned.open_encoders(run)
        self.placement = learned.open_placement(run, names)
        of_memes = splits.Turns(
            splits.Split(run.name, [], self.memes, run.load(Annotation)), run.profile, encoders
        )
        self.meme_ids, self.vectors = of_memes.meme_ids, of_memes.meme_vectors
        self._encoders = [search.encoder(run, asking, name, is_kept=False) for name in encoders]
        for encode in self._encoders if self.has_model else self._encoders[-1:]:
            encode(["loaded now, not at the first turn"], "query")
        self._one, self._threads = threading.Lock(), ThreadpoolController()
        if self.has_model:  # asked in one place, side by side for all threads, until Python ends
            self._loop, self._open, self._chats = asyncio.new_event_loop(), ExitStack(), {}
            threading.Thread(target=self._loop.run_forever, daemon=True, name="memecmd-models").start()
            atexit.register(self._open.close)
        else:
            with self._threads.limit(limits=1):
                self._reader = learned.ChatReader(self.placement, run.profile, encoders, self._encoders[-1])
            self.placement = self.placement.without_summaries()

    def rank(self, turns: Sequence[Any], k: int = 3, choose: bool = False) -> list[RankedMeme]:
        """The `k` best memes for the next turn; memes that were sent in the chat do not come again.

        `turns`, oldest first: texts of two people in turn, or (speaker, text), where one who sent a meme has
        its id as third. With `choose` a model picks one of the best, or none. Raises `ChatError` for other
        turns, and for `choose` without a model, `EndpointError` where it gives no usable answer.
        """
        if choose and not self.has_model:
            raise no_model("choose asks a model", self.asking.profile.name, self.run.name)
        context, sent = read_turns(turns, self.memes)
        scores = self._scores(context)
        order = retrieval.order(scores[None], self.meme_ids)[0]
        best = [row for row in order if self.meme_ids[row] not in sent.values()]
        if choose:
            return self._chosen(context, sent, best, scores)
        return [self._ranked(row, scores) for row in best[:k]]

    def _ranked(self, row: int, scores: np.ndarray, reason: str = "") -> RankedMeme:
        meme, score = self.memes[self.meme_ids[row]], round(float(scores[row]), 6)
        sources = (paths.user_path(source) for source in self.run.profile.library.sources)
        own = next(filter(Path.is_file, (source / meme.origin for source in sources)), None)
        return RankedMeme(meme.meme_id, score, meme.words, own or self.run.read(meme.file), reason)

    def _scores(self, context: Context) -> np.ndarray:
        """Of every meme, [memes]."""
        said, vectors = [text[:MAX_CHARS] for _, text in context.lines], []
        if self.has_model:
            answer = self._answer("generator", summary_of, context)
            if answer.value is None:
                raise EndpointError(f"the model gave no usable summary ({answer.outcome}: {answer.reason})")
        # Threads that compute at once wait for each other: one turn after another, each with one thread.
        with self._one, self._threads.limit(limits=1):
            if self.has_model:
                texts, means = [splits.turn_texts(said, answer.value)], self.placement.turn_means
                for encode, mean in zip(self._encoders, means, strict=True):
                    vectors.append(splits.encode_texts(texts, encode, "query", mean)[0])
            return self.placement.model.score(
                vectors or self._reader.vectors([said]), self.vectors, self.meme_ids
            )[0]

    def _chosen(
        self, context: Context, sent: dict[int, str], best: Sequence[int], scores: np.ndarray
    ) -> list[RankedMeme]:
        """The meme that a model picks, or none (strategy `reranked`)."""
        names, profile = [self.meme_ids[row] for row in best], self.asking.profile
        picture = reranking.pictures(self.run, self.asking)
        asked = reranking.choice_request(context, names, sent, self.memes, profile, picture)
        choice = self._answer("chooser", reranking.choice_at, context, asked)
        if choice.unscored:
            raise EndpointError(f"the model gave no usable choice ({choice.unscored})")
        rows = [self.meme_ids.index(choice.meme_id)] if choice.meme_id else []
        return [self._ranked(row, scores, choice.reason) for row in rows]

    def _answer(self, role: runs.Role, ask: Callable[..., Coroutine[Any, Any, Any]], *about: Any) -> Any:
        """What the model of a role says, opened once; one that has two roles is not started twice."""
        model = str(runs.model_of(self.asking.profile, role))
        with self._one:
            if model not in self._chats:
                opened = self.asking.chat(role, "live_chats", at_once=1, is_kept=False)
                self._chats[model] = self._open.enter_context(opened)
        work = ask(*about, self._chats[model], self.asking.profile)
        return asyncio.run_coroutine_threadsafe(work, self._loop).result()


def open_live(name: str, profile: str = "", settings: str = "") -> LiveLibrary:
    """The library of a finished run, or of a folder of pictures (`search.folder_run`).

    The model of `profile` and `settings` is asked, by default that of the run. Raises `StageMissing` where
    there is no such run.
    """
    folder, is_run = Path(name).expanduser(), (paths.processed / name / RESOLVED).is_file()
    run = search.folder_run(folder.resolve()) if folder.is_dir() and not is_run else runs.open_finished(name)
    return LiveLibrary(run, search.asking_run(run, profile, settings, "live"))


def read_turns(turns: Sequence[Any], memes: Collection[str]) -> tuple[Context, dict[int, str]]:
    """What models read for the turn after `turns` (`LiveLibrary.rank`), and the memes sent, by turn.

    Whoever spoke last before the last speaker speaks next.
    """
    messages, sent = [], []
    for number, turn in enumerate(turns if isinstance(turns, list | tuple) else [None]):
        parts = ("AB"[number % 2], turn) if isinstance(turn, str) else turn
        is_read = isinstance(parts, list | tuple) and len(parts) in (2, 3)
        if not is_read or not all(isinstance(part, str) for part in parts) or not parts[0].strip():
            raise ChatError(f"turn {number + 1} cannot be read: {TURNS}")
        speaker, text, *meme = (part.encode(errors="replace").decode() for part in parts)
        if meme and meme[0] not in memes:
            raise ChatError(
                f"turn {number + 1} names a meme that the library does not have: {meme[0][:80]!r}"
            )
        messages.append(Message(speaker, text))
        sent += [(number, name) for name in meme]
    spoken = Conversation("live", tuple(messages)).spoken
    if not spoken:
        raise ChatError(f"no turn has words: {TURNS}")
    firsts, last = [turn.first for turn in spoken], spoken[-1].speaker
    others = [turn.speaker for turn in spoken[::-1] if turn.speaker != last]
    lines = tuple((turn.speaker, turn.text) for turn in spoken)
    context = Context("live", len(spoken) + 1, lines, (others or [OTHER])[0])
    return context, {max(1, bisect_right(firsts, number)): name for number, name in sent}


# --- over HTTP


class Asked(BaseModel, extra="forbid", strict=True):
    """The arguments of `LiveLibrary.rank`, as a request's JSON gives them."""

    turns: list[Any]
    k: int = Field(3, ge=1)
    choose: bool = False


class Handler(tornado.web.RequestHandler):
    """`POST /rank` with the arguments of `LiveLibrary.rank` as JSON gives `{"memes": [...]}`.

    What is wrong is told in one sentence, `{"error": "..."}`: 4xx where it is the request, 503 the model.
    """

    def prepare(self) -> None:
        """Refuse what is no request for memes."""
        if (self.request.method, self.request.path) != ("POST", "/rank"):
            self._refuse(HTTPStatus.NOT_FOUND, "there is nothing but POST /rank")
        elif "Origin" in self.request.headers:  # any page in a browser of this machine can reach its ports
            self._refuse(HTTPStatus.FORBIDDEN, "pages in a browser are not served")

    async def post(self) -> None:
        """Answer one request."""
        try:
            asked = dict(Asked.model_validate(json.loads(self.request.body)))
        except (ValueError, RecursionError):
            form = 'send {"turns": [["name", "words"], ...], "k": 3, "choose": false} as JSON; '
            return self._refuse(HTTPStatus.BAD_REQUEST, form + TURNS)
        try:
            memes = await asyncio.to_thread(self.settings["live"].rank, **asked)
        except ChatError as error:
            return self._refuse(HTTPStatus.BAD_REQUEST, str(error))
        except MemecmdError as error:
            return self._refuse(HTTPStatus.SERVICE_UNAVAILABLE, str(error))
        self._send({"memes": [{**meme._asdict(), "picture": str(meme.picture)} for meme in memes]})

    def _refuse(self, status: HTTPStatus, words: str) -> None:
        self.set_status(status)
        self._send({"error": words})

    def _send(self, value: dict[str, Any]) -> None:
        self.set_header("Content-Type", "application/json; charset=utf-8")
        self.finish(files.dumps(value))


async def serve(live: LiveLibrary, host: str, port: int, ready: Callable[[str], None]) -> None:
    """Answer requests until somebody stops it; tells `ready` the address, with the port that 0 picked."""
    try:  # as many may wait to be taken up as a busy group sends at once
        sockets = tornado.netutil.bind_sockets(port, host, backlog=1024)
    except OSError as error:
        raise MemecmdError(f"{host}:{port} cannot be served ({error.strerror}): name another") from error
    # Nothing is logged: what is asked is somebody's chat.
    served = tornado.web.Application([("/.*", Handler)], live=live, log_function=lambda _: None)
    tornado.httpserver.HTTPServer(served).add_sockets(sockets)
    ready(f"http://{host}:{sockets[0].getsockname()[1]}/rank")
    await asyncio.Event().wait()
