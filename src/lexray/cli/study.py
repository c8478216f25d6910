"""`lexray study`: the papers' figures on any model, one at a time or all in a report.

A study's options become its command's options; the study is imported when it is asked for.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import Field, asdict, fields, make_dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, get_type_hints

import typer
from typer.core import TyperCommand, TyperGroup

from lexray.clean import clean
from lexray.cli.groups import expand, option
from lexray.cli.options import ReadingOptions
from lexray.cli.output import OUTPUT, CsvRaw, Format, OutputOptions, show
from lexray.cli.streams import say, tell
from lexray.errors import LexrayError
from lexray.files import write_whole

if TYPE_CHECKING:
    from lexray.model.model import Model
    from lexray.studies.shared.page import StudySection
    from lexray.studies.shared.study import Study, StudyOptions, StudyResult

STUDY = "The study"
ALL = "all"
EVERY = "Every study, in one report: DIR/index.html, and each study's numbers beside it."
REPORT = "index.html"
Command = Callable[..., None]
Folder = Annotated[Path, option("Into this folder.", OUTPUT, "--output", "-o", metavar="DIR")]


class Studies(TyperGroup):
    """One command for each study, made when it is asked for."""

    def list_commands(self, ctx: Any) -> list[str]:
        from lexray.studies import MODULES

        return [*MODULES, ALL]

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Nothing asked is help."""
        return super().parse_args(ctx, args or ["--help"])

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """A line of help, for which no study is imported."""
        from lexray.studies import question

        return TyperCommand(cmd_name, help=EVERY if cmd_name == ALL else question(cmd_name))

    def resolve_command(self, ctx: Any, args: list[str]) -> tuple[str, Any, list[str]]:
        """The command to run."""
        from lexray.studies import find

        name, *rest = args
        settings = {"help_option_names": ["-h", "--help"]}
        made = typer.Typer(add_completion=False, pretty_exceptions_enable=False)
        made.command(name, context_settings=settings)(
            _all() if name == ALL else _command_of(find(name))
        )
        return name, typer.main.get_command(made), rest


studies = typer.Typer(cls=Studies)


def register(app: typer.Typer) -> None:
    app.add_typer(studies, name="study", invoke_without_command=True)


@studies.callback()
def study(
    list_: Annotated[bool, option("Which studies there are.", None, "--list")] = False,
    format: Annotated[Format, option("With --list: how to show it.")] = Format.TABLE,
) -> None:
    """The papers' figures on any model, with a verdict on each of their claims.

    lexray study keep-k demo -o keep-k.html

    lexray study all demo -o report
    """
    if list_:
        from lexray.studies import list_studies

        show(list_studies(), format, None)
        raise typer.Exit


def _command_of(study: Study[Any]) -> Command:
    """The command of one study."""

    def run(model: ReadingOptions, options: Any, output: OutputOptions) -> None:
        output.check()
        place = output.output
        with _keeping(place and place.with_suffix(".prompts.jsonl")):
            result = study(model.open_as_papers_do(), **asdict(options))
        _show(result, output)

    about = study.about.strip().split("\n\n")[1:]
    run.__doc__ = "\n\n".join([f"{study.title} ({study.where})", *about])
    return _with_options(run, study.options)


def _all() -> Command:
    """The command that runs every study."""
    from lexray.studies.shared.study import PromptOptions

    def run(model: ReadingOptions, options: Any, output: Folder, csv_raw: CsvRaw = False) -> None:
        from lexray.studies.shared.page import page, tally

        folder, opened = output, model.open_as_papers_do()
        _make(folder)
        chosen = asdict(options)
        sections = [_section(name, opened, chosen, folder, csv_raw) for name in _names()]
        write_whole(folder / REPORT, page(sections, f"{opened.name}: does it hold?", files=True))
        say(clean(tally(sections), sys.stdout.encoding) + "\n")
        tell(str(folder / REPORT))

    run.__doc__ = f"{EVERY}\n\nlexray study all demo -o report"
    return _with_options(run, PromptOptions)


def _names() -> list[str]:
    from lexray.studies import MODULES

    return list(MODULES)


def _section(
    name: str, model: Model, options: dict[str, Any], folder: Path, csv_raw: bool
) -> StudySection:
    """A study's part of the report, its files written; if it cannot be run, why."""
    from lexray.studies import find
    from lexray.studies.shared.study import Untestable

    study = find(name)
    own = {f.name for f in fields(study.options)}
    try:
        with _keeping(folder / f"{name}.prompts.jsonl"):
            result = study(model, **{key: v for key, v in options.items() if key in own})
    except LexrayError as error:
        return Untestable(study, str(error)).section
    write_whole(folder / f"{name}.json", result.to_json() + "\n")
    write_whole(folder / f"{name}.csv", result.to_csv(safe=not csv_raw))
    return result.section


def _make(folder: Path) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise LexrayError(f"cannot make the folder {folder}: {error.strerror}") from error


@contextmanager
def _keeping(path: Path | None) -> Iterator[None]:
    from lexray.studies.shared.resume import keep_in

    with keep_in(path):
        yield


def _show(result: StudyResult, output: OutputOptions) -> None:
    from lexray.result.images import IMAGES

    path = output.output
    if output.format is None and path is not None and path.suffix.lower() in IMAGES:
        result.plot().save(path)
    else:
        output.show(result)


def _with_options(run: Command, options: type[StudyOptions]) -> Command:
    """The command as typer should see it, its parameter `options` a group of the study's own."""
    hints = get_type_hints(options)
    group = make_dataclass(
        "Chosen",
        [(f.name, _as_typer(f, hints[f.name]), f.default) for f in fields(options)],
        frozen=True,
    )
    run.__annotations__["options"] = group
    return expand(run)


def _as_typer(field: Field[Any], kind: Any) -> Any:
    """A study's option as typer knows them; a single letter is also a short option."""
    said = field.metadata
    name = field.name.replace("_", "-")
    names = [said["flag"]] if said["flag"] else [f"--{name}"]
    if len(name) == 1:
        names.append(f"-{name}")
    return Annotated[kind, option(said["help"], STUDY, *names, min=said["min"])]
