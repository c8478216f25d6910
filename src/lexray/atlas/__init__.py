"""Every parameter of a model read once, kept in Parquet, searched without opening the model."""

from importlib.util import find_spec

from lexray.errors import LexrayError

if missing := [name for name in ("duckdb", "fsspec", "pyarrow") if find_spec(name) is None]:
    raise LexrayError(f"an atlas needs {' and '.join(missing)}: pip install 'lexray[atlas]'")
