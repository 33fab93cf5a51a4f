"""The file of one scope's vectors. It can be thrown away: what is broken or cannot be written is dropped and made anew."""

from __future__ import annotations

import logging
import os
import struct
import zipfile
import zlib
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    import numpy as np

    from miniclaw.memory.models import MemoryRecord

__all__ = ["FILE", "Vectors"]

logger = logging.getLogger(__name__)

FILE: Final = ".vectors.npz"

_BROKEN: Final = (
    *(ValueError, KeyError, EOFError, TypeError, RuntimeError, NotImplementedError),
    *(zipfile.BadZipFile, zlib.error, struct.error),
)
"""What numpy and the archive below it raise for a file that was cut off or damaged."""


class Vectors:
    """The vectors of one scope, as its file has them; no method fails for what is wrong with the file.

    Attributes:
        rows: by record: the digest of the text that the vector is of, and the vector.
        checked: by record: the very record that its row was found to fit.
    """

    def __init__(self, path: Path, model: str) -> None:
        self.path = path
        self._model = model
        self.rows: dict[str, tuple[str, np.ndarray[Any, Any]]] = {}
        self.checked: dict[str, MemoryRecord] = {}
        self._read()

    def put(self, name: str, digest: str, row: np.ndarray[Any, Any]) -> None:
        """Keep a record's vector; the file has it at the next `write`."""
        self.rows[name] = (digest, row)

    def drop(self, names: set[str]) -> None:
        """Forget these."""
        for name in names:
            self.rows.pop(name, None)
            self.checked.pop(name, None)

    def write(self) -> None:
        """Put the file in place as a whole; where that fails there is none, so that nothing stays that is to go."""
        temporary = self.path.with_name(f"{FILE}.{os.getpid()}.tmp")
        try:
            if self.rows:
                self._write(temporary)
                temporary.replace(self.path)
            else:
                self.path.unlink(missing_ok=True)
        except (OSError, ValueError) as error:
            logger.warning("the vectors in %s cannot be written: %s", self.path, error)
            self._remove(temporary)
            self._remove(self.path)

    def _write(self, temporary: Path) -> None:
        import numpy as np

        names = list(self.rows)
        with open(temporary, "wb", opener=lambda name, flags: os.open(name, flags, 0o600)) as file:
            np.savez(
                file,
                model=np.array(self._model),
                names=np.array(names),
                digests=np.array([self.rows[name][0] for name in names]),
                matrix=np.stack([self.rows[name][1] for name in names]),
            )
            file.flush()
            os.fsync(file.fileno())

    def _read(self) -> None:
        import numpy as np

        try:
            with open(self.path, "rb") as raw, np.load(raw, allow_pickle=False) as file:
                if str(file["model"]) == self._model:
                    rows = zip(file["names"], file["digests"], file["matrix"], strict=True)
                    self.rows = {str(name): (str(digest), vector) for name, digest, vector in rows}
        except FileNotFoundError:
            return
        except OSError as error:
            logger.warning("the vectors in %s cannot be read: %s", self.path, error)
        except _BROKEN as error:
            logger.warning("the vectors in %s are made anew: %s", self.path, error)
            self._remove(self.path)

    @staticmethod
    def _remove(path: Path) -> None:
        try:
            path.unlink(missing_ok=True)
        except OSError as error:
            logger.warning("%s cannot be removed: %s", path, error)
