"""Tracked results: a few small files of the example run, copied for the README and compared by CI."""

import csv
import json
import math
import re
import shutil
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Literal
from urllib.parse import unquote, urlsplit

import numpy as np
import pandas as pd
from PIL import Image

from memecmd_utils import schemas, settings
from memecmd_utils.core import paths, statistics, storage
from memecmd_utils.core import tables as core_tables
from memecmd_utils.core.errors import MemecmdError
from memecmd_utils.evaluation import rankings, tables
from memecmd_utils.runs import StageMissing

# --- The parts of the READMEs that quote results: rendered from `reports/numbers.json`, never typed by hand


READMES = ("README.md", "README.zh-CN.md")
MARKERS = ("answers", "numbers", "ground-truth", "table-1")
Language = Literal["en", "zh"]
WORDS: dict[Language, dict[str, str]] = {
    "en": {
        "sizes": "{memes} memes; {total} dialogues ({news} news, {role} role) of {turns} turns in all.",
        "rate": "The gate sends {sent} memes, one at {rate:.0%} of the turns from the second on.",
        "ratings": "The judge rated {total} of {placed} placed memes; {unscored} ratings are unscored.",
        "unchecked": "**The judge could not be checked**: too few memes are rated.",
        "tells": "**The judge tells greedy's memes from random ones at the same turns{weak}**{auc}.",
        "cannot": "**The judge cannot tell greedy's memes from random ones at the same turns**{auc}: "
        "its scores below say nothing about quality.",
        "reversed": "**The judge prefers random memes to greedy's at the same turns**{auc}: "
        "it is no measure of quality here.",
        "auc": " (AUC {auc:.2f}, 95 % interval {low:.2f} to {high:.2f}, n = {n} in {dialogues} dialogues; "
        "0.5 is chance)",
        "weak": ", but only weakly",
        "effects": "effect | metric | comparison | mean difference [95 % interval] | n | dialogues "
        "| p (Holm)",
        "table": "dataset | metric",
        "judge": "judge",
        "consistency": "text consistency",
        "grade": "grade (0-2)",
        "choice": "choice",
        "timing": "timing",
        "and": " and ",
        "comma": ", ",
        "mean grades": "Mean grade of the placed memes, of 2: {grades}.",
        "timing of the gate": "When to send: the markers would at {marked}, the gate does at {rate:.0%}; "
        "its kappa with them is {kappas} (0 is chance).",
        "no truth": "This run has no ground truth.",
        "agreement": "Model-model agreement: kappa {send} on send or not, weighted kappa {grade} on grades, "
        "{dialogues} dialogues. {turns} turns of {among} dialogues have a relevant meme.",
        "answers": "{paragraph}",
        "no answers": "The studies of this run have not been made.",
        "trust": "judge | score | dialogues | AUC, fitting against random | AUC, against hard negatives "
        "| alpha over three wordings | trust",
        "claims": "claim of the paper | dialogues | readings | has its sign | clearly "
        "| clearly the opposite | cannot tell",
        "zero": "An interval that holds 0 means: with this many dialogues we cannot say.",
    },
    "zh": {
        "sizes": "{memes} 张表情包；{total} 段对话（新闻 {news} 段，角色 {role} 段），共 {turns} 轮。",
        "rate": "门控共发出 {sent} 张表情包，占第二轮起所有轮次的 {rate:.0%}。",
        "ratings": "评判模型评了 {placed} 张已放置表情包中的 {total} 张；其中 {unscored} 条无分。",
        "unchecked": "**评判模型无法检验**：有评分的表情包太少。",
        "tells": "**评判模型能区分 Greedy 选出的表情包与相同轮次的随机表情包{weak}**{auc}。",
        "cannot": "**评判模型不能区分 Greedy 选出的表情包与相同轮次的随机表情包**{auc}："
        "下面它的分数不能说明质量。",
        "reversed": "**评判模型在相同轮次上更偏向随机表情包**{auc}：它在这里不能衡量质量。",
        "auc": "（AUC {auc:.2f}，95% 区间 {low:.2f} 至 {high:.2f}，n = {n}，{dialogues} 段对话；"
        "0.5 为随机水平）",
        "weak": "，但区分力很弱",
        "effects": "效应 | 指标 | 比较 | 平均差 [95% 区间] | n | 对话数 | p（Holm）",
        "table": "数据 | 指标",
        "judge": "评判模型",
        "consistency": "文本一致性",
        "grade": "标注分（0–2）",
        "choice": "选择",
        "timing": "时机",
        "and": " 和 ",
        "comma": "，",
        "mean grades": "已放置表情包的平均分（满分 2）：{grades}。",
        "timing of the gate": "何时发：标注者在 {marked} 的轮次会发，门控在 {rate:.0%} 的轮次发；"
        "门控与他们的 kappa 为 {kappas}（0 为随机水平）。",
        "no truth": "本次运行没有标注答案。",
        "agreement": "模型间一致性（{dialogues} 段对话）：发与不发 kappa {send}，相关度加权 kappa {grade}。"
        "{among} 段对话的 {turns} 个轮次有相关表情包。",
        "answers": "程序从结果文件写出的摘要（英文）：{paragraph}",
        "no answers": "本次运行没有做这些研究。",
        "trust": "评判 | 分数 | 对话数 | AUC：合适对随机 | AUC：合适对难负例 | 三种问法的 alpha | 可信度",
        "claims": "论文的论断 | 对话数 | 读法数 | 符号相符 | 明确成立 | 明确相反 | 无法判断",
        "zero": "区间包含 0 表示：凭这么多对话还不能下结论。",
    },
}


class ReadmeError(MemecmdError, ValueError):
    """A README has not exactly one pair of a marker, in order."""


def render(numbers: dict[str, Any], language: Language = "en") -> dict[str, str]:
    """Markdown for each marker, from the numbers of a run."""
    parts = (_answers, _headline, _ground_truth, _table_1)
    return {
        marker: "\n".join(lines(numbers, WORDS[language], language))
        for marker, lines in zip(MARKERS, parts, strict=True)
    }


def update(readme: Path, numbers: dict[str, Any]) -> bool:
    """Put the rendered texts between the markers of a README; say whether the file changed."""
    text = before = readme.read_text(encoding="utf-8")
    for marker, rendered in render(numbers, language_of(readme)).items():
        begin, end = between(text, marker)
        text = f"{text[:begin]}\n{rendered}\n{text[end:]}"
    if text != before:
        storage.write_text(readme, text)
    return text != before


def language_of(readme: Path) -> Language:
    """Language by the file's name."""
    return "zh" if "zh-CN" in readme.name else "en"


def between(text: str, marker: str) -> tuple[int, int]:
    """Where the text between `<!-- marker:begin -->` and `<!-- marker:end -->` begins and ends."""
    begin, end = f"<!-- {marker}:begin -->", f"<!-- {marker}:end -->"
    if text.count(begin) != 1 or text.count(end) != 1 or text.index(begin) > text.index(end):
        raise ReadmeError(f"need one {begin} and, after it, one {end}")
    return text.index(begin) + len(begin), text.index(end)


def verdict(numbers: dict[str, Any], language: Language = "en") -> str:
    """One sentence on whether the judge tells chosen memes from random ones, with its interval."""
    words = WORDS[language]
    row = tables.first_check(numbers)
    if row is None or row["low"] is None:
        return words["unchecked"]
    kind = {"yes": "tells", "no": "cannot"}.get(row["tells apart"], "reversed")
    weak = words["weak"] if row["auc"] < tables.WEAK_AUC else ""
    return words[kind].format(auc=words["auc"].format(**row), weak=weak)


def _answers(numbers: dict[str, Any], words: dict[str, str], language: Language) -> Iterator[str]:
    """The answers in one paragraph, the judges' trust, and how many readings each claim survives."""
    found = numbers.get("studies", {})
    if not found.get("claims"):
        yield words["no answers"]
        return
    yield words["answers"].format(paragraph=numbers["answers"])
    intervals = ("AUC random", "AUC hard", "alpha wordings")
    yield from _table(
        words["trust"],
        [
            (
                *(row[name] for name in ("judge", "reading", "dialogues")),
                *(statistics.format_interval(row, name, 3) for name in intervals),
                row["verdict"],
            )
            for row in found["trust"]
        ],
        right=[2],
    )
    shares = ("sign", "clear", "clearly opposite", "cannot tell")
    yield from _table(
        words["claims"],
        [
            (
                row["claim"], row["dialogues"], f"{row['worlds']:,}",
                *("–" if row[name] is None else f"{row[name]:.0%}" for name in shares),
            )
            for row in found["claims"]
        ],
        right=range(1, 7),
    )  # fmt: skip


def _table(heads: str, rows: Sequence[tuple], right: Sequence[int]) -> Iterator[str]:
    """A table under a blank line; `heads` with bars between, `right`: numbers of the columns to the right."""
    names = heads.split(" | ")
    frame = pd.DataFrame(rows, columns=names)
    yield from ("", core_tables.markdown(frame, [names[i] for i in right]).rstrip("\n"))


def _headline(numbers: dict[str, Any], words: dict[str, str], language: Language) -> Iterator[str]:
    yield f"- {verdict(numbers, language)}"
    yield "- " + words["sizes"].format(memes=numbers["memes"], **numbers["dialogues"])
    for row in numbers["meme_use"]:
        if row["strategy"] == "greedy":
            yield "- " + words["rate"].format(sent=row["memes sent"], rate=row["rate"])
    yield "- " + words["ratings"].format(**numbers["ratings"])
    rows = [row for row in numbers["effects"] if row["effect"] in ("choice", "timing")]
    rows = [row for row in rows if row["metric"] in ("grade", "judge", "consistency")]
    if not rows:
        return
    yield from _table(
        words["effects"],
        [
            (
                words[row["effect"]], words[row["metric"]], row["comparison"].replace("_", " "),
                statistics.format_interval(row, sign="+"), row["n"], row["dialogues"],
                "–" if row["p_holm"] is None else f"{row['p_holm']:.3f}",
            )
            for row in rows
        ],
        right=range(3, 7),
    )  # fmt: skip
    yield from ("", words["zero"])


def _ground_truth(numbers: dict[str, Any], words: dict[str, str], language: Language) -> Iterator[str]:
    """The systems against the graded ground truth, and how far two models agree on it."""
    found = numbers["ground_truth"]
    if not found.get("retrieval"):
        yield words["no truth"]
        return
    kappas = {row["what"]: row for row in found["agreement"]}
    yield words["agreement"].format(
        send=statistics.format_interval(kappas["send or not"], "value"),
        grade=statistics.format_interval(kappas["grade 0/1/2"], "value"),
        dialogues=kappas["grade 0/1/2"]["dialogues"],
        turns=found["retrieval"][0]["turns"],
        among=found["retrieval"][0]["dialogues"],
    )
    senders = {row["who"]: row for row in found["timing"]}
    markers = sorted(name for name in senders if name.startswith("marker"))
    if gate := senders.get("the gate"):
        yield ""
        yield words["timing of the gate"].format(
            marked=words["and"].join(f"{senders[name]['rate']:.0%}" for name in markers),
            rate=gate["rate"],
            kappas=words["and"].join(f"{gate[f'kappa with {name}']:+.2f}" for name in markers),
        )
    if found["placed"]:
        grades = [f"{_label(row['strategy'], language)} {row['mean grade']:.2f}" for row in found["placed"]]
        yield from ("", words["mean grades"].format(grades=words["comma"].join(grades)))
    table = rankings.short_table(found, settings.load_profile(numbers["profile"]))
    yield from ("", core_tables.markdown(table).rstrip("\n"))


def _label(strategy: str, language: Language) -> str:
    named = schemas.STRATEGIES[strategy]
    return named.zh if language == "zh" else named.label


def _table_1(numbers: dict[str, Any], words: dict[str, str], language: Language) -> Iterator[str]:
    """Two rows per dataset, one a metric; cells as the run's page shows them."""
    frame = pd.DataFrame(numbers["table_1"], columns=list(tables.TABLE_1))
    frame = frame.astype(dict.fromkeys(("mean", "low", "high", "difference"), float))
    present = list(frame["strategy"].unique())
    rows = [
        (row["Dataset"], words[metric], *(row[f"{metric}: {name}"] for name in present))
        for row in tables.table_1_printed(frame).to_dict("records")
        for metric in tables.METRICS
    ]
    heads = words["table"].split(" | ") + [_label(name, language) for name in present]
    # <ins> is the underline that code hosts let through.
    text = core_tables.markdown(pd.DataFrame(rows, columns=heads)).rstrip("\n")
    yield text.replace("<u>", "<ins>").replace("</u>", "</ins>")


FLOAT_TOLERANCE = 1e-6 + 0.5e-6
"""Numbers agree to 1e-6; files hold six decimals, and rounding may part nearly equal ones by one unit."""
PIXEL_TOLERANCE = 0.02
"""Largest mean difference of two pictures, as a share of the full range: fonts differ a little."""
DECIMAL = re.compile(r"-?\d+\.\d+")
TEXT_FILES = ("numbers.json", "placements.csv")
PICTURES = ("chat.png", "fig3_scores.png", "fig4_consistency.png")


def refresh(run: str = "example") -> list[Path]:
    """Copy numbers, placements and pictures of a run into `reports/`, and quote them in the READMEs."""
    copied = [paths.reports / name for name in (*TEXT_FILES, *PICTURES)]
    for target in copied:
        shutil.copyfile(_find(paths.reports / run, target.name), target)
    numbers = json.loads((paths.reports / "numbers.json").read_text(encoding="utf-8"))
    pages = [paths.reports.parent / name for name in READMES]
    return copied + [page for page in pages if page.is_file() and update(page, numbers)]


def _find(folder: Path, name: str) -> Path:
    for path in (folder / name, folder / "figures" / name):
        if path.is_file():
            return path
    raise StageMissing(f"{folder.name} has no {name}: run `make reproduce` first")


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
        return [
            d for i, (x, y) in enumerate(zip(a, b, strict=True)) for d in differences(x, y, f"{where}[{i}]")
        ]
    if _is_number(a) and _is_number(b) and (isinstance(a, float) or isinstance(b, float)):
        same = math.isclose(a, b, rel_tol=0, abs_tol=FLOAT_TOLERANCE) or (math.isnan(a) and math.isnan(b))
        return [] if same else [f"{where}: {a} and {b}"]
    return [] if a == b and type(a) is type(b) else [f"{where}: {a!r} and {b!r}"]


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _csv_rows(path: Path) -> list[list[Any]]:
    """Cells as text, save those with a decimal point: an id such as `12e456789012` is not a number."""

    def value(cell: str) -> Any:
        return float(cell) if DECIMAL.fullmatch(cell) else cell

    with path.open(encoding="utf-8", newline="") as handle:
        return [[value(cell) for cell in row] for row in csv.reader(handle)]


def picture_difference(a: Path, b: Path) -> float:
    """Mean absolute difference of two pictures, 0 to 1; pictures of different size differ wholly."""
    with Image.open(a) as first, Image.open(b) as second:
        if first.size != second.size:
            return 1.0
        x, y = (np.asarray(image.convert("RGB"), dtype=float) for image in (first, second))
    return float(np.abs(x - y).mean() / 255)


def compare(run: str = "example", tracked: Path = paths.reports, reports: Path | None = None) -> list[str]:
    """What differs between a run below `reports` and the tracked files; empty if nothing does."""
    folder = (reports or paths.reports) / run
    found = differences(
        json.loads((tracked / "numbers.json").read_text(encoding="utf-8")),
        json.loads(_find(folder, "numbers.json").read_text(encoding="utf-8")),
        "numbers",
    )
    found += differences(
        _csv_rows(tracked / "placements.csv"), _csv_rows(_find(folder, "placements.csv")), "placements"
    )
    for name in PICTURES:
        gap = picture_difference(tracked / name, _find(folder, name))
        if gap > PIXEL_TOLERANCE:
            found.append(f"{name}: pictures differ by {gap:.3f}")
    return found


# --- A run's page with its notebooks, figures and tables as one folder that any static host can serve


MARKER = ".nojekyll"
"""An empty file: hosts that run Jekyll then leave the pages as they are. By it a site is known again."""
PARTS = ("figures", "tables")
SITE_FILES = ("*.html", "numbers.json", "placements.csv")
_SCRIPT = re.compile(r"(<script\b.*?</script>)", re.DOTALL | re.IGNORECASE)
_LINK = re.compile(r"""(<a\b[^>]*?\s)href="([^"]*)\"""", re.IGNORECASE)


class SiteError(MemecmdError, RuntimeError):
    """There is nothing to make a site of, or no room for it."""


def build(run_folder: Path, target: Path | None = None) -> Path:
    """Copy the pages, figures and tables of `reports/<run>/` into `target` (default: `site/` in it).

    A notebook's link to a notebook leads to its page. A link to what is not in the site, such as the dataset,
    stays as text. The site is made beside and then put in place of an older one; `SiteError` if `target`
    holds anything else, or if the run has no page yet.
    """
    if not (run_folder / "index.html").is_file():
        raise SiteError(f"{run_folder.name} has no index.html: run `make reproduce` first")
    target = target or run_folder / "site"
    if target.exists() and any(target.iterdir()) and not (target / MARKER).is_file():
        raise SiteError(f"{target} is not a site that this command made; name another folder")
    target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".site-", dir=target.parent) as folder:
        fresh = Path(folder) / "site"
        fresh.mkdir()
        _fill(run_folder, fresh)
        if target.exists():
            shutil.rmtree(target)
        fresh.replace(target)
    return target


def _fill(run_folder: Path, site: Path) -> None:
    for pattern in SITE_FILES:
        for path in sorted(run_folder.glob(pattern)):
            shutil.copyfile(path, site / path.name)
    for part in PARTS:
        if (run_folder / part).is_dir():
            shutil.copytree(run_folder / part, site / part)
    for page in sorted(site.glob("*.html")):
        text = page.read_text(encoding="utf-8")
        page.write_text(mended(text, site), encoding="utf-8", newline="\n")
    (site / MARKER).touch()


def mended(text: str, site: Path) -> str:
    """A page whose links all lead to files of `site` or to the web; scripts are left as they are."""

    def link(match: re.Match[str]) -> str:
        start, address = match.groups()
        if leads_somewhere(address, site):
            return match[0]
        page = re.sub(r"\.ipynb(?=$|#)", ".html", address)
        if page != address and leads_somewhere(page, site):
            return f'{start}href="{page}"'
        return f"{start}data-not-here"  # an anchor without href is text

    pieces = _SCRIPT.split(text)
    return "".join(piece if _SCRIPT.match(piece) else _LINK.sub(link, piece) for piece in pieces)


def leads_somewhere(address: str, site: Path) -> bool:
    """Whether an address is on the web, in the page itself, or a file below `site`, relative to it."""
    parts = urlsplit(address)
    if parts.scheme or parts.netloc:
        return parts.scheme in ("http", "https", "mailto")
    if not parts.path:
        return True
    found = (site / unquote(parts.path)).resolve()
    return not parts.path.startswith("/") and found.is_relative_to(site.resolve()) and found.is_file()
