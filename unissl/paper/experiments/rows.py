"""The rows of the paper's tables: methods, and forms of SAGE."""

from __future__ import annotations

from typing import Any

from unissl.paper.experiments.experiment import Variant

TITLES = {
    "fully-supervised": "CE", "logit-adjust": "LA", "fixmatch": "FixMatch", "freematch": "FreeMatch",
    "softmatch": "SoftMatch", "cgmatch": "CGMatch", "acr": "ACR", "simpro": "SimPro", "cdmad": "CDMAD",
    "meta-expert": "Meta-Expert", "cpg": "CPG", "sage": "SAGE", "ssb": "SSB", "scomatch": "SCOMatch",
    "calimatch": "CaliMatch",
}  # fmt: skip


def row(method: str, name: str | None = None, title: str | None = None, **settings: Any) -> Variant:
    """A method as it is by default, or with some of its settings changed."""
    return Variant(name or method, title or TITLES[method], {"method": {"name": method, **settings}})


def rows(*methods: str) -> tuple[Variant, ...]:
    return tuple(row(method) for method in methods)


def sage(name: str, title: str, **settings: Any) -> Variant:
    return row("sage", name, title, **settings)


SAGE = row("sage")
ALL_TWELVE = rows(
    "fully-supervised", "logit-adjust", "fixmatch", "freematch", "softmatch", "cgmatch", "acr", "simpro", "cdmad",
    "meta-expert", "cpg", "sage",
)  # fmt: skip
FIVE = rows("fixmatch", "cgmatch", "meta-expert", "cpg", "sage")
ABLATION = (
    sage("v1", "V1: none", auxiliary=False, weighting="none", contrastive=False, consistency=False),
    sage("v2", "V2: AB", weighting="none", contrastive=False, consistency=False),
    sage("v3", "V3: AB, DRP", contrastive=False, consistency=False),
    sage("sage", "V4: AB, DRP, GRI"),
)
"""What AB, DRP and GRI each add. V1 is not defined further in the paper; here its pseudo-labels, all of weight one,
train the primary head."""
