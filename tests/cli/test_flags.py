"""Groups of options: the signature that a command gets from dataclasses, and the options that were given."""

import inspect
from dataclasses import dataclass, fields
from typing import Annotated, Any, get_args, get_type_hints

import pytest
import typer
from typer.testing import CliRunner

from ridgeline.cli.flags import build_from, given_flags, option, with_flags
from ridgeline.cli.image import _OF_DECODING, _OF_TOKENS
from ridgeline.cli.media_flags import MediaRequestFlags, MediaRunFlags
from ridgeline.media.diffusion.diffusion_request import DiffusionRequest


@dataclass(frozen=True)
class Colours:
    paint: Annotated[str, typer.Option("-p", "--colour", help="A colour.")] = "red"
    is_matt: Annotated[bool, typer.Option("--matt", help="Not shiny.")] = False


@dataclass(frozen=True)
class House:
    colours: Colours
    floors: int = option("Floors.", default=1)
    with_lift: bool = option({"tower": "A lift."}, "--lift/--stairs", default=False)
    garden: bool = option("A garden.", default=False)
    roof: str | None = option({"tower": "A spire.", "hut": "Thatch."})


def built(name: str, *arguments: str) -> House:
    """Return the group that a command of this name gets from its command line."""
    got: list[House] = []

    def command(place: str, *, house: House) -> None:
        got.append(house)

    command.__name__ = name
    app = typer.Typer()
    app.command()(with_flags(command))
    ended = CliRunner().invoke(app, ["here", *arguments])
    assert ended.exit_code == 0, ended.output
    return got[0]


def parameters(name: str) -> dict[str, Any]:
    def command(house: House) -> None: ...

    command.__name__ = name
    return {each.name: each.annotation for each in inspect.signature(with_flags(command)).parameters.values()}


def test_nested_groups_are_one_list_of_options() -> None:
    """Check the order of the options, and that each value reaches its own group."""
    assert list(parameters("hut")) == ["paint", "is_matt", "floors", "garden", "roof"]
    assert built("hut", "-p", "blue", "--matt", "--floors", "3") == House(Colours("blue", True), 3)
    assert built("hut") == House(Colours())


def test_an_option_of_one_command() -> None:
    """Check that other commands keep its default, and that a field in two commands has a help text for each."""
    assert list(parameters("tower")) == ["paint", "is_matt", "floors", "with_lift", "garden", "roof"]
    assert list(parameters("barn")) == ["paint", "is_matt", "floors", "garden"]
    assert built("tower", "--lift", "--roof", "gold") == House(Colours(), 1, True, roof="gold")
    assert built("hut", "--roof", "reed") == House(Colours(), roof="reed")
    texts = [get_args(parameters(name)["roof"])[1].help for name in ("tower", "hut")]
    assert texts == ["A spire.", "Thatch."]


def test_a_switch_has_no_negative_form() -> None:
    """Check that it has one only if it names one."""
    assert built("hut", "--garden").garden
    assert not built("tower", "--stairs").with_lift
    switch = get_args(parameters("hut")["garden"])[1]
    assert (switch.default, switch.param_decls) == ("--garden", ())


def test_given_options_as_typed() -> None:
    """Check that they have their first long names, and that a value that equals the default is not given."""
    assert given_flags(House(Colours())) == []
    everything = House(Colours("blue", True), 2, True, True, "gold")
    assert given_flags(everything) == ["--colour", "--matt", "--floors", "--lift", "--garden", "--roof"]
    assert given_flags(everything, "is_matt", "roof") == ["--colour", "--floors", "--lift", "--garden"]
    assert given_flags(everything, "colours") == ["--floors", "--lift", "--garden", "--roof"]


def test_an_object_from_fields_of_the_same_name() -> None:
    @dataclass
    class Building:
        floors: int
        roof: str | None
        owner: str = "the bank"

    assert build_from(House(Colours(), 4, roof="reed"), Building, roof="slate") == Building(4, "slate")


def test_an_option_needs_a_default() -> None:
    @dataclass
    class Bare:
        floors: Annotated[int, typer.Option(help="Floors.")]

    with pytest.raises(AssertionError, match="floors is an option and has no default"):
        with_flags(_taking(Bare))


def _taking(group: type) -> Any:
    def command(bare: Any) -> None: ...

    command.__annotations__ = {"bare": group, "return": None}
    return command


def test_every_option_of_an_image_reaches_its_request() -> None:
    """Check that both have the same names, types and defaults; only the size is a text on the command line."""
    request = {each.name: each for each in fields(DiffusionRequest)}
    ours, theirs = get_type_hints(MediaRequestFlags), get_type_hints(DiffusionRequest)
    for each in fields(MediaRequestFlags):
        assert each.default == request.pop(each.name).default
        assert each.name == "size" or ours[each.name] == theirs[each.name]
    assert list(request) == ["prompt"]


def test_options_with_an_effect_without_denoising() -> None:
    """Check that the names which are not refused are those of options."""
    names = {each.name for group in (MediaRequestFlags, MediaRunFlags) for each in fields(group)}
    assert {*_OF_TOKENS, *_OF_DECODING} <= names
