"""Names and units of the columns of the thermo output."""

from __future__ import annotations

from hpcagent.units import STYLES, unit_style

__all__ = ["canonical", "column_units", "unit_of"]


# Printed header or common spelling, in lower case -> thermo keyword.
_KEYWORDS = {
    "toteng": "etotal",
    "etot": "etotal",
    "e_tot": "etotal",
    "e_total": "etotal",
    "poteng": "pe",
    "epot": "pe",
    "kineng": "ke",
    "ekin": "ke",
    "temperature": "temp",
    "pressure": "press",
    "volume": "vol",
    "e_vdwl": "evdwl",
    "e_coul": "ecoul",
    "e_pair": "epair",
    "e_bond": "ebond",
    "e_angle": "eangle",
    "e_dihed": "edihed",
    "e_impro": "eimp",
    "e_mol": "emol",
    "e_long": "elong",
    "e_tail": "etail",
    "t/cpu": "tpcpu",
    "s/cpu": "spcpu",
    "cpuleft": "cpuremain",
    "timeoutleft": "timeremain",
}
_ENERGIES = frozenset(
    (
        "etotal",
        "pe",
        "ke",
        "evdwl",
        "ecoul",
        "epair",
        "ebond",
        "eangle",
        "edihed",
        "eimp",
        "emol",
        "elong",
        "etail",
        "enthalpy",
        "ecouple",
        "econserve",
    )
)
_KINDS = {
    **dict.fromkeys(("time", "dt"), "time"),
    "temp": "temperature",
    **dict.fromkeys(("press", "pxx", "pyy", "pzz", "pxy", "pxz", "pyz"), "pressure"),
    **dict.fromkeys(
        ("lx", "ly", "lz", "xlo", "xhi", "ylo", "yhi", "zlo", "zhi", "xy", "xz", "yz", "cella", "cellb", "cellc"),
        "distance",
    ),
    **dict.fromkeys(("fmax", "fnorm"), "force"),
    "density": "density",
}
_FIXED = {
    **dict.fromkeys(("step", "elapsed", "elaplong", "part", "nbuild", "ndanger"), "1"),
    **dict.fromkeys(("cpu", "cpuremain", "timeremain"), "s"),
    "atoms": "1",
    "spcpu": "timesteps/s",
}


def canonical(name: str) -> str:
    """The thermo keyword behind a column header or one of its usual spellings.

    Args:
        name: Any spelling; what is not a keyword (computes, fixes, variables) comes back unchanged.

    Returns:
        The keyword, e.g. `etotal`.

    Example:
        >>> canonical("TotEng"), canonical("E_tot"), canonical("v_Etot")
        ('etotal', 'etotal', 'v_Etot')
    """
    lower = name.lower()
    if lower in _KEYWORDS:
        return _KEYWORDS[lower]
    if lower in _ENERGIES or lower in _KINDS or lower in _FIXED or lower in _OTHER_KEYWORDS:
        return lower
    return name


_OTHER_KEYWORDS = frozenset(("vol", "tpcpu", "cellalpha", "cellbeta", "cellgamma"))


def unit_of(keyword: str, units: str | None, normalized: bool | None) -> str | None:
    """Unit of a thermo keyword in a `units` style; None where LAMMPS does not say."""
    if keyword in _FIXED:
        return _FIXED[keyword]
    if keyword in ("cellalpha", "cellbeta", "cellgamma") or units not in STYLES:
        return None
    style = unit_style(units)
    if keyword == "vol":
        return f"{style.distance}^3"
    if keyword in _ENERGIES:
        if normalized is None:
            return None
        return f"{style.energy}/atom" if normalized else style.energy
    if keyword in _KINDS:
        unit: str | None = getattr(style, _KINDS[keyword])
        return unit
    return None


def column_units(column: str, units: str | None) -> tuple[str, ...]:
    """Units in which LAMMPS may print a thermo column; empty where it does not say.

    Args:
        column: Keyword or header of the column.
        units: The script's units style.

    Returns:
        One unit, or two for energies: of the whole system, and per atom (`thermo_modify norm`).

    Example:
        >>> column_units("Press", "metal"), column_units("PotEng", "real"), column_units("c_own", "real")
        (('bar',), ('kcal/mol', 'kcal/mol/atom'), ())
    """
    found = (unit_of(canonical(column), units, normalized) for normalized in (False, True))
    return tuple(dict.fromkeys(unit for unit in found if unit is not None))
