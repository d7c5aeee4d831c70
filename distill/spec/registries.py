"""The extension points of the distillation package: one file with one function of its name.

distill/methods/NAME.py     what a teacher is asked, which rows that makes, which stages learn from them
distill/filters/NAME.py     Record -> keep, or the reason why not
distill/select/NAME.py      which of the kept answers to one prompt are learnt
"""

from __future__ import annotations

from ttc.config.plugins import PluginShape
from ttc.config.registry import Registry

METHODS = Registry("method", "distill.methods", "ttc.methods", PluginShape(("distill.spec.method:Method",)))
FILTERS = Registry("filter", "distill.filters", "ttc.filters", PluginShape(("distill.data.pipeline:Filter",)))
SELECTORS = Registry("selector", "distill.select", "ttc.selectors", PluginShape(("distill.data.pipeline:Selector",)))
