import json
from pathlib import Path

import pytest

from memecmd_utils.batch_jobs import Jobs, Part, is_free
from memecmd_utils.llm import EndpointError


def line(custom_id: str, status: int = 200, text: str = "好") -> bytes:
    body = {"choices": [{"message": {"content": text}}]} if status == 200 else {"error": {"message": text}}
    response = {"status_code": status, "body": body} if status else None
    value = {
        "custom_id": custom_id,
        "response": response,
        "error": None if status else {"code": "batch_expired"},
    }
    return json.dumps(value, ensure_ascii=False).encode()


def sealed(jobs: Jobs, *ids: str) -> Part:
    part = jobs.new_part()
    for one in ids:
        jobs.add(part, one, "schema m", b'{"custom_id": "%s"}\n' % one.encode())
    jobs.seal(part)
    return part


def texts(jobs: Jobs, *ids: str) -> list[str | None]:
    found = [jobs.result(one) for one in ids]
    return [f and f.line["response"]["body"]["choices"][0]["message"]["content"] for f in found]


def journal(folder: Path) -> Path:
    return folder / "journal.jsonl"


def test_results_outlive_the_process(tmp_path: Path) -> None:
    jobs = Jobs(tmp_path)
    part = sealed(jobs, "a-1", "b-1")
    jobs.created(part, "batch_0", "file-0")
    assert jobs.holder("a-1") is part and jobs.result("a-1") is None
    jobs.save(part, [line("b-1", text="二"), line("a-1", text="一")])
    assert texts(jobs, "a-1", "b-1") == ["一", "二"] and jobs.result("a-1").fresh
    jobs.close()
    jobs = Jobs(tmp_path)
    assert texts(jobs, "a-1", "b-1", "c-1") == ["一", "二", None] and not jobs.result("a-1").fresh
    assert jobs.works == {"schema m"} and not jobs.open and not list((tmp_path / "inputs").iterdir())
    jobs.close()


def test_what_was_sent_is_known_again(tmp_path: Path) -> None:
    jobs = Jobs(tmp_path)
    known, unsure = sealed(jobs, "a-1"), sealed(jobs, "b-1")
    jobs.created(known, "batch_0", "file-0")
    unsealed = jobs.new_part()
    jobs.add(unsealed, "c-1", "plain m", b"{}\n")
    jobs.close()
    jobs = Jobs(tmp_path)
    assert [(p.batch, p.file, list(p.forms), p.size) for p in jobs.open.values()] == [
        ("batch_0", "file-0", ["a-1"], known.size),
        ("", "", ["b-1"], unsure.size),
    ]
    assert jobs.holder("c-1") is None and not unsealed.path.exists() and unsure.path.exists()
    jobs.dropped(jobs.open[unsure.tag], "never became a batch")
    jobs.close()
    jobs = Jobs(tmp_path)
    assert jobs.holder("b-1") is None and jobs.holder("a-1").forms == {"a-1": "schema m"}
    jobs.close()


def test_results_on_disk_count_before_the_journal_says_so(tmp_path: Path) -> None:
    jobs = Jobs(tmp_path)
    jobs.created(sealed(jobs, "a-1"), "batch_0", "file-0")
    jobs.close()
    (tmp_path / "results" / "batch_0.jsonl").write_bytes(line("a-1") + b"\n")
    for _ in range(2):
        jobs = Jobs(tmp_path)
        assert texts(jobs, "a-1") == ["好"] and not jobs.open and jobs.works == {"schema m"}
        jobs.close()


def test_answers_and_verdicts_are_kept_for_later_and_bad_days_are_not(tmp_path: Path) -> None:
    jobs = Jobs(tmp_path)
    part = sealed(jobs, "a-1", "b-1", "c-1", "d-1")
    jobs.created(part, "batch_0", "file-0")
    jobs.save(part, [line("a-1"), line("b-1", 400), line("c-1", 500), line("d-1", 0)])
    assert [jobs.status(f"{one}-1") for one in "abcde"] == [200, 400, 500, 0, None]
    jobs.close()
    jobs = Jobs(tmp_path)
    assert [jobs.status(f"{one}-1") for one in "abcde"] == [200, 400, None, None, None]
    jobs.close()


def test_an_answer_stands_and_a_verdict_gives_way(tmp_path: Path) -> None:
    jobs = Jobs(tmp_path)
    first, second = sealed(jobs, "a-1", "b-1"), sealed(jobs, "a-1", "b-1")
    jobs.created(first, "batch_0", "file-0")
    jobs.created(second, "batch_1", "file-1")
    jobs.save(first, [line("a-1", text="一"), line("b-1", 400)])
    assert jobs.result("b-1") is None, "it is on its way again"
    jobs.save(second, [line("a-1", 400), line("b-1", text="二")])
    assert texts(jobs, "a-1", "b-1") == ["一", "二"]
    jobs.close()


def test_used_up_results_answer_nothing_later(tmp_path: Path) -> None:
    jobs = Jobs(tmp_path)
    part = sealed(jobs, "a-1", "b-1")
    jobs.created(part, "batch_0", "file-0")
    jobs.save(part, [line("a-1"), line("b-1")])
    assert jobs.result("a-1")
    jobs.close(used_up=True)
    jobs = Jobs(tmp_path)
    assert jobs.result("a-1") is None and jobs.result("b-1"), "only what was taken"
    again = sealed(jobs, "a-1")
    jobs.created(again, "batch_1", "file-1")
    jobs.save(again, [line("a-1", text="新")])
    jobs.close()
    jobs = Jobs(tmp_path)
    assert texts(jobs, "a-1") == ["新"] and (tmp_path / "results" / "batch_0.jsonl").exists()
    jobs.close()


def test_halves_and_second_tries_hold_the_same_requests(tmp_path: Path) -> None:
    jobs = Jobs(tmp_path)
    ids = [f"{n}-1" for n in range(5)]
    part = jobs.again(sealed(jobs, *ids))
    halves = jobs.halves(part)
    assert [list(half.forms) for half in halves] == [ids[:3], ids[3:]]
    for half in halves:
        assert [json.loads(raw)["custom_id"] for raw in half.path.open()] == list(half.forms)
        assert half.size == half.path.stat().st_size
    assert list(jobs.open.values()) == halves
    jobs.close()
    jobs = Jobs(tmp_path)
    assert sorted(jobs.open) == sorted(half.tag for half in halves)
    jobs.close()


def test_a_torn_line_is_cut_and_a_damaged_one_is_an_error(tmp_path: Path) -> None:
    jobs = Jobs(tmp_path)
    sealed(jobs, "a-1")
    jobs.close()
    with journal(tmp_path).open("ab") as handle:
        handle.write(b'{"event": "created", "tag"')
    jobs = Jobs(tmp_path)
    assert [part.batch for part in jobs.open.values()] == [""]
    jobs.close()
    with journal(tmp_path).open("ab") as handle:
        handle.write(b'{"event": "created"}\n')
    for _ in range(2):  # and the lock is let go
        with pytest.raises(EndpointError, match=r"journal.jsonl line 2 is damaged"):
            Jobs(tmp_path)


def test_one_process_at_a_time(tmp_path: Path) -> None:
    jobs = Jobs(tmp_path)
    with pytest.raises(EndpointError, match="another process"):
        Jobs(tmp_path)
    jobs.close()
    Jobs(tmp_path).close()


def test_a_folder_is_free_until_a_process_works_with_it(tmp_path: Path) -> None:
    assert is_free(tmp_path / "none") and not (tmp_path / "none").exists()
    jobs = Jobs(tmp_path)
    assert not is_free(tmp_path)
    jobs.close()
    assert is_free(tmp_path) and is_free(tmp_path), "a look leaves no lock behind"
