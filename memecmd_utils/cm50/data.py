"""What `make templates` starts from: its data sets, found or fetched, and read for the notebooks."""

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import pandas as pd

from memecmd_utils import files
from memecmd_utils.cm50 import pictures as cm50_pictures
from memecmd_utils.cm50 import records as cm50_records
from memecmd_utils.cm50.records import Broken, Cm50, Records
from memecmd_utils.core.fetch import datasets
from memecmd_utils.core.fingerprints import Fingerprints
from memecmd_utils.files import paths
from memecmd_utils.pictures import pictures_below
from memecmd_utils.runs import Run
from memecmd_utils.schemas import MemeReading, TemplateInfo, TemplateMeme
from memecmd_utils.settings import Profile

STATE = "template_sources.json"
"""What the run's notebooks depend on: they run anew when it changes."""
NEEDED = ("imgflip", "cm50")
"""One of these at least, else there are no template memes."""


class Data(NamedTuple):
    """The data sets of a run as notebook 07 uses them."""

    found: Mapping[str, datasets.LocatedSource]
    records: Records | None
    """ImgFlip575K; None where it is missing."""
    upstream: dict[str, int]
    """Records of each template as the source counts them."""
    cm50: Cm50 | None
    """What CM50 published; None where it is missing."""
    infos: list[TemplateInfo]
    """Templates: names of both data sets, "about" texts of CM50."""
    odd_files: pd.DataFrame = cm50_records.broken_table([])
    """Files about ImgFlip575K's templates that could not be read, as `Records.broken`."""

    @property
    def broken(self) -> pd.DataFrame:
        """All that could not be read of both data sets, as `Records.broken`; empty where all was read."""
        read = [part.broken for part in (self.records, self.cm50) if part is not None]
        parts = [part for part in (*read, self.odd_files) if len(part)]
        return pd.concat(parts, ignore_index=True) if parts else cm50_records.broken_table([])

    @property
    def sample(self) -> pd.DataFrame | None:
        """CM50's published validation memes as a table; None where there are none.

        Its training memes, where a user has them, are no sample: they would all be held for validation.
        """
        published = [meme for meme in self.cm50.memes if meme.split == "validation"] if self.cm50 else []
        return cm50_records.frame_of(published) if published else None

    @property
    def training(self) -> set[str]:
        """Ids of CM50's published training memes, where a user has them: none is drawn for validation."""
        return {meme.meme_id for meme in self.cm50.memes if meme.split == "train"} if self.cm50 else set()

    def have(self, *names: str) -> bool:
        """Whether all these data sets are there; names those that are missing, and their keys."""
        missing = [self.found[name] for name in names if self.found[name].path is None]
        for one in missing:
            source = one.source
            where = f"key {source.name}, see the table of data sets"
            print(f"not computed here: {source.title} is missing ({where})")
        return not missing

    def comparable(self) -> bool:
        """Whether records can be held against published validation memes; says why not.

        At least one of those memes must be of a template that has records here.
        """
        if not self.have("imgflip", "cm50"):
            return False
        sample, records = self.sample, self.records
        if sample is not None and records and sample["template"].isin(records.frame["template"]).any():
            return True
        print("not computed here: no published meme is of a template that has records here")
        return False

    def joined(self, kept: Iterable[TemplateMeme] = ()) -> list[TemplateMeme]:
        """Memes that a rule keeps and those that CM50 published, each once: what a release holds.

        Of a meme that is both the kept record counts, in the part of the split where CM50 published it.
        """
        memes = {meme.meme_id: meme for meme in (self.cm50.memes if self.cm50 else ())}
        for meme in kept:
            published = memes.get(meme.meme_id)
            part = published.split if published else None
            memes[meme.meme_id] = meme.model_copy(update={"split": part}) if part else meme
        return list(memes.values())


def settle(profile: Profile, folder: Path) -> dict[str, datasets.LocatedSource]:
    """Find the data sets, fetch what is missing where that is possible, and write down what is there.

    Where none is there, nothing fails: the notebooks teach on made-up memes. Raises `SourceError` for a
    folder of the user's that does not contain what it should.
    """
    found = datasets.locate(profile)
    note_sources(profile, folder, found)
    return found


def note_sources(profile: Profile, folder: Path, found: Mapping[str, datasets.LocatedSource]) -> None:
    """Write down what is there: data sets, pictures, and what a person said of matched pairs.

    The file is written only where something changed: the make rules depend on its time. Called again after
    pictures were fetched, so that they do not count as a change at the next `make templates`.
    """
    pictures = cm50_pictures.picture_folder(profile)
    there = pictures_below(pictures)
    off = ", fetching is off" if profile.mtrclip.fetch and not datasets.may_fetch() else ""
    state = {**datasets.source_states(found), "images": f"{len(there)} images below {pictures.name}{off}"}
    if there:
        with Fingerprints() as known:
            state["images"] += f", {known.files(there, pictures)}"
    for key in ("confirmed", "confirmed_figmemes"):
        if given := getattr(profile.cm50.matching, key):
            file = paths.root / Path(given).expanduser()
            state[key] = f"sha256 {files.sha256(file)}" if file.is_file() else "missing"
    text = files.dumps(state) + "\n"
    target = folder / STATE
    if not target.is_file() or target.read_text(encoding="utf-8") != text:
        files.write_text(target, text)


def load_data(run: Run) -> Data:
    """Read ImgFlip575K and CM50 where they are; nothing is fetched here. See `Data.broken` for the rest."""
    found = datasets.locate(run.profile, fetch=False)
    imgflip, published = found["imgflip"].path, found["cm50"].path
    records = cm50_records.read_records(imgflip) if imgflip else None
    odd_files: Broken = []
    upstream = cm50_records.read_upstream(imgflip, odd_files) if imgflip else {}
    named = cm50_records.read_templates(imgflip, odd_files) if imgflip else []
    infos = {info.template: info for info in named}
    cm50 = cm50_records.read_cm50(published) if published else None
    for info in cm50.infos if cm50 else ():
        other = infos.get(info.template)
        names = dict.fromkeys([*info.names, *(other.names if other else [])])
        infos[info.template] = info.model_copy(update={"names": list(names)})
    return Data(found, records, upstream, cm50, list(infos.values()), cm50_records.broken_table(odd_files))


def write_memes(
    run: Run, memes: Sequence[TemplateMeme], readings: Iterable[MemeReading]
) -> list[MemeReading]:
    """Write `template_memes.parquet` and `readings.parquet`, what notebook 08 reads; returns the readings.

    Those of other memes are left out, and of several readings of one meme the last counts: one's own after
    the published one. One that came to nothing takes the place of none.
    """
    known = {meme.meme_id for meme in memes}
    last: dict[str, MemeReading] = {}
    for reading in readings:
        if reading.meme_id in known and not (reading.unscored and reading.meme_id in last):
            last[reading.meme_id] = reading
    run.save(memes, TemplateMeme)
    run.save(last.values(), MemeReading)
    return list(last.values())
