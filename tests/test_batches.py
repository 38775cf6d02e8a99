"""A provider's batches: sent once, their answers checked, recorded and paid for at half the price."""

import json

import made_up
import pytest
from fault_server import Answer, FaultServer, Simulated

from memecmd_utils import annotation, batches, files, judges, runs, schemas, settings
from memecmd_utils.files import MemecmdError, paths
from memecmd_utils.llm import chat as llm_chat


class BatchService(Simulated):
    """The Batch API over the simulated model: a batch has ended when it is looked at the second time."""

    def __init__(self) -> None:
        super().__init__()
        self.files: dict[str, bytes] = {}
        self.batches: dict[str, dict] = {}

    def answer_to(self, path: str, method: str, body) -> Answer:
        name = path.rsplit("/", 1)[-1].partition("?")[0]
        if path.startswith("/v1/chat"):
            return self(body)
        if path.startswith("/v1/files"):
            if method == "GET":
                return Answer(self.files[path.split("/")[3]], kind="application/octet-stream")
            self.files[f"f{len(self.files)}"] = body.split(b"\r\n\r\n")[-1].rsplit(b"\r\n--", 1)[0]
            return Answer({"id": f"f{len(self.files) - 1}", "object": "file"})
        if method == "POST":
            made = {"id": f"b{len(self.batches)}", "object": "batch", "status": "in_progress", **body}
            self.batches[made["id"]] = made | {"request_counts": {"total": 1, "completed": 0, "failed": 0}}
            return Answer(self.batches[made["id"]])
        if name == "batches":
            return Answer({"object": "list", "data": list(self.batches.values()), "has_more": False})
        batch = self.batches[name]
        if batch.get("seen"):
            lines = [json.loads(line) for line in self.files[batch["input_file_id"]].splitlines()]
            done = []
            for number, line in enumerate(lines[:-1]):
                body = json.loads(self(line["body"]).body)
                message = body["choices"][0]["message"]
                # The second answer is unusable, the third holds a line separator.
                odd = {1: "不会", 2: message["content"].replace("，", "\u2028，", 1)}
                message["content"] = odd.get(number, message["content"])
                done.append({"custom_id": line["custom_id"], "response": {"body": body}})
            self.files["out"] = "".join(files.dumps(line) + "\n" for line in done).encode()
            batch |= {"status": "completed", "output_file_id": "out"}
            batch["request_counts"]["completed"] = len(done)
        batch["seen"] = True
        return Answer({k: v for k, v in batch.items() if k != "seen"})


@pytest.fixture
def service(tmp_path, monkeypatch):
    for name in ("processed", "raw", "reports"):
        monkeypatch.setattr(paths, name, tmp_path / name)
    monkeypatch.setenv("OPENAI_API_KEY", "simulated-simulated")
    service = BatchService()
    with FaultServer(service).running() as server:
        server.service = service.answer_to
        service.url = server.url
        yield service


def opened(service: BatchService, monkeypatch, **more) -> runs.Run:
    model = {"model": "m", "usd_per_million_in": 1, "usd_per_million_out": 10, "base_url": service.url}
    given = {"models.llm": "openai", "models.mode": "auto", "models.max_usd": None}
    given |= {"models.endpoints.generator": model, **more}
    monkeypatch.setattr(settings, "settled", lambda *_: settings.load_profile("openai", given))
    run = runs.open_run("openai", "", "b")
    memes = (made_up.meme(f"m{n}").model_copy(update={"text": f"第{n}张"}) for n in range(5))
    run.save(list(memes), schemas.Meme)
    return run


def test_a_batch_is_sent_once_fetched_and_taken_by_the_run_at_half_the_price(service, monkeypatch) -> None:
    with pytest.raises(MemecmdError, match="mode=auto"):
        batches.send(opened(service, monkeypatch, **{"models.mode": "live"}), "annotation")
    run = opened(service, monkeypatch)
    assert batches.send(run, "annotation") == "5 questions of annotation are sent in b0"
    with pytest.raises(MemecmdError, match="batch fetch annotation"):
        batches.send(run, "annotation")
    assert not any(run.folder.rglob("*.json")) and not service.lines, "nobody was asked, nothing is kept"
    (run.write_dir / "batches" / "annotation.json").unlink()  # as if killed before the note was written
    assert batches.send(run, "annotation").endswith("in b0") and len(service.batches) == 1
    errors = {"object": "list", "data": [{"message": "billing limit simulated-simulated", "code": "x"}]}
    service.batches["b0"] |= {"status": "failed", "errors": errors}
    assert batches.fetch(run, "annotation") == "b0: failed, 0 answered\nbilling limit ***"
    assert batches.send(run, "annotation").endswith("in b1"), "one that failed is sent again"
    assert batches.fetch(run, "annotation") == "b1: in_progress, 0 answered"
    assert batches.fetch(run, "annotation") == "b1: completed, 4 answered"
    row = runs.spent(run).rows["annotation", "annotation"]
    full = (row["tokens_in"] * 1 + row["tokens_out"] * 10) / 1e6
    assert row["calls"] == 4 and row["usd"] == pytest.approx(full / 2)
    asked = len(service.lines)
    with run.chat("annotator", "annotation") as chat:
        made = llm_chat.run(annotation.annotate(run.load(schemas.Meme), chat, run.profile))
    assert [bool(a.unscored) for a in made] == [False] * 5 and "\u2028" in made[2].s_plus
    assert len(service.lines) == asked + 2, "the unusable one and the one that was not answered"
    assert batches.send(run, "annotation") == "annotation has no open questions: all answers are recorded"


def test_the_ratings_of_a_judge_come_by_batch(service, monkeypatch) -> None:
    judge = {"kind": "rating", "llm": "openai"}
    given = {"evaluation.judges": [judge], "evaluation.judge_unit": "dialogue", "dialogue.n_turns": 6}
    run = opened(service, monkeypatch, **given)
    dialogues, memes = [made_up.dialogue()], [made_up.meme("m1"), made_up.meme("m2")]
    placements = [made_up.placement(2, "m1"), made_up.placement(4, "m2", strategy="random")]
    run.save(memes, schemas.Meme)
    run.save([made_up.annotation(meme.meme_id) for meme in memes], schemas.Annotation)
    run.save(dialogues, schemas.Dialogue)
    run.save(placements, schemas.Placement)
    assert batches.send(run, "evaluation") == "2 questions of evaluation are sent in b0"
    assert [batches.fetch(run, "evaluation")[-10:] for _ in range(2)] == ["0 answered", "1 answered"]
    assert not (run.folder / "ratings.parquet").exists(), "the stage writes its tables, not a batch"
    asked = len(service.lines)
    made = judges.rate(run, placements, {d.dialogue_id: d for d in dialogues}, {m.meme_id: m for m in memes})
    assert all(rating.overall for rating in made) and len(service.lines) == asked + 1
