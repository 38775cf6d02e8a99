"""A made-up finished run for the tests of chats from elsewhere: its memes are about numbered topics.

A text about topic 7 holds `k7`; the embedder made here puts it beside all others about topic 7. So the right
meme for a summary about `k7` is the meme of topic 7, and none fits a topic that no meme has.
"""

import json
import re
from pathlib import Path

import made_up
import numpy as np
import yaml
from fault_server import Answer, FaultServer, chat_reply
from PIL import Image

from memecmd_utils import files, learned, runs, schemas
from memecmd_utils.chats import search
from memecmd_utils.files import paths
from memecmd_utils.learned import LearnedPlacement, PlacementModel

N_MEMES, DIM = 12, 48
TOPIC = re.compile(r"k(\d+)")


class TopicEmbedder:
    """Texts about one topic lie close together; a text about none lies anywhere."""

    name = "topics"

    def encode(self, texts, side):
        rows = made_up.vectors(texts, side, DIM) / 8
        for row, text in zip(rows, texts, strict=True):
            if topics := TOPIC.findall(text):
                row[int(topics[-1]) % DIM] += 1
        return rows


def summary(topic: int) -> dict[str, str]:
    return {"scenario": f"在聊 k{topic}", "emotion": f"心情 k{topic}", "motivation": f"想说 k{topic}"}


def meme_id(topic: int) -> str:
    return f"m{topic:02d}"


def finished_run(monkeypatch, tmp_path: Path, origins=None, **changes) -> runs.Run:
    """A run `made` as notebooks 01 to 04 leave it, in a project folder of its own.

    `origins`: topic to the path of the picture below its source.
    """
    for name in ("processed", "raw", "reports", "example", "profiles"):
        monkeypatch.setattr(paths, name, tmp_path / name)
    for module in (runs, search, learned):
        monkeypatch.setattr(module, "embedder_of", lambda *_, **__: TopicEmbedder())
    own = {"centring": "none", "score_scale": "raw", "theta0": 0.6, "threshold_penalty": 0.1}
    made_up.write_profile(tmp_path / "profiles", "made", **(own | changes))
    run = runs.open_run("made", "", "made")
    profile = run.profile.model_dump(mode="json")
    files.write_text(run.write("profile.yaml"), yaml.safe_dump(profile, allow_unicode=True))
    memes, annotations, dialogues = [], [], []
    for topic in range(N_MEMES):
        name, file = meme_id(topic), f"memes/{meme_id(topic)}.png"
        run.write(file).parent.mkdir(parents=True, exist_ok=True)
        Image.new("RGB", (60, 40), (20 * topic, 90, 200 - 10 * topic)).save(run.write(file))
        # Captions are about other topics, so that they do not find the right meme.
        about = {"file": file, "origin": (origins or {}).get(topic, f"{name}.png")}
        about |= {"text": f"字幕 k{(topic + 5) % N_MEMES}"}
        memes.append(made_up.meme(name).model_copy(update=about))
        said = dict.fromkeys(("s_plus", "emotion", "motivation"), f"k{topic}")
        annotations.append(made_up.annotation(name, s_minus="别的场合", **said))
    for number in range(4):
        base = made_up.dialogue(f"news-{number}")
        told = [s.model_copy(update=summary((number + s.turn) % N_MEMES)) for s in base.summaries]
        dialogues.append(base.model_copy(update={"summaries": told}))
    run.save(memes, schemas.Meme)
    run.save(annotations, schemas.Annotation)
    run.save(dialogues, schemas.Dialogue)
    run.save([], schemas.Choice)
    gate = {"theta0": 0.6, "penalty": 0.1, "decay": 1.0, "score_mean": 0.0, "score_std": 1.0}
    files.write_json(run.write("gates.json"), {"a": gate, "b": gate})
    placement_file(tmp_path / "example" / "placement.json")
    example_corpus(tmp_path / "example")
    return run


def placement_file(path: Path, names: tuple[str, ...] = ("topics", "topics")) -> None:
    """Learned weights under which emotion meets emotion; a meme is wanted at every turn."""
    weights = np.zeros((2, 6, 6))
    weights[:, 1, 2] = 0.5
    gate = np.append(np.zeros(5 * DIM + 2), 50.0)
    model = PlacementModel(weights, gate, np.array([[0.0, 0.75], [0.0, 2.0]]), {})
    means = [np.zeros((6, DIM), dtype=np.float32)] * 2
    LearnedPlacement(names, model, [], {}, means).save(path)


def agent() -> FaultServer:
    """A simulated model: it sums up the topic that was named last, or chooses its meme, if there is one."""

    def answer(body: dict) -> Answer:
        told, is_choice, listed = body["messages"][-1]["content"].partition("候选表情包")
        topic = int((TOPIC.findall(re.sub("［.*?］", "", told)) or [40])[-1])
        said = summary(topic)
        if is_choice:
            caption = f"字幕 k{(topic + 5) % N_MEMES if topic < N_MEMES else 40}」"
            number = next((line.split(".")[0] for line in listed.splitlines() if caption in line), "0")
            said = {"reason": f"说到 k{topic}", "number": int(number)}
        return Answer(chat_reply(json.dumps(said, ensure_ascii=False)))

    return FaultServer(answer)


def live_profile(folder: Path, url: str, **changes) -> str:
    """Write a profile `live` whose generator is the endpoint at `url`."""
    ends = {"generator": {"base_url": url, "model": "m"}}
    usual = {"llm": "openai", "mode": "auto", "endpoints": ends}
    made_up.write_profile(folder / "profiles", "live", **(usual | changes))
    return "live"


def example_corpus(folder: Path) -> None:
    """An example's dialogues in which a turn's summary is about the topic of the turn before it."""
    turns, summaries = [], []
    for number in range(8):
        for turn in range(1, 14):
            place = {"dialogue_id": f"news-{number}", "turn": turn, "speaker": "AB"[(turn + 1) % 2]}
            place |= {"source": "authored"}
            turns.append({**place, "text": f"第{number}段 k{(number + turn) % N_MEMES}"})
            if turn > 1:
                summaries.append({**place, **summary((number + turn - 1) % N_MEMES)})
    for name, rows in (("dialogues", turns), ("summaries", summaries)):
        files.write_text(folder / f"{name}.jsonl", "".join(files.dumps(row) + "\n" for row in rows))
