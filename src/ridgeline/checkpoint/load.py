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
    raise ModelRefused(missing_for(name) or _nowhere(name))


def _nowhere(name: str) -> str:
    """What to say of a name that is neither a folder nor known."""
    builtin = sorted(p.name for p in BUILTIN.iterdir() if (p / "config.json").is_file()) if BUILTIN.is_dir() else []
    listed = [p.stem for p in CATALOGUE.glob("*.json")]
    near = get_close_matches(name.lower(), listed, 3, 0.5)
    known = f"; the catalogue has {', '.join(near)}" if near else "; `ridgeline plan --list` names the catalogue's"
    return f"no such folder: {name}; give a checkpoint folder, or a built-in model ({', '.join(builtin)}){known}"


def read_config(name: str) -> Fields:
    """The config of a model named as `model_folder` takes it, of a config.json given itself, or of the catalogue."""
    path = Path(name)
    listed = CATALOGUE / f"{name}.json"
    if not path.exists() and "/" not in name and listed.is_file():
        return Fields.read(listed)
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
        fill(model, open_checkpoint(model_folder(name)), family_of(fields), progress=progress)
    return model
