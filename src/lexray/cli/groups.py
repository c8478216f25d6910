"""Options that several commands share, as dataclasses.

A command takes a group as one typed parameter; typer sees the group's fields instead:

>>> from dataclasses import dataclass
>>> @dataclass(frozen=True)
... class Size:
...     width: Annotated[int, option("In characters.")] = 80
...     wrap: Annotated[bool, option("Break long lines.")] = False
>>> def draw(path: Path, size: Size) -> None: ...
>>> command = typer.Typer().command()(expand(draw))    # draw PATH --width 80 --wrap
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from copy import copy
from dataclasses import MISSING, fields, is_dataclass
from inspect import Parameter, Signature, signature
from typing import Annotated, Any, get_origin, get_type_hints

import typer
from typer.models import OptionInfo


def option(help: str, panel: str | None = None, *names: str, **settings: Any) -> Any:
    """An option by what it means and where help lists it; its name is the parameter's."""
    return typer.Option(*names, help=help, rich_help_panel=panel, **settings)


def expand(command: Callable[..., None]) -> Callable[..., None]:
    """The command as typer should see it: each group replaced by its fields."""
    hints = get_type_hints(command, include_extras=True)
    groups: dict[str, Any] = {name: hint for name, hint in hints.items() if is_dataclass(hint)}

    def run(**given: Any) -> None:
        built = {
            name: group(**{field.name: given.pop(field.name) for field in fields(group)})
            for name, group in groups.items()
        }
        command(**built, **given)

    parameters: list[Parameter] = []
    for name, parameter in signature(command).parameters.items():
        if name in groups:
            parameters += _fields_of(groups[name])
        else:
            parameters.append(_keyword(name, hints[name], parameter.default))
    run.__signature__ = Signature(parameters)  # type: ignore[attr-defined]
    run.__name__, run.__doc__ = command.__name__, command.__doc__
    return run


def _fields_of(group: Any) -> Iterator[Parameter]:
    hints = get_type_hints(group, include_extras=True)
    for field in fields(group):
        default = Parameter.empty if field.default is MISSING else field.default
        yield _keyword(field.name, hints[field.name], default)


def _keyword(name: str, hint: Any, default: Any) -> Parameter:
    return Parameter(name, Parameter.KEYWORD_ONLY, default=default, annotation=_switch(name, hint))


def _switch(name: str, hint: Any) -> Any:
    """A yes-or-no option without names is --name alone; typer would add a --no-name."""
    if get_origin(hint) is not Annotated or hint.__origin__ is not bool:
        return hint
    said = copy(hint.__metadata__[0])
    if isinstance(said, OptionInfo) and said.default is ... and not said.param_decls:
        said.param_decls = (f"--{name.replace('_', '-')}",)
    return Annotated[bool, said]
