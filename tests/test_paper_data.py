"""Table 1 from the authors' files and its confounds: each figure counted once more by hand.

And nothing of the release's texts is in this repository.
"""

import json
import re
import subprocess

import made_paper_data
import numpy as np
import pytest

from memecmd_utils import authors
from memecmd_utils.files import paths
from memecmd_utils.studies import paper_data

SAMPLE = paths.root.parent / "shared" / "corpora" / "memeverse"


@pytest.fixture
def release(tmp_path) -> authors.Release:
    """Of four role dialogues: one without Random's meme, one that Random repeats, one without a score."""
    release = authors.read_release(made_paper_data.release(tmp_path))
    first, second, *_, last = (f"role6-role_based_000{n}" for n in range(1, 5))
    random = {p.dialogue_id: p for p in release.placements if p.strategy == "random"}
    release.placements.remove(random[first])
    release.placements.append(random[second].model_copy(update={"turn": 6}))
    del release.cosines[first, "random"], release.scores[last, "greedy"]
    return release


def test_cells_and_confounds_are_those_of_the_files(release) -> None:
    published = paper_data.of_release(release)
    table = paper_data.table_1(published).set_index(["set", "measure", "strategy"])
    assert table.loc[("role 6", "judge", "Greedy"), "here"].value == np.mean([90.5, 89.5, 88.5])
    assert table.loc[("role 6", "judge", "Greedy"), ["dialogues", "paper"]].tolist() == [3, 88.82]
    # Cosines 0.2 and 0.4 in each dialogue: 50 (1 + 0.3).
    assert table.loc[("role 6", "consistency", "Greedy"), "here"].value == pytest.approx(65)
    assert table.loc[("role 6", "consistency", "Random"), "dialogues"] == 3
    confounds = paper_data.confounds(published).set_index(["set", "strategy"]).T
    random = confounds["role 6", "Random"]
    assert (random["memes"], random["different"], random["without a meme"]) == (4, 1, 1)
    assert random["judge without a meme"] == 90.5
    shares = [random[name].value for name in ("density", "repeats", "most frequent")]
    assert shares == [4 / 20, 1 / 4, 1.0]
    assert confounds["role 6", "Greedy"]["most frequent"].value == 0.5
    assert confounds["news 12", "Greedy"]["density"].value == 2 / 11
    pairs = paper_data.paired_differences(published).set_index(["set", "who", "minus"])
    row = pairs.loc["role 6", "Greedy", "Random"]
    counted = [row[f"n, {condition}"] for condition in paper_data.CONDITIONS]
    assert counted == [3, 2, 1], "one has no score, one no meme of Random, and one has two of both"
    assert row["all dialogues"].value == 0


@pytest.mark.skipif(not SAMPLE.is_dir(), reason="the sample of the release is not here")
def test_no_text_of_the_release_is_tracked() -> None:
    """Whole texts of 8 characters or more, and windows of 12 characters of longer ones."""
    texts = set()
    for path in sorted(SAMPLE.glob("*.jsonl")):
        for line in path.read_text("utf-8").splitlines():
            row = json.loads(line)
            texts |= {turn["text"] for turn in row.get("turns", [])}
            texts |= {value for value in row.values() if isinstance(value, str)}
    texts |= set(json.loads((SAMPLE / "descriptions.json").read_text("utf-8")).values())
    texts = {text for text in texts if re.search("[\u4e00-\u9fff]", text) and len(text) >= 8}
    windows = {text[i : i + 12] for text in texts for i in range(len(text) - 11)}
    short = {text for text in texts if len(text) < 12}
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=paths.root, capture_output=True, check=True)
    found = []
    for name in listed.stdout.decode().split("\0")[:-1]:
        if (path := paths.root / name).suffix in (".png", ".webp", ".gz", ".npz", ".gif", ".zst", ".parquet"):
            continue
        for stretch in re.findall('[^\n"]*[\u4e00-\u9fff][^\n"]*', path.read_text("utf-8", "replace")):
            found += [(name, text) for text in short if text in stretch]
            pieces = {stretch[i : i + 12] for i in range(len(stretch) - 11)} & windows
            found += [(name, text) for text in pieces]
    assert not found
