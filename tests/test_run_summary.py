"""What a run says at its end."""

from memecmd_utils import paths, profiles, run_summary, storage


def test_missing_files_are_counted_as_missing_not_as_zero(tmp_path, monkeypatch):
    monkeypatch.setattr(paths, "root", tmp_path)
    monkeypatch.setattr(paths, "processed", tmp_path / "data")
    monkeypatch.setattr(paths, "reports", tmp_path / "reports")
    storage.write_text(tmp_path / "data" / "r" / "dialogues.jsonl", '{"a": 1}\n{"a": "x\u2028y"}\n')
    text = run_summary.text("r")
    assert "- memes, 2 dialogues" in text and "reports/r/index.html" in text


def test_usage_names_the_model_and_calls_authored_text_by_its_name(tmp_path, monkeypatch):
    monkeypatch.setattr(paths, "processed", tmp_path)
    counts = {"calls": 3, "replayed": 2, "tokens_in": 10, "tokens_out": 4, "usd": 0.5}
    usage = tmp_path / "r" / "usage"
    storage.write_json(usage / "rating.json", {"source": "model m@1", "outcomes": {"accepted": 5}, **counts})
    storage.write_json(usage / "summary.json", {"source": "authored", "outcomes": {"accepted": 3}, **counts})
    storage.write_json(usage / "rating.keys.json", ["k"])
    lines = list(run_summary.real_usage("r"))
    assert len(lines) == 2
    assert "model m@1; 3 calls, 2 replayed" in lines[0] and "$0.50; 5 accepted" in lines[0]
    assert "3 authored texts, no model asked" in lines[1]


def test_expected_memes_follow_table_folder_and_cap(tmp_path):
    example = profiles.load_profile("example")
    assert run_summary.expected_memes(example) == 60
    assert run_summary.expected_memes(example.model_copy(update={"max_memes": 7})) == 7
    for name in ("a.png", "b.jpg", "c.gif"):
        (tmp_path / name).write_bytes(b"x")
    assert run_summary.expected_memes(example.model_copy(update={"sources": [str(tmp_path)]})) == 3
