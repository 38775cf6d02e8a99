"""`PROFILE=paper` from the first notebook to the last, with small sizes.

The models behind the endpoint are simulated; sentence-transformers and transformers are the real packages,
on tiny random weights.
"""

import itertools
import json
import re
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import stage_run
import tiny_models
import whole_pipeline
from fault_replies import Asked
from fault_server import Answer, FaultServer, Simulated
from whole_pipeline import KEY_VARIABLE, command

PICTURES = 8
NEWS = {"topic": "sports", "title": "山上下雨了", "text": "周末山上有雨，爬山的人都回家煮火锅。"}


class FindsOne(Simulated):
    """A simulated model that finds the third picture it sees abusive."""

    numbers = itertools.count(1)  # each request has its own, also those at once

    def __call__(self, body: dict[str, Any]) -> Answer:
        answer = super().__call__(body)
        if Asked(body).name == "CheckedSeenAnnotationReply" and next(self.numbers) == 3:
            answer.body = answer.body.replace(b'\\"none\\"', b'\\"abuse\\"')
        return answer


def settings(url: str) -> str:
    generator = {"base_url": url, "key_env": KEY_VARIABLE, "model": "simulated", "vision": True}
    generator |= {"usd_per_million_in": 0, "usd_per_million_out": 0}
    values = {
        "sources": ["pictures"], "filters": {}, "news": "news.jsonl", "n_news": 1, "n_role_pairs": 1,
        "scenarios_per_pair": 1, "n_turns": 6, "n_dialogues": None, "concurrency": 4,
        "theta0": 0.1, "scenario_similarity_cap": 1, "embedder": "models/tiny", "trust_remote_code": False,
        "query_instruction": "Query: ", "clip_model": "models/chinese-clip",
        "endpoints": {"generator": generator},
    }  # fmt: skip
    return " ".join(f"{key}='{json.dumps(value)}'" for key, value in values.items())


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory, torch) -> Path:
    project = stage_run.project(tmp_path_factory.mktemp("paper") / "project")
    (project / "pictures").mkdir()
    for number in range(PICTURES):
        whole_pipeline.picture(number, f"HELLO {number}").save(project / "pictures" / f"{number}.png")
    line = json.dumps({"news_id": "one", "source": "made up", **NEWS})
    (project / "news.jsonl").write_text(line + "\n", encoding="utf-8")
    tiny_models.sentence_folder(project / "models" / "tiny")
    tiny_models.clip_folder("chinese_clip", project / "models" / "chinese-clip")
    return project


def run_stages(project: Path, chosen: str) -> str:
    done = command(project, "reproduce", profile="paper", settings=chosen)
    assert done.returncode == 0, (done.stdout[-2000:], done.stderr[-6000:])
    return re.search(r"^run (\S+)$", done.stdout, re.MULTILINE)[1]


def test_the_paper_profile_end_to_end_and_again_without_models(project: Path) -> None:
    with FaultServer(FindsOne()).running() as server:
        chosen = settings(server.url)
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
