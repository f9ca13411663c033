"""Experiments on the theory: every claim of the theorems that can be put to a test, with confidence intervals.

`STUDIES` names them; `docom study NAME` runs one. `replicas` makes many independent runs in one, `quadratics` and `settings`
hold problems whose constants are known, `recursion`, `rates` and `influences` the studies, `figures` draws them.
"""

from __future__ import annotations

from docom.study.catalogue import STUDIES, Study, find, write

__all__ = ["STUDIES", "Study", "find", "write"]
