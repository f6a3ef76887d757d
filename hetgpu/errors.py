"""The one error a reader of bad input sees: which file, which row, what is wrong, how to mend it."""

from __future__ import annotations

from pathlib import Path


class DataError(ValueError):
    """Input that cannot be used as it stands.

    Parameters
    ----------
    file : path of the input, or a name for input that is not a file.
    where : the row, line, key or column that is at fault ("" where it is the whole file).
    problem : what is wrong, with the value found.
    mend : what the user does about it.
    """

    def __init__(self, file: str | Path, where: str, problem: str, mend: str) -> None:
        self.file, self.where, self.problem, self.mend = str(file), where, problem, mend
        place = f"{self.file}: {where}" if where else self.file
        super().__init__(f"{place}: {problem}. Mend: {mend}.")


class DataWarning(UserWarning):
    """Input that is used, and that a reader should know to be doubtful."""
