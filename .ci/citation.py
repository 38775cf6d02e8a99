"""What CITATION.cff says, in the files that repeat it: `.zenodo.json`, `codemeta.json`, links of the READMEs.

`python .ci/citation.py` writes them. Addresses of a hosted copy stand in CITATION.cff alone; before it has
any, the READMEs have neither a line to clone nor links to a site, a browser's editor or a DOI.
"""

import json
import re
from collections.abc import Mapping
from typing import Any

import yaml

from memecmd_utils import files
from memecmd_utils.files import paths

LINKS = {
    "README.md": ("the example's page", "open the notebooks in a browser", "to cite"),
    "README.zh-CN.md": ("在线看示例", "在浏览器里打开 notebook", "引用"),
}
"""Of each README the words for the site, for an editor in a browser and for the DOI."""
_HOSTED = re.compile(r"(<!-- hosted: (\w+) -->\n).*?(<!-- end -->)", re.DOTALL)


def cited() -> dict[str, Any]:
    """The fields of CITATION.cff."""
    return yaml.safe_load((paths.root / "CITATION.cff").read_text(encoding="utf-8"))


def made(cff: Mapping[str, Any]) -> dict[str, str]:
    """The text of each file that repeats what `cff` says, by its path below the repository's root."""
    authors = [author["name"] for author in cff["authors"]]
    description = "Code, data, tests and lessons that rebuild two papers on memes in Chinese dialogues."
    common = {"version": cff["version"], "keywords": cff["keywords"], "description": description}
    zenodo = {
        "title": cff["title"],
        "upload_type": "software",
        "publication_date": cff["date-released"],
        "license": cff["license"],
        "creators": [{"name": name} for name in authors],
        **common,
        "related_identifiers": [
            {"identifier": paper["identifiers"][0]["value"], "scheme": "arxiv", "relation": "isDerivedFrom"}
            for paper in cff["references"]
        ],
    }
    hosted = {"codeRepository": "repository-code", "url": "url", "identifier": "doi"}
    codemeta = {
        "@context": "https://w3id.org/codemeta/3.0",
        "@type": "SoftwareSourceCode",
        "name": cff["title"],
        "datePublished": cff["date-released"],
        "license": f"https://spdx.org/licenses/{cff['license']}",
        "author": [{"@type": "Organization", "name": name} for name in authors],
        **common,
        "programmingLanguage": "Python",
        "runtimePlatform": "Python 3.11 or later",
        "operatingSystem": ["Linux", "macOS"],
        "referencePublication": [
            {"@type": "ScholarlyArticle", "name": paper["title"], "url": paper["url"]}
            for paper in cff["references"]
        ],
        **{name: cff[key] for name, key in hosted.items() if key in cff},
    }
    out = {
        name: json.dumps(record, indent=2, ensure_ascii=False) + "\n"
        for name, record in ((".zenodo.json", zenodo), ("codemeta.json", codemeta))
    }
    for name, (site, browser, cite) in LINKS.items():
        links, code = [], cff.get("repository-code", "")
        if "url" in cff:
            links.append(f"[{site}]({cff['url']})")
        if "//github.com/" in code:
            editor = code.removesuffix(".git").replace("//github.com/", "//codespaces.new/")
            links.append(f"[{browser}]({editor})")
        if "doi" in cff:
            links.append(f"[{cite}: {cff['doi']}](https://doi.org/{cff['doi']})")
        parts = {"links": f"{' · '.join(links)}\n" if links else ""}
        parts["clone"] = f"```sh\ngit clone {code} memecmd && cd memecmd\n```\n" if code else ""
        text = (paths.root / name).read_text(encoding="utf-8")
        out[name] = _HOSTED.sub(lambda found, parts=parts: found[1] + parts[found[2]] + found[3], text)
    return out


if __name__ == "__main__":
    for name, text in made(cited()).items():
        files.write_text(paths.root / name, text)
