"""`PROFILE=paper` from the first notebook to the last, with small sizes.

The models behind the endpoint are simulated; sentence-transformers and transformers are the real packages,
on tiny random weights.
"""

import json
import re
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import tiny_clips
import tiny_models
import whole_pipeline
from fault_server import FaultServer
from whole_pipeline import Hostile, command, schema_of, text_of

pytestmark = pytest.mark.paper

WORDS = ("天气真好", "周末去爬山吗", "预报说有雨", "在家煮火锅", "我带毛肚", "要辣的")
PICTURES = 8
NEWS = {"topic": "sports", "title": "山上下雨了", "text": "周末山上有雨，爬山的人都回家煮火锅。"}


class Plain(Hostile):
    """A simulated model that answers plainly."""

    def text(self, body: dict[str, Any]) -> str:
        schema = schema_of(body)
        number = self.counts[schema] = self.counts.get(schema, 0) + 1
        said = f"{WORDS[number % 6]}，{WORDS[number * 5 % 6]}{number}"
        if schema == "CheckedAnnotationReply":
            value = {name: f"{said}{name}" for name in ("s_plus", "s_minus", "emotion", "motivation")}
            value["s_minus"] = f"{WORDS[number % 5]}不合适{number}s_minus"
            value["unsafe"] = "abuse" if number == 3 else "none"
        elif schema == "SummaryReply":
            value = {name: f"{said}{name}" for name in ("scenario", "emotion", "motivation")}
        elif schema == "ScenarioReply":
            value = {"scenario": f"两个人说：{said}"}
        elif schema == "ScenarioDetails":
            value = {name: f"{said}{name}" for name in whole_pipeline.DETAILS}
        elif schema == "RatingsReply":
            asked = "".join(text_of(message) for message in body["messages"])
            memes = int(re.search(r"[共有](\d+)张", asked)[1])
            scores = [dict.fromkeys(whole_pipeline.SCORES, 40 + (7 * number + n) % 30) for n in range(memes)]
            value = {"ratings": [{"meme": n, **given} for n, given in enumerate(scores, start=1)]}
        else:
            return f"{WORDS[number % 6]}{'一二三四五六七八九十'[number % 10]}{number}"
        return json.dumps(value, ensure_ascii=False)


def settings(project: Path, url: str) -> str:
    common = {"base_url": url, "key_env": whole_pipeline.KEY_VARIABLE, "model": "simulated", "vision": True}
    free = {"usd_per_million_in": 0, "usd_per_million_out": 0}
    values = {
        "sources": ["pictures"], "filters": {}, "news": "news.jsonl", "n_news": 1, "n_role_pairs": 1,
        "scenarios_per_pair": 1, "n_turns": 6, "concurrency": 4, "theta0": 0.1,
        "scenario_similarity_cap": 1, "embedder": "models/tiny", "trust_remote_code": False,
        "query_instruction": "Query: ", "clip_model": "models/chinese-clip",
        "endpoints": {"generator": {**common, **free}},
    }  # fmt: skip
    return " ".join(f"{key}='{json.dumps(value)}'" for key, value in values.items())


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    tiny_models.need_paper_extra()
    project = whole_pipeline.copy_project(tmp_path_factory.mktemp("paper") / "project")
    (project / "pictures").mkdir()
    for number in range(PICTURES):
        whole_pipeline.picture(number, f"HELLO {number}").save(project / "pictures" / f"{number}.png")
    line = json.dumps({"news_id": "one", "source": "made up", **NEWS})
    (project / "news.jsonl").write_text(line + "\n", encoding="utf-8")
    tiny_models.sentence_folder(project / "models" / "tiny")
    tiny_clips.folder_of("chinese_clip", project / "models" / "chinese-clip")
    return project


def run_stages(project: Path, chosen: str) -> str:
    done = command(project, "reproduce", PROFILE="paper", SET=chosen)
    assert done["status"] == 0, (done["stdout"][-2000:], done["stderr"][-6000:])
    return re.search(r"^run (\S+):", done["stdout"], re.MULTILINE)[1]


def test_the_paper_profile_end_to_end_and_again_without_models(project: Path) -> None:
    plain = Plain()
    with FaultServer(plain).running() as server:
        chosen = settings(project, server.url)
        run = run_stages(project, chosen)
    folder = project / "data" / "processed" / run
    placements = pd.read_parquet(folder / "placements.parquet")
    assert {"greedy", "sampling"} <= set(placements.strategy)
    annotations = pd.read_parquet(folder / "annotations.parquet")
    (flagged,) = annotations[annotations.unsafe != ""].meme_id
    assert flagged not in set(placements.meme_id) and len(annotations) == PICTURES
    assert not list((folder / "release").rglob(f"{flagged}.*")), "its picture is not released"
    scores = pd.read_parquet(folder / "consistency.parquet")
    (scorer,) = set(scores.scorer)
    assert scorer.startswith("clip:chinese-clip@") and scores.score.between(0, 100).all()
    assert scores.score.round(3).nunique() > 5
    embedded = project / "data" / "raw" / "recordings" / "paper" / "embedding"
    names = {path.name.partition("@")[0]: path.name for path in embedded.iterdir()}
    assert names["tiny"].endswith("-float32") and names["clip:chinese-clip"] == scorer
    released = (folder / "release" / "manifest.json").read_text(encoding="utf-8")
    assert names["tiny"] in released and scorer in released, "the weights are named"

    # The same run once more, replayed: the endpoint is gone, and so are the weights.
    for path in (project / "models").iterdir():
        path.rename(path.with_name(f"gone-{path.name}"))
    before = (folder / "consistency.parquet").read_bytes()
    again = run_stages(project, f"{chosen} mode=recorded")
    replayed = pd.read_parquet(project / "data" / "processed" / again / "consistency.parquet")
    pd.testing.assert_frame_equal(replayed, pd.read_parquet(folder / "consistency.parquet"))
    assert (folder / "consistency.parquet").read_bytes() == before
