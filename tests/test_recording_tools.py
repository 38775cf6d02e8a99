import json
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from scripted import ScriptedBackend

from memecmd_utils import __main__ as command_line
from memecmd_utils import llm, paths, recording_check, recordings, storage
from memecmd_utils import recording_files as files
from memecmd_utils import recording_tools as tools
from memecmd_utils.embedding import text_key
from memecmd_utils.llm import Chat, Message, Request, Sampling
from memecmd_utils.recordings import RecordingError, RecordingMiss, Recordings, key_of, read_file
from memecmd_utils.vectors import read_shard, write_shard

EXAMPLE = paths.example / "recordings" / "evaluation" / "example.jsonl"
LONG = "这是一段很长的话，" * 20
GOOD = {"text": "好", "outcome": "accepted", "attempts": 1}
REFUSED = {"text": "", "outcome": "refusal", "attempts": 5, "reason": "the model refused"}


@pytest.fixture(autouse=True)
def mine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A project with nothing in it; returns the folder of the recordings of profile `local`."""
    for name in ("processed", "raw", "interim", "example"):
        monkeypatch.setattr(paths, name, tmp_path / name)
    monkeypatch.setattr(paths, "root", tmp_path)
    monkeypatch.setenv("PROFILE", "local")
    return tmp_path / "raw" / "recordings" / "local"


def form(text: str = "你好", **changes) -> dict:
    version = files.KEY_VERSION
    return {"key_version": version, "task": "utterance", "messages": [{"text": text}], "seed": 1, **changes}


def write(folder: Path, *pairs: tuple[dict, dict], name: str = "w0") -> Path:
    path = folder / "s" / f"{name}.jsonl"
    files.write_file(path, pairs)
    return path


def as_version_1(path: Path, change: Callable[[int, dict], dict] = lambda n, form: form) -> Path:
    """Rewrite a file as version 1 wrote it."""
    old = path.with_suffix(".old")
    with pytest.MonkeyPatch.context() as patch:
        records = [(change(n, {**f, "key_version": 1}), v) for n, (_, f, v) in enumerate(read_file(path))]
        patch.setattr(files, "KEY_VERSION", 1)
        files.write_file(old, records)
    return old.replace(path)


def answers(folder: Path) -> dict[str, dict]:
    return {key: value for key in keys(folder) if (value := Recordings("s", [folder]).get(key))}


def keys(folder: Path) -> list[str]:
    return [key for path in files.files_in(folder / "s") for key, _, _ in read_file(path)]


def content(folder: Path) -> dict[str, bytes]:
    return {str(p.relative_to(folder)): p.read_bytes() for p in sorted(folder.rglob("*")) if p.is_file()}


def edit(path: Path, number: int, change: Callable[[bytes], bytes]) -> None:
    lines = path.read_bytes().splitlines(keepends=True)
    lines[number - 1] = change(lines[number - 1])
    path.write_bytes(b"".join(lines))


HOLD = (
    "import sys, time; from pathlib import Path; from memecmd_utils.recordings import Recordings\n"
    "s = Recordings('s', [], Path(sys.argv[1])); s.put({'task': 'x'}, {'text': 'other'})\n"
    "print('ready', flush=True); time.sleep(60)"
)


@pytest.fixture
def other_writer(mine: Path):
    """Another process that has written to `w0.jsonl` and holds it."""
    command = [sys.executable, "-c", HOLD, str(mine)]
    other = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert other.stdout.readline().strip() == "ready"
    yield other
    other.kill()
    other.communicate()


# Check


def test_a_sound_store_has_no_problem(mine: Path) -> None:
    write(mine, (form(LONG), GOOD), (form("二"), REFUSED), (form("三"), {**GOOD, "outcome": "violations"}))
    ocr = {"key_version": files.KEY_VERSION, "task": "ocr", "subject": "x" * 70}
    files.write_file(mine / "ocr" / "w0.jsonl", [(ocr, {"text": "字"})])
    report = tools.check(tools.folders_of("local"))
    assert report.problems == []
    assert report.done == [
        "raw/recordings/local/ocr: 1 recordings (0 without an answer)",
        "raw/recordings/local/s: 3 recordings (1 without an answer)",
    ]
    assert all(note.endswith("orphans cannot be told") for note in report.notes)
    assert tools.check([mine / "nowhere"]).text() == "no recordings there"


def test_every_damaged_line_is_told_with_its_place(mine: Path) -> None:
    records = [(form(LONG + str(n)), {**GOOD, "text": str(n)}) for n in range(6)]
    path = write(mine, *records)  # text and recording in turn: texts stand in the odd lines
    edit(path, 2, lambda line: line[:-5] + b"\n")
    edit(path, 3, lambda line: line.replace("很长".encode(), "很短".encode(), 1))
    edit(path, 6, lambda line: re.sub(rb'"key": "....', b'"key": "0000', line))
    edit(path, 7, lambda line: b'{"v": 2, "text": "0"}\n')
    edit(path, 10, lambda line: b"\xff\xfe\n")
    report = tools.check([mine])
    told = [problem.removeprefix("raw/recordings/local/s/w0.jsonl:") for problem in report.problems]
    assert [line.partition(":")[0] for line in told] == ["2", "3", "4", "6", "7", "8", "10"]
    of = dict(line.split(": ", 1) for line in told)
    assert of["3"] == "the text has another digest"
    assert of["4"] == of["6"] == "the key does not belong to the form"
    assert of["7"] == "a field is missing or of a wrong type"
    assert of["8"].startswith("refers to a text that is not there")
    assert report.done == ["raw/recordings/local/s: 1 recordings (0 without an answer)"]


def test_a_reference_must_follow_its_text(mine: Path) -> None:
    path = write(mine, (form(LONG), GOOD))
    path.write_bytes(b"".join(path.read_bytes().splitlines(keepends=True)[::-1]))
    assert ["not there" in problem for problem in tools.check([mine]).problems] == [True]


@pytest.mark.parametrize(
    ("value", "told"),
    [
        ("好", "no text"),
        ({"outcome": "accepted", "attempts": 1}, "no text"),
        ({**GOOD, "text": None}, "no text"),
        ({**GOOD, "outcome": "fine"}, "outcome 'fine'"),
        ({"text": "好", "attempts": 1}, "outcome None"),
        ({**GOOD, "attempts": 0}, "attempts are 0"),
        ({**GOOD, "attempts": True}, "attempts are True"),
        ({"text": "好", "outcome": "accepted"}, "attempts are None"),
        ({**GOOD, "live": "now"}, "the time of mode live is 'now'"),
        ({**GOOD, "live": -1}, "the time of mode live is -1"),
    ],
)
def test_a_value_of_a_wrong_shape_is_a_problem(mine: Path, value, told: str) -> None:
    write(mine, (form("一"), GOOD), (form("二"), value))
    (problem,) = tools.check([mine]).problems
    assert problem.startswith("raw/recordings/local/s/w0.jsonl:2: ") and told in problem


def test_other_problems_of_forms_and_of_texts_from_images(mine: Path) -> None:
    write(mine, ({"task": "ocr", "subject": "k"}, GOOD), (form(key_version=1), GOOD))
    first, second = tools.check([mine]).problems
    assert "holds more than a text" in first and "the form is of key version 1" in second


def test_lines_of_other_versions_are_counted_and_told_once(mine: Path) -> None:
    path = as_version_1(write(mine, *((form(LONG, seed=n), GOOD) for n in range(3))))
    with path.open("ab") as handle:
        handle.write(b'{"v": 77, "what": 1}\n')
    old, new = tools.check([mine]).problems
    assert ": 4 lines: each has key version 1" in old and "make recordings-migrate PROFILE=local" in old
    assert ": 1 lines: each has key version 77" in new and "update this package" in new


def test_what_is_superfluous_is_noted_and_no_problem(mine: Path) -> None:
    write(mine, (form("一"), REFUSED), (form("二"), REFUSED))
    path = write(mine, (form("一"), GOOD), (form("三"), GOOD), name="w1")
    with path.open("ab") as handle:
        handle.write(files.text_line(files.digest_of(LONG), LONG) + b'{"v": 2, "ke')
    report = tools.check([mine])
    assert report.problems == []
    assert report.done == ["raw/recordings/local/s: 3 recordings (1 without an answer)"]
    assert [note.removeprefix("raw/recordings/local/s") for note in report.notes] == [
        "/w1.jsonl: the last line is torn; the next writer cuts it off",
        "/w1.jsonl: 1 long texts are not referred to",
        ": 1 lines repeat the key of another",
        ": 1 replies that were no answer are superseded",
        ": no run says what it used, so orphans cannot be told",
    ]


def test_orphans_are_what_no_run_used(mine: Path) -> None:
    forms = [form(text) for text in "一二三"]
    write(mine, *((f, GOOD) for f in forms))
    for run, used in (("a", forms[:1]), ("b", forms[1:2]), ("c", [])):
        storage.write_json(paths.processed / run / "usage" / "s.keys.json", [key_of(f) for f in used])
    assert tools.check([mine]).notes == [
        "raw/recordings/local/s: 1 were used by none of the runs that are here"
    ]
    storage.write_json(paths.processed / "c" / "usage" / "s.keys.json", [key_of(forms[2])])
    report = tools.check([mine])
    assert report.notes == report.problems == []


def vectors(*texts: str, width: int = 4, length: float = 1.0) -> dict[str, np.ndarray]:
    random = np.random.default_rng(0)
    rows = random.normal(size=(len(texts), width))
    rows *= length / np.linalg.norm(rows, axis=1, keepdims=True)
    return dict(zip((text_key(t, "query") for t in texts), rows.astype(np.float16), strict=True))


def test_vectors_are_checked_too(mine: Path) -> None:
    folder = mine / "embedding" / "org__m"
    sound = vectors("一", "二")
    write_shard(folder / "a.npz", sound)
    storage.write_json(paths.processed / "r" / "usage" / "embedding:org__m.keys.json", list(sound)[:1])
    report = tools.check([mine])
    assert report.problems == [] and report.done == ["raw/recordings/local/embedding/org__m: 2 vectors"]
    assert report.notes == [
        "raw/recordings/local/embedding/org__m: 1 were used by none of the runs that are here"
    ]
    write_shard(folder / "b.npz", vectors("三", length=1.1) | {"k": sound[text_key("一", "query")]})
    write_shard(folder / "c.npz", {text_key("四", "query"): np.array([np.nan, 0, 0, 1], np.float16)})
    write_shard(folder / "d.npz", vectors("五", width=3))
    (folder / "e.npz").write_bytes((folder / "a.npz").read_bytes()[:-30])
    told = [p.removeprefix("raw/recordings/local/embedding/org__m") for p in tools.check([mine]).problems]
    assert told[:3] == [
        "/b.npz: 1 keys are not 64 hex digits",
        "/b.npz: 1 vectors are not of length 1",
        "/c.npz: 1 vectors are not finite",
    ]
    assert told[3].startswith("/e.npz: ") and "is damaged" in told[3]
    assert told[4:] == [": vectors of [3, 4] numbers side by side"]


# Compact


def scattered(folder: Path) -> None:
    """Three files with doubles, a superseded refusal, and a text that stands in each."""
    write(folder, (form("一"), REFUSED), (form(LONG, seed=1), {**GOOD, "text": "first"}), name="w0")
    write(folder, (form(LONG, seed=2), GOOD), (form(LONG, seed=1), {**GOOD, "text": "late"}), name="w1")
    write(folder, (form("一"), GOOD), (form(LONG, seed=3), REFUSED), name="w2")


def test_compact_keeps_every_winner_and_nothing_twice(mine: Path) -> None:
    scattered(mine)
    before = answers(mine)
    assert before[key_of(form(LONG, seed=1))]["text"] == "first" and before[key_of(form("一"))] == GOOD
    report = tools.compact(mine)
    assert [path.name for path in (mine / "s").iterdir()] == ["w0.jsonl"]
    assert answers(mine) == before and len(keys(mine)) == 4
    assert (mine / "s" / "w0.jsonl").read_text(encoding="utf-8").count(LONG) == 1
    assert "raw/recordings/local/s: 3 files" in report.text() and "4 recordings" in report.text()
    once = content(mine)
    tools.compact(mine)
    assert content(mine) == once and not tools.check([mine]).problems
    store = Recordings("s", [mine], mine)
    store.put(form("新"), GOOD)
    store.close()
    assert len(answers(mine)) == 5


def test_tools_keep_the_newest_answer_of_mode_live(mine: Path, tmp_path: Path) -> None:
    old, mid, new = GOOD, {**GOOD, "text": "二", "live": 5}, {**GOOD, "text": "三", "live": 7.5}
    first = write(mine, (form(LONG), new), (form("别"), old), name="w0")
    second = write(mine, (form(LONG), old), (form(LONG), mid), (form("别"), REFUSED | {"live": 9}), name="w1")
    report = tools.check([mine])
    assert report.done == ["raw/recordings/local/s: 2 recordings (0 without an answer)"]
    assert report.problems == []
    assert "raw/recordings/local/s: 2 answers are superseded by a newer one of mode live" in report.notes
    target, wanted = tmp_path / "tracked" / "s" / "example.jsonl", {key_of(form(LONG)), key_of(form("别"))}
    assert tools.promote([second, first], target, wanted) == 2
    assert {f["messages"][0]["text"]: value for _, f, value in read_file(target)} == {LONG: new, "别": old}
    as_version_1(first)
    as_version_1(second)
    tools.migrate([mine])
    assert [value for _, _, value in read_file(second)] == [mid, REFUSED | {"live": 9}]
    for _ in range(2):
        assert answers(mine) == {key_of(form(LONG)): new, key_of(form("别")): old}
        tools.compact(mine)
    assert len(keys(mine)) == 2


def test_compact_stops_where_another_process_writes(mine: Path, other_writer) -> None:
    write(mine, (form("一"), GOOD), name="w1")
    write(mine, (form("一"), GOOD), name="w2")
    before = content(mine)
    with pytest.raises(RecordingError, match=r"another process writes there: .*w0\.jsonl"):
        tools.compact(mine)
    assert content(mine) == before
    other_writer.kill()
    other_writer.wait()
    tools.compact(mine)
    assert list(content(mine)) == ["s/w0.jsonl"] and len(answers(mine)) == 2


@pytest.mark.parametrize("deleted", [0, 1])
def test_a_kill_while_old_files_are_deleted_loses_nothing(
    mine: Path, monkeypatch: pytest.MonkeyPatch, deleted: int
) -> None:
    scattered(mine)
    before = answers(mine)
    real, done = Path.unlink, []

    class Killed(BaseException):
        pass

    def unlink(path: Path, missing_ok: bool = False) -> None:
        if path.name.startswith("w"):
            if len(done) == deleted:
                raise Killed
            done.append(path)
        real(path, missing_ok=missing_ok)

    with monkeypatch.context() as patch, pytest.raises(Killed):
        patch.setattr(Path, "unlink", unlink)
        tools.compact(mine)
    assert len(list((mine / "s").iterdir())) == 3 - deleted, "the new file and old ones stand side by side"
    assert answers(mine) == before
    (mine / "s" / ".w0.jsonl.77.part.jsonl").write_bytes(b'{"v": 2')
    tools.compact(mine)
    assert list(content(mine)) == ["s/w0.jsonl"] and answers(mine) == before and len(keys(mine)) == 4


def test_compact_does_not_hide_damage(mine: Path) -> None:
    scattered(mine)
    edit(mine / "s" / "w1.jsonl", 2, lambda line: re.sub(rb'"key": "....', b'"key": "0000', line))
    before = content(mine)
    with pytest.raises(RecordingError, match=r"w1\.jsonl line 2 is damaged .*recordings-check"):
        tools.compact(mine)
    assert content(mine) == before


def test_tracked_recordings_are_not_compacted() -> None:
    with pytest.raises(RecordingError, match="tracked"):
        tools.compact(paths.example / "recordings")


def test_compact_merges_vectors(mine: Path) -> None:
    folder = mine / "embedding" / "m"
    first, second = vectors("一", "二"), vectors("二", "三")
    write_shard(folder / "a.npz", first)
    write_shard(folder / "b.npz", second)
    tools.compact(mine)
    (merged,) = folder.iterdir()
    assert {k: v.tolist() for k, v in read_shard(merged).items()} == {
        k: v.tolist() for k, v in (first | second).items()
    }
    write_shard(folder / "a.npz", first)  # as after a kill before the old ones were deleted
    once = merged.read_bytes()
    tools.compact(mine)
    assert list(folder.iterdir()) == [merged] and set(read_shard(merged)) == set(first | second)
    tools.compact(mine)
    assert len(merged.read_bytes()) == len(once)


# Migrate


def test_migrate_gives_new_keys_once(mine: Path) -> None:
    forms = [form(LONG, seed=n) for n in range(3)]
    path = as_version_1(write(mine, *((f, GOOD) for f in forms)))
    with pytest.raises(RecordingError, match="make recordings-migrate PROFILE=local"):
        Recordings("s", [mine])
    report = tools.migrate(tools.folders_of("local"))
    assert report.done == ["raw/recordings/local/s: 3 recordings in 1 files have new keys"]
    once = content(mine)
    assert answers(mine) == {key_of(f): GOOD for f in forms} and not tools.check([mine]).problems
    time = path.stat().st_mtime_ns
    assert tools.migrate([mine]).done == ["raw/recordings/local/s: up to date"]
    assert content(mine) == once and path.stat().st_mtime_ns == time


def test_a_file_of_mixed_versions_is_migrated_whole(mine: Path) -> None:
    new = write(mine, (form("新"), GOOD), (form(LONG, seed=2), GOOD), name="new").read_bytes()
    (mine / "s" / "new.jsonl").unlink()
    path = as_version_1(write(mine, (form("旧"), REFUSED), (form(LONG), GOOD)))
    path.write_bytes(path.read_bytes() + new + b'{"v": 2, "torn')
    tools.migrate([mine])
    wanted = [form("旧"), form(LONG), form("新"), form(LONG, seed=2)]
    assert [f for _, f, _ in read_file(path)] == wanted and not tools.check([mine]).problems


def test_two_old_keys_that_become_one_keep_the_answer(mine: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    values = [REFUSED, {**GOOD, "text": "first"}, {**GOOD, "text": "second"}]
    path = write(mine, *((form(seed=n), value) for n, value in enumerate(values)))
    as_version_1(path)
    monkeypatch.setitem(tools.MIGRATIONS, 1, lambda old: {**old, "key_version": 2, "seed": None})
    tools.migrate([mine])
    assert list(read_file(path)) == [(key_of(form(seed=None)), form(seed=None), values[1])]


def test_migrations_are_applied_one_after_another(mine: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = as_version_1(write(mine, (form(), GOOD)))
    for module in (files, tools):
        monkeypatch.setattr(module, "KEY_VERSION", 3)
    monkeypatch.setitem(tools.MIGRATIONS, 2, lambda old: {**old, "key_version": 3, "was": old["key_version"]})
    tools.migrate([mine])
    ((key, migrated, _),) = read_file(path)
    assert migrated == {**form(), "key_version": 3, "was": 2} and key == key_of(migrated)


@pytest.mark.parametrize(
    ("change", "told"),
    [
        (lambda line: re.sub(rb'"v": .', b'"v": 9', line), "key version 9, newer than ours"),
        (lambda line: re.sub(rb'"key": "....', b'"key": "0000', line), "does not belong to the form"),
        (lambda line: line[1:], "is damaged"),
    ],
)
def test_migrate_changes_nothing_it_does_not_understand(mine: Path, change, told: str) -> None:
    path = as_version_1(write(mine, (form("一"), GOOD), (form("二"), GOOD)))
    edit(path, 2, change)
    before = content(mine)
    with pytest.raises(RecordingError, match=told):
        tools.migrate([mine])
    assert content(mine) == before


def test_migrate_stops_where_another_process_writes(mine: Path, other_writer) -> None:
    path = mine / "s" / "w0.jsonl"
    path.write_bytes(path.read_bytes().replace(b'"v": 2', b'"v": 1'))
    with pytest.raises(RecordingError, match="another process writes there"):
        tools.migrate([mine])


def test_the_tracked_recordings_survive_a_migration(mine: Path) -> None:
    """From whichever version they are tracked in: the answers and the forms stay, the keys are new."""
    path = mine / "s" / "w0.jsonl"
    path.parent.mkdir(parents=True)
    head = EXAMPLE.read_bytes().splitlines(keepends=True)[:300]
    path.write_bytes(b"".join(head))
    before = {key: (old, value) for _, _, key, old, value in files.read_versions(path, oldest=1)}
    tools.migrate([mine])
    after = {key: (new, value) for key, new, value in read_file(path)}
    assert len(before) == len(after) > 100 and not tools.check([mine]).problems
    for (old, value), (new, kept) in zip(before.values(), after.values(), strict=True):
        assert {**old, "key_version": files.KEY_VERSION} == new and value == kept
    as_version_1(path)
    old_keys = {json.loads(line).get("key") for line in path.read_text(encoding="utf-8").splitlines()}
    tools.migrate([mine])
    assert {key: (new, value) for key, new, value in read_file(path)} == after
    assert not old_keys & set(after)


# Promote and explain


def test_promote_sorts_drops_doubles_and_is_stable(tmp_path: Path) -> None:
    forms = [form(LONG, seed=n) for n in range(6)]
    a = write(tmp_path / "a", *((f, GOOD) for f in forms[:4]), (forms[5], GOOD))
    b = write(tmp_path / "b", (forms[0], {**GOOD, "text": "后"}), (forms[4], REFUSED), (forms[3], GOOD))
    c = write(tmp_path / "c", (forms[4], GOOD))
    wanted = {key_of(f) for f in forms[:5]}
    target = tmp_path / "tracked" / "s" / "example.jsonl"
    assert tools.promote([a, b, c], target, wanted) == 5
    once = target.read_bytes()
    read = {key: value for key, _, value in read_file(target)}
    assert list(read) == sorted(wanted) and once.decode().count(LONG) == 1
    assert read[key_of(forms[0])] == GOOD and read[key_of(forms[4])] == GOOD, "the refusal lost"
    assert tools.promote([target, c, b, a], target, wanted) == 5 and target.read_bytes() == once
    assert len(Recordings("s", [tmp_path / "tracked"])) == 5
    with pytest.raises(RecordingError, match="none of the 1 replies of s is recorded"):
        tools.promote([target], target, {"0" * 64})
    assert target.read_bytes() == once


def test_explain_shows_where_two_recordings_part(mine: Path) -> None:
    one, two = form(LONG + "甲", sampling={"temperature": 0.9}), form(LONG + "乙", sampling={})
    write(mine, (one, GOOD), (two, GOOD))
    wanted = [
        "messages[0].text", f"  first:  '…{LONG[-9:]}甲'", f"  second: '…{LONG[-9:]}乙'",
        "sampling.temperature", "  first:  '0.9'", "  second: 'null'",
    ]  # fmt: skip
    assert tools.explain(json.dumps(one), json.dumps(two), [mine]) == wanted
    assert tools.explain(key_of(one)[:8], key_of(two), [mine]) == wanted
    assert tools.explain(key_of(one), json.dumps(one), [mine]) == ["no difference"]


def test_explain_takes_every_key_that_a_miss_prints(mine: Path, capsys: pytest.CaptureFixture) -> None:
    def request(text: str) -> Request:
        message = Message(role="user", text=text)
        return Request(task="utterance", subject="d/2", messages=[message], sampling=Sampling())

    def ask(text: str) -> str:
        chat = Chat(ScriptedBackend([]), Recordings("s", [mine]), "recorded")
        with pytest.raises(RecordingMiss) as caught:
            llm.run(chat.ask(request(text), str))
        return str(caught.value)

    recorded = request(LONG + "甲").normal_form(ScriptedBackend([]).model)
    write(mine, (form("全不一样"), GOOD), (recorded, GOOD))
    said = ask(LONG + "乙")
    command = re.search(r"`python -m memecmd_utils (explain-miss [0-9a-f]{16})`", said)[1].split()
    nearest = re.search(r"the nearest recording, ([0-9a-f]{16}), differs in: messages", said)[1]
    wanted = f"messages[0].text\n  first:  '…{LONG[-9:]}乙'\n  second: '…{LONG[-9:]}甲'\n"
    for given in (command, [*command, nearest]):
        assert command_line.main(given) == 0 and capsys.readouterr().out == wanted
    key = command[1]
    for number in range(recordings.KEPT_MISSES - 1):
        ask(f"别的{number}")
    assert tools.explain(key, None, [mine]) == wanted.splitlines()
    assert ask(LONG + "乙") == said, "asked for again: it is not kept twice"
    ask("一个新的")
    assert len(recordings.missed_forms()) == recordings.KEPT_MISSES
    assert tools.explain(key, None, [mine]) == wanted.splitlines(), "the oldest goes first"
    with pytest.raises(RecordingError, match="nothing is recorded for task 'rating'"):
        tools.explain(json.dumps(form(task="rating")), None, [mine])


def test_a_miss_is_told_where_nothing_can_be_written(mine: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(paths, "interim", mine / "a file")
    (mine / "a file").parent.mkdir(parents=True, exist_ok=True)
    (mine / "a file").touch()
    chat = Chat(ScriptedBackend([]), Recordings("s", [mine]), "recorded")
    message = Message(role="user", text="甲")
    asked = Request(task="utterance", subject="d/2", messages=[message], sampling=Sampling())
    with pytest.raises(RecordingMiss, match="nothing is recorded for task 'utterance'"):
        llm.run(chat.ask(asked, str))


@pytest.mark.parametrize(
    ("text", "told"),
    [("12345678", "0 recordings have"), ("abc", "neither a form"), ("{", "neither"), ("[1]", "JSON object")],
)
def test_explain_says_what_it_needs(mine: Path, text: str, told: str) -> None:
    with pytest.raises(RecordingError, match=told):
        tools.explain(text, "{}", [mine])


def test_the_commands(mine: Path, capsys: pytest.CaptureFixture) -> None:
    scattered(mine)
    assert command_line.main(["recordings-check"]) == 0
    assert "note: raw/recordings/local/s: 2 lines repeat" in capsys.readouterr().out
    path = as_version_1(mine / "s" / "w0.jsonl")
    assert command_line.main(["recordings-check"]) == 1
    assert "PROBLEM: raw/recordings/local/s/w0.jsonl" in capsys.readouterr().out
    assert command_line.main(["recordings-compact"]) == 2
    assert "make recordings-migrate PROFILE=local" in capsys.readouterr().err
    tracked = write(paths.example / "recordings", (form(), GOOD), name="example")
    as_version_1(tracked)
    for command, told in (("migrate", "example/recordings/s: 1 recordings"), ("compact", "-> 4 recordings")):
        assert command_line.main([f"recordings-{command}"]) == 0
        assert told in capsys.readouterr().out
    assert (
        list(content(mine)) == ["s/w0.jsonl"] and path.exists() and len(answers(tracked.parent.parent)) == 1
    )
    assert command_line.main(["explain-miss", key_of(form("一"))[:10], json.dumps(form("三"))]) == 0
    assert capsys.readouterr().out == "messages[0].text\n  first:  '一'\n  second: '三'\n"


def test_the_report_puts_problems_last() -> None:
    report = recording_check.Report(["a"], ["b"], ["c"])
    assert report.text() == "a\nnote: c\nPROBLEM: b"
