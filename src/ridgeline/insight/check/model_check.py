"""The check of a model folder or GGUF file, part by part."""

from collections.abc import Callable
from pathlib import Path

from ridgeline.core.checkpoint import ModelSource, open_source
from ridgeline.core.checkpoint.folder import Checkpoint
from ridgeline.core.checkpoint.gguf_header import is_gguf, package
from ridgeline.core.checkpoint.gguf_tensors import open_gguf_checkpoint
from ridgeline.core.checkpoint.source_tokenizer import templates_of, tokenizer_of
from ridgeline.core.checkpoint.weight_loader import remaining_memory, weight_bytes
from ridgeline.core.models import build_to_run, family_of
from ridgeline.core.models.common.fields import ModelRefused
from ridgeline.core.models.common.model import Model
from ridgeline.core.models.common.parameter_breakdown import layers_of
from ridgeline.core.models.common.recipes import read_recipe
from ridgeline.insight.check.check_report import CheckReport
from ridgeline.insight.check.ids import check_generation, check_ids
from ridgeline.insight.check.shard_check import check_files
from ridgeline.insight.check.smoke import smoke_run
from ridgeline.insight.check.tensors import check_numbers, check_tensors, stated
from ridgeline.insight.check.tokenizer_check import check_templates, check_tokenizer
from ridgeline.util.document.humanize import three_digits

Progress = Callable[[int, int], None]


def check_model(name: str, progress: Progress | None = None) -> CheckReport:
    """Check a model folder or GGUF file, and return a report with the problems found.

    Args:
        name: The path, or a name that `open_source` resolves to a folder.
        progress: Called with the bytes of weights read so far and their total.

    Raises:
        ModelRefused: If the name leads to no folder or file with a model, or the package for GGUF files is missing.
    """
    path = Path(name)
    if path.is_file() and is_gguf(path):
        package(path)
        try:
            return _checked(open_source(name), progress)
        except ModelRefused as refused:  # the file is broken or of an unsupported kind
            report = CheckReport(path.stem)
            report.found("header", [str(refused)])
            return report
    source = open_source(name)
    if source.folder is None:
        raise ModelRefused(f"{name} is a built-in config without files; give a checkpoint folder")
    return _checked(source, progress)


def _checked(source: ModelSource, progress: Progress | None) -> CheckReport:
    """Return the report on an opened folder or file."""
    fields = source.config
    report = CheckReport(source.title)
    built: Model | None = None
    try:
        built = build_to_run(fields)
    except ModelRefused as refused:
        report.found("config", [str(refused)])
    else:
        report.facts["config"] = f"{family_of(fields).architecture}, {' + '.join(map(str, layers_of(built)))} layers"
        unread = (*fields.unread(), *read_recipe(fields).unread)
        report.note("config", (f"the unknown field {key!r} is ignored" for key in unread))
    whole = _weights(source, built, report, progress)
    _texts(source, built, report)
    if built is not None and whole and report.sound:
        _run(source, built, report, progress)
    return report


def _weights(source: ModelSource, built: Model | None, report: CheckReport, progress: Progress | None) -> bool:
    """Check a model's weight files, tensors and the values in them, and return whether no problem was found."""
    checkpoint = _opened(source, report)
    if checkpoint is None:
        return False
    files, entries = set(checkpoint.files.values()), list(checkpoint.entries.values())
    report.facts["files"] = f"{len(files)} of weights, {three_digits(checkpoint.nbytes / 1e6)} MB"
    report.facts["tensors"] = f"{len(entries)} in {stated(entries)}"
    wrong = built is not None and report.found("tensors", check_tensors(built, checkpoint, family_of(source.config)))
    if built is not None and built.tables is not None:
        report.note("tensors", built.tables.notes)
    wrong |= report.found("numbers", check_numbers(checkpoint, progress))
    return not wrong


def _opened(source: ModelSource, report: CheckReport) -> Checkpoint | None:
    """Open the tensors of a model and report the problems of its files; return None if the files are inconsistent.

    The header of a GGUF file has already been read.
    """
    if source.gguf is not None:
        return open_gguf_checkpoint(source.gguf)
    assert source.folder is not None
    checkpoint, problems = check_files(source.folder)
    report.found("files", problems)
    return checkpoint


def _texts(source: ModelSource, built: Model | None, report: CheckReport) -> None:
    """Check the tokenizer, chat template, special token ids and generation_config.json."""
    vocabulary = None if built is None else built.vocabulary
    config, generation = source.config.values, source.generation
    problems, notes = check_generation(generation, speech=built is not None and bool(built.encoder_width))
    report.found("generation_config", problems)
    report.note("generation_config", notes)
    tokenizer = None
    try:
        tokenizer = tokenizer_of(source)
        problems, notes = check_tokenizer(tokenizer, vocabulary)
        report.facts["tokenizer"] = f"{tokenizer.vocab_size:,} tokens"
        report.found("tokenizer", problems)
        report.note("tokenizer", notes)
    except ModelRefused as refused:
        report.found("tokenizer", [str(refused)])
    report.found("special ids", check_ids(config, generation, tokenizer, vocabulary))
    if tokenizer is None:
        return
    try:
        templates = templates_of(source, tokenizer)
    except ModelRefused as refused:
        report.found("chat template", [str(refused)])
        return
    if templates is None:
        if built is not None and built.has_head and not built.has_cross_attention:
            report.note("chat template", ["there is none, so `run` continues the prompt as it is"])
        return
    problems, notes = check_templates(templates, vocabulary)
    report.facts["chat template"] = ", ".join(templates.by_name)
    report.found("chat template", problems)
    report.note("chat template", notes)


def _run(source: ModelSource, built: Model, report: CheckReport, progress: Progress | None) -> None:
    """Run the model on a short prompt and report the result, if this machine has enough memory for the model."""
    try:
        remaining_memory(source, {"weights": weight_bytes(built)})
    except ModelRefused as refused:
        report.note("run", [f"left out: {refused}"])
        return
    try:
        report.facts["run"], problems = smoke_run(source, progress)
    except ValueError as error:
        problems = [str(error)]
    report.found("run", problems)
