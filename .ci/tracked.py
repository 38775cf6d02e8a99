"""The tracked results: a few small files of the example run, in `reports/` for the READMEs and for CI.

`python .ci/tracked.py refresh` copies them and fills in the READMEs' numbers; `compare` says where the run
differs from them. A sentence names its number by an expression over `facts`.
"""

import csv
import json
import math
import re
import shutil
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import jinja2
import numpy as np
import pandas as pd
from PIL import Image

from memecmd_utils import benchmark, files, report, statistics
from memecmd_utils.files import MemecmdError, paths
from memecmd_utils.report import percent
from memecmd_utils.statistics import Estimate
from memecmd_utils.studies import landing


def read_numbers() -> dict[str, Any]:
    """The tracked numbers."""
    return statistics.read_tables(paths.reports / "numbers.json")


# --- Numbers in sentences: what a sentence names, and how it is printed


def facts(numbers: Mapping[str, Any]) -> dict[str, Any]:
    """The rows of `numbers.json` by names: `levels.greedy.fits`, `effects.greedy.difference.low`.

    `effects` are those on the best measure that the run has: grades, else consistency. Memes of
    `greedy` and `sampling` are compared with random ones at the same turns, in `timing` random memes at the
    gate's turns with others.
    """
    truth, studies, landed = (numbers.get(name, {}) for name in ("ground_truth", "studies", "landing"))
    published, effects = numbers["paper_data"], dict[str, Any]()
    bench = (paths.reports / "bench.md").read_text(encoding="utf-8")
    for row in sorted(numbers["effects"], key=lambda row: row["metric"] != "grade"):
        name = "timing" if row["effect"] == "timing" else row["comparison"].split(" - ")[0]
        known = row["metric"] in ("grade", "consistency") and row["effect"] in ("choice", "timing")
        if known and np.isfinite(row["difference"].value):
            effects.setdefault(name, row)
    ndcg = [row for row in studies.get("ablation", ()) if row["measure"] == "nDCG@5"]
    return {
        **numbers,
        "bench": dict(re.findall(r"^\| (.+?) \| .+? \| ([\d.,]+) s \|", bench, re.MULTILINE)),
        "effects": effects,
        "levels": _by(numbers["levels"], "strategy"),
        "agreement": _by(truth.get("agreement", ()), "what"),
        "retrieval": truth.get("retrieval", []),
        "placed": _by(landed.get("placed", ()), "split", "where", "who"),
        "minus": _by(landed.get("differences", ()), "split", "where", "who", "minus", "measure"),
        "sending": _by(landed.get("sending", ()), "split", "who"),
        "gate": _by(landed.get("gate", ()), "split", "gate"),
        "ranking": _by(landed.get("ranking", ()), "split", "what"),
        "settings": _by(landed.get("settings", ()), "setting"),
        "places": _by(landed.get("places", ()), "split", "who"),
        "sequence": _by(landed.get("in_sequence", ()), "who"),
        "screens": _by(landed.get("screenshots", ()), "source", "who"),
        "sighted": _by(landed.get("sighted", ()), "what", "score"),
        "ablation": _by(ndcg, "embedder", "compares"),
        "trust": studies.get("trust", []),
        "claims": _by(studies.get("claims", ()), "claim"),
        "look": _by(published["look"], "set", "who"),
        "look_minus": _by(published["look_differences"], "set", "who", "minus", "measure"),
        "look_judge": _by(published["look_judge"], "strategy"),
        "look_kappa": published["look_agreement"][0]["kappa"],
        "confounds": _by(published["confounds"], "set", "strategy"),
        "live": _by(numbers["live"]["senders"], "who"),
        "live_minus": _by(numbers["live"]["differences"], "who", "minus", "measure"),
        "live_judge": numbers["live"]["judge"][0],
        "live_kappa": numbers["live"]["agreement"][0]["kappa"],
        "preferred": _by(numbers["live"]["preferences"], "first", "second"),
        "sheets": _by(numbers["live"]["sheets"], "shown"),
    }


def _by(rows: Iterable[Mapping[str, Any]], *columns: str) -> dict[str, Any]:
    """Rows by the values of some columns, one dict inside of another."""
    tree: dict[str, Any] = {}
    for row in rows:
        place = tree
        for column in columns[:-1]:
            place = place.setdefault(row[column], {})
        place[row[columns[-1]]] = row
    return tree


def signed(text: str) -> str:
    """A text whose negative numbers have a true minus, and whose zeros have no sign."""
    return re.sub(r"(?<![\w.-])-(?=\d)", "−", re.sub(r"(?<![\w.-])[+-](?=0\.0+(?!\d))", "", text))


def interval(estimate: Estimate, digits: int | None = None) -> str:
    """An estimate with its interval, as its kind is printed or with so many digits."""
    kind = estimate.kind if digits is None else estimate.kind._replace(digits=digits)
    return signed(str(replace(estimate, kind=kind)))


def number(value: Estimate | float | None, digits: int = 2, sign: str = "") -> str:
    """A number with so many digits, without its interval; a dash where it is not known."""
    value = value.value if isinstance(value, Estimate) else value
    return "–" if value is None else signed(f"{value:{sign}.{digits}f}")


def points(difference: Estimate) -> str:
    """A difference of two shares with its interval, in percentage points."""
    parts = [100 * part for part in (difference.value, difference.low, difference.high)]
    return signed("{:.0f} [{:.0f}, {:.0f}]".format(*parts))


FILTERS: dict[str, Callable[..., str]] = {
    "percent": percent,
    "number": number,
    "interval": interval,
    "points": points,
}
"""How sentences print a number: `levels.greedy.fits | percent`, `effects.greedy.difference | interval`."""


def value_of(expression: str, numbers: Mapping[str, Any]) -> Any:
    """What an expression over `facts` gives, such as `effects.greedy.difference.low > 0`."""
    environment = jinja2.Environment(undefined=jinja2.StrictUndefined)
    environment.filters.update(FILTERS)
    try:
        return environment.compile_expression(expression.replace(r"\|", "|"), undefined_to_none=False)(
            **facts(numbers)
        )
    except (jinja2.TemplateError, TypeError) as error:
        raise MemecmdError(f"{expression}: {error}") from error


NUMBER = re.compile(r"<!--= (.*?) -->(.*?)<!-- -->")
"""A number in a sentence: `<!--= levels.greedy.fits | percent -->20%<!-- -->`; a table has `\\|`."""
HOLDS = re.compile(r"<!-- holds: (.*?) -->")
"""What must be true of the numbers where the sentence below claims a direction."""
_TABLE = re.compile(r"<!-- table: (\w+) -->\n(.*?)<!-- end -->", re.DOTALL)
CLAIMS = {
    "Greedy beats Random": "Greedy 胜过 Random",
    "Sampling beats Random": "Sampling 胜过 Random",
    "Greedy is at least as good as Sampling": "Greedy 不差于 Sampling",
    "Greedy repeats memes within a dialogue more often than Sampling": (
        "Greedy 在一段对话里重复得比 Sampling 多"
    ),
    "both beat Random in news and in role dialogues": "两者在新闻和角色对话里都胜过 Random",
    "the full score beats each single dimension": "完整得分优于任一单项",
    "the decaying threshold has fewer memes right after another than a fixed one": (
        "衰减的阈值比固定的少有紧跟着上一张的"
    ),
}
"""The claims of the paper, which English pages say as the tables do, in Chinese."""
WORDS = {
    "reranked": ("Reranked", "Reranked"),
    "reranked, small model": ("Reranked, small model", "Reranked，小模型"),
    "learned": ("Learned", "Learned"),
    "learned, chat alone": ("Learned, chat alone", "Learned，只看聊天"),
    "greedy": ("Greedy", "Greedy"),
    "the paper's score": ("Greedy (the paper's score)", "Greedy（论文的打分）"),
    "sampling": ("Sampling", "Sampling"),
    "popular": ("Popular", "Popular"),
    "best single meme": ("One meme", "同一张"),
    "random": ("Random", "Random"),
    "S+ alone": ("S+ alone (scenes that fit)", "只用 S+（合适的场景）"),
    "S- alone": ("S\u2212 alone (scenes that do not fit)", "只用 S\u2212（不合适的场景）"),
    "E alone": ("E alone (emotion)", "只用 E（情绪）"),
    "Psi alone": ("Ψ alone (why one sends it)", "只用 Ψ（为什么发）"),
    "context to caption": ("Caption alone", "只用图上的字"),
    "a random meme": ("a random meme, wherever any of these sent one", "随机一张，只要其中一方发了就配一张"),
    "untouched_2": ("the held-out test", "留出测试"),
    "untouched": ("the first held-out test", "第一次留出测试"),
    "example": ("the example", "示例"),
    "Random, same turns": ("Random, at Greedy's turns", "Random，Greedy 的轮次"),
    "random_same_turns": ("Random, at Greedy's turns", "Random，Greedy 的轮次"),
    "greedy, same turns": ("Greedy, at Reranked's turns", "Greedy，Reranked 的轮次"),
    "Diversity-aware": ("Sampling", "Sampling"),
    "ours": ("our ladder", "我们的阶梯"),
    "paper": ("the paper's ladder", "论文的阶梯"),
    "full": ("the whole background at every turn", "每一轮都告诉全部背景"),
    "no_opening": ("ours without leave to change the topic", "我们的阶梯，但不许换话题"),
    "live": ("the system's own", "系统自己的"),
    "authored": ("the example's", "示例的"),
    "published": ("the authors'", "论文作者的"),
    "S-": ("S−", "S−"),
    "Psi": ("Ψ", "Ψ"),
    "annotation texts": ("annotation texts", "只看标注"),
    "without none": ("must send at every turn", "每一轮都必须发"),
} | {claim: (claim, chinese) for claim, chinese in CLAIMS.items()}
"""What pages say, in English and in Chinese, for names of files and of settings."""
PAGES = (
    "README.md", "README.zh-CN.md", "reports/README.md", "reports/README.zh-CN.md", "reports/MODEL_CARD.md",
)  # fmt: skip
"""Pages whose numbers are filled in."""


def filled(text: str, numbers: Mapping[str, Any], table_of: Callable[[str], str]) -> str:
    """A page with the numbers and the rows of tables as they are now.

    `table_of` gives a table as Markdown by name. The two lines above a table's rows are written by hand.
    """

    def rows(match: re.Match[str]) -> str:
        name, head, made = match[1], match[2].splitlines()[:2], table_of(match[1]).splitlines()
        if [line.count("|") for line in head] != [line.count("|") for line in made[:2]]:
            head = made[:2]
        lines = signed("\n".join([*head, *made[2:]])).replace("<u>", "<ins>").replace("</u>", "</ins>")
        return f"<!-- table: {name} -->\n{lines}\n<!-- end -->"

    text = NUMBER.sub(lambda match: f"<!--= {match[1]} -->{value_of(match[1], numbers)}<!-- -->", text)
    return _TABLE.sub(rows, text)


# --- Tracked results: a few small files of the example run, for the READMEs and compared by CI


TOLERANCE = 1e-6 + 0.5e-6
"""Numbers agree to 1e-6; files hold six decimals, and rounding may part nearly equal ones by one unit."""
PIXEL_TOLERANCE = 0.02
"""Largest mean difference of two pictures, as a share of the full range: fonts differ a little."""
TRACKED = (
    "numbers.json",
    "placements.csv",
    "chat.png",
    "fig3_scores.png",
    "fig4_consistency.png",
    "lands.png",
)


def refresh() -> list[Path]:
    """Copy numbers, placements and pictures of the example into `reports/`, and fill in `PAGES`."""
    folder = paths.reports / "example"
    copied = [Path(shutil.copyfile(_find(folder, name), paths.reports / name)) for name in TRACKED]
    if (folder / benchmark.FILE).is_file():  # by `make leaderboard`, which no run does by itself
        copied.append(Path(shutil.copyfile(folder / benchmark.FILE, paths.reports / benchmark.FILE)))
    numbers = read_numbers()

    def table_of(name: str) -> str:
        if name == "leaderboard":
            return files.markdown(_leaders(benchmark.load(paths.reports)))
        return (folder / "tables" / f"{name}_shown.md").read_text(encoding="utf-8")

    def worded(name: str) -> str:
        """A table whose cells say in words what files call by a short name."""
        cell, is_chinese = r"(?<=\| )[\w', +-]+?(?= \|)", "zh-CN" in page.name
        return re.sub(cell, lambda found: WORDS.get(found[0], (found[0],) * 2)[is_chinese], table_of(name))

    for page in (paths.root / name for name in PAGES):
        before = page.read_text(encoding="utf-8")
        if (after := filled(before, numbers, worded)) != before:
            files.write_text(page, after)
            copied.append(page)
    return copied


def _leaders(rows: Sequence[Mapping[str, Any]]) -> pd.DataFrame:
    """All rankings of the package that enough grades tell of, best first, in every split."""
    own = [row for row in rows if row["kind"] == "package" and row["judged@5"] >= benchmark.JUDGED]
    own = [row for row in own if row["system"] != landing.SINGLE]  # its meme is the first of the popular ones
    own.sort(key=lambda row: -row["nDCG@5"].value)
    splits = list(dict.fromkeys(row["split"] for row in rows))[::-1]
    best = [row for split in splits for row in own if row["split"] == split]
    # A p-value is kept to six digits.
    best = [row | {"p Holm": "< 0.001"} if row["p Holm"] == 0 else row for row in best]
    return report.printed(best, ("split", "system", "R@1", "nDCG@5", "judged@5", "difference", "p Holm"))


def _find(folder: Path, name: str) -> Path:
    for path in (folder / name, folder / "figures" / name):
        if path.is_file():
            return path
    raise MemecmdError(f"{folder.name} has no {name}: run `make reproduce` first")


def compare() -> list[str]:
    """What differs between the example run and the tracked files; empty if nothing does."""
    found = []
    for name in TRACKED:
        kept, made = paths.reports / name, _find(paths.reports / "example", name)
        if name.endswith(".png"):
            gap = picture_difference(kept, made)
            found += [f"{name}: pictures differ by {gap:.3f}"] if gap > PIXEL_TOLERANCE else []
        else:
            found += differences(_values(kept), _values(made), name.partition(".")[0])
    return found


def differences(a: Any, b: Any, where: str = "") -> list[str]:
    """Paths at which two JSON values differ: texts and ids exactly, floats beyond 1e-6 and rounding."""
    if isinstance(a, dict) and isinstance(b, dict):
        found = [f"{where}.{key}: only in one" for key in sorted(a.keys() ^ b.keys())]
        for key in sorted(a.keys() & b.keys()):
            found += differences(a[key], b[key], f"{where}.{key}")
        return found
    if isinstance(a, list) and isinstance(b, list):
        if len(a) != len(b):
            return [f"{where}: {len(a)} and {len(b)} entries"]
        return differences(dict(enumerate(a)), dict(enumerate(b)), where)
    if float in (type(a), type(b)) and {type(a), type(b)} <= {int, float}:
        same = math.isclose(a, b, rel_tol=0, abs_tol=TOLERANCE) or (math.isnan(a) and math.isnan(b))
        return [] if same else [f"{where}: {a} and {b}"]
    return [] if a == b and type(a) is type(b) else [f"{where}: {a!r} and {b!r}"]


def _values(path: Path) -> Any:
    """What a file holds. Of a CSV cells with a decimal point are numbers: an id such as 12e4567 is none."""
    if path.suffix == ".json":
        return json.loads(path.read_text(encoding="utf-8"))
    with path.open(encoding="utf-8", newline="") as handle:
        return [
            [float(cell) if re.fullmatch(r"-?\d+\.\d+", cell) else cell for cell in row]
            for row in csv.reader(handle)
        ]


def picture_difference(a: Path, b: Path) -> float:
    """Mean absolute difference of two pictures, 0 to 1; pictures of different size differ wholly."""
    with Image.open(a) as first, Image.open(b) as second:
        if first.size != second.size:
            return 1.0
        x, y = (np.asarray(image.convert("RGB"), dtype=float) for image in (first, second))
    return float(np.abs(x - y).mean() / 255)


def main(action: str) -> int:
    """Run `refresh` or `compare`; the exit status."""
    if action == "refresh":
        print("\n".join(str(path.relative_to(paths.root)) for path in refresh()))
        return 0
    found = compare()
    print("\n".join([*found, f"{len(found)} differences" if found else "the run equals the tracked results"]))
    return int(bool(found))


if __name__ == "__main__":
    try:
        sys.exit(main(sys.argv[1]))
    except MemecmdError as error:
        sys.exit(str(error))
