"""From the name a user gives to a model that runs."""

from difflib import get_close_matches
from pathlib import Path

from ridgeline.checkpoint.fill import Progress, fill, fill_dummy
from ridgeline.checkpoint.folder import open_checkpoint
from ridgeline.models.families import build, family_of
from ridgeline.models.fields import Fields, ModelRefused
from ridgeline.models.model import Model
from ridgeline.models.unsupported import missing_for
from ridgeline.ops.shard import WHOLE, Shard

_PACKAGE = Path(__file__).resolve().parent.parent
BUILTIN = _PACKAGE / "builtin"
CATALOGUE = _PACKAGE / "catalogue"


def model_folder(name: str) -> Path:
    """The folder of a model: a path, or the name of a built-in one. Raises ModelRefused if there is none."""
    path = Path(name)
    if path.is_dir():
        return path
    if path.is_file():
        return path.parent
    if "/" not in name and (CATALOGUE / f"{name}.json").is_file():
        return CATALOGUE  # a config without weights or tokenizer
    builtin = BUILTIN / name
    if name.isidentifier() and (builtin / "config.json").is_file():
        return builtin
    names = _builtin_names()
    raise _nowhere(name, [*names, *_listed_names()], f"a checkpoint folder, or a built-in model ({', '.join(names)})")


def _builtin_names() -> list[str]:
    return sorted(path.parent.name for path in BUILTIN.glob("*/config.json"))


def _listed_names() -> list[str]:
    return [path.stem for path in CATALOGUE.glob("*.json")]


def _nowhere(name: str, known: list[str], wanted: str) -> ModelRefused:
    """A name that is neither a path nor known: the nearest of those that are `known`, and what is `wanted`."""
    missing = missing_for(name)
    if missing is not None:
        return ModelRefused(missing)
    if "/" in name or name.endswith(".json"):
        kind = "file" if name.endswith(".json") else "folder"
        return ModelRefused(f"no such {kind}: {name}; give {wanted}")
    near = get_close_matches(name.lower(), known, 3, 0.5)
    nearest = f"; did you mean {' or '.join(near)}?" if near else ";"
    return ModelRefused(f"no such model or folder: {name}{nearest} give {wanted}")


def read_config(name: str) -> Fields:
    """The config of a model named as `model_folder` takes it, of a config.json given itself, or of the catalogue."""
    path = Path(name)
    listed = CATALOGUE / f"{name}.json"
    if not path.exists() and "/" not in name and listed.is_file():
        return Fields(Fields.read(listed).values, name)  # errors name the model, not where its config is installed
    if not path.exists() and name not in _builtin_names():
        wanted = "a config.json or its folder, or a name that `ridgeline plan --list` shows"
        raise _nowhere(name, _listed_names(), wanted)
    config = path if path.is_file() else model_folder(name) / "config.json"
    if not config.is_file():
        raise ModelRefused(f"{config.parent} is not a model: it has no config.json")
    return Fields.read(config)


def load_model(
    name: str, *, shard: Shard = WHOLE, dummy_weights: bool = False, progress: Progress | None = None
) -> Model:
    """Build the model of a folder and fill it with its memory-mapped weights, or with random ones.

    shard: the part that this rank of a tensor-parallel model holds. Raises ModelRefused for anything that cannot become
    a model, in one line.
    """
    fields = read_config(name)
    model = build(fields, shard=shard)
    if dummy_weights:
        fill_dummy(model)
    else:
        if model_folder(name) == CATALOGUE:
            raise ModelRefused(
                f"{name} is a catalogue config without weights; add --dummy-weights, or give a checkpoint folder"
            )
        fill(model, open_checkpoint(model_folder(name)), family_of(fields), progress=progress)
    return model
