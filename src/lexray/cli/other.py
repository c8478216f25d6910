"""The second model of diff, align, stitch and flow: opened as the first one is.

It is read through the same view and, unless an --other-… option says otherwise, reached and
computed in the same way. Which revision, adapter and family it is, only its own options say.
"""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from lexray.cli.groups import option
from lexray.cli.options import PlacedOptions

if TYPE_CHECKING:
    from lexray.model.model import Model

ADAPTER_CONFIG = "adapter_config.json"
OTHER = "The second model"
OWN = {"revision": None, "adapter": None, "family": None}
"""What one model's options do not say about another."""


@dataclass(frozen=True)
class OtherOptions:
    """A twin for every option of the first model; None is "as the first", or nothing."""

    other_revision: Annotated[
        str | None, option("Branch, tag or commit of the second model.", OTHER)
    ] = None
    other_adapter: Annotated[
        str | None, option("A LoRA adapter to put on top of the second model.", OTHER)
    ] = None
    other_family: Annotated[
        str | None, option("Read the second model by the rules of this family.", OTHER)
    ] = None
    other_remote: Annotated[
        bool | None,
        option(
            "Read byte ranges of the second model from the Hub, or download it; else as the first.",
            OTHER,
            "--other-remote/--no-other-remote",
        ),
    ] = None
    other_device: Annotated[
        str | None, option("Where the second model computes; else as the first.", OTHER)
    ] = None
    other_dtype: Annotated[str | None, option("In which dtype; else as the first.", OTHER)] = None

    def open(self, source: str, like: PlacedOptions, first: Model) -> Model:
        """The second model; a LoRA adapter's folder is put on top of the first."""
        own = self._set()
        if not own and (Path(source) / ADAPTER_CONFIG).exists():
            from lexray.compare.open import open_other

            return open_other(first, source, on_first=True, family=like.family)
        return replace(like, model=source, **(OWN | own)).open().with_view(first.options)

    def given(self) -> list[str]:
        """The options that were set, as they are written."""
        return [f"--other-{name}" for name in self._set()]

    def _set(self) -> dict[str, Any]:
        values = {f.name: getattr(self, f.name) for f in fields(OtherOptions)}
        return {n.removeprefix("other_"): v for n, v in values.items() if v is not None}
