import base64
import hashlib
import io
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from feed_server import FeedSite, Page
from PIL import Image

from memecmd_utils import files
from memecmd_utils.cm50 import pictures
from memecmd_utils.cm50.pictures import (
    fetch_pictures,
    index,
    local_pictures,
    picture_folder,
    pictures_in,
)
from memecmd_utils.core.fetch.http import Limits
from memecmd_utils.files import paths
from memecmd_utils.pictures import LibraryError
from memecmd_utils.schemas import TemplateMeme
from memecmd_utils.settings import Profile

QUICK = Limits(
    delay_s=0.0, connect_s=2, read_s=1, total_s=1.5, max_bytes=60_000, tries=2, backoff_s=0.01, max_wait_s=2
)


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pictures, "LIMITS", QUICK)


def picture(kind: str = "JPEG", shade: int = 90) -> bytes:
    buffer = io.BytesIO()
    Image.new("RGB", (40, 30), (shade, 20, 30)).save(buffer, kind)
    return buffer.getvalue()


def image(kind: str = "JPEG", **more: object) -> Page:
    return Page(picture(kind), kind=f"image/{kind.lower()}", **more)


def meme(meme_id: str, url: str) -> TemplateMeme:
    return TemplateMeme(source="made up", meme_id=meme_id, template="Made", url=url)


@pytest.fixture
def site() -> Iterator[FeedSite]:
    with FeedSite().running() as found:
        yield found


def memes(site: FeedSite, *names: str) -> list[TemplateMeme]:
    return [meme(name, f"{site.url}/{name}.jpg") for name in names]


def get(found: list[TemplateMeme], folder: Path, limit: int = 99, **more: object) -> dict[str, int]:
    return fetch_pictures(found, folder, limit, **{"private": True, **more})


def test_images_are_fetched_once_and_named_by_id_and_true_format(site: FeedSite, tmp_path: Path) -> None:
    site.pages = {"/a.jpg": image(), "/b.jpg": image("PNG"), "/c.jpg": image("GIF")}
    wanted = memes(site, "a", "b", "c")
    assert get(wanted, tmp_path / "i") == {"there": 0, "fetched": 3}
    there = local_pictures(wanted, tmp_path / "i")
    assert {name: path.name for name, path in there.items()} == {"a": "a.jpg", "b": "b.png", "c": "c.gif"}
    assert there["b"].read_bytes() == picture("PNG")
    entry = index(tmp_path / "i")["b"]
    assert entry.sha256 == hashlib.sha256(picture("PNG")).hexdigest() and entry.bytes == len(picture("PNG"))
    asked = len(site.log)
    assert get(wanted, tmp_path / "i") == {"there": 3, "fetched": 0} and len(site.log) == asked
    assert "MemeCMD/" in site.log[0][1]["User-Agent"] and "feed" not in site.log[0][1]["User-Agent"]
    assert site.log[0][0] == "/robots.txt" and site.asked("/robots.txt") == 1


def test_only_as_many_as_asked_for(site: FeedSite, tmp_path: Path) -> None:
    site.pages = {f"/m{n}.jpg": image() for n in range(5)}
    wanted = memes(site, *(f"m{n}" for n in range(5)))
    assert get(wanted, tmp_path, 2) == {"there": 0, "fetched": 2, "not asked": 3}
    assert get(wanted, tmp_path, 2) == {"there": 2, "fetched": 2, "not asked": 1}
    assert sorted(local_pictures(wanted, tmp_path)) == ["m0", "m1", "m2", "m3"]
    assert get(wanted, tmp_path, 0) == {"there": 4, "fetched": 0, "not asked": 1}
    assert get(wanted, tmp_path, allowed=False) == {"there": 4, "fetched": 0, "fetching is off": 1}
    assert site.asked("/m4.jpg") == 0


def test_what_is_no_good_image_is_counted_by_its_reason_and_not_asked_for_again(
    site: FeedSite, tmp_path: Path
) -> None:
    whole = picture()
    site.pages = {
        "/page.jpg": Page("<html>no</html>", kind="image/jpeg"),
        "/cut.jpg": Page(whole[: len(whole) // 2], kind="image/jpeg"),
        "/empty.jpg": Page(b"", kind="image/jpeg"),
        "/huge.jpg": Page(b"\xff\xd8\xff" + bytes(70_000), kind="image/jpeg"),
        "/tiny.jpg": Page(tiny(), kind="image/png"),
        "/away.jpg": Page(code=302, Location="http://127.0.0.1:1/away.jpg"),
        "/moved.jpg": Page(code=302, Location="/removed.png"),
        "/removed.png": image("PNG"),
        "/back.jpg": Page(code=301, Location="/other/back.jpg"),
        "/other/back.jpg": image(),
        "/gone.jpg": Page(code=410),
        "/round.jpg": Page(code=302, Location="/round.jpg"),
        "/robots.txt": Page("User-agent: *\nDisallow: /secret", kind="text/plain"),
        "/secret.jpg": image(),
    }
    names = "page cut empty huge tiny away moved back gone none round secret"
    wanted = [*memes(site, *names.split()), meme("ftp", "ftp://x/y.jpg"), meme("../up", f"{site.url}/a.jpg")]
    wanted.append(meme("user", "http://me@127.0.0.1/a.jpg"))
    reasons = {
        "there": 0, "fetched": 1, "bad address": 3, "not an image": 4, "too big": 1, "redirect": 3,
        "not found": 2, "forbidden": 1,
    }  # fmt: skip
    assert get(wanted, tmp_path / "i") == reasons
    assert [path.name for path in local_pictures(wanted, tmp_path / "i").values()] == ["back.jpg"]
    assert site.asked("/removed.png") == 0 and site.asked("/secret.jpg") == 0
    assert sorted(path.name for path in tmp_path.rglob("*")) == [".lock", "back.jpg", "i", "index.jsonl"]
    entries = index(tmp_path / "i")
    assert entries["away"].reason == "redirect" and "127.0.0.1:1" in entries["away"].detail
    asked = len(site.log)
    assert get(wanted, tmp_path / "i") == {**reasons, "there": 1, "fetched": 0} and len(site.log) == asked


def tiny() -> bytes:
    buffer = io.BytesIO()
    Image.new("RGB", (3, 3)).save(buffer, "PNG")
    return buffer.getvalue()


def test_what_may_mend_is_tried_again_now_and_in_the_next_run(site: FeedSite, tmp_path: Path) -> None:
    site.pages = {
        "/busy.jpg": [Page(code=503), image()],
        "/later.jpg": [Page(code=429, Retry_After="1"), image()],
        "/down.jpg": Page(code=500),
        "/slow.jpg": Page(site.drip, kind="image/jpeg"),
        "/ok.jpg": image(),
    }
    wanted = memes(site, "busy", "later", "down", "slow", "ok")
    assert get(wanted, tmp_path) == {"there": 0, "fetched": 3, "HTTP 500": 1, "time-out": 1}
    times = [at for path, _, at in site.log if path == "/later.jpg"]
    assert len(times) == 2 and times[1] - times[0] >= 0.9, "Retry-After is waited for"
    assert site.asked("/down.jpg") == 2 and site.asked("/slow.jpg") == 1
    site.pages |= {"/down.jpg": image(), "/slow.jpg": image()}
    assert get(wanted, tmp_path) == {"there": 3, "fetched": 2}


def test_a_host_that_asks_for_a_long_pause_is_left_alone_for_this_run(site: FeedSite, tmp_path: Path) -> None:
    site.pages = {"/a.jpg": Page(code=429, Retry_After="3600"), "/b.jpg": image()}
    wanted = memes(site, "a", "b", "c")
    begun = time.monotonic()
    assert get(wanted, tmp_path) == {"there": 0, "fetched": 0, "HTTP 429": 1, "host given up": 2}
    assert time.monotonic() - begun < 2 and site.asked("/b.jpg") == 0
    assert "HTTP 429" in index(tmp_path)["c"].detail


def test_a_host_that_refuses_again_and_again_is_given_up(site: FeedSite, tmp_path: Path) -> None:
    names = [f"m{n}" for n in range(9)]
    site.pages = {f"/{name}.jpg": Page(code=403) for name in names}
    found = get(memes(site, *names), tmp_path)
    assert found == {"there": 0, "fetched": 0, "HTTP 403": pictures.GIVE_UP, "host given up": 5}
    site.pages = {f"/{name}.jpg": image() for name in names}
    assert get(memes(site, *names), tmp_path)["fetched"] == 9, "a refusal is not for ever"


def test_where_nobody_answers_it_is_said_soon(tmp_path: Path) -> None:
    begun = time.monotonic()
    wanted = [meme(f"m{n}", f"http://127.0.0.1:9/m{n}.jpg") for n in range(50)]
    assert get(wanted, tmp_path) == {"there": 0, "fetched": 0, "host given up": 50}
    assert time.monotonic() - begun < 5 and "could not be asked for" in index(tmp_path)["m0"].detail


def test_an_address_that_is_not_public_is_refused(site: FeedSite, tmp_path: Path) -> None:
    site.pages = {"/a.jpg": image()}
    port = site.url.rpartition(":")[2]
    wanted = [*memes(site, "a"), meme("name", f"http://localhost:{port}/a.jpg")]
    wanted.append(meme("inner", f"http://169.254.169.254:{port}/a.jpg"))
    found = fetch_pictures(wanted, tmp_path, 99)
    assert found == {"there": 0, "fetched": 0, "host given up": 3} and site.log == []
    assert all("not on the public internet" in entry.detail for entry in index(tmp_path).values())


def test_a_users_folder_is_used_as_it_is_and_never_filled(site: FeedSite, tmp_path: Path) -> None:
    site.pages = {"/b.jpg": image()}
    (tmp_path / "deep" / ".hidden").mkdir(parents=True)
    for name in ("a.PNG", "deep/c.webp", "deep/a.jpg", "deep/.hidden/b.jpg", ".b.jpg", "b.txt"):
        (tmp_path / name).write_bytes(b"x")
    wanted = memes(site, "a", "b", "c")
    before = sorted(tmp_path.rglob("*"))
    assert local_pictures(wanted, tmp_path) == {"a": tmp_path / "a.PNG", "c": tmp_path / "deep" / "c.webp"}
    assert get(wanted, tmp_path) == {"there": 2, "fetched": 0, "not in your folder": 1}
    assert sorted(tmp_path.rglob("*")) == before and site.log == []
    assert local_pictures(wanted, tmp_path / "nowhere") == {}
    assert picture_folder(Profile(name="x", meme_retrieval={"images": str(tmp_path)})) == tmp_path
    assert picture_folder(Profile(name="x")) == paths.raw / "templates" / "images"


def test_two_runs_do_not_write_into_one_folder(site: FeedSite, tmp_path: Path) -> None:
    with (
        files.lock(tmp_path / ".lock"),
        pytest.raises(LibraryError, match="another run is fetching"),
    ):
        get(memes(site, "a"), tmp_path)


@pytest.mark.slow
def test_a_killed_run_goes_on_where_it_was(site: FeedSite, tmp_path: Path) -> None:
    names = [f"m{n}" for n in range(6)]
    site.pages = {f"/{name}.jpg": image() for name in names}
    site.pages["/m3.jpg"] = Page(site.hang, kind="image/jpeg")
    script = (
        "import json, sys; from pathlib import Path; from types import SimpleNamespace as Meme\n"
        "from memecmd_utils.core.fetch import http as http_client\n"
        "from memecmd_utils.cm50 import pictures as t\n"
        "memes = [Meme(meme_id=n, url=f'{sys.argv[1]}/{n}.jpg') for n in json.loads(sys.argv[3])]\n"
        "t.LIMITS = http_client.Limits(delay_s=0, read_s=60, total_s=60)\n"
        "t.fetch_pictures(memes, Path(sys.argv[2]), 99, private=True)"
    )
    folder = tmp_path / "i"
    child = subprocess.Popen([sys.executable, "-c", script, site.url, str(folder), json.dumps(names)])
    until = time.monotonic() + 60
    while site.asked("/m3.jpg") == 0 and time.monotonic() < until:
        time.sleep(0.02)
    os.kill(child.pid, signal.SIGKILL)
    assert child.wait(10) == -signal.SIGKILL and site.asked("/m3.jpg") == 1
    wanted = memes(site, *names)
    assert sorted(local_pictures(wanted, folder)) == ["m0", "m1", "m2"]
    # As a run leaves it that is killed while it writes: half a file, half a line, a file without its line.
    (folder / ".m3.jpg.1.part.jpg").write_bytes(b"half")
    lines = (folder / pictures.INDEX).read_text(encoding="utf-8").splitlines(keepends=True)
    (folder / pictures.INDEX).write_text("".join(lines[:-1]) + lines[-1][:20], encoding="utf-8")
    del site.pages["/m3.jpg"]
    assert get(wanted, folder) == {"there": 3, "fetched": 2, "not found": 1}
    assert index(folder)["m3"].reason == "not found", "what follows half a line is not lost"
    assert [site.asked(f"/{name}.jpg") for name in names] == [1, 1, 1, 2, 1, 1]
    assert sorted(p.name for p in folder.iterdir() if "part" in p.name) == []
    entries = index(folder)
    assert sorted(entries) == names and entries["m2"].url.endswith("/m2.jpg")
    assert {e.sha256 for e in entries.values() if e.file} == {hashlib.sha256(picture()).hexdigest()}
    assert (folder / pictures.INDEX).read_text(encoding="utf-8").count("\n") == 6


# --- for a model that sees --------------------------------------------------------------------------


def test_pictures_are_found_by_id_and_read_when_they_are_sent(tmp_path: Path) -> None:
    Image.new("RGB", (8, 6), (200, 30, 40)).save(tmp_path / "a.jpg")
    Image.new("RGB", (8, 6), (200, 30, 40)).save(tmp_path / "b.png")
    find = pictures_in(tmp_path)
    first, second = find(meme("a", "u")), find(meme("b", "u"))
    (tmp_path / "memecap").mkdir()
    Image.new("RGB", (8, 6)).save(tmp_path / "memecap" / "d.PNG")
    assert pictures_in(tmp_path)(meme("d", "u")) is not None, "also in a folder below, as matching finds it"
    assert find(meme("c", "u")) is None and pictures_in(None)(meme("a", "u")) is None
    assert len(first.image_id) == 64 and first.image_id != second.image_id
    assert first.load().startswith("data:image/jpeg;base64,/9j/")
    assert second.load().startswith("data:image/png;base64,iVBOR")
    (tmp_path / "b.png").write_bytes((tmp_path / "a.jpg").read_bytes())
    assert find(meme("b", "u")).image_id == first.image_id, "known by its bytes"


def test_other_formats_are_sent_as_png_of_the_first_frame(tmp_path: Path) -> None:
    frames = [Image.new("RGB", (5, 5), colour) for colour in ((250, 0, 0), (0, 250, 0))]
    frames[0].save(tmp_path / "g.gif", save_all=True, append_images=frames[1:])
    frames[0].save(tmp_path / "w.webp", lossless=True)
    for name in ("g", "w"):
        head, _, data = pictures_in(tmp_path)(meme(name, "u")).load().partition(",")
        assert head == "data:image/png;base64"
        with Image.open(io.BytesIO(base64.b64decode(data))) as picture:
            assert picture.getpixel((2, 2)) == (250, 0, 0)
