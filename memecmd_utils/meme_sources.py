"""Where memes come from: the sources of a profile and the images in them."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path, PurePosixPath

from memecmd_utils import example_memes, images, paths, picture_descriptions
from memecmd_utils.images import LibraryError

EXAMPLE = "example"  # the source that means the example memes


@dataclass(frozen=True)
class Candidate:
    """An image that may become a meme: a file, or a row of the table of example memes."""

    name: str
    """What `rejected.csv`, the curation file and the contact sheet call it; unique."""
    origin: str
    group: str
    """Folder; a sample is spread over the groups."""
    path: Path | None = None
    example: example_memes.ExampleMeme | None = None
    note: str = ""
    """What the source says of the picture; empty where it says nothing."""
    link_out: bool = False
    """A link that leads out of its source: nothing behind it is looked at."""

    def read(self) -> bytes:
        """Bytes of the image; `ImageRejected` if they cannot be had."""
        if self.example is not None:
            return example_memes.png_bytes(example_memes.draw(self.example))
        assert self.path is not None
        return images.read_bytes(self.path)


def find_candidates(sources: Sequence[str]) -> list[Candidate]:
    """All images of all sources, sorted by name. `example` is the example memes, all others are folders.

    A folder that holds descriptions of its pictures (`picture_descriptions`) gives each picture its own.
    Links that lead out of their source are among them, so that it can be said that they were left out.
    """
    if not sources:
        raise LibraryError("`sources` is empty: name folders of images, or `example`")
    found: list[tuple[str, Candidate]] = []
    for source in dict.fromkeys(sources):
        if source == EXAMPLE:
            for meme in example_memes.read_table():
                candidate = Candidate(meme.meme_id, meme.meme_id, EXAMPLE, example=meme)
                found.append((source, candidate))
            continue
        folder = paths.root / Path(source).expanduser()
        described = picture_descriptions.read(folder)
        there = images.look_through(folder)
        for path in (*there.images, *there.links_out):
            origin = images.readable(path.relative_to(folder))
            group = f"{source}/{PurePosixPath(origin).parent}"
            note = described[path.name].note if path.name in described else ""
            out = path in there.links_out
            found.append((source, Candidate(origin, origin, group, path=path, note=note, link_out=out)))
    # Two sources may hold the same path; then, and only then, the source is part of the name. Within one
    # source two paths may read alike, in GBK and in UTF-8; then all but the first have a number.
    count = Counter(candidate.name for _, candidate in found)
    unique: dict[str, Candidate] = {}
    for source, candidate in found:
        plain = candidate.name if count[candidate.name] == 1 else f"{source}/{candidate.name}"
        name, number = plain, 1
        while name in unique:
            number += 1
            name = f"{plain} #{number}"
        unique[name] = replace(candidate, name=name)
    return [unique[name] for name in sorted(unique)]
