"""`make guide-check` and `make guide-update`: numbers, words, questions, blocks, images and pages of the guide.

python -m docs.guide.machinery.check             says what differs; exit code 1 if anything does
python -m docs.guide.machinery.check --update    writes numbers, outputs, images and pages anew instead
python -m docs.guide.machinery.check --only NAME runs the blocks, and draws the images, of chapters whose names begin so
python -m docs.guide.machinery.check --pages     runs nothing and draws nothing: the rendered pages alone, in seconds
python -m docs.guide.machinery.check --measure   draws images of seconds anew too, with --update; on a quiet machine
"""

import argparse
import sys
import time
from pathlib import Path

from docs.guide.machinery.blocks import run_chapter
from docs.guide.machinery.chapters import chapters, read_chapters
from docs.guide.machinery.images import image_faults, images_of, stray_images
from docs.guide.machinery.pages import page_faults, render_pages
from docs.guide.machinery.words import glossary_of, in_order, term_faults, typed_figures, unexplained

from ridgeline.learn.guide.guide_numbers import LOCK, lock_text, read_lock, read_questions, resolve, write_lock
from ridgeline.learn.guide.quizzes import faults, read_quizzes
from ridgeline.learn.lab.cost_calculator import CostCalculator


def number_faults(*, update: bool) -> list[str]:
    """Numbers that are others than the lock has."""
    fresh = resolve(read_questions(), CostCalculator())
    if update or not LOCK.exists():
        write_lock(fresh)
        return []
    if LOCK.read_text(encoding="utf-8") == lock_text(fresh):
        return []
    locked = read_lock()
    moved = [
        f"{n}: {locked[n].text if n in locked else 'new'} -> {one.text}"
        for n, one in fresh.items()
        if n not in locked or locked[n].text != one.text
    ]
    gone = [f"{name} is asked no more" for name in locked.keys() - fresh.keys()]
    return [f"{LOCK.name}: {line}" for line in [*moved, *gone]] or [f"{LOCK.name} is not as it is written anew"]


def word_faults(texts: dict[str, str]) -> list[str]:
    """Figures typed by hand, terms without a definition or a use, and those that are used before they are explained."""
    typed = [
        f"{name}:{line}: {said!r} is typed by hand"
        for name, text in texts.items()
        for line, said in typed_figures(text)
    ]
    glossary = glossary_of(texts["glossary.md"])
    return typed + term_faults(texts, glossary) + unexplained(in_order(texts), glossary)


def block_faults(files: list[Path], *, update: bool) -> list[str]:
    """What blocks print that chapters do not have; says on the way what ran."""
    found: list[str] = []
    ran = skipped = 0
    for path in files:
        start, text = time.perf_counter(), path.read_text(encoding="utf-8")
        outcome = run_chapter(text, path.name)
        ran, skipped = ran + outcome.ran, skipped + outcome.skipped
        print(f"{path.name}: {outcome.ran} blocks ran, {time.perf_counter() - start:.0f} s", flush=True)
        if update and outcome.text != text:
            path.write_text(outcome.text, encoding="utf-8")
        found += outcome.faults
    print(f"{ran} blocks ran, {skipped} are shown alone, {len(found)} differ")
    return found if ran else [*found, "no block ran: what is checked is empty"]


def drawing_faults(files: list[Path], *, update: bool, measure: bool) -> list[str]:
    """Draw the images of chapters, and return a line for each that differs from the committed one. Print the time."""
    found, start = list[str](), time.perf_counter()
    images = images_of({path.name: path.read_text(encoding="utf-8") for path in files})
    for image in images:
        found += image_faults(image, update=update, measure=measure)
    for path in stray_images(images_of(read_chapters())):
        found.append(f"{path.name} belongs to no chapter: delete it")
    print(f"{len(images)} images, {time.perf_counter() - start:.0f} s, {len(found)} differ", flush=True)
    return found


def main() -> None:
    """Check or update, and say what was found."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--update", action="store_true")
    parser.add_argument("--only", default="")
    parser.add_argument("--pages", action="store_true")
    parser.add_argument("--measure", action="store_true")
    given = parser.parse_args()
    if given.measure and not given.update:
        parser.error("--measure writes images: give --update too")
    if given.pages and (given.measure or given.only):
        parser.error("--pages renders all pages and draws nothing: leave out --measure and --only")
    found = list[str]()
    if not given.pages:
        files = [path for path in chapters() if path.name.startswith(given.only)]
        found += number_faults(update=given.update)
        found += word_faults(read_chapters())
        found += faults(read_quizzes(read_lock()))
        found += block_faults(files, update=given.update)
        found += drawing_faults(files, update=given.update, measure=given.measure)
    found += page_faults(render_pages(), update=given.update)
    print("\n".join(found))
    sys.exit(bool(found) and not given.update)


if __name__ == "__main__":
    main()
