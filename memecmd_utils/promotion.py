"""Turn the recordings that a run used into the tracked ones of `data/example/recordings`."""

import json
from collections.abc import Iterator

import numpy as np

from memecmd_utils import paths, storage
from memecmd_utils.embedding import read_shard, write_shard
from memecmd_utils.recordings import promote


def promote_run(run: str) -> Iterator[str]:
    """Write, for every stage and embedder that `run` used, one sorted tracked file; yield what was done."""
    target = paths.example / "recordings"
    profile = run.split("-")[0]
    sources = [target, paths.raw / "recordings" / profile]
    for keys_file in sorted((paths.processed / run / "usage").glob("*.keys.json")):
        stage = keys_file.name.removesuffix(".keys.json")
        wanted = set(json.loads(keys_file.read_text(encoding="utf-8")))
        if stage.startswith("embedding:"):
            name = stage.removeprefix("embedding:")
            vectors: dict[str, np.ndarray] = {}
            for source in sources:
                for shard in sorted((source / "embedding" / name).glob("*.npz")):
                    vectors.update({k: v for k, v in read_shard(shard).items() if k in wanted})
            folder = target / "embedding" / name
            write_shard(folder / "example.npz", vectors)
            yield f"{len(vectors)} of {len(wanted)} vectors -> {folder.relative_to(paths.root)}"
        else:
            files = [path for source in sources for path in sorted((source / stage).glob("*.jsonl"))]
            out = target / stage / "example.jsonl"
            count = promote(files, out, wanted)
            yield f"{count} of {len(wanted)} replies -> {out.relative_to(paths.root)}"


def note_vectors(folder, embedder) -> None:
    """Write down which vectors of an embedder a run used (several notebooks add to one file)."""
    path = folder / "usage" / f"embedding:{embedder.name.replace('/', '__')}.keys.json"
    old = set(json.loads(path.read_text(encoding="utf-8"))) if path.is_file() else set()
    storage.write_json(path, sorted(old | embedder.used_keys))
