"""Checksums of the lines of files that grow by one JSON object a line."""

from __future__ import annotations

import re
import zlib

# The last field of a line with a checksum.
_CHECKSUM = re.compile(rb', "checksum": "([0-9a-f]{8})"\}\Z')
_CHECKSUM_BYTES = 27
# A checksum whose name is damaged. Lines without checksums end in no text of this length.
_NAMELESS = re.compile(rb'"[^"]{8}"\}\Z')


class LineChecksums:
    """Checksums of a file's lines, each of its own line and of all lines before it.

    So a reader notices each changed, lost or moved line. Files of older versions have none.
    """

    def __init__(self) -> None:
        self._checksum = 0
        self._has_checksums = False

    def add(self, line: str) -> str:
        """Return the JSON text of an object, the next line of the file, with its checksum."""
        self._checksum = zlib.crc32(line.encode(), self._checksum)
        return f'{line[:-1]}, "checksum": "{self._checksum:08x}"}}'

    def check(self, line: bytes) -> bytes:
        """Return the next line without its checksum.

        Raises:
            ValueError: The checksum is wrong, or missing.
        """
        match = _CHECKSUM.search(line, max(0, len(line) - _CHECKSUM_BYTES))
        if match is None:
            if self._has_checksums or b'"checksum"' in line or _NAMELESS.search(line):
                raise ValueError("its checksum is missing")
            return line
        content = line[: match.start()] + b"}"
        self._checksum = zlib.crc32(content, self._checksum)
        self._has_checksums = True
        if int(match[1], 16) != self._checksum:
            raise ValueError("the checksum of this line and those before it is wrong")
        return content
