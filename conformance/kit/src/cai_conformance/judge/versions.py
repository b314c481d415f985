"""The specifications and their versions, as `--spec` and `spec=` name them."""

from __future__ import annotations

from collections.abc import Mapping

#: By the name that a check's source has, from the oldest version that a check quotes to the newest that was read.
VERSIONS = {
    "CAI": ("0", "1", "2", "3"),
    "DLPack": ("0.2", "0.3", "0.4", "0.5", "0.6", "0.7", "0.8", "1.0", "1.1", "1.2", "1.3"),
    "array API": ("2021.12", "2022.12", "2023.12", "2024.12", "2025.12"),
}
#: The same names without capitals and blanks.
NAMES = {spec.lower().replace(" ", "-"): spec for spec in VERSIONS}


def limits(given: Mapping[str, str]) -> dict[str, str]:
    """Returns the last version to check of each specification that is named, in capitals or not.

    Raises:
        ValueError: there is no such specification, or no such version of it.
    """
    found = {}
    for name, version in given.items():
        spec = NAMES.get(name.lower().replace(" ", "-"))
        if spec is None:
            raise ValueError(f"no specification {name!r}; there are {', '.join(NAMES)}")
        if version not in VERSIONS[spec]:
            raise ValueError(f"no version {version!r} of {spec}; there are {', '.join(VERSIONS[spec])}")
        found[spec] = version
    return found
