"""Marks and grades of one dialogue, made up for tests."""

from memecmd_utils import schemas

NAME = "news-made-1"


def mark(
    turn: int, marker: str, send: bool, best: tuple[str, ...] = ("m1",), name: str = NAME
) -> schemas.Mark:
    return schemas.Mark(
        dialogue_id=name, turn=turn, marker=marker, send=send, best=list(best), source="authored"
    )


def grade(turn: int, meme_id: str, grader: str, value: int, name: str = NAME) -> schemas.Grade:
    return schemas.Grade(
        dialogue_id=name, turn=turn, meme_id=meme_id, grader=grader, grade=value, source="authored"
    )
